"""Follow a growing log: whole lines with a prefix, no thread; a slow console is never waited for."""

from __future__ import annotations

import os
import re
import select
import stat
import threading
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from typing import Final, Protocol, TextIO

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.store.plain_file import open_plain

_PIPE: Final = 4096  # PIPE_BUF: a write of this size to a pipe is never mixed with another's
_FILE: Final = 1 << 20
_SET_PIPE_SIZE: Final = 1031  # fcntl's F_SETPIPE_SZ, which Python 3.10 does not know by this name

_LEAST_S: Final = 0.01  # shortest pause of the thread between two looks [s]
_MOST_S: Final = 0.1  # longest one [s]
MAX_LINE: Final = 16 << 20
"""Longest line that is kept whole [bytes]; a longer one is shown in pieces of this size."""

MAX_BAR: Final = 65536
"""The same for what overwrites itself with carriage returns, as progress bars do."""

_CHUNK: Final = 65536
_BUDGET: Final = 1 << 20  # bytes per pump, so that the agent's loop gets its turn


class TailLimits(NamedTuple):
    """How much of a log a tail holds, and its gap when its console does not keep up."""

    line: int = MAX_LINE  # see there [bytes]
    lag: int | None = None  # how far a console may be behind before lines are left out [bytes]; None for ever
    newest: int = 1 << 16  # of the lines that are left out none is among the last ones of this size [bytes]
    always: re.Pattern[bytes] | None = None  # "\n" and how lines begin that are shown nevertheless


MAX_LAG: Final = 16 << 20
"""How far a console that is read slowly may be behind in general [bytes]: more than anybody reads."""


