"""Copy a growing log to the console: whole lines with a prefix, no thread, never stuck on the console."""

from __future__ import annotations

import os
import select
from typing import Final

MAX_LINE: Final = 65536
"""Longest line that is kept whole [bytes]; a longer one is shown in pieces of this size."""

_ATOMIC: Final = 4096  # PIPE_BUF: a write of this size to a pipe is never mixed with another's
_CHUNK: Final = 65536
_BUDGET: Final = 1 << 20  # bytes per pump, so that the agent's loop gets its turn


class Tail:
    """Follows one file.

    What the console cannot take stays in the file until the next pump, so a stuck console
    costs neither memory nor the agent's heartbeat.

    Args:
        path: the log; need not exist yet.
        console: the file descriptor to write to.
        prefix: stands before every line.
        offset: where to begin [bytes]; the end of what earlier attempts wrote.
    """

    def __init__(self, path: str, console: int, prefix: bytes, *, offset: int = 0) -> None:
        self.path = path
        self._console = console
        self._prefix = prefix
        self._offset = offset
        self._fd = -1
        self._rest = b""  # an unfinished line
        self._ready: list[bytes] = []  # lines with prefix, not yet written, the next one last
        self._is_broken = False

    def pump(self) -> bool:
        """Copy the new whole lines.

        Returns:
            True when more could be copied at once (the budget of one call is used up).
        """
        budget = _BUDGET
        while budget > 0:
            if not self._write_ready():
                return False
            chunk = self._read()
            if not chunk:
                return False
            budget -= len(chunk)
            self._split(chunk)
        return True

    @property
    def is_blocked(self) -> bool:
        """Whether lines wait for a console that takes no more."""
        return bool(self._ready)

    def finish(self) -> None:
        """Copy what is left, an unfinished last line too, as far as the console takes it; close the file."""
        while self.pump():
            pass
        if self._rest and not self._ready:
            self._ready = [self._prefix + self._rest + b"\n"]
            self._rest = b""
            self._write_ready()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> bytes:
        try:
            if self._fd < 0:
                self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            chunk = os.pread(self._fd, _CHUNK, self._offset)
            if not chunk and os.fstat(self._fd).st_size < self._offset:  # truncated by somebody
                self._offset = 0
                chunk = os.pread(self._fd, _CHUNK, 0)
        except OSError:  # not there yet, or a file system that is away: the next pump tries again
            return b""
        self._offset += len(chunk)
        return chunk

    def _split(self, chunk: bytes) -> None:
        *lines, rest = (self._rest + chunk).split(b"\n")
        whole_pieces = (len(rest) // MAX_LINE) * MAX_LINE
        lines += _pieces(rest[:whole_pieces])
        self._rest = rest[whole_pieces:]
        pieces = [piece for line in lines for piece in (_pieces(line) or [b""])]
        self._ready = [self._prefix + piece + b"\n" for piece in reversed(pieces)]

    def _write_ready(self) -> bool:
        """Write lines while the console takes them; return whether all are written."""
        while self._ready:
            if not self._is_writable():
                return False
            block = self._ready.pop()
            while self._ready and len(block) + len(self._ready[-1]) <= _ATOMIC:
                block += self._ready.pop()
            self._write(block)
        return True

    def _write(self, block: bytes) -> None:
        view = memoryview(block)
        try:
            while view and not self._is_broken:
                view = view[os.write(self._console, view) :]
        except BlockingIOError:  # a console that somebody set to non-blocking: keep the rest
            self._ready.append(bytes(view))
        except OSError:  # the reader is gone; the log file has everything
            self._is_broken = True

    def _is_writable(self) -> bool:
        if self._is_broken:
            return True
        poller = select.poll()
        poller.register(self._console, select.POLLOUT)
        return bool(poller.poll(0))


def _pieces(line: bytes) -> list[bytes]:
    return [line[start : start + MAX_LINE] for start in range(0, len(line), MAX_LINE)]
