"""Where the checkpoints of a framework lie, when they count, and which are kept."""

from __future__ import annotations

import errno
import operator
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from hpc_elastic import worker
from hpc_elastic.errors import InputError
from hpc_elastic.ids import Env
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.checkpoints import KEPT, complete_marks
from hpc_elastic.store.files import list_names

KEEP = 2
_FOLDER = "saved"
_NAME = re.compile(r"step-(\d+)-(\d+)")


def latest() -> str | None:
    """Return the path of the newest complete checkpoint, the same on all ranks; None at the first start."""
    saved = worker.latest_checkpoint()
    return saved.path if saved else None


class Saves:
    """The checkpoints that all ranks save together, each below one path.

    Args:
        save_every: steps between two regular ones; None: none are regular.
        directory: seen by all nodes: they lie in a folder of the run's name in it, as runs may share it; by
            default ``saved`` in the run directory.
        keep: how many complete ones are kept, the newest.
        environ: this process's environment.
        is_whole: tells by its path whether one is complete, where no run keeps marks; None: none is.

    Attributes:
        directory: where they lie.
        round: of this process.

    Raises:
        InputError: a number is not positive, or the directory is no path.
    """

    def __init__(
        self,
        save_every: int | None = None,
        directory: str | os.PathLike[str] | None = None,
        keep: int = KEEP,
        *,
        environ: Mapping[str, str] | None = None,
        is_whole: Callable[[str], bool] | None = None,
    ) -> None:
        check_positive("save_every", save_every)
        check_positive("keep", keep, allows_none=False)
        environ = os.environ if environ is None else environ
        self._save_every = save_every
        self._keep = keep
        self._is_whole = is_whole
        self.directory = _directory(worker.run_dir(), directory)
        self.round = int(environ.get(Env.ROUND) or 0)
        self._rank = int(environ.get("RANK") or 0)
        self._world_size = int(environ.get("WORLD_SIZE") or 1)

    def is_due(self, step: int, since: int | None = None) -> bool:
        """Tell whether a regular checkpoint is to be saved after a step.

        Args:
            step: the one that is done.
            since: the one before; it may be further back, as steps of several optimizers count at once.
        """
        before = step - 1 if since is None else since
        return self._save_every is not None and step // self._save_every > before // self._save_every

    def path(self, step: int) -> str:
        """Return where to save, and make sure that it can be made there.

        The round is part of the name: the incomplete files of a killed start are never mixed with it.
        """
        os.makedirs(self.directory, exist_ok=True)
        return os.path.abspath(os.path.join(self.directory, f"step-{step}-{self.round}"))

    def check(self) -> None:
        """Make sure before the first step that the directory is there, and can be written.

        Raises:
            InputError: it is not, or cannot.
        """
        try:
            os.makedirs(self.directory, exist_ok=True)
        except FileExistsError:
            raise _unfit(self.directory, "it is no directory") from None
        except OSError as error:
            raise _unfit(self.directory, str(error.strerror)) from None
        if not os.access(self.directory, os.W_OK | os.X_OK):
            raise _unfit(self.directory, "it cannot be written")

    def saved(self, step: int, path: str) -> None:
        """Record that this rank's part is saved, and remove the checkpoints that are outdated by that."""
        self.mark(step, path)
        if self._rank == 0:
            self.remove_old()

    def mark(self, step: int, path: str) -> None:
        """Record that this rank's part is saved; the checkpoint counts once all ranks have said so.

        Raises:
            OSError: the data could not be written to disk.
        """
        if self._rank == 0:
            sync(path)
        else:
            sync_file_system(os.path.dirname(path))
        worker.checkpoint_saved(step, path, shards=self._world_size)

    def complete(self) -> list[str]:
        """Return the paths of the complete checkpoints, the newest first.

        Raises:
            OSError: the directory exists and cannot be listed.
        """
        there = self.found()
        keys = self._complete_keys(list(there.values()))
        return [os.path.abspath(os.path.join(self.directory, there[key])) for key in keys if key in there]

    def found(self) -> dict[tuple[int, int], str]:
        """Return step and round of all checkpoints, the incomplete ones too, with their names.

        Raises:
            InputError: the directory is none.
            OSError: the directory exists and cannot be listed.
        """
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            return {}  # nothing was saved yet
        except NotADirectoryError:
            raise _unfit(self.directory, "it is no directory") from None
        return {key: name for name, key in _keys(names).items()}

    def _complete_keys(self, names: Sequence[str]) -> list[tuple[int, int]]:
        """Return step and round of the complete checkpoints, the newest first."""
        root = worker.run_dir()
        if root is not None:  # the marks are of this user's alone: by them others are removed
            return complete_keys(names, list_names(RunPaths(root).checkpoints))
        if self._is_whole is None:
            return []
        there = _keys(names).items()
        whole = (key for name, key in there if self._is_whole(os.path.join(self.directory, name)))
        return sorted(whole, reverse=True)

    def remove_old(self) -> None:
        """Remove the checkpoints that are older than those to be kept."""
        names = os.listdir(self.directory)
        for name in outdated(names, self._complete_keys(names), self._keep):
            path = os.path.join(self.directory, name)
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                _unlink(path)


