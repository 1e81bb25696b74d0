"""The measures: each starts real agents and returns one number per repetition."""

from __future__ import annotations

import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench_lib.answers import answers
from bench_lib.command_starts import command_starts
from bench_lib.first_start import first_start
from bench_lib.group import Group, environment, is_alive
from bench_lib.kills import kills
from bench_lib.launchers import HPC_ELASTIC, Effort, Launcher, Samples, Shape
from bench_lib.one_file import floor, from_one_file
from bench_lib.recovery import recovery
from bench_lib.tee import output

SETTLE_S = 1.0
MB = 1e6
GUARD = "hpc-guard"  # the name of the process beside an agent that ends its workers if it is killed


FULL = Effort(repetitions=7, long_repetitions=3, idle_s=20.0)
QUICK = Effort(repetitions=3, long_repetitions=1, idle_s=5.0)


def start(launcher: Launcher, effort: Effort) -> Samples:
    """Agent started -> first line of its only worker [s]; memory of that agent, and with its guard [MB]."""
    first_line: list[float] = []
    memory: Samples = {"rss_mb": [], "pss_mb": [], "all_rss_mb": [], "all_pss_mb": []}
    for _ in range(effort.repetitions):
        with Group(launcher, Shape(agents=1, workers=1)) as group:
            first_line.append(group.wait_for_workers()[0].started_s - group.started_s)
            time.sleep(SETTLE_S)
            agent = group.agents[0].pid
            guards = [child for child in _children(agent) if _name(child) == GUARD]
            parts = [_memory_mb(pid) for pid in (agent, *guards)]
            for kind in ("Rss", "Pss"):
                memory[f"{kind.lower()}_mb"].append(parts[0][kind])
                memory[f"all_{kind.lower()}_mb"].append(sum(part[kind] for part in parts))
    return {"first_line_s": first_line, **memory}


def one_file(launcher: Launcher, effort: Effort) -> Samples:
    """The same from one file, as a submitted job starts, in turns with a bare Python; of ours alone."""
    if launcher.name != HPC_ELASTIC.name:
        return {}
    samples: Samples = {"one_file_s": [], "floor_s": [], "installed_s": [], "times_floor": []}
    with from_one_file(launcher) as ours:
        for _ in range(effort.repetitions):
            ways = (("installed_s", launcher), ("one_file_s", ours), ("floor_s", floor(launcher)))
            for name, one in ways:
                with Group(one, Shape(agents=1, workers=1)) as group:
                    samples[name].append(group.wait_for_workers()[0].started_s - group.started_s)
        if shutil.which("strace"):
            calls, opened = _metadata_calls(ours, effort)
            samples.update(one_file_calls=calls, one_file_opened=opened)
    samples["times_floor"] = [
        statistics.median(samples["one_file_s"]) / statistics.median(samples["floor_s"])
    ]
    return samples


def idle(launcher: Launcher, effort: Effort) -> Samples:
    """CPU [ms/s] and voluntary context switches [1/s] of an agent of two; the busier one counts."""
    cpu, wakeups = [], []
    for _ in range(effort.long_repetitions):
        with Group(launcher, Shape(agents=2, workers=4)) as group:
            group.wait_for_workers()
            time.sleep(SETTLE_S)
            before = [_activity(agent.pid) for agent in group.agents]
            began_s = time.monotonic()
            time.sleep(effort.idle_s)
            after = [_activity(agent.pid) for agent in group.agents]
            took_s = time.monotonic() - began_s
        cpu.append(max((new[0] - old[0]) * 1e3 for old, new in zip(before, after, strict=True)) / took_s)
        wakeups.append(max(new[1] - old[1] for old, new in zip(before, after, strict=True)) / took_s)
    return {"idle_cpu_ms_per_s": cpu, "idle_wakeups_per_s": wakeups}


def metadata_calls(launcher: Launcher, effort: Effort) -> Samples:
    """File-system metadata calls of the agent's main thread until its worker runs.

    Counted are the system calls that name a file, and getdents64; its children are not counted.
    """
    calls, opened = _metadata_calls(launcher, effort)
    return {"metadata_calls": calls, "opened_files": opened}


# glibc before 2.39 asks for the state of an open file by `newfstatat(3, "", ...)`, which names no file
_NAMES_FILE = r'^\w+(?=\()(?!\(\d+, "")'


def _metadata_calls(launcher: Launcher, effort: Effort) -> tuple[list[float], list[float]]:
    """Return the calls of each start, and how many of them open a file."""
    calls, opened = [], []
    for _ in range(effort.long_repetitions):
        with tempfile.NamedTemporaryFile(mode="r") as trace:
            wrap = ("strace", "-qq", "-e", "trace=%file,getdents64", "-o", trace.name)
            with Group(launcher, Shape(agents=1, workers=1), wrap=wrap) as group:
                group.wait_for_workers()
                for pid in _children(group.agents[0].pid):
                    os.kill(pid, signal.SIGKILL)
                group.agents[0].wait()
            lines = re.findall(_NAMES_FILE, trace.read(), flags=re.MULTILINE)
        calls.append(float(len(lines)))
        opened.append(float(sum(call.startswith("open") for call in lines)))
    return calls, opened


def four_agents(launcher: Launcher, effort: Effort) -> Samples:
    """Four agents started at once -> all four workers run [s], whole and less the imports.

    The imports are measured as four interpreters started at once that only import, in turns with the
    agents; the difference is that of the medians.
    """
    cold, imports = [], []
    for _ in range(effort.repetitions):
        with Group(launcher, Shape(agents=4, workers=1)) as group:
            cold.append(group.wait_for_workers()[-1].started_s - group.started_s)
        imports.append(_import_s(launcher, 4))
    joined = statistics.median(cold) - statistics.median(imports)
    return {"four_agents_cold_s": cold, "four_imports_s": imports, "four_agents_s": [joined]}


