"""Checkpoints in files: this user's alone as they are written, and read only if they are.

PyTorch unpickles some of them, and a pickle may run any code. So each file is opened once, below its opened
directory, and judged by its descriptor before a byte of it is read.
"""

from __future__ import annotations

import logging
import os
import pickle
import stat
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import FileIO
from typing import IO, Any, cast

from hpc_elastic import worker
from hpc_elastic.errors import InputError, StoreError, UnfitFileError
from hpc_elastic.frameworks.own_files import opened, require_own
from hpc_elastic.frameworks.saving import Saves, make_private
from hpc_elastic.frameworks.torch.rank_groups import RankGroups
from hpc_elastic.frameworks.torch.train_state import Torch, unpickled
from hpc_elastic.frameworks.torch.trees import OWN, WHERE
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.paths import RunPaths
from hpc_elastic.record import checkpoints as marks
from hpc_elastic.record.checkpoint_files import SavedFile, note_damaged, read_facts

logger = logging.getLogger(__name__)
_PRIVATE = 0o600
_READ = 1 << 22  # bytes at once
_FLAGS = os.O_CLOEXEC | os.O_NOCTTY


def with_own_files(made: Any) -> Any:
    """Return a reader or writer of PyTorch's, whose access to files is checked."""
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
    """Return which of some files of a checkpoint is not as it was written, empty: none; reads all of them."""
    for file in files:
        try:
            with FileIO(_open_own(os.path.join(path, file.name))) as stream:
                buffer, size, checksum = memoryview(bytearray(_READ)), 0, 0
                while count := stream.readinto(buffer):
                    size, checksum = size + count, zlib.crc32(buffer[:count], checksum)
        except UnfitFileError:
            continue  # the load tells of it
        except OSError as error:
            return f"{file.name}: {error.strerror}"
        if (size, checksum) != file[1:]:
            return f"the checksum of {file.name} does not fit"
    return ""


class _Summed:
    """A file that is written from its beginning to its end, with its checksum."""

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
    with opened(above, os.O_RDONLY | os.O_DIRECTORY | _FLAGS) as directory:
        require_own(directory, above, stat.S_IFDIR)
        yield directory, name


class CompleteCheckpoint(NamedTuple):
    """A complete checkpoint.

    Attributes:
        step: steps completed in it.
        path: its directory.
        world_size: number of ranks that have saved it.
        saved_at: when it was complete, by the clock of rank 0 [s since the epoch].
    """

    step: int
    path: str
    world_size: int
    saved_at: float


class FoundCheckpoints:
    """The checkpoints of an object, and the one to go on from.

    Attributes:
        newest: that to go on from, of the round if there is one; its files need not be whole.
    """

    def __init__(self, ranks: RankGroups, saves: Saves) -> None:
        self._ranks, self._saves = ranks, saves
        self._damaged = list[str]()  # the paths of those whose files are not as they were written
        self._is_whole = False  # the newest one: its files were read
        self._problem: InputError | None = None  # there is none that is whole
        self.newest: CompleteCheckpoint | None = None

    def all(self) -> list[CompleteCheckpoint]:
        """Return all complete checkpoints, the newest first."""
        found = map(_complete, self._saves.complete())
        return [saved for saved in found if saved is not None]

    @property
    def step(self) -> int:
        """Steps completed in the newest one; 0 without one."""
        return 0 if self.newest is None else self.newest.step

    def look(self) -> None:
        """Find the newest one; all ranks call it.

        Raises:
            InputError: it was marked without a path, or there is none of this kind, run and object there.
        """
        self._is_whole, self._problem = False, None
        found = self._ranks.told(self._path() if self._ranks.rank == 0 else None)
        self.newest = None if found is None else self._saved_at(found)

    def whole(self) -> CompleteCheckpoint | None:
        """Return the newest one whose files are as they were written; all ranks call it.

        Raises:
            InputError: there is none, but damaged ones.
        """
        self.whole_step()
        if self._problem is not None:
            raise self._problem
        return self.newest

    def whole_step(self) -> int:
        """Return the step of the newest one whose files are as they were written, 0 without one.

        All ranks call it; each reads some of the files, once.
        """
        while self.newest is not None and not self._is_whole:
            saved = self.newest
            facts = read_facts(saved.path)
            mine = () if facts is None else facts.files[self._ranks.rank :: self._ranks.size]
            problem = next(filter(None, self._ranks.all_told(damage(saved.path, mine))), "")
            self._is_whole = not problem
            if problem:
                if self._ranks.rank == 0:
                    told = "the checkpoint of step %d is damaged: %s; an older state counts"
                    logger.warning(told, saved.step, problem)
                    note_damaged(saved.path)
                self._damaged.append(saved.path)
                self._look_further()
        return self.step

    def _look_further(self) -> None:
        """Find the newest one before those that are damaged; if there is none, a state in memory may be."""
        try:
            self.look()
        except InputError as error:
            self.newest, self._problem = None, error

    def _path(self) -> str | None:
        """Return the path of the checkpoint to go on from, or of the newest whole one before it (rank 0)."""
        root = worker.run_dir()
        if root is None:
            there = [saved.path for saved in self.all() if saved.path not in self._damaged]
            return next(iter([*there, *self._damaged]), None)
        marked = worker.latest_checkpoint(self._saves.name)
        if marked is not None and marked.path is None:
            raise InputError(
                f"the checkpoint of step {marked.step} was marked without a path",
                where=WHERE,
                fix="let Checkpoints alone save, or load that one yourself",
            )
        if marked is None or self._is_ours(marked.path):
            return None if marked is None else marked.path
        for other in marks.marked(RunPaths(root), self._saves.name):
            if other.step <= marked.step and self._is_ours(other.path):
                told = "the checkpoint %s is not whole; the training goes on from the one of step %d"
                logger.warning(told, marked.path, other.step)
                return other.path
        return marked.path  # the error names it

    def _is_ours(self, path: str | None) -> bool:
        """Tell whether there is a whole checkpoint of this run and object at a path."""
        facts = None if path is None or path in self._damaged else read_facts(path)
        mine = self._saves.run, self._saves.name
        return facts is not None and (not facts.run or (facts.run, facts.name) == mine)

    def _saved_at(self, path: str) -> CompleteCheckpoint:
        """Return the checkpoint at a path.

        Raises:
            InputError: there is none of this kind, run and object.
        """
        saved, is_damaged = _complete(path), path in self._damaged
        if saved is not None and not is_damaged and (worker.run_dir() is None or self._is_ours(path)):
            return saved
        problem = "is gone"
        if is_damaged:
            problem = "is damaged, and there is no older one"
        elif os.path.exists(path):
            problem = (
                "was not saved by Checkpoints" if saved is None else "was saved by another run or object"
            )
        raise InputError(
            f"the checkpoint to resume from {problem}: {path}",
            where=WHERE,
            fix="load it yourself, give its place back, or begin a new run",
        )


