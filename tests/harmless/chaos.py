"""Kills workers, agents and nodes at random: ``python -m tests.harmless.chaos [--minutes 60] [--seed 1]``.

Programs of several ranks run on two nodes, and one more agent stands by; with states that are kept at a
fault, copies in memory and second copies. Each has to end with the bits of the same program that was left
alone. A node is an agent with its workers and its directory in this machine's memory.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from tests.harmless import warm
from tests.harmless.trial import Pace, PlannedError, Trial
from tests.harmless.verdict import told

PROGRAMS = ("ddp", "fsdp2", "ddp_counters", "experts_by_rank", "sync_batch_stats", "local_sgd")
NODES, AGENTS, RANKS = 2, 3, 2
PACE = Pace(240, 0.01)
SAVE_EVERY = 60
MOST_FAULTS = 7
LIMIT_S = 400.0
_LOOK_S = 0.02
_SIGNALS = {"kill": signal.SIGKILL, "raise": signal.SIGUSR1, "end": signal.SIGTERM}


def be_rank(name: str, folder: str) -> None:
    """Be a rank of a program below an agent; on SIGUSR1 it raises, wherever it is."""
    from hpc_elastic.frameworks.torch import Checkpoints  # noqa: PLC0415 - loads PyTorch
    from tests.harmless.processes import join, run_trial  # noqa: PLC0415 - as above
    from tests.harmless.programs import find  # noqa: PLC0415 - as above

    def fail(*_: Any) -> None:
        raise PlannedError("a fault at any place")

    signal.signal(signal.SIGUSR1, fail)
    place = Path(folder)
    channel = os.environ["HPC_ELASTIC_CHANNEL"]
    facts = [int(os.environ["HPC_ELASTIC_ROUND"]), os.getpid(), os.path.dirname(channel)]
    (place / f"rank-{os.environ['RANK']}").write_text(json.dumps(facts))
    join(place)
    run_trial(find(name), Trial(place, (), lambda: Checkpoints(every=SAVE_EVERY, replicas=1), PACE))


def _agent(name: str, place: Path) -> None:
    from hpc_elastic.launcher import LaunchConfig, elastic_launch  # noqa: PLC0415 - after the fork

    config = LaunchConfig(
        min_nodes=NODES,
        max_nodes=NODES,
        nproc_per_node=RANKS // NODES,
        run_id="chaos",
        rdzv_backend="shared_fs",
        rdzv_endpoint=str(place / "runs"),
        max_restarts=1000,
        start_method="fork",
    )
    elastic_launch(config, be_rank)(name, str(place))


def _alone(name: str, place: Path) -> None:
    from tests.harmless.processes import join, run_trial  # noqa: PLC0415 - loads PyTorch
    from tests.harmless.programs import find  # noqa: PLC0415 - as above

    os.environ.update({"WORLD_SIZE": str(RANKS)})

    def rank(number: int) -> None:
        os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(number)
        join(place)
        run_trial(find(name), Trial(place, (), None, Pace(PACE.steps)))

    for child in [_forked(place, partial(rank, number)) for number in range(RANKS)]:
        os.waitpid(child, 0)


def _forked(place: Path, act: Callable[[], None]) -> int:
    """Run something in a child with a log; return its process."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.setsid()
        log = os.open(place / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(log, stream)
        os.chdir(place)
        act()
        code = 0
    except BaseException:  # noqa: BLE001 - the child must not return into its parent's code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class ChaosRun:
    """One run of a program.

    Args:
        name: of the program.
        place: a directory.
        draw: gives the faults.
    """

    def __init__(self, name: str, place: Path, draw: random.Random) -> None:
        self._name, self._place, self._draw = name, place, draw
        self._agents: list[int] = []
        self.faults: list[str] = []
        self.begun: dict[int, str] = {}  # by round, the source of the state that it has begun from
        self.is_over = False

    def run(self) -> None:
        """Let it run to its end, with faults."""
        self._agents = [self._start() for _ in range(AGENTS)]
        until = time.monotonic() + LIMIT_S
        left, struck, due = self._draw.randint(2, MOST_FAULTS), 0, 0.0
        while time.monotonic() < until and not self._look():
            newest = max((one[0] for one in self._ranks().values()), default=0)
            if newest > struck and left:
                struck, due, left = newest, time.monotonic() + self._draw.uniform(0.0, 2.5), left - 1
            if due and time.monotonic() > due:
                due = 0.0
                for _ in range(self._draw.choice([1, 1, 1, 2])):
                    self._strike()
                    time.sleep(self._draw.choice([0.0, 0.01, 0.1]))
            time.sleep(_LOOK_S)
        self._end()

    def _start(self) -> int:
        return _forked(self._place, lambda: _agent(self._name, self._place))

    def _look(self) -> bool:
        """Start agents for those that are gone; return whether the run is over."""
        with suppress(OSError, ValueError):  # the run makes and removes directories meanwhile
            for path in self._place.glob("runs/**/began.json"):
                began = json.loads(path.read_text())
                self.begun[began["round"]] = began["source"]
        for number, pid in enumerate(self._agents):
            if pid and os.waitpid(pid, os.WNOHANG)[0]:
                self.is_over = all(one is not None for one in told(self._place, RANKS).ends)
                self._agents[number] = 0 if self.is_over else self._start()
        return self.is_over and not any(self._agents)

    def _ranks(self) -> dict[int, list[Any]]:
        """Return round, process and folder in memory of each rank."""
        found = {}
        for path in self._place.glob("rank-*"):
            with suppress(OSError, ValueError):
                found[int(path.name.removeprefix("rank-"))] = json.loads(path.read_text())
        return found

    def _strike(self) -> None:
        ranks = self._ranks()
        if self.is_over or not ranks:
            return
        rank = self._draw.choice(sorted(ranks))
        _, worker, folder = ranks[rank]
        kind = self._draw.choice(["kill", "kill", "raise", "end", "agent", "node", "node", "wipe"])
        agent = _parent_of(worker)
        if agent not in self._agents:
            return  # it is gone already
        self.faults.append(f"{kind} {rank}")
        if kind in _SIGNALS:
            _send(worker, _SIGNALS[kind])
        if kind in {"agent", "node"}:
            _send(agent, signal.SIGKILL)
        if kind == "node":
            _send(worker, signal.SIGKILL)
            shutil.rmtree(folder, ignore_errors=True)
        if kind == "wipe":
            for path in Path(folder).glob("[rco][eow]*"):  # states and values; the channels stay
                path.unlink(missing_ok=True)

    def _end(self) -> None:
        """Kill what is left."""
        ranks = self._ranks().values()
        for pid in filter(None, self._agents):
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        for _, worker, folder in ranks:
            if self.is_over or _parent_of(worker) in {0, 1}:
                shutil.rmtree(folder, ignore_errors=True)


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _parent_of(pid: int) -> int:
    """Return the process that has started another one; 0: that is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


class Chaos:
    """Runs of programs, and what has come of them.

    Args:
        seed: gives the faults.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._expected: dict[str, tuple[str | None, ...]] = {}
        self._sources, self._faults = Counter[str](), Counter[str]()
        self.runs = self.wrong = 0

    def try_one(self, name: str) -> None:
        """Run a program, and print what has come of it."""
        place = Path(tempfile.mkdtemp(prefix="chaos-"))
        if name not in self._expected:
            (place / "bare").mkdir()
            os.waitpid(_forked(place / "bare", partial(_alone, name, place / "bare")), 0)
            self._expected[name] = told(place / "bare", RANKS).ends
        run = ChaosRun(name, place, random.Random(f"{self._seed}/{self.runs}"))
        run.run()
        ends, expected = told(place, RANKS).ends, self._expected[name]
        is_right = None not in ends and ends == expected
        begun = [run.begun[one] for one in sorted(run.begun)]
        end = "equal" if is_right else "OTHERWISE"
        print(f"{self.runs} {name}: {end}; {', '.join(run.faults)}; from {', '.join(begun)}", flush=True)
        self._sources.update(begun[1:])
        self._faults.update(one.split()[0] for one in run.faults)
        self.runs += 1
        if is_right:
            shutil.rmtree(place)
        else:
            self.wrong += 1
            print(f"  {ends}, not {expected}; {place}", flush=True)

    def text(self) -> str:
        """Return a line about all runs."""
        faults, sources = dict(self._faults), dict(self._sources)
        return f"{self.runs} runs, {self.wrong} wrong; faults {faults}; rounds began from {sources}"


def main(words: Sequence[str] | None = None) -> int:
    """Run programs for some time; return 1 if one has ended otherwise."""
    parser = argparse.ArgumentParser(prog="python -m tests.harmless.chaos", description=__doc__)
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", default=PROGRAMS)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(words)
    warm.prepare()
    chaos, until = Chaos(options.seed), time.monotonic() + options.minutes * 60
    while not chaos.runs or time.monotonic() < until:
        chaos.try_one(options.programs[chaos.runs % len(options.programs)])
    print(chaos.text())
    return 1 if chaos.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