def replace_workers(launcher: Launcher, effort: Effort) -> Samples:
    """A worker is killed -> all eight workers of two agents are replaced [s]."""
    took = []
    with Group(launcher, Shape(agents=2, workers=4)) as group:
        workers = group.wait_for_workers()
        for repetition in range(effort.repetitions):
            time.sleep(SETTLE_S)
            died_s = time.monotonic()
            os.kill(workers[repetition % len(workers)].pid, signal.SIGKILL)
            workers = group.wait_for_workers(after_s=died_s)
            took.append(workers[-1].started_s - died_s)
    return {"replaced_s": took}


def orphans(launcher: Launcher, effort: Effort) -> Samples:
    """Workers (of two) that live one second after SIGKILL of their agent."""
    left = []
    for _ in range(effort.long_repetitions):
        with Group(launcher, Shape(agents=1, workers=2)) as group:
            workers = group.wait_for_workers()
            group.agents[0].kill()
            time.sleep(SETTLE_S)
            left.append(float(sum(is_alive(worker.pid) for worker in workers)))
    return {"orphans": left}


def join(launcher: Launcher, effort: Effort) -> Samples:
    """A third agent starts beside two -> a world of three runs [s]."""
    took = []
    for _ in range(effort.long_repetitions):
        with Group(launcher, Shape(agents=2, workers=1, nnodes="2:3")) as group:
            group.wait_for_workers()
            time.sleep(SETTLE_S)
            began_s = time.monotonic()
            group.start_agent(2)
            took.append(group.wait_for_workers(began_s, agents=3)[-1].started_s - began_s)
    return {"joined_s": took}


def node_lost(launcher: Launcher, effort: Effort) -> Samples:
    """An agent of three and its workers are killed -> a world of two runs [s]."""
    took = []
    for _ in range(effort.long_repetitions):
        with Group(launcher, Shape(agents=3, workers=1, nnodes="2:3")) as group:
            group.wait_for_workers()
            time.sleep(SETTLE_S)
            lost_s = group.lose_agent(2)
            took.append(group.wait_for_workers(lost_s, agents=2)[-1].started_s - lost_s)
    return {"node_lost_s": took}


def quorum(launcher: Launcher, effort: Effort) -> Samples:
    """Two agents of 1:3 start in a job of two nodes -> a world of two runs [s]."""
    took = []
    for _ in range(effort.long_repetitions):
        with Group(launcher, Shape(agents=2, workers=1, nnodes="1:3", in_job=True)) as group:
            took.append(group.wait_for_workers()[-1].started_s - group.started_s)
    return {"quorum_s": took}


def last_failure(launcher: Launcher, effort: Effort) -> Samples:
    """A worker dies and no restarts are left -> both agents have ended [s]."""
    took = []
    for _ in range(effort.long_repetitions):
        with Group(launcher, Shape(agents=2, workers=2, max_restarts=0)) as group:
            workers = group.wait_for_workers()
            time.sleep(SETTLE_S)
            died_s = time.monotonic()
            os.kill(workers[-1].pid, signal.SIGKILL)
            took.append(group.wait_for_end() - died_s)
    return {"ended_s": took}


def tee(launcher: Launcher, effort: Effort) -> Samples:
    """Workers that print much, to files and to the console; see `bench_lib.tee`."""
    return output(launcher, effort.repetitions)


MEASURES: dict[str, Callable[[Launcher, Effort], Samples]] = {
    "start": start,
    "idle": idle,
    "metadata": metadata_calls,
    "one-file": one_file,
    "four-agents": four_agents,
    "replace": replace_workers,
    "orphans": orphans,
    "tee": tee,
    "recovery": recovery,
    "kills": kills,
    "commands": answers,
    "command-starts": command_starts,
    "first-start": first_start,
    "last-failure": last_failure,
    "join": join,
    "quorum": quorum,
    "node-lost": node_lost,
}
SLOW = (
    "commands",
    "first-start",
    "last-failure",
    "join",
    "quorum",
    "node-lost",
    "recovery",
    "kills",
)  # torchrun takes up to a minute or fails


def warm_up(launcher: Launcher) -> None:
    """Start one agent once, so that everything is compiled and in the page cache."""
    with Group(launcher, Shape(agents=1, workers=1)) as group:
        group.wait_for_workers()


def _memory_mb(pid: int) -> dict[str, float]:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = re.findall(r"^(Rss|Pss): +(\d+) kB", text, flags=re.MULTILINE)
    return {name: int(kib) * 1024 / MB for name, kib in found}


def _activity(pid: int) -> tuple[float, int]:
    """Return CPU time [s] and voluntary context switches of all threads of a process."""
    cpu_s, switches = 0.0, 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        cpu_s += int((thread / "schedstat").read_text().split()[0]) / 1e9
        status = (thread / "status").read_text()
        switches += int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return cpu_s, switches


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _import_s(launcher: Launcher, at_once: int) -> float:
    environ = environment(Path(os.devnull))
    began_s = time.monotonic()
    argv = [sys.executable, "-c", launcher.imports]
    importers = [subprocess.Popen(argv, env=environ) for _ in range(at_once)]
    for importer in importers:
        if importer.wait() != 0:
            raise RuntimeError(f"cannot import what {launcher.name} imports: {launcher.imports}")
    return time.monotonic() - began_s
