"""Real agents on this machine, each playing a node."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hpc_elastic.clock import SystemClock
from hpc_elastic.isolated.argv import own_argv
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import RoundFormed
from hpc_elastic.record.run_log import read_records, read_state
from hpc_elastic.record.state import RunState
from hpc_elastic.slurm.run_jobs.submissions import Submission, record

LIMIT_S = 120.0
QUICK = ("--heartbeat-interval", "0.2", "--lease", "1.2")

REPORT = """
import json, os, sys
names = [name for name in os.environ if name in ("RANK", "MASTER_ADDR", "MASTER_PORT") or "WORLD" in name
         or "RANK" in name or "ROLE" in name or "ELASTIC" in name]
facts = {name: os.environ[name] for name in names} | {"pid": os.getpid(), "args": sys.argv[1:]}
place = os.path.join(os.environ["HPC_ELASTIC_RUN_DIR"], "logs")
file = os.path.join(place, "worker." + os.environ["HPC_ELASTIC_ROUND"] + "." + os.environ["RANK"])
open(file + ".tmp", "w").write(json.dumps(facts))
os.rename(file + ".tmp", file)
"""
"""Start of every worker here: it leaves its environment and pid in the run directory."""


class Agents:
    """Agents that meet in one run directory.

    Args:
        root: the run directory.
        worker: source of the workers' script, after `REPORT`.
    """

    def __init__(self, root: Path, worker: str) -> None:
        self.paths = RunPaths(root)
        self._script = root.with_suffix(".py")
        self._script.write_text(REPORT + worker)
        self._agents: dict[int, subprocess.Popen[str]] = {}

    def submitted(self, job: str = "") -> Agents:
        """Make the run directory one that `submit` has made, for agents below its script.

        Args:
            job: the id of the job it was queued as; without one no submission is recorded.
        """
        os.makedirs(self.paths.root, mode=0o700)
        if job:
            os.mkdir(self.paths.submissions, mode=0o700)
            record(self.paths, Submission(0, "token", job))
        identity = {"format": 1, "run_id": "toy", "name": "toy"}
        Path(self.paths.identity).write_text(json.dumps(identity))
        Path(self.paths.job).write_text(json.dumps({"spec": {"name": "toy"}}))
        return self

    def start(
        self, node: int, *flags: str, env: Mapping[str, str] | None = None, args: tuple[str, ...] = ()
    ) -> subprocess.Popen[str]:
        """Start the agent of a node, by default with two workers; `args` are those of the workers' script."""
        argv = [
            *(*own_argv(sys.executable), "run", "--run-dir", self.paths.root),
            *("--node-rank", str(node), "--nproc-per-node", "2", *QUICK, *flags, str(self._script), *args),
        ]
        return self._run(node, argv, env)

    def _run(self, node: int, argv: list[str], env: Mapping[str, str] | None) -> subprocess.Popen[str]:
        """Start the program that stands for a node."""
        started = subprocess.Popen(
            argv,
            env={**os.environ, **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._agents[node] = started
        return started

    def end(self) -> None:
        """End whatever still runs."""
        for agent in self._agents.values():
            if agent.poll() is None:
                agent.send_signal(signal.SIGCONT)
                agent.kill()
            agent.communicate()

    def code(self, node: int) -> int:
        """Wait for an agent's end and return its exit code."""
        return self._agents[node].wait(LIMIT_S)

    def output(self, node: int) -> str:
        """Wait for an agent's end and return what it printed."""
        return self._agents[node].communicate(timeout=LIMIT_S)[0]

    def state(self) -> RunState:
        """Return the state of the run."""
        return read_state(self.paths)

    def entries(self, kind: type) -> list[Any]:
        """Return the journal's entries of one kind."""
        return [record.entry for record in read_records(self.paths) if isinstance(record.entry, kind)]

    def rounds(self) -> list[RoundFormed]:
        """Return the rounds of the run."""
        return self.entries(RoundFormed)

    def workers(self, number: int) -> list[dict[str, Any]]:
        """Return what the workers of a round have left, by rank."""
        files = [
            file
            for file in Path(self.paths.logs).glob(f"worker.{number}.*")
            if file.suffix.removeprefix(".").isdigit()
        ]
        return sorted((json.loads(file.read_text()) for file in files), key=lambda facts: int(facts["RANK"]))

    def wait_workers(self, number: int, count: int) -> list[dict[str, Any]]:
        """Wait until so many workers of a round run and return what they have left."""
        wait_for(lambda: len(self.workers(number)) == count, f"{count} workers of round {number}")
        return self.workers(number)


def wait_for(predicate: Callable[[], bool], what: str) -> None:
    """Poll until `predicate` holds; fails after `LIMIT_S`."""
    clock = SystemClock()
    deadline = clock.monotonic() + LIMIT_S
    while not predicate():
        assert clock.monotonic() < deadline, f"waited {LIMIT_S} s in vain for {what}"
        clock.sleep(0.01)


def is_running(pid: int) -> bool:
    """Tell whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter while it is being read
        return False


def gone(workers: list[dict[str, Any]]) -> bool:
    """Tell whether none of these workers runs."""
    return not any(is_running(worker["pid"]) for worker in workers)


SLEEP = "import time; time.sleep(600)"

STEPS = """
import sys, time
from hpc_elastic import worker
start = worker.latest_checkpoint()
step = start.step if start else 0
while True:
    time.sleep(0.01 * (1 + int(os.environ["RANK"])))
    step += 1
    worker.tick(step)
    stop = worker.should_stop()
    open(file + ".asks", "w").close()
    if stop:
        if os.environ["RANK"] == "0":
            worker.checkpoint_saved(step)
        open(file + ".stopped", "w").write(str(step))
        break
"""


def crash(rounds: str, code: str, then: str = "") -> str:
    """Return a worker whose rank 3 runs `code` in some rounds; the others sleep, or do `then`."""
    return f"""
import time
if os.environ["RANK"] == "3" and os.environ["HPC_ELASTIC_ROUND"] in {rounds!r}.split():
    {code}
elif os.environ["HPC_ELASTIC_ROUND"] in {rounds!r}.split():
    {SLEEP}
{then}
"""


MakeAgents = Callable[[str], Agents]


def slurm(node: str, nodes: str) -> dict[str, str]:
    """Return the environment of a task that srun has started on a node."""
    return {
        "SLURM_JOB_ID": "77",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_JOB_NODELIST": nodes,
        "SLURMD_NODENAME": node,
        "HPC_ELASTIC_SUBMISSION": "0",
    }
