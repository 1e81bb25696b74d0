"""A file of lines that one process writes and that any number of processes may have a like of."""

from __future__ import annotations

import os
import threading


class LineFile:
    """Appends whole lines to ``<directory>/<stem>-<host>-<pid><suffix>``.

    The name tells the writer, so processes of one node and nodes of one shared directory never
    write the same file; after a fork the child gets a file of its own. The directory and the file
    are made when the first line is written, for this user alone. A line is one `write` call.

    Args:
        directory: made if it is missing; its parent must exist.
        stem: first part of the file name.
        suffix: last part of the file name, with its dot.
        header: first line of every new file, without its end; none by default.
    """

    def __init__(
        self, directory: str | os.PathLike[str], stem: str, suffix: str, *, header: str | None = None
    ) -> None:
        self._directory = os.fspath(directory)
        self._stem = stem
        self._suffix = suffix
        self._header = header
        self._lock = threading.Lock()
        self._fd = -1
        self._pid = 0

    @property
    def path(self) -> str:
        """The file of this process."""
        name = f"{self._stem}-{os.uname().nodename}-{os.getpid()}{self._suffix}"
        return os.path.join(self._directory, name)

    def open(self) -> None:
        """Make the directory and the file now, where it is to be known at once whether that works.

        Raises:
            OSError: it does not.
        """
        with self._lock:
            if self._pid != os.getpid():
                self._open()

    def write_line(self, text: str) -> None:
        """Append one line.

        Args:
            text: without a line end, also inside.

        Raises:
            OSError: it cannot be written, or (full disk) not as a whole.
        """
        with self._lock:
            if self._pid != os.getpid():  # the first line, or the first after a fork
                self._open()
            _write(self._fd, text)

    def _open(self) -> None:
        try:
            os.mkdir(self._directory, 0o700)
        except FileExistsError:
            pass
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        inherited, self._fd = self._fd, os.open(self.path, flags, 0o600)
        self._pid = os.getpid()
        if inherited >= 0:
            os.close(inherited)
        if self._header is not None and os.fstat(self._fd).st_size == 0:
            _write(self._fd, self._header)

    def close(self) -> None:
        """Close the file; a later line opens it again."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
            self._fd, self._pid = -1, 0


def _write(fd: int, text: str) -> None:
    line = text.encode(errors="backslashreplace") + b"\n"
    if os.write(fd, line) != len(line):
        raise OSError(f"only a part of a line of {len(line)} bytes could be written")
