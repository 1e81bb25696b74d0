"""Tells workers whether a file of an imported module has changed, from a process beside the preloading one.

The preloading process looks at no file when a round begins, so that it answers at once. This process may have
threads, which make many looks at a slow file system at a time. Standard library alone.
"""

from __future__ import annotations

import array
import fcntl
import json
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final

from hpc_elastic.clock import SystemClock
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.processes.linux import die_with_parent

_ALONE_S: Final = 0.02  # a look that takes longer is shared among threads
_THREADS: Final = 32
_HIGH: Final = 400  # descriptors below may be wanted by workers under their numbers
_MESSAGE: Final = 1 << 16
_UNCHANGED: Final = b"y"

Stamp = tuple[int, int, int]
"""When a file was changed last [ns], its size and its inode; zeros if it is not there."""


class FilesFinding(NamedTuple):
    """The result of one look at all files.

    Args:
        files: how many.
        seconds: how long it took.
        changed: the first file that has changed; empty if none has.
    """

    files: int
    seconds: float
    changed: str = ""


class Watcher:
    """The preloading process's side: has all files looked at, in a process of its own.

    Args:
        link: a socket that the process does not keep.

    Attributes:
        pid: of the process.
    """

    def __init__(self, link: socket.socket) -> None:
        parent = os.getpid()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                ours.close()
                link.close()
                if die_with_parent(parent):
                    _watch(theirs)
            finally:
                os._exit(0)
        theirs.close()
        self._ours = socket.socket(fileno=_high(ours.detach()))
        self._verdict = -1

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when there is a finding, or an end."""
        return self._ours.fileno()

    def finding(self) -> FilesFinding | None:
        """Wait for a finding and return it; None if the process has ended."""
        try:
            data = self._ours.recv(_MESSAGE)
        except ConnectionResetError:  # it ended before it had taken all requests
            return None
        return FilesFinding(*json.loads(data)) if data else None

    def begin(self) -> None:
        """Begin another look, whose verdict counts for all workers from now on."""
        if self._verdict >= 0:
            os.close(self._verdict)
        reading, writing = os.pipe()
        self._verdict = _high(reading)
        try:
            socket.send_fds(self._ours, [b"l"], [writing], socket.MSG_DONTWAIT)
        except OSError:  # it is gone, or busy: without a verdict workers start anew
            pass
        finally:
            os.close(writing)

    def keep_verdict(self) -> int:
        """Return the descriptor of the verdict, in a worker, which keeps nothing else of this."""
        self._ours.close()
        return self._verdict


def is_unchanged(verdict: int) -> bool:
    """Wait for the verdict on all files and return it; without one the answer is no.

    Args:
        verdict: a pipe that all workers of a round share: none takes its byte.
    """
    poller = select.poll()
    poller.register(verdict, select.POLLIN)
    ((_, events),) = poller.poll()
    return bool(events & select.POLLIN)


def _high(fd: int) -> int:
    """Give a descriptor a high number, for which no worker has another use, where the limit allows it."""
    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    except OSError:
        return fd
    os.close(fd)
    return high


def _watch(link: socket.socket) -> None:
    """Take the stamps of all files now, and compare with them on demand."""
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    clock = SystemClock()
    began = clock.monotonic()
    first = look(files_of_modules())
    _tell(link, FilesFinding(len(first), clock.monotonic() - began))
    while True:
        fds = array.array("i")
        byte, ancillary, _, _ = link.recvmsg(1, socket.CMSG_LEN(fds.itemsize))
        if not byte:
            return
        for _level, _kind, data in ancillary:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        began = clock.monotonic()
        changed = first_changed(first, look(first))
        for fd in fds:
            if not changed:
                with suppress(BrokenPipeError):  # the workers of that round have ended
                    os.write(fd, _UNCHANGED)
            os.close(fd)
        _tell(link, FilesFinding(len(first), clock.monotonic() - began, changed))


def _tell(link: socket.socket, finding: FilesFinding) -> None:
    link.send(json.dumps(finding).encode())


def files_of_modules() -> list[str]:
    """Return the files of the loaded modules."""
    paths = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return list(dict.fromkeys(path for path in paths if isinstance(path, str) and os.path.isabs(path)))


def look(paths: Iterable[str]) -> dict[str, Stamp]:
    """Return the stamps of files; many at a time where one after another would take long."""
    clock = SystemClock()
    until = clock.monotonic() + _ALONE_S
    found: dict[str, Stamp] = {}
    left = iter(paths)
    for path in left:
        found[path] = _stamp(path)
        if clock.monotonic() > until:
            break
    rest = list(left)

    def take() -> None:
        while rest:
            with suppress(IndexError):  # another thread took the last one
                path = rest.pop()
                found[path] = _stamp(path)

    threads = []
    try:
        for _ in range(min(_THREADS, len(rest))):
            thread = threading.Thread(target=take)
            thread.start()
            threads.append(thread)
    except RuntimeError:  # the limit of processes
        take()
    for thread in threads:
        thread.join()
    return found


def first_changed(then: Mapping[str, Stamp], now: Mapping[str, Stamp]) -> str:
    """Return the first file with another stamp; empty if there is none."""
    return next((path for path, stamp in then.items() if now[path] != stamp), "")


def _stamp(path: str) -> Stamp:
    try:
        stat = os.stat(path)
    except (OSError, ValueError):  # a name with a zero byte
        return 0, 0, 0
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
