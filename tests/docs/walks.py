"""The walks of docs/architecture.md, counted: calls, functions, files and changes of room on the way.

``python -m tests.docs.walks`` queues a job of three nodes on the fake Slurm, preempts it and prints a table.
Each command of the package runs below `sys.setprofile`. Only calls of named functions of the package count.
A room is a folder or a module right below ``hpc_elastic``. Two calls in a row in different rooms are a change
of room. Of the nodes that take a walk, the one with the most calls counts.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Any, NamedTuple

NODES = 3
WORKER = """
import time
from hpc_elastic import worker
for step in range(10**6):
    worker.tick(step + 1)
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


WALKS = (
    Walk("`submit` → sbatch", "submit", "cli/commands/submit.py:submit", "slurm/client/commands.py:sbatch"),
    Walk("`run` main → worker spawned", "run", "", "processes/process.py:spawn"),
    Walk("SIGTERM → agent leaves", "run", "node/loop.py:_note"),
    Walk("`finish`", "finish"),
)


class Count(NamedTuple):
    """The size of a walk."""

    calls: int
    functions: int
    files: int
    rooms: int  # changes of room


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
        self._calls: list[tuple[str, int]] = []  # file and first line of each function

    def see(self, frame: FrameType, event: str, _arg: Any) -> None:
        """Take note of a call, as `sys.setprofile` reports it."""
        code = frame.f_code
        if self._is_over or event != "call" or not self._is_counted(code):
            return
        name = f"{code.co_filename.removeprefix(self._package)}:{code.co_name}"
        self._is_on = self._is_on or name == self._walk.begin
        if self._is_on:
            self._calls.append((code.co_filename, code.co_firstlineno))
        self._is_over = self._is_on and name == self._walk.end

    def _is_counted(self, code: CodeType) -> bool:
        is_function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
        return bool(is_function) and code.co_filename.startswith(self._package)

    def _room(self, file: str) -> str:
        return file.removeprefix(self._package).partition(os.sep)[0]

    def count(self) -> Count:
        """Return the counts."""
        files = [file for file, _ in self._calls]
        changes = sum(self._room(one) != self._room(other) for one, other in pairwise(files))
        return Count(len(self._calls), len(set(self._calls)), len(set(files)), changes)


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
            path.write_text(json.dumps(counter.count()), encoding="utf-8")


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


def measure(directory: Path) -> list[Count]:
    """Return the counts of all walks.

    Args:
        directory: for the fake Slurm and the run.
    """
    from hpc_elastic.testing.fake_slurm import FakeSlurm, Settings  # noqa: PLC0415 - not for the traced

    counts = directory / "counts"
    counts.mkdir()
    (directory / "train.py").write_text(WORKER, encoding="utf-8")
    with FakeSlurm(directory / "slurm", Settings(nodes=NODES)) as slurm:
        os.environ.update(slurm.environ)
        run_dir = directory / "run"
        words = ["submit", "--nodes", str(NODES), "--python", _interpreter(directory, counts)]
        words += [
            "--run-dir",
            str(run_dir),
            "--allow-local-run-dir",
            "--cpus-per-node",
            "1",
            "--time",
            "1h",
            "--",
            "train.py",
        ]
        os.chdir(directory)
        traced(str(counts), words)
        (job,) = slurm.command("squeue", "-h", "-o", "%A").split()
        slurm.wait_for(lambda: _ticks(run_dir), 120, "the workers")
        slurm.submit_high(NODES)
        slurm.wait_for(lambda: len(list(counts.glob("3.*"))) > 0, 120, "finish")
        slurm.command("scancel", job)
    return [_most(counts, number) for number in range(len(WALKS))]


def _ticks(run_dir: Path) -> bool:
    return len(list((run_dir / "logs").glob("attempt_1/*"))) >= NODES


def _most(counts: Path, number: int) -> Count:
    found = [Count(*json.loads(path.read_text(encoding="utf-8"))) for path in counts.glob(f"{number}.*")]
    return max(found)


def main(show: Callable[[str], None]) -> None:
    """Print the table."""
    with TemporaryDirectory() as directory:
        found = measure(Path(directory))
    show("| walk | calls | functions | files | changes of room |\n|---|---|---|---|---|")
    for walk, count in zip(WALKS, found, strict=True):
        show(f"| {walk.name} | {' | '.join(f'{number:,}' for number in count)} |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["traced"]:
        sys.path[0] = str(Path(__file__).parents[2])
        sys.exit(_child(sys.argv[2], sys.argv[3:]))
    main(print)
