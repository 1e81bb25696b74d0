"""The receivers of lines of followed logs: a descriptor that is never waited for, or a text stream."""

from __future__ import annotations

import os
import select
import stat
from io import TextIOWrapper
from typing import Final, Protocol, TextIO

_PIPE: Final = 4096  # PIPE_BUF: a write of this size to a pipe is never mixed with another's
_FILE: Final = 1 << 20
_SET_PIPE_SIZE: Final = 1031  # fcntl's F_SETPIPE_SZ, which Python 3.10 does not know by this name


class Sink(Protocol):
    """Takes whole lines."""

    @property
    def is_blocked(self) -> bool:
        """Whether lines wait because no more can be taken now."""

    @property
    def is_never_slow(self) -> bool:
        """Whether no reader can delay the lines, as with a file."""

    def put(self, lines: bytes) -> None:
        """Take whole lines; they may wait until `flush`."""

    def flush(self) -> bool:
        """Pass on the waiting lines; return whether none is left."""

    def blocked_fd(self) -> int | None:
        """Return the descriptor that becomes writable when more can be taken, if lines wait for that."""


class Console:
    """A descriptor that is written to as far as it takes something without blocking.

    Several tails may share one: a long line that went out in part is finished before another begins.

    Args:
        fd: the descriptor; stays open. A negative one takes everything and shows nothing.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lines = b""
        self._at = 0
        self._is_file = _is_file(fd)
        self._limit = _FILE if self._is_file else _PIPE
        self._is_broken = fd < 0
        self._poller = select.poll()
        if not self._is_broken:
            self._poller.register(fd, select.POLLOUT)
        _widen(fd)

    @property
    def is_blocked(self) -> bool:
        """Whether lines wait because no more can be taken now."""
        return bool(self._lines)

    @property
    def is_never_slow(self) -> bool:
        """Whether it is a file, or it has no reader any more."""
        return self._is_file or self._is_broken

    def put(self, lines: bytes) -> None:
        """Take whole lines; they wait until `flush`."""
        self._lines = self._lines[self._at :] + lines if self._lines else lines
        self._at = 0

    def flush(self) -> bool:
        """Write the waiting lines in blocks; return whether none is left."""
        while self._lines and not self._is_broken:
            if not self._is_writable():
                return False
            block = self._lines[self._at : self._end_of_block()]
            try:
                self._at += os.write(self._fd, block)
            except BlockingIOError:  # a console that somebody set to non-blocking: keep the rest
                return False
            except OSError:  # the reader is gone; the log file has everything
                self._is_broken = True
            if self._at >= len(self._lines):
                break
        self._lines, self._at = b"", 0
        return True

    def blocked_fd(self) -> int | None:
        """Return the descriptor that becomes writable when more can be taken, if lines wait for that."""
        return self._fd if self._lines and not self._is_broken else None

    def _end_of_block(self) -> int:
        if len(self._lines) - self._at <= self._limit:
            return len(self._lines)
        after_line = self._lines.rfind(b"\n", self._at, self._at + self._limit) + 1
        return after_line or self._at + self._limit

    def _is_writable(self) -> bool:
        return self._is_file or bool(self._poller.poll(0))


class TextSink:
    """A text stream without a descriptor, such as a notebook's; bytes that are no UTF-8 are replaced.

    Args:
        stream: where to write; it may block.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.error: Exception | None = None
        """Why nothing is written any more."""

    @property
    def is_blocked(self) -> bool:
        """Never: a failed write ends the writing."""
        return False

    @property
    def is_never_slow(self) -> bool:
        """Unknown: the reader of the stream may take long."""
        return False

    def put(self, lines: bytes) -> None:
        """Write whole lines."""
        if self.error is not None:
            return
        try:
            self._stream.write(lines.decode(errors="replace"))
            self._stream.flush()
        except Exception as error:  # noqa: BLE001 - anything may stand in for a stream
            self.error = error

    def flush(self) -> bool:
        """Nothing ever waits."""
        return True

    def blocked_fd(self) -> int | None:
        """Nothing ever waits."""
        return None


def sink_of(stream: TextIO | None) -> Sink:
    """Return the quickest way to write to a stream such as ``sys.stdout``.

    A replacement of a file may have the descriptor of another one: a notebook's has its server's.
    """
    if stream is not None and not isinstance(stream, TextIOWrapper):
        return TextSink(stream)
    try:
        stream.flush()  # type: ignore[union-attr]
        return Console(stream.fileno())  # type: ignore[union-attr]
    except (AttributeError, OSError, ValueError):
        return TextSink(stream) if stream is not None else Console(-1)


def _is_file(fd: int) -> bool:
    try:
        return stat.S_ISREG(os.fstat(fd).st_mode)
    except OSError:
        return False


def _widen(fd: int) -> None:
    """Let a pipe hold a megabyte where that is allowed: a reader that pauses then stops nothing."""
    try:
        if stat.S_ISFIFO(os.fstat(fd).st_mode):
            import fcntl  # noqa: PLC0415 - only where something is teed

            fcntl.fcntl(fd, _SET_PIPE_SIZE, _FILE)
    except OSError:
        pass


def wait_writable(fds: list[int], wait_s: float) -> bool:
    """Wait until one of some descriptors can be written to; return whether there is any to wait for.

    Args:
        fds: the descriptors.
        wait_s: longest wait [s].
    """
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLOUT)
    return bool(fds) and bool(poller.poll(wait_s * 1000))
