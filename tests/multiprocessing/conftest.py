"""Real processes for the tests of this package; what a test leaves running is ended."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from hpc_elastic.multiprocessing.context import StartSettings, SubprocessContext
from hpc_elastic.multiprocessing.logs import DefaultLogsSpecs, Std

MakeContext = Callable[..., SubprocessContext]


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


def wait_line(path: str | Path, wait_s: float = 20) -> str:
    """Return a FIFO's first line once somebody has written it."""
    fd = os.open(path, os.O_RDWR)
    try:
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        assert poller.poll(wait_s * 1000), f"nobody wrote to {path}"
        return os.read(fd, 4096).decode().split("\n")[0]
    finally:
        os.close(fd)


def wait_gone(pid: int, wait_s: float = 20) -> None:
    """Return when a process has ended; fail when it does not."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    ended = poller.poll(wait_s * 1000)
    os.close(pidfd)
    if not ended:
        os.kill(pid, signal.SIGKILL)
    assert ended, f"process {pid} runs on"
