"""Follow a growing log: whole lines with a prefix, no thread, never stuck on the console."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Final

from hpc_elastic.multiprocessing.sinks import Console, Sink
from hpc_elastic.store.plain_file import open_plain

MAX_LINE: Final = 16 << 20
"""Longest line that is kept whole [bytes]; a longer one is shown in pieces of this size."""

MAX_BAR: Final = 65536
"""The same for what overwrites itself with carriage returns, as progress bars do."""

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
        max_line: see `MAX_LINE`.
    """

    def __init__(
        self,
        path: str,
        console: int | Sink,
        prefix: bytes,
        *,
        offset: int = 0,
        wanted: Callable[[bytes], bool] | None = None,
        max_line: int = MAX_LINE,
    ) -> None:
        self.path = path
        self._sink: Sink = Console(console) if isinstance(console, int) else console
        self._prefix = prefix
        self._offset = offset
        self._wanted = wanted
        self._fd = -1
        self.error: OSError | None = None
        """Why the log cannot be read, other than that it is not there yet."""
        self._max_line = max_line
        self._rest = bytearray()  # an unfinished line

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
                self._show_bar()
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
            self._put(bytes(self._rest) + b"\n")
            self._rest.clear()
            self._sink.flush()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> bytes:
        try:
            if self._fd < 0:
                self._fd = open_plain(self.path, own=False)
            chunk = os.pread(self._fd, _CHUNK, self._offset)
            if not chunk and os.fstat(self._fd).st_size < self._offset:  # truncated by somebody
                self._offset = 0
                chunk = os.pread(self._fd, _CHUNK, 0)
        except OSError as error:  # not there yet, or a file system that is away: the next pump tries again
            self.error = None if isinstance(error, FileNotFoundError) else error
            return b""
        self.error = None
        self._offset += len(chunk)
        return chunk

    def _split(self, chunk: bytes) -> None:
        """Hand on the whole lines of a chunk; only the first and the last can be too long."""
        first = chunk.find(b"\n")
        end = first - 1 if first > 0 else first  # a line may end in both
        limit = MAX_BAR if b"\r" in chunk[:end] else self._max_line
        if first < 0 and len(self._rest) + len(chunk) <= limit:
            self._rest += chunk
            return
        data = bytes(self._rest) + chunk if self._rest else chunk
        first += len(self._rest) if first >= 0 else 0
        if (len(data) if first < 0 else first) > limit:
            stop = len(data) // limit * limit if first < 0 else first
            pieces = [data[start : min(start + limit, stop)] for start in range(0, stop, limit)]
            self._put(b"".join(piece + b"\n" for piece in pieces))
            data = data[stop if first < 0 else stop + 1 :]
        end = data.rfind(b"\n") + 1
        if end:
            self._put(data[:end])
        self._rest = bytearray(data[end:])

    def _show_bar(self) -> None:
        """Hand on what an unfinished line has overwritten by now, a line each: a progress bar is to be seen.

        The last version may grow, or be the first half of an end of line.
        """
        at = self._rest.rfind(b"\r", 1, len(self._rest) - 1)
        if at < 0:
            return
        shown = b"".join(bytes(version) + b"\n" for version in self._rest[:at].split(b"\r") if version)
        self._rest = self._rest[at + 1 :]
        if shown:
            self._put(shown)
            self._sink.flush()

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