class Tail:
    """Follows one file.

    Lines that the console cannot take stay in the file until the next pump, so a stuck console
    costs neither memory nor the agent's heartbeat. Where the limits say so, a console that is too
    far behind goes on with the newest lines, and one line there names the gap.

    Args:
        path: the log; need not exist yet.
        console: the receiver of the lines; a number is a file descriptor.
        prefix: stands before every line.
        offset: where to begin [bytes]; the end of the output of earlier attempts.
        wanted: tells of a line, without its end, whether it is copied; None copies all.
        limits: see there; by default nothing is left out.
    """

    def __init__(
        self,
        path: str,
        console: int | Sink,
        prefix: bytes,
        *,
        offset: int = 0,
        wanted: Callable[[bytes], bool] | None = None,
        limits: TailLimits = TailLimits(),  # noqa: B008 - frozen
    ) -> None:
        self.path = path
        self._sink: Sink = Console(console) if isinstance(console, int) else console
        self._prefix = prefix
        self._offset = offset
        self._wanted = wanted
        self._fd = -1
        self.error: OSError | None = None
        """Why the log cannot be read, other than that it is not there yet."""
        self._limits = limits
        self._rest = bytearray()  # an unfinished line
        self._skip_to = 0  # the part before this is left out [bytes]
        self._has_gap = False  # between the last shown byte and `_skip_to`
        self._left_out = 0  # left out without a line about it yet [bytes]

    def pump(self) -> bool:
        """Copy the new whole lines.

        Returns:
            True when more could be copied at once (the budget of one call is used up).
        """
        if self._is_too_far_behind():
            self.leave_out()
        budget = _BUDGET
        while budget > 0:
            if not self._sink.flush():
                return False
            chunk = self._read()
            if not chunk:
                self._show_bar()
                return False
            budget -= len(chunk)
            if self._offset <= self._skip_to:
                self._pass_over(chunk)
            else:
                self._split(self._after_gap(chunk) if self._has_gap else chunk)
        return True

    def leave_out(self) -> None:
        """Go on with the newest lines; a line before them tells how much was left out, and where it is.

        A tail without a limit to its lag goes on with all, and so does one whose console is a file.
        """
        newest = (
            self._size() - self._limits.newest - 1
        )  # with the byte that tells whether a line begins there
        if self._limits.lag is None or self._sink.is_never_slow or newest <= self._offset:
            return
        self._skip_to, self._has_gap = newest, True
        if self._limits.always is None:
            self._left_out += newest - self._offset + len(self._rest)
            self._offset = newest
            self._rest.clear()

    @property
    def position(self) -> int:
        """How much of the file has been read [bytes]; the console has taken at most a chunk less."""
        return self._offset

    @property
    def is_blocked(self) -> bool:
        """Whether lines wait for a console that takes no more."""
        return self._sink.is_blocked

    def blocked_fd(self) -> int | None:
        """Return the descriptor that becomes writable when more can be copied, if lines wait for that."""
        return self._sink.blocked_fd()

    def finish(self) -> None:
        """Copy the rest, with an unfinished last line, as far as the console takes it; close the file."""
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
            size = self._skip_to - self._offset
            chunk = os.pread(self._fd, min(size, _CHUNK) if size > 0 else _CHUNK, self._offset)
            if not chunk and os.fstat(self._fd).st_size < self._offset:  # truncated by another process
                self._offset, self._skip_to, self._has_gap = 0, 0, False
                chunk = os.pread(self._fd, _CHUNK, 0)
        except OSError as error:  # not there yet, or a file system that is away: the next pump tries again
            self.error = None if isinstance(error, FileNotFoundError) else error
            return b""
        self.error = None
        self._offset += len(chunk)
        return chunk

    def _size(self) -> int:
        """Return the size of the log [bytes]; where it is not known, up to where it has been read."""
        try:
            return (os.stat(self.path) if self._fd < 0 else os.fstat(self._fd)).st_size
        except OSError:
            return self._offset

    def _is_too_far_behind(self) -> bool:
        lag = self._limits.lag
        return lag is not None and self._size() - self._offset > lag

    def _pass_over(self, chunk: bytes) -> None:
        """Leave out the whole lines of a chunk, other than those that are always shown."""
        data = bytes(self._rest) + chunk
        end, at = data.rfind(b"\n") + 1, 0
        if not end and len(data) > _CHUNK:  # of a line without an end only its beginning can matter
            end = len(data)
        for found in self._limits.always.finditer(b"\n" + data, 0, end) if self._limits.always else ():
            after = data.find(b"\n", found.start()) + 1
            if after:
                self._left_out += found.start() - at
                self._put(data[found.start() : after])
                at = after
        self._left_out += end - at
        self._rest = bytearray(data[end:])

    def _after_gap(self, chunk: bytes) -> bytes:
        """Leave out the end of a line that has begun before the newest ones; return the rest.

        A line that is longer than all that is to be shown is shown from its middle.
        """
        self._has_gap = False
        first = chunk.find(b"\n", 0, len(chunk) - 1) + 1
        if first:
            self._pass_over(chunk[:first])
        else:
            self._left_out += len(self._rest)
            self._rest.clear()
        return chunk[first:]

    def _split(self, chunk: bytes) -> None:
        """Hand on the whole lines of a chunk; only the first and the last can be too long."""
        first = chunk.find(b"\n")
        end = first - 1 if first > 0 else first  # a line may end in both
        limit = MAX_BAR if b"\r" in chunk[:end] else self._limits.line
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
        """Pass on each overwritten state of an unfinished line as a line, so that a progress bar is visible.

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
        if self._left_out:
            told = f"... {self._left_out:,} bytes were left out here; they are in {self.path}\n"
            lines = self._prefix + told.encode(errors="surrogateescape") + lines
            self._left_out = 0
        self._sink.put(lines)


def pump_all(tails: Sequence[Tail]) -> bool:
    """Copy new lines of several logs; return whether more is there now."""
    return any([tail.pump() for tail in tails])  # noqa: C419 - every tail gets its turn


def blocked_fds(tails: Sequence[Tail]) -> list[int]:
    """Return the descriptors that lines wait for."""
    return list({fd for tail in tails if (fd := tail.blocked_fd()) is not None})


class PumpThread:
    """Follows logs until it is stopped.

    Args:
        tails: the logs.
        most_s: the longest pause between two calls [s].
    """

    def __init__(self, tails: Sequence[Tail], most_s: float = _MOST_S) -> None:
        self._tails = tails
        self._most_s = most_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hpc-elastic logs", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Return when the last call has ended; a second call is harmless."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        pause_s = _LEAST_S
        while not self._stopped.wait(min(pause_s, self._most_s)):
            copied = self._copy()
            pause_s = _LEAST_S if copied else min(pause_s * 1.3, self._most_s)

    def _copy(self) -> bool:
        """Copy until nothing new is there; return whether there was so much that it took several turns."""
        turns = 0
        while not self._stopped.is_set() and (pump_all(self._tails) or self._wait_writable()):
            turns += 1
        return turns > 0

    def _wait_writable(self) -> bool:
        return wait_writable(blocked_fds(self._tails), self._most_s)


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
            except BlockingIOError:  # a console that another process has set to non-blocking: keep the rest
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
