"""The lock spares work and never holds anybody up for long."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.store.lock import contention_lock

HOLDER = """
import sys
from filelock import FileLock
lock = FileLock(sys.argv[1], fallback_to_soft=False)
lock.acquire()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def hold() -> Iterator[Callable[[Path], subprocess.Popen[str]]]:
    """Return a function that starts a process which holds a lock for as long as it lives."""
    holders: list[subprocess.Popen[str]] = []

    def start(path: Path) -> subprocess.Popen[str]:
        argv = [sys.executable, "-c", HOLDER, str(path)]
        holder = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        holders.append(holder)
        assert holder.stdout is not None
        assert "held\n" == holder.stdout.readline()
        return holder

    yield start
    for holder in holders:
        holder.kill()
        holder.communicate()


def test_a_free_lock_is_held(tmp_path: Path) -> None:
    """A lock nobody holds is had at once, and again afterwards."""
    for _ in range(2):
        with contention_lock(str(tmp_path / "lock")) as held:
            assert held


def test_a_held_lock_is_waited_for_a_bounded_time(
    tmp_path: Path, hold: Callable[[Path], subprocess.Popen[str]]
) -> None:
    """A lock that somebody keeps is done without after the wait."""
    hold(tmp_path / "lock")
    clock = SystemClock()
    before = clock.monotonic()
    with contention_lock(str(tmp_path / "lock"), wait_s=0.2) as held:
        assert not held
    assert 0.2 <= clock.monotonic() - before < 5


def test_a_frozen_holder_is_waited_for_a_bounded_time(
    tmp_path: Path, hold: Callable[[Path], subprocess.Popen[str]]
) -> None:
    """A holder that is stopped keeps its lock, and nobody waits longer for it."""
    os.kill(hold(tmp_path / "lock").pid, signal.SIGSTOP)
    with contention_lock(str(tmp_path / "lock"), wait_s=0.1) as held:
        assert not held


def test_a_dead_holder_holds_nothing(tmp_path: Path, hold: Callable[[Path], subprocess.Popen[str]]) -> None:
    """The lock of a process that was killed is free."""
    holder = hold(tmp_path / "lock")
    holder.kill()
    holder.wait()
    with contention_lock(str(tmp_path / "lock"), wait_s=5) as held:
        assert held


@pytest.mark.parametrize("broken", ["file/lock", "."])
def test_a_broken_lock_is_done_without(tmp_path: Path, broken: str) -> None:
    """Where a lock cannot even be opened, work goes on without it."""
    (tmp_path / "file").touch()
    with contention_lock(str(tmp_path / broken), wait_s=0.1) as held:
        assert not held


def test_errors_of_the_step_pass_through(tmp_path: Path) -> None:
    """What fails under the lock fails the same way, and the lock is free afterwards."""
    path = str(tmp_path / "lock")
    with pytest.raises(KeyError), contention_lock(path):
        raise KeyError
    with contention_lock(path, wait_s=0.1) as held:
        assert held
