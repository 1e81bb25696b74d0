"""A file lock that spares contenders wasted work. Safety never rests on it.

A lock can stay held for ever when its node dies (NFS v3) or its holder is frozen, so it is waited for
a bounded time and then done without: the exclusive record that follows decides the race. This is the
one place that uses filelock; its soft locks, which outlive a holder that dies, are switched off.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hpc_elastic.clock import Clock, SystemClock

if TYPE_CHECKING:
    from filelock import BaseFileLock

DEFAULT_WAIT_S = 2.0
STUCK_S = 30.0  # so long a lock that could not be had is only tried, not waited for
_POLL_S = 0.01


class ContentionLock:
    """A lock that remembers when it is stuck, so that only the first of many steps waits for it.

    Args:
        path: the lock file.
        clock: measures how long the lock is taken to be stuck.
        wait_s: how long to wait for the lock [s] before going on without it.
    """

    def __init__(self, path: str, clock: Clock | None = None, *, wait_s: float = DEFAULT_WAIT_S) -> None:
        self._path = path
        self._clock = clock or SystemClock()
        self._wait_s = wait_s
        self._stuck_until = float("-inf")

    @contextmanager
    def held(self) -> Iterator[bool]:
        """Hold the lock for one short step if it can be had; never raises for the lock's sake.

        Yields:
            Whether the lock is held.
        """
        lock = self._acquire()
        try:
            yield lock is not None
        finally:
            if lock is not None:
                self._release(lock)

    def _acquire(self) -> BaseFileLock | None:
        import filelock  # noqa: PLC0415 - costs 50 ms and 8 MB; needed only under contention

        is_stuck = self._clock.monotonic() < self._stuck_until
        lock = filelock.FileLock(
            self._path,
            timeout=0 if is_stuck else self._wait_s,
            poll_interval=_POLL_S,
            fallback_to_soft=False,
        )
        try:
            lock.acquire()
        except (filelock.Timeout, OSError, NotImplementedError):
            if not is_stuck:
                self._remember_stuck()
            return None
        self._stuck_until = float("-inf")
        return lock

    def _release(self, lock: BaseFileLock) -> None:
        """Let go; a file system that refuses even that keeps no step from having been done."""
        try:
            lock.release()
        except OSError:
            self._remember_stuck()

    def _remember_stuck(self) -> None:
        self._stuck_until = self._clock.monotonic() + STUCK_S
