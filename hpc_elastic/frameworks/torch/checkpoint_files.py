"""The files of a checkpoint: this user's alone as they are written, and read only if they are.

PyTorch unpickles some of them, and a pickle may run any code. So each file is opened once, below its opened
directory, and judged by its descriptor before a byte of it is read.
"""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import FileIO
from typing import IO, Any, cast

from hpc_elastic.errors import StoreError, UnfitFileError
from hpc_elastic.frameworks.own_files import require_own
from hpc_elastic.frameworks.saving import make_private
from hpc_elastic.record.checkpoint_files import SavedFile, read_facts

_PRIVATE = 0o600
_READ = 1 << 22  # bytes at once
_FLAGS = os.O_CLOEXEC | os.O_NOCTTY


def reader(checkpoint: Any, path: str) -> Any:
    """Return PyTorch's reader of a checkpoint."""
    made = checkpoint.FileSystemReader(path)
    made.fs = OwnFiles(made.fs)
    return made


def writer(checkpoint: Any, path: str) -> Any:
    """Return PyTorch's writer of a checkpoint."""
    made = checkpoint.FileSystemWriter(path)
    made.fs = OwnFiles(made.fs)
    return made


def not_saved(step: int, path: str, error: BaseException) -> StoreError:
    """Return the error of a save, with the words of the ranks that have failed."""
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


def damage(path: str, files: Iterable[SavedFile]) -> str:
    """Return which file of a checkpoint is not as it was written, empty: none; reads all of them.

    Args:
        path: of the checkpoint.
        files: some of its files.
    """
    for file in files:
        try:
            with FileIO(_open_own(os.path.join(path, file.name))) as stream:
                found = _sum_of(file.name, stream)
        except UnfitFileError:
            continue  # the load tells of it
        except OSError as error:
            return f"{file.name}: {error.strerror}"
        if found != file:
            return f"the checksum of {file.name} does not fit"
    return ""


def _sum_of(name: str, stream: FileIO) -> SavedFile:
    buffer, size, checksum = memoryview(bytearray(_READ)), 0, 0
    while count := stream.readinto(buffer):
        size, checksum = size + count, zlib.crc32(buffer[:count], checksum)
    return SavedFile(name, size, checksum)


class _Summed:
    """A file that is written from its beginning to its end, with its checksum.

    Args:
        stream: the file, which does all else.
    """

    def __init__(self, stream: IO[Any]) -> None:
        self._stream = stream
        self.sum = 0, 0  # size [bytes] and checksum, up to now

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, data: Any) -> int:
        """Write bytes."""
        size, checksum = self.sum
        self.sum = size + memoryview(data).nbytes, zlib.crc32(data, checksum)
        return self._stream.write(data)


class OwnFiles:
    """Stands in for PyTorch's access to files."""

    def __init__(self, others: Any) -> None:
        self._others = others
        self._written: dict[str, _Summed] = {}  # by path

    def written(self) -> list[SavedFile]:
        """Return the files that were written."""
        return [SavedFile(os.path.basename(path), *one.sum) for path, one in self._written.items()]

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        """Give a file another name."""
        self._others.rename(path, new_path)
        self._written[os.fspath(new_path)] = self._written.pop(os.fspath(path))

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
        if mode == "rb":
            with os.fdopen(_open_own(path), mode) as stream:
                yield stream
            return
        with os.fdopen(_open_new(path), mode) as stream:
            self._written[path] = summed = _Summed(stream)
            yield cast("IO[Any]", summed)


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
