"""Targets: what people type to look after runs, on damaged run directories."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

from hypothesis import strategies as st

from fuzz_lib.damage import Damage, damages, lay_out
from fuzz_lib.samples import STORIES, files_of, ledger_files
from fuzz_lib.slurm_here import SlurmHere, world_with
from fuzz_lib.target import Target, allowed, expect
from hpc_elastic.cli.main import main
from hpc_elastic.errors import HpcElasticError
from hpc_elastic.paths import RunPaths
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.operate.end_run import EndRun
from hpc_elastic.slurm.run_jobs import signs_of_life
from hpc_elastic.testing.fake_slurm.cluster.model import State

_DONE = re.compile(r"^\S*: done\b|^toy-1 .*\bdone\b", re.MULTILINE)
_CODES = (0, 1, 2)
_PREFIX = "hpc_elastic_fuzz"
SANE = "sane-2"
_FAST = "/dev/shm"  # noqa: S108 - a fresh directory is made in it


class FastClock:
    """A clock that sleeps in no time."""

    def __init__(self) -> None:
        self.now = 1767225700.0

    def monotonic(self) -> float:
        """Return the time slept [s]."""
        return self.now

    def wall(self) -> float:
        """Return the time slept [s since the epoch]."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass [s]."""
        self.now += seconds


class Said(NamedTuple):
    """What came of a command."""

    code: int
    out: str
    err: str


@contextmanager
def place() -> Iterator[Path]:
    """Stand in a directory of its own, which has no Slurm and no waits that only rest on design."""
    before, environ, look_s = Path.cwd(), dict(os.environ), signs_of_life.LOOK_S
    root = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_FAST if os.path.isdir(_FAST) else None))
    os.chdir(root)
    os.environ.update(HOME=str(root), PATH=str(root / "bin"))
    signs_of_life.LOOK_S = 0.0
    try:
        yield root
    finally:
        signs_of_life.LOOK_S = look_s
        os.environ.clear()
        os.environ.update(environ)
        os.chdir(before)
        shutil.rmtree(root, ignore_errors=True)


def say(words: Sequence[str]) -> Said:
    """Run a command of ``hpc-elastic`` in this process.

    Raises:
        UnicodeError: it printed what a terminal cannot be given.
    """
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as out,
        tempfile.TemporaryFile("w+", encoding="utf-8") as err,
    ):
        with _instead(out, err):
            try:
                code = main(words)
            except SystemExit as stop:
                code = stop.code if isinstance(stop.code, int) else 1
        return Said(code, _content(out), _content(err))


@contextmanager
def _instead(out: IO[str], err: IO[str]) -> Iterator[None]:
    """Have what is printed go to files, also by who writes to the descriptors."""
    before, kept = (sys.stdout, sys.stderr), (os.dup(1), os.dup(2))
    for stream in before:
        stream.flush()
    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
    sys.stdout, sys.stderr = out, err
    try:
        yield
    finally:
        for stream in (out, err):
            stream.flush()
        sys.stdout, sys.stderr = before
        for number, fd in enumerate(kept, start=1):
            os.dup2(fd, number)
            os.close(fd)


def _content(file: IO[str]) -> str:
    file.seek(0)
    return file.buffer.read().decode(errors="backslashreplace")  # type: ignore[attr-defined,no-any-return]


def check_said(words: Sequence[str], said: Said) -> None:
    """Check what every command promises, whatever it is asked about."""
    shown = f"{' '.join(words)}: "
    expect(said.code in _CODES, f"{shown}exit code {said.code}")
    expect("Traceback (most" not in said.out + said.err, f"{shown}a traceback was printed")
    if words[0] != "logs":  # what workers print is theirs
        odd = {char for char in said.out + said.err if char != "\n" and unicodedata.category(char) == "Cc"}
        expect(not odd, f"{shown}control characters are printed")


def _looked_at(case: tuple[str, Sequence[Damage]]) -> Callable[[Sequence[Sequence[str]]], None]:
    story, done = case

    def look(commands: Sequence[Sequence[str]]) -> None:
        with place() as root:
            folder = root / "hpc_elastic_runs"
            lay_out(folder / SANE, files_of("failed"))
            lay_out(folder / "toy-1", files_of(story), done)
            for path, data in ledger_files().items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                (folder / path).write_bytes(data)
            is_done = holds(folder / "toy-1" / "journal", b'"done"')
            for words in commands:
                said = say(words)
                check_said(words, said)
                expect(is_done or not _DONE.search(said.out), f"{words[0]} says that the run is done")
                if words == ("status",):
                    lines = [line for line in said.out.splitlines() if line.startswith(SANE)]
                    expect(len(lines) == 1 and "failed" in lines[0], "the sane run's line is not there")

    return look


def holds(directory: Path, data: bytes) -> bool:
    """Tell whether any file below a directory holds some bytes."""
    for above, _, names in os.walk(directory):
        for name in names:
            path = Path(above, name)
            if (
                path.is_file()
                and not path.is_symlink()
                and path.stat().st_size < 1 << 20
                and data in path.read_bytes()
            ):
                return True
    return False


def _status(case: Any) -> None:
    _looked_at(case)((("status",), ("status", "toy-1"), ("timeline", "toy-1"), ("explain", "toy-1")))
    _looked_at(case)((("report", "toy-1", "--format", "html"), ("report", "toy-1", "--format", "json")))


def _other_commands(case: Any) -> None:
    _looked_at(case)(
        (("logs", "toy-1"), ("logs", "toy-1", "--node", "n1"), ("nodes",), ("scale", "toy-1", "2"))
    )


def _below_slurm(case: Any) -> None:
    """Look at a run whose job Slurm knows."""
    look = _looked_at(case)
    world = world_with(
        State.RUNNING, name="toy", comment="hpc_elastic:ab", reason="None", restarts=1, held=False
    )
    with SlurmHere(world).in_place():
        look((("status", "toy-1"), ("status", "7"), ("scale", "toy-1", "1")))


def _end(case: tuple[str, Sequence[Damage]]) -> None:
    """Stop and cancel a run."""
    story, done = case
    with place() as root:
        lay_out(root / "toy-1", files_of(story), done)
        world = world_with(
            State.RUNNING, name="toy", comment="hpc_elastic:ab", reason="None", restarts=1, held=False
        )
        slurm = SlurmHere(world)
        with slurm.in_place():
            for act in (EndRun.stop, EndRun.cancel):
                with allowed(HpcElasticError, OSError):
                    act(EndRun(RunPaths(root / "toy-1"), Slurm(), FastClock(), lambda _: None))
        expect(not slurm.brought_back, "a run that is to end was queued again")


_CASES = st.tuples(st.sampled_from(STORIES), damages)
TARGETS: tuple[Target, ...] = (
    Target("status", _CASES, _status, 40),
    Target("other-commands", _CASES, _other_commands, 40),
    Target("status-below-slurm", _CASES, _below_slurm, 40),
    Target("stop", _CASES, _end, 40),
)
