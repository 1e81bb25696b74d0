"""Real processes for the tests of this package; what a test leaves running is ended."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from hpc_elastic.multiprocessing.context import StartSettings, SubprocessContext
from hpc_elastic.multiprocessing.logs import DefaultLogsSpecs
from hpc_elastic.multiprocessing.std import Std
from tests.multiprocessing.waiting import MakeContext


@pytest.fixture
def make_context(tmp_path: Path) -> Iterator[MakeContext]:
    """Give a maker of contexts that run one Python program per rank; all are closed at the end."""
    made: list[SubprocessContext] = []

    def make(
        *programs: str,
        redirects: Std = Std.ALL,
        tee: Std = Std.NONE,
        env: Mapping[str, str] | None = None,
        settings: StartSettings | None = None,
    ) -> SubprocessContext:
        context = SubprocessContext(
            "test",
            sys.executable,
            {rank: ("-S", "-c", program) for rank, program in enumerate(programs)},
            {rank: {"RANK": str(rank), **(env or {})} for rank in range(len(programs))},
            DefaultLogsSpecs(str(tmp_path), redirects, tee),
            settings=settings or StartSettings(),
        )
        made.append(context)
        return context

    yield make
    for context in made:
        context.close(timeout=0)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Give a pipe: reading end, writing end."""
    ends = os.pipe()
    yield ends
    for fd in ends:
        try:
            os.close(fd)
        except OSError:
            pass


@pytest.fixture
def fifo(tmp_path: Path) -> str:
    """Give a named pipe by which a worker says that it is ready."""
    path = str(tmp_path / "fifo")
    os.mkfifo(path)
    return path
