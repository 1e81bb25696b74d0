"""The files of a checkpoint: this user's alone as they are written, and read only if they are.

PyTorch unpickles some of them, and a pickle may run any code. So each file is opened once, below its opened
directory, and judged by its descriptor before a byte of it is read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from hpc_elastic.errors import StoreError
from hpc_elastic.frameworks.own_files import require_own
from hpc_elastic.frameworks.saving import make_private
from hpc_elastic.record.checkpoint_files import read_facts

_PRIVATE = 0o600
_FLAGS = os.O_CLOEXEC | os.O_NOCTTY


def reader(checkpoint: Any, path: str) -> Any:
    """Return PyTorch's reader of a checkpoint.

    Args:
        checkpoint: ``torch.distributed.checkpoint``.
        path: of the checkpoint.
    """
    made = checkpoint.FileSystemReader(path)
    made.fs = OwnFiles(made.fs)
    return made


def writer(checkpoint: Any, path: str) -> Any:
    """Return PyTorch's writer of a checkpoint.

    Args:
        checkpoint: ``torch.distributed.checkpoint``.
        path: of the checkpoint.
    """
    made = checkpoint.FileSystemWriter(path)
    made.fs = OwnFiles(made.fs)
    return made


def not_saved(step: int, path: str, error: BaseException) -> StoreError:
    """Return the error of a save, with the words of the ranks that have failed.

    Args:
        step: of the checkpoint.
        path: of the checkpoint.
        error: on this rank; PyTorch's has those of all.
    """
    failures = getattr(error, "failures", None)  # of all ranks, with their stacks: torch's
    first: BaseException = error
    by = ""
    if failures:
        rank, (first, _) = next(iter(failures.items()))
        by = f" on rank {rank}"
    return StoreError(
        f"the checkpoint of step {step} was not saved{by}: {type(first).__name__}: {first}: {path}",
        errno=getattr(first, "errno", None),
    )


def text_at_end(error: BaseException) -> str:
    """Return the text of an error of the last save that a program has not asked for."""
    return (
        f"hpc_elastic: the last save of the program has failed: {error}\n"
        "  fix: call checkpoints.wait() before the program ends, and before destroy_process_group"
    )


class OwnFiles:
    """Stands in for PyTorch's access to files.

    Args:
        others: PyTorch's, which does all else.
    """

    def __init__(self, others: Any) -> None:
        self._others = others

    def __getattr__(self, name: str) -> Any:
        return getattr(self._others, name)

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """Make the directory of a checkpoint.

        Raises:
            FileExistsError: there is a complete one, which is never written into.
        """
        if read_facts(os.fspath(path)) is not None:
            raise FileExistsError(f"there is a complete checkpoint of this step: {path}")
        make_private(os.fspath(path))

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[IO[Any]]:
        """Open a file.

        Raises:
            UnfitFileError: others can write to its directory or, where it is to be read, to it.
        """
        path = os.fspath(path)
        with os.fdopen(_open_own(path) if mode == "rb" else _open_new(path), mode) as stream:
            yield stream


def _open_new(path: str) -> int:
    """Open a file to write it, in a directory of this user's to which no other can write."""
    with _own_directory(path) as (directory, name):
        return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _FLAGS, _PRIVATE, dir_fd=directory)


def _open_own(path: str) -> int:
    """Open a plain file of this user's or root's, to which no other can write."""
    with _own_directory(path) as (directory, name):
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | _FLAGS, dir_fd=directory)
    try:
        require_own(fd, path, stat.S_IFREG)
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextmanager
def _own_directory(path: str) -> Iterator[tuple[int, str]]:
    """Give the checked directory of a file, as a descriptor, and the name of the file there."""
    above, name = os.path.split(path)
    directory = os.open(above, os.O_RDONLY | os.O_DIRECTORY | _FLAGS)
    try:
        require_own(directory, above, stat.S_IFDIR)
        yield directory, name
    finally:
        os.close(directory)
