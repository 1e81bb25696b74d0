"""Replace a file whole or not at all, also when the process or the machine dies."""

from __future__ import annotations

import os

from hpc_elastic.store.files import sync_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import BinaryIO


class AtomicWrite:
    """A context manager: temporary file in the same directory, fsync, rename, fsync directory.

    With several live writers of one target the last one wins, whole.

    Args:
        path: the file to create or replace.
        round_number: the round this process belongs to. What killed writers of earlier rounds
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
        self._file = open(self._temporary, "xb")  # closed in __exit__
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
        try:
            with file:
                if kind is not None:
                    return
                file.flush()
                os.fsync(file.fileno())
            os.replace(self._temporary, self._target)
        finally:
            _remove(self._temporary)
        sync_directory(self._directory)
        self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        if self._round == 0:
            return
        for name in os.listdir(self._directory):
            if name.startswith(self._prefix):
                round_text = name[len(self._prefix) :].split("-")[0]
                if round_text.isdigit() and int(round_text) < self._round:
                    _remove(os.path.join(self._directory, name))


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
