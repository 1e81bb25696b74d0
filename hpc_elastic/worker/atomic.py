"""Replace a file whole or not at all, also when the process or the machine dies."""

from __future__ import annotations

import errno
import os

from hpc_elastic.store import files
from hpc_elastic.typed_json import whole_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import BinaryIO

_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ESTALE)


class AtomicWrite:
    """A context manager: temporary file in the same directory, fsync, rename, fsync directory.

    With several live writers of one target the last one wins, whole.

    Args:
        path: the file to create or replace.
        round_number: the round this process belongs to. Files that killed writers of earlier rounds
            left behind for the same target is removed on success.
    """

    def __init__(self, path: str | os.PathLike[str], round_number: int = 0) -> None:
        self._target = os.path.abspath(os.fspath(path))
        self._directory, name = os.path.split(self._target)
        self._prefix = f".{name}.unfinished-"
        self._round = round_number
        unique = f"{round_number}-{os.getpid()}-{os.urandom(4).hex()}"
        self._temporary = os.path.join(self._directory, self._prefix + unique)
        self._file: BinaryIO | None = None

    def __enter__(self) -> BinaryIO:
        with files.named(self._target):
            self._file = files.retry(lambda: open(self._temporary, "xb"))  # noqa: SIM115 - closed in __exit__
        return self._file

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        if isinstance(error, OSError) and error.errno in _OF_THE_DISK and error.filename is None:
            error.filename = self._target  # a write names no file
        try:
            if kind is None:
                with files.named(self._target):
                    file.flush()
                    os.fsync(file.fileno())
            _close(file)  # all is safe by now, or given up
            if kind is None:
                files.move(self._temporary, self._target)
        except BaseException:
            _close(file)
            _remove(self._temporary)
            raise
        if kind is None:
            self._remove_leftovers()
        else:
            _remove(self._temporary)

    def _remove_leftovers(self) -> None:
        if self._round == 0:
            return
        try:
            names = os.listdir(self._directory)
        except OSError:
            return  # the next success gets them
        for name in names:
            if name.startswith(self._prefix):
                number = whole_number(name[len(self._prefix) :].split("-")[0])
                if number is not None and number < self._round:
                    _remove(os.path.join(self._directory, name))


def _close(file: BinaryIO) -> None:
    try:
        file.close()
    except OSError:
        pass


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass  # a leftover of this round; the next round removes it