def _complete(path: str) -> CompleteCheckpoint | None:
    """Return the checkpoint at a path; None if it is not complete, or of another kind."""
    facts = read_facts(path)
    return None if facts is None else CompleteCheckpoint(facts.step, path, facts.world_size, facts.saved_at)


class FileSource:
    """A checkpoint in files."""

    def __init__(self, lib: Torch, ranks: RankGroups, path: str, saved_by: int) -> None:
        self._lib, self._ranks = lib, ranks
        self.name = path
        self._rank, self._saved_by = ranks.rank, saved_by
        self._is_of_as_many = saved_by == ranks.size
        self._reader = with_own_files(lib.checkpoint.FileSystemReader(path))
        self._names: dict[str, str] = {}  # of this rank's own tensors, by those of all
        self._buffers = ""  # the name of this rank's own buffers, if it has some

    def stored(self) -> Mapping[str, Any]:
        """Return the record of each tensor.

        Raises:
            InputError: one differed between the ranks that have saved, and there is another number of them.
        """
        found: Mapping[str, Any] = self._reader.read_metadata().state_dict_metadata
        if self._is_of_as_many:
            mine = f"{OWN}{self._rank}/"
            self._names = {name.removeprefix(mine): name for name in found if name.startswith(mine)}
            buffers = f"{OWN}{self._rank}.buffers"
            self._buffers = buffers if buffers in found else ""
            return self._in_order({**found, **{name: found[there] for name, there in self._names.items()}})
        own = next((name for name in sorted(found) if name.startswith(OWN) and "/" in name), None)
        if own is not None:
            raise InputError(
                f"{own.partition('/')[2]} was not the same on the {self._saved_by} ranks that have saved the "
                f"checkpoint {self.name}, and now there is another number of ranks",
                where=WHERE,
                fix=f"go on with {self._saved_by} ranks, or begin a new run with tensors cut by FSDP2",
            )
        return self._in_order(found)

    def _in_order(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """Return records in the order in which rank 0 had their values; an optimizer's state has one."""
        if f"{OWN}names" not in found:
            return dict(found)
        names = pickle.loads(self._read([f"{OWN}names"])[0])  # noqa: S301 - as the values of ranks
        return {**{name: found[name] for name in names if name in found}, **found}

    def owns(self) -> bytes | list[bytes]:
        """Return the values of this rank; those of all ranks that have saved, if their number is another."""
        if self._is_of_as_many:
            return self._read([f"{OWN}{self._rank}"])[0]
        names = [f"{OWN}{rank}" for rank in range(self._saved_by)]
        owns: list[bytes] = self._ranks.told(self._read(names) if self._rank == 0 else None)
        return owns

    def _read(self, names: Sequence[str]) -> list[bytes]:
        wanted: dict[str, bytes] = dict.fromkeys(names, b"")
        self._lib.checkpoint.load(wanted, storage_reader=self._reader, no_dist=True)
        known: dict[bytes, bytes] = {}
        return [known.setdefault(data, data) for data in wanted.values()]

    def fill(self, loaded: dict[str, Any]) -> None:
        """Read tensors."""
        wanted = {self._names.get(name, name): value for name, value in loaded.items()}
        group = self._ranks.group
        self._lib.checkpoint.load(
            wanted, storage_reader=self._reader, process_group=group, no_dist=group is None
        )
        loaded.update({name: wanted[self._names.get(name, name)] for name in loaded})
        if self._buffers:
            with self._lib.torch.no_grad():
                for name, value in unpickled(self._lib, self._read([self._buffers])[0]).items():
                    if isinstance(value, self._lib.torch.Tensor):
                        loaded[name].copy_(value)
                    else:
                        loaded[name] = value
