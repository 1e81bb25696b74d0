"""A file lock that spares contenders wasted work. Safety never rests on it.

A lock can stay held for ever when its node dies (NFS v3), so it is waited for a bounded time and
then done without: the exclusive record that follows decides who wins.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

DEFAULT_WAIT_S = 2.0


@contextmanager
def contention_lock(path: str, *, wait_s: float = DEFAULT_WAIT_S) -> Iterator[bool]:
    """Hold the lock for one short step if it can be had.

    Args:
        path: the lock file.
        wait_s: how long to wait for it [s] before going on without it.

    Yields:
        Whether the lock is held.
    """
    import filelock  # noqa: PLC0415 - costs 50 ms and 8 MB; needed only under contention

    lock = filelock.FileLock(path, timeout=wait_s, poll_interval=0.01, fallback_to_soft=False)
    try:
        lock.acquire()
    except (filelock.Timeout, OSError, NotImplementedError):
        yield False
        return
    try:
        yield True
    finally:
        lock.release()
