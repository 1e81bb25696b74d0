"""The walks of docs/architecture.md, counted: calls, functions, files and changes of room on the way.

``python -m tests.docs.walks`` queues two jobs of three nodes on the fake Slurm, preempts the first, powers
off a node of the second, and prints a table. ``--edges N`` prints the N most frequent changes of room of each
walk below it, as ``function before -> function after (its caller)``; ``--runs N``
prints the median of N runs, and the least of them: a busy machine adds turns of the agent's loop.
Each command of the package runs below `sys.setprofile`. Only calls of named functions of the package count.
A room is a folder or a module right below ``hpc_elastic``. Two calls in a row in different rooms are a change
of room. Of the nodes that take a walk, the one with the most calls counts.
"As before" leaves out calls of the methods of `hpc_elastic.named_tuple`: at commit b1f3941 these were the
standard library's, and did not count.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from argparse import ArgumentParser
from collections import Counter as Tally
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from hpc_elastic.testing.fake_slurm import FakeSlurm

NODES = 3
_RECORD_TYPES = "named_tuple.py"
WORKER = """
import time
from hpc_elastic import worker
for step in range(10**6):
    worker.tick(step + 1)
    print(step, flush=True)
    if worker.should_stop():
        break
    time.sleep(0.05)
"""


class Walk(NamedTuple):
    """A part of a command: from one function of the package to another."""

    name: str
    command: str
    begin: str = ""  # FILE:FUNCTION whose call begins it; empty: with the command
    end: str = ""  # FILE:FUNCTION whose call ends it; empty: with the command


_SPAWN = "processes/process.py:spawn"
_REPORT_LOSS = "node/setup/journal_entries.py:loss"
WALKS = (
    Walk(
        "`submit` → sbatch",
        "submit",
        "cli/commands/submitting/submit.py:submit",
        "slurm/client/commands.py:sbatch",
    ),
    Walk("`run` main → worker spawned", "run", "", _SPAWN),
    Walk("SIGTERM → agent leaves", "run", "node/loop.py:_note"),
    Walk("`finish`", "finish"),
    Walk(
        "node loss reported → new worker",
        "run",
        "node/setup/journal_entries.py:loss",
        "processes/process.py:spawn",
    ),
)
FINISH, LOSS = 3, 4  # their places


class Count(NamedTuple):
    """The size of a walk."""

    calls: int
    functions: int
    files: int
    rooms: int  # changes of room
    as_before: int  # the same without calls of the methods of record types


class Call(NamedTuple):
    """A call of a named function of the package."""

    file: str
    line: int  # where the function begins
    function: str
    caller: str  # FILE:FUNCTION of the package; empty if another program calls

    @property
    def room(self) -> str:
        """The first folder, or the module right below the package."""
        return self.file.partition(os.sep)[0]

    @property
    def name(self) -> str:
        """``FILE:FUNCTION``."""
        return f"{self.file}:{self.function}"


class Counter:
    """Counts the calls of one walk.

    Args:
        walk: begins and ends by the names of functions.
        package: the folder of the package.
    """

    def __init__(self, walk: Walk, package: str) -> None:
        self._walk = walk
        self._package = package + os.sep
        self._is_on = not walk.begin
        self._is_over = False
        self._calls: list[Call] = []

    def see(self, frame: FrameType, event: str, _arg: Any) -> None:
        """Take note of a call, as `sys.setprofile` reports it."""
        code = frame.f_code
        if self._is_over or event != "call" or not self._is_counted(code):
            return
        call = Call(self._file(code), code.co_firstlineno, code.co_name, self._caller(frame))
        self._is_on = self._is_on or call.name == self._walk.begin
        if self._is_on:
            self._calls.append(call)
        self._is_over = self._is_on and call.name == self._walk.end

    def _is_counted(self, code: CodeType) -> bool:
        is_function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
        return bool(is_function) and code.co_filename.startswith(self._package)

    def _file(self, code: CodeType) -> str:
        return code.co_filename.removeprefix(self._package)

    def _caller(self, frame: FrameType) -> str:
        above = frame.f_back
        while above is not None and not self._is_counted(above.f_code):
            above = above.f_back
        return "" if above is None else f"{self._file(above.f_code)}:{above.f_code.co_name}"

    def count(self) -> Count:
        """Return the counts."""
        files = {call.file for call in self._calls}
        functions = {call[:2] for call in self._calls}
        without = [call for call in self._calls if call.file != _RECORD_TYPES]
        return Count(len(self._calls), len(functions), len(files), *map(_changes, (self._calls, without)))

    def edges(self) -> dict[str, int]:
        """Return how often each change of room happened.

        Each is named as ``function before -> function after (its caller)``.
        """
        changes = (pair for pair in pairwise(self._calls) if pair[0].room != pair[1].room)
        return dict(Tally(f"{one.name} -> {other.name} ({other.caller})" for one, other in changes))


def _changes(calls: list[Call]) -> int:
    """Return how often two calls in a row are in different rooms."""
    return sum(one.room != other.room for one, other in pairwise(calls))


def traced(directory: str, argv: list[str]) -> int:
    """Run a command of the package and write the counts of its walks into a directory.

    Args:
        directory: of one file per walk and process.
        argv: the command with its arguments.
    """
    import hpc_elastic  # noqa: PLC0415 - as late as in the command itself
    from hpc_elastic.cli.main import main  # noqa: PLC0415 - the same

    package = os.path.dirname(os.path.abspath(hpc_elastic.__file__))
    walks = [walk for walk in WALKS if walk.command == argv[0]]
    counters = [Counter(walk, package) for walk in walks]

    def see(frame: FrameType, event: str, arg: Any) -> None:
        for counter in counters:
            counter.see(frame, event, arg)

    sys.setprofile(see)
    try:
        return main(argv)
    finally:
        sys.setprofile(None)
        for walk, counter in zip(walks, counters, strict=True):
            path = Path(directory) / f"{WALKS.index(walk)}.{os.getpid()}"
            new = path.with_name(f".{path.name}")  # who waits for the name finds it whole
            new.write_text(json.dumps([counter.count(), counter.edges()]), encoding="utf-8")
            new.replace(path)


def _child(directory: str, words: list[str]) -> int:
    """Stand in for the interpreter of a job: trace commands of the package, run all else."""
    at = words.index("hpc_elastic") if "hpc_elastic" in words else 0
    if words[at - 1 : at] == ["-m"]:
        return traced(directory, words[at + 1 :])
    if words[1:2] == ["-c"] and "run_module('hpc_elastic'" in words[2]:
        return traced(directory, words[3:])
    return os.execv(sys.executable, [sys.executable, *words])  # noqa: S606 - it returns only by an error


def _interpreter(directory: Path, counts: Path) -> str:
    path = directory / "python"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} traced {counts} "$@"\n', encoding="utf-8")
    path.chmod(0o755)
    return str(path)


class Found(NamedTuple):
    """The counts of a walk, and its changes of room with their numbers."""

    size: Count
    edges: dict[str, int]


def measure(directory: Path) -> list[Found]:
    """Return the counts of all walks.

    Args:
        directory: for the fake Slurm and the runs.
    """
    from hpc_elastic.testing.fake_slurm import FakeSlurm, Settings  # noqa: PLC0415 - not for the traced

    (directory / "train.py").write_text(WORKER, encoding="utf-8")
    os.chdir(directory)
    with FakeSlurm(directory / "slurm", Settings(nodes=NODES)) as slurm:
        os.environ.update(slurm.environ)
        kept = _submitted(slurm, directory / "kept")
        slurm.submit_high(NODES)
        slurm.wait_for(lambda: any(kept.counts.glob(f"{FINISH}.*")), 120, "finish")
        slurm.cancel_all()
        lost = _submitted(slurm, directory / "lost")
        slurm.crash(lost.nodes[-1])
        slurm.wait_for(lambda: _ticking(lost.run, 2) == NODES - 1, 120, "the round without the lost node")
        slurm.command("scancel", lost.job)
        slurm.wait_for(lambda: len(list(lost.counts.glob(f"{LOSS}.*"))) == NODES - 1, 120, "the agents")
    return [_most((lost if number == LOSS else kept).counts, number) for number in range(len(WALKS))]


class Submitted(NamedTuple):
    """A run whose workers run."""

    job: str
    run: Path
    counts: Path  # the folder of its counts
    nodes: list[str]


def _submitted(slurm: FakeSlurm, directory: Path) -> Submitted:
    """Submit a run that needs all nodes but one, and wait for its workers on all nodes."""
    counts, run = directory / "counts", directory / "run"
    counts.mkdir(parents=True)
    words = ["submit", "--nodes", f"{NODES - 1}:{NODES}", "--python", _interpreter(directory, counts)]
    words += ["--run-dir", str(run), "--allow-local-run-dir", "--cpus-per-node", "1", "--time", "1h"]
    traced(str(counts), [*words, "--", "train.py"])
    (job,) = slurm.command("squeue", "-h", "-o", "%A").split()
    nodes = [task.node for task in slurm.wait_tasks(job, NODES)]
    slurm.wait_for(lambda: _ticking(run, 1) == NODES, 120, "the workers")
    return Submitted(job, run, counts, nodes)


def _ticking(run: Path, attempt: int) -> int:
    """Return how many workers of a round have printed their first step."""
    logs = (run / "logs").glob(f"attempt_{attempt}/*/stdout.log")
    return sum(log.stat().st_size > 0 for log in logs)


def _most(counts: Path, number: int) -> Found:
    told = [json.loads(path.read_text(encoding="utf-8")) for path in counts.glob(f"{number}.*")]
    return max(Found(Count(*count), edges) for count, edges in told)


def median_of(runs: list[list[Found]]) -> list[Found]:
    """Return the median of each walk over some runs, by its changes of room."""
    walks = zip(*runs, strict=True)
    return [sorted(found, key=lambda one: one.size.rooms)[len(found) // 2] for found in walks]


def main(show: Callable[[str], None], words: list[str]) -> None:
    """Print the table.

    Args:
        show: prints a line.
        words: the command line.
    """
    parser = ArgumentParser(prog="python -m tests.docs.walks")
    parser.add_argument("--edges", type=int, default=0, help="changes of room to print of each walk")
    parser.add_argument("--runs", type=int, default=1, help="print the median of so many runs")
    options = parser.parse_args(words)
    runs = []
    for _ in range(options.runs):
        with TemporaryDirectory() as directory:
            runs.append(measure(Path(directory)))
    found = median_of(runs)
    least = [min(one.size.as_before for one in of_walk) for of_walk in zip(*runs, strict=True)]
    show(
        "| walk | calls | functions | files | changes of room | as before | their least |\n"
        + "|---" * 7
        + "|"
    )
    for walk, one, rooms in zip(WALKS, found, least, strict=True):
        show(f"| {walk.name} | {' | '.join(f'{number:,}' for number in (*one.size, rooms))} |")
    for walk, one in zip(WALKS, found, strict=True):
        most = Tally(one.edges).most_common(options.edges)
        show("\n".join([f"\n{walk.name}", *(f"{number:4} {edge}" for edge, number in most)]) if most else "")


if __name__ == "__main__":
    if sys.argv[1:2] == ["traced"]:
        sys.path[0] = str(Path(__file__).parents[2])
        sys.exit(_child(sys.argv[2], sys.argv[3:]))
    main(print, sys.argv[1:])
