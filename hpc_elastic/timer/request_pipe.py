"""The reading end of a named pipe to which several processes write lines."""

from __future__ import annotations

import errno
import logging
import os
import select
import stat

logger = logging.getLogger(__name__)
_CHUNK = 1 << 16
_CHUNKS_AT_ONCE = 16  # then timers are looked at, however fast requests come in
_LONGEST_WAIT_S = 3600.0


def make_pipe(path: str) -> None:
    """Create a named pipe that only this user can open.

    The file of an earlier server at `path` is replaced: a pipe, or an empty file that holds the name.

    Raises:
        FileExistsError: something else is there, or it is another user's.
        OSError: the directory is missing or not writable.
    """
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        found = None
    if found is not None:
        replaceable = stat.S_ISFIFO(found.st_mode) or (stat.S_ISREG(found.st_mode) and found.st_size == 0)
        if not replaceable or found.st_uid != os.geteuid():
            raise FileExistsError(errno.EEXIST, "not a pipe of this user; give timers another path", path)
        os.unlink(path)
    try:
        os.mkfifo(path, 0o600)
    except OSError as error:
        error.filename = path  # mkfifo names none
        raise


class RequestPipe:
    """Reads whole lines from a named pipe, and waits for them without polling.

    The pipe is held open for writing, too: else it would report its end forever once the last
    client has closed it.

    Args:
        path: made by `make_pipe`.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        self._poll.register(self._wake_fd, select.POLLIN)
        self._rest = b""

    def wake(self) -> None:
        """Make the current or the next wait end at once; may be called from any thread."""
        os.eventfd_write(self._wake_fd, 1)

    def wait_lines(self, timeout_s: float) -> list[bytes]:
        """Return the lines that are there, waiting for the first one at most `timeout_s` [s].

        A line longer than a pipe writes in one piece is no request; it is logged and left out.
        """
        self._poll.poll(max(0.0, min(timeout_s, _LONGEST_WAIT_S)) * 1000)
        try:
            os.eventfd_read(self._wake_fd)
        except BlockingIOError:
            pass  # nobody called
        *lines, self._rest = (self._rest + self._read()).split(b"\n")
        if len(self._rest) > select.PIPE_BUF:
            logger.error("Unfinished request of %d bytes is left out", len(self._rest))
            self._rest = b""
        return lines

    def _read(self) -> bytes:
        chunks = []
        for _ in range(_CHUNKS_AT_ONCE):
            try:
                chunks.append(os.read(self._fd, _CHUNK))
            except BlockingIOError:
                break
        return b"".join(chunks)

    def close(self) -> None:
        """Let the pipe go; clients then notice that it has no reader."""
        os.close(self._fd)
        os.close(self._wake_fd)