def _directory(run_dir: str | None, named: object) -> str:
    """Return where the checkpoints of a run lie, in a directory of its own.

    Raises:
        InputError: the name is no path.
    """
    if named is None:
        return os.path.join(run_dir or "", _FOLDER)
    if not isinstance(named, str | os.PathLike) or not str(named):
        raise InputError(
            f"directory is {named!r}",
            where="hpc_elastic.frameworks",
            fix="give a path as text or a pathlib.Path, or leave it out",
        )
    return os.path.join(named, os.path.basename(run_dir) if run_dir else "")


def _unfit(directory: str, reason: str) -> InputError:
    return InputError(
        f"checkpoints cannot lie in {directory}: {reason}",
        where="hpc_elastic.frameworks",
        fix="give a directory in which you can write, or leave it out: then they lie in the run directory",
    )


def complete_keys(names: Iterable[str], marks: Iterable[str]) -> list[tuple[int, int]]:
    """Return step and round of the complete checkpoints, the newest first.

    Args:
        names: the names in the directory of checkpoints.
        marks: the names in the directory of marks.
    """
    keys = [(mark.step, mark.round) for mark in complete_marks(marks)]
    if len(keys) >= KEPT:  # marks of older ones were taken away
        keys += sorted({key for key in _keys(names).values() if key < keys[-1]}, reverse=True)
    return keys


def outdated(names: Iterable[str], complete: Sequence[tuple[int, int]], keep: int) -> list[str]:
    """Return the checkpoints to remove: all that are older than the newest `keep` complete ones.

    Args:
        names: the names in the directory of checkpoints.
        complete: step and round of the complete ones, the newest first.
        keep: how many complete ones are kept.
    """
    if len(complete) < keep:
        return []
    return [name for name, key in _keys(names).items() if key < complete[keep - 1]]


def _keys(names: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Return step and round of those names that are of checkpoints."""
    found = ((name, _NAME.fullmatch(name)) for name in names)
    return {name: (int(match[1]), int(match[2])) for name, match in found if match}


def sync(path: str) -> None:
    """Sync the data at a path to disk: a file, or all files below a directory."""
    for each in _below(path):
        try:
            handle = os.open(each, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # another rank's temporary file
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def sync_file_system(directory: str) -> None:
    """Have the disk keep all that this machine has written to the file system of a directory.

    Which files of a checkpoint are whose only the framework knows, and asking for each of them on each rank
    would be a burden for the file server. Does nothing where there is no such call.

    Raises:
        OSError: the file system could not write it.
    """
    import ctypes  # noqa: PLC0415 - only where something is saved

    call = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if call is not None and call(handle) != 0 and (number := ctypes.get_errno()) != errno.ENOSYS:
            raise OSError(number, os.strerror(number), directory)
    finally:
        os.close(handle)


def _below(path: str) -> Iterator[str]:
    if not os.path.isdir(path):
        yield path
    for directory, _, files in os.walk(path):
        yield from (os.path.join(directory, name) for name in files)
        yield directory
    yield os.path.dirname(path)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass  # it is only in the way


def checked_total(total: Any) -> int:
    """Return the steps of a run as a number.

    Raises:
        InputError: they are none.
    """
    try:
        return operator.index(total)
    except TypeError:
        raise InputError(
            f"the number of steps is {total!r}", where="hpc_elastic.frameworks", fix="give a whole number"
        ) from None


def check_positive(name: str, value: object, *, allows_none: bool = True, others: Sequence[str] = ()) -> None:
    """Refuse a value that is neither a positive whole number nor, where it is allowed, None.

    Args:
        name: of the argument.
        value: its value.
        allows_none: whether None may be given.
        others: more values that may be given, as they are written, for the message alone.

    Raises:
        InputError: names it.
    """
    if value is None and allows_none:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        *more, last = ("a positive whole number", *others, *(["None"] if allows_none else []))
        allowed = f"{', '.join(more)} or {last}" if more else last
        raise InputError(f"{name} is {value!r}", where="hpc_elastic.frameworks", fix=f"give {allowed}")
