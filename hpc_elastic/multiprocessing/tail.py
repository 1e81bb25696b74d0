"""Follow a growing log: whole lines with a prefix, no thread, never stuck on the console."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Final

from hpc_elastic.multiprocessing.sinks import Console, Sink

MAX_LINE: Final = 65536
"""Longest line that is kept whole [bytes]; a longer one is shown in pieces of this size."""

_CHUNK: Final = 65536
_BUDGET: Final = 1 << 20  # bytes per pump, so that the agent's loop gets its turn


class Tail:
    """Follows one file.

    What the console cannot take stays in the file until the next pump, so a stuck console
    costs neither memory nor the agent's heartbeat.

    Args:
        path: the log; need not exist yet.
        console: what takes the lines; a number is a file descriptor.
        prefix: stands before every line.
        offset: where to begin [bytes]; the end of what earlier attempts wrote.
        wanted: tells of a line, without its end, whether it is copied; None copies all.
    """

    def __init__(
        self,
        path: str,
        console: int | Sink,
        prefix: bytes,
        *,
        offset: int = 0,
        wanted: Callable[[bytes], bool] | None = None,
    ) -> None:
        self.path = path
        self._sink: Sink = Console(console) if isinstance(console, int) else console
        self._prefix = prefix
        self._offset = offset
        self._wanted = wanted
        self._fd = -1
        self._rest = b""  # an unfinished line, shorter than MAX_LINE

    def pump(self) -> bool:
        """Copy the new whole lines.

        Returns:
            True when more could be copied at once (the budget of one call is used up).
        """
        budget = _BUDGET
        while budget > 0:
            if not self._sink.flush():
                return False
            chunk = self._read()
            if not chunk:
                return False
            budget -= len(chunk)
            self._split(chunk)
        return True

    @property
    def position(self) -> int:
        """How much of the file has been read [bytes]; what the console took is at most a chunk less."""
        return self._offset

    @property
    def is_blocked(self) -> bool:
        """Whether lines wait for a console that takes no more."""
        return self._sink.is_blocked

    def blocked_fd(self) -> int | None:
        """Return the descriptor that becomes writable when more can be copied, if lines wait for that."""
        return self._sink.blocked_fd()

    def finish(self) -> None:
        """Copy what is left, an unfinished last line too, as far as the console takes it; close the file."""
        while self.pump():
            pass
        if self._rest and not self._sink.is_blocked:
            self._put(self._rest + b"\n")
            self._rest = b""
            self._sink.flush()
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
        """Hand on the whole lines of a chunk; only the first and the last can be too long."""
        data = self._rest + chunk if self._rest else chunk
        first = data.find(b"\n")
        if (len(data) if first < 0 else first) > MAX_LINE:
            stop = len(data) // MAX_LINE * MAX_LINE if first < 0 else first
            pieces = [data[start : min(start + MAX_LINE, stop)] for start in range(0, stop, MAX_LINE)]
            self._put(b"".join(piece + b"\n" for piece in pieces))
            data = data[stop if first < 0 else stop + 1 :]
        end = data.rfind(b"\n") + 1
        if end:
            self._put(data[:end])
        self._rest = data[end:]

    def _put(self, lines: bytes) -> None:
        """Hand on lines that end with a line end."""
        if self._wanted is not None:
            chosen = [line for line in lines[:-1].split(b"\n") if self._wanted(line)]
            if not chosen:
                return
            lines = b"\n".join(chosen) + b"\n"
        if self._prefix:
            lines = self._prefix + lines[:-1].replace(b"\n", b"\n" + self._prefix) + b"\n"
        self._sink.put(lines)


def pump_all(tails: Sequence[Tail]) -> bool:
    """Copy new lines of several logs; return whether more is there now."""
    return any([tail.pump() for tail in tails])  # noqa: C419 - every tail gets its turn


def blocked_fds(tails: Sequence[Tail]) -> list[int]:
    """Return the descriptors that lines wait for."""
    return list({fd for tail in tails if (fd := tail.blocked_fd()) is not None})
