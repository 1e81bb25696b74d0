"""Waking up early when this machine changes a directory or a file.

inotify reports no change by another client of a network file system, so it never replaces
looking: it only makes a look come early where it can.
"""

from __future__ import annotations

import ctypes
import math
import os
import select
import struct
from collections.abc import Iterator

from hpc_elastic.clock import SystemClock

_IN_CREATE = 0x100
_IN_MOVED_TO = 0x80
_IN_MODIFY = 0x2
_IN_NONBLOCK = os.O_NONBLOCK
_IN_CLOEXEC = os.O_CLOEXEC


_FAILED = -1  # returned by a call into the C library
_PIECE = 1 << 16  # bytes of reports that are read at once
_MS = 1000  # milliseconds per second
_EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name that follows


def _names(data: bytes) -> Iterator[bytes]:
    """Yield the names in inotify's reports; empty for a watched file itself."""
    at = 0
    while at < len(data):
        *_, length = _EVENT.unpack_from(data, at)
        at += _EVENT.size
        yield data[at : at + length].rstrip(b"\0")
        at += length


class Watch:
    """An inotify instance; `fileno()` becomes readable when something watched has changed.

    Where inotify is not to be had (limit reached, exotic file system) the watch stays silent and
    `fileno()` is -1; callers look at their interval as they do anyway.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None)
        self._fd: int = self._libc.inotify_init1(_IN_NONBLOCK | _IN_CLOEXEC)
        self._watched: dict[str, int] = {}

    def fileno(self) -> int:
        """Return the file descriptor to poll, or -1."""
        return self._fd

    def add_directory(self, path: str) -> bool:
        """Wake when a name appears in a directory; tell whether that can be."""
        return self._add(path, _IN_CREATE | _IN_MOVED_TO)

    def add_file(self, path: str) -> None:
        """Wake when a file grows."""
        self._add(path, _IN_MODIFY)

    def remove(self, path: str) -> None:
        """Stop watching a path; it may be unknown."""
        wd = self._watched.pop(path, None)
        if wd is not None:
            self._libc.inotify_rm_watch(self._fd, wd)

    def drain(self) -> bool:
        """Take the reports; tell whether any of them is more than a writer's private file."""
        relevant = False
        if self._fd == _FAILED:
            return relevant
        try:
            while data := os.read(self._fd, _PIECE):
                relevant = relevant or any(not name.startswith(b".") for name in _names(data))
        except BlockingIOError:
            pass
        return relevant

    def wait(self, seconds: float) -> None:
        """Wait [s], or less if something but a writer's private file changes on this machine."""
        clock = SystemClock()
        deadline = clock.monotonic() + seconds
        poll = select.poll()
        if self._fd != _FAILED:
            poll.register(self._fd, select.POLLIN)
        while (left := deadline - clock.monotonic()) > 0:
            poll.poll(math.ceil(left * _MS))
            if self.drain():
                return

    def close(self) -> None:
        """Release the file descriptor."""
        if self._fd != _FAILED:
            os.close(self._fd)
            self._fd = _FAILED

    def _add(self, path: str, mask: int) -> bool:
        wd: int = self._libc.inotify_add_watch(self._fd, os.fsencode(path), mask)
        if wd != _FAILED:
            self._watched[path] = wd  # the same number as before if it is watched already
        return wd != _FAILED
