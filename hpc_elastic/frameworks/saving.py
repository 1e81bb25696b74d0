"""Where the checkpoints of a framework lie, when they count, and which are kept."""

from __future__ import annotations

import errno
import logging
import operator
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from hpc_elastic import worker
from hpc_elastic.errors import InputError
from hpc_elastic.frameworks.own_files import (
    close_to_others,
    opened,
    own_path,
    remove_below,
    remove_checkpoints,
)
from hpc_elastic.ids import Env
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.checkpoint_files import DAMAGED, FACTS, is_noted_damaged, owner_id
from hpc_elastic.record.checkpoints import KEPT, check_name, complete_marks, left_marks
from hpc_elastic.store.files import TEMPORARY, list_names
from hpc_elastic.store.plain_file import OTHERS_WRITE, owner_name
from hpc_elastic.store.trust import others_write, trusted_uids
from hpc_elastic.text import for_shell

logger = logging.getLogger(__name__)
KEEP = 2
PRIVATE = 0o700
_FOLDER = "saved"
_PART = re.compile(
    rf"\.metadata(\.tmp)?|__\d+_\d+\.distcp|{FACTS}|{DAMAGED}|{re.escape(TEMPORARY)}.+"
)  # of Checkpoints
_NAME = re.compile(r"step-(\d+)-(\d+)(?:-(\d+))?")
_Order = tuple[int, int, int]  # round, branch and step of a checkpoint: the newest has the greatest


def latest() -> str | None:
    """Return the path of the newest complete checkpoint, the same one on all ranks; None at the first start.

    Where other users can exchange a directory above it, the path leads through a descriptor of this process.

    Raises:
        UnfitFileError: other users could write to the checkpoint, and so have code run as this one.
    """
    return _newest()


def _newest(name: str = "") -> str | None:
    saved = worker.latest_checkpoint(name)
    return own_path(saved.path) if saved and saved.path else None


class Saves:
    """The checkpoints that all ranks save together, each below one path.

    Args:
        save_every: steps between two regular ones; None: none are regular.
        directory: seen by all nodes: they lie in a folder of the run in it, as runs may share it; by
            default ``saved`` in the run directory.
        keep: how many complete ones are kept, the newest.
        name: of the object that is saved, where a program saves several; a folder of its own.
        environ: this process's environment.
        is_whole: tells by its path whether one is complete, where no run keeps marks; None: none is.

    Attributes:
        directory: where they lie.
        round: of this process.
        name: of the object.
        run: the id of the run's checkpoints; empty without a run.

    Raises:
        InputError: a number is not positive, the directory is no path, or the name cannot be one.
        OSError: the run directory does not answer.
    """

    def __init__(
        self,
        save_every: int | None = None,
        directory: str | os.PathLike[str] | None = None,
        keep: int = KEEP,
        *,
        name: str = "",
        environ: Mapping[str, str] | None = None,
        is_whole: Callable[[str], bool] | None = None,
    ) -> None:
        check_positive("save_every", save_every)
        check_positive("keep", keep, allows_none=False)
        environ = os.environ if environ is None else environ
        self._save_every = save_every
        self._keep = keep
        self._is_whole = is_whole
        self.name = check_name(name)
        _check_directory(directory)
        root = worker.run_dir()
        self.run = "" if root is None else owner_id(RunPaths(root))
        self._way = _way(root, directory, self.run, self.name)
        self.directory = os.path.join(*self._way)
        self.round = int(environ.get(Env.ROUND) or 0)
        self._rank = int(environ.get("RANK") or 0)
        self._world_size = int(environ.get("WORLD_SIZE") or 1)
        self._made: os.stat_result | None = None  # the directory, as it was when the first one was saved

    def is_due(self, step: int, since: int | None = None) -> bool:
        """Tell whether a regular checkpoint is to be saved after a step.

        Args:
            step: the one that is done.
            since: the one before; it may be further back, as steps of several optimizers count at once.
        """
        before = step - 1 if since is None else since
        return self._save_every is not None and step // self._save_every > before // self._save_every

    def newest(self) -> str | None:
        """Return the path of the newest complete checkpoint of the object, as `latest`.

        Raises:
            UnfitFileError: as by `latest`.
        """
        return _newest(self.name)

    def path(self, step: int) -> str:
        """Return where to save, and make sure that it can be made there.

        Round and branch are part of the name: the incomplete files of a killed start are never mixed with it.

        Raises:
            InputError: a directory of this name is another user's.
            OSError: there can be no directory.
        """
        self.make()
        branch = f"-{worker.branch()}" if worker.branch() else ""
        return os.path.abspath(os.path.join(self.directory, f"step-{step}-{self.round}{branch}"))

    def make(self) -> None:
        """Make the directory; those in it that are named by this package are this user's alone.

        Raises:
            InputError: a directory of this name is another user's.
            OSError: there can be no directory.
        """
        above, *ours = self._way
        os.makedirs(above or os.curdir, exist_ok=True)
        is_new = False
        for name in ours:
            above = os.path.join(above, name)
            is_new = make_private(above)
        if is_new or self._made is None:
            self._made = os.stat(self.directory)

    def check(self) -> None:
        """Make sure before the first step that the directory is there, and can be written.

        Raises:
            InputError: it is not, or cannot.
        """
        try:
            self.make()
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
            close_to_others(path)
            sync(path)
        else:
            sync_file_system(os.path.dirname(path))
        worker.checkpoint_saved(step, path, shards=self._world_size, name=self.name)

    def discard(self, step: int, path: str) -> None:
        """Remove the rest of a save that has failed: this rank's mark, and on rank 0 the parts."""
        try:
            worker.checkpoint_failed(step, shards=self._world_size, name=self.name)
        except OSError as error:
            logger.warning("the mark of a checkpoint that was not saved cannot be removed: %s", error)
        if self._rank == 0:
            self._remove([os.path.basename(path)])

    def complete(self) -> list[str]:
        """Return the paths of the complete checkpoints that may be gone on from, the newest first.

        Raises:
            OSError: the directory exists and cannot be listed.
        """
        there = self.found()
        orders, _ = self._complete_orders(list(there.values()))
        return [os.path.abspath(os.path.join(self.directory, there[one])) for one in orders if one in there]

    def found(self) -> dict[_Order, str]:
        """Return round, branch and step of all checkpoints, the incomplete ones too, with their names.

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
        return {order: name for name, order in _orders(names).items()}

    def _complete_orders(self, names: Sequence[str]) -> tuple[list[_Order], set[_Order]]:
        """Return the complete checkpoints, the newest first, and those that the run has gone back behind."""
        root = worker.run_dir()
        if root is not None:  # the marks are of this user's alone: by them others are removed
            marks = list_names(RunPaths(root).checkpoints)
            return complete_orders(names, marks, self.name), {
                mark.order for mark in left_marks(marks, self.name)
            }
        if self._is_whole is None:
            return [], set()
        there = _orders(names).items()
        whole = (one for name, one in there if self._is_whole(os.path.join(self.directory, name)))
        return sorted(whole, reverse=True), set()

    def remove_old(self) -> None:
        """Remove the checkpoints that are older than those to be kept; none that was gone back behind.

        One that a start has found damaged stays as long as older ones, and is none of those that are kept.
        """
        names = os.listdir(self.directory)
        complete, left = self._complete_orders(names)
        there = {order: os.path.join(self.directory, name) for name, order in _orders(names).items()}
        whole = [one for one in complete if one not in there or not is_noted_damaged(there[one])]
        self._remove(outdated(names, whole, self._keep, left))

    def _remove(self, names: list[str]) -> None:
        """Remove checkpoints from the directory that this process has made or found, and from no other."""
        if not names:
            return
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        with suppress(OSError), opened(self.directory, flags) as directory:
            if self._made is not None and not os.path.samestat(self._made, os.fstat(directory)):
                logger.warning("no checkpoint is removed: %s is another directory now", self.directory)
                return
            if others_write(directory):  # and so give a directory of this user's the name of a checkpoint
                remove_checkpoints(directory, names, _PART)
                return
            remove_below(directory, names)


def _check_directory(named: object) -> None:
    if named is not None and (not isinstance(named, str | os.PathLike) or not str(named)):
        raise InputError(
            f"directory is {named!r}",
            where="hpc_elastic.frameworks",
            fix="give a path as text or a pathlib.Path, or leave it out",
        )


def _way(root: str | None, named: str | os.PathLike[str] | None, run: str, name: str) -> tuple[str, ...]:
    """Return the user's directory, and the names of those in it that are the run's and the object's alone."""
    ours = (name,) if name else ()
    if named is None:
        return (root or "", _FOLDER, *ours)
    return (os.fspath(named), *((f"{os.path.basename(root)}-{run}",) if root else ()), *ours)


def make_private(path: str) -> bool:
    """Make a directory to which no other user can write; one of this user's that is open is closed.

    Returns:
        Whether it was made here.

    Raises:
        InputError: it is another user's, or that user's link to one.
        OSError: there can be no directory.
    """
    try:
        os.mkdir(path, PRIVATE)
    except FileExistsError:
        pass
    else:
        return True
    trusted = trusted_uids()
    link = os.lstat(path).st_uid
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        owner = next((uid for uid in (link, os.fstat(fd).st_uid) if uid not in trusted), None)
        if owner is not None:
            raise _unfit(path, f"it belongs to user {owner_name(owner)}")
        if others_write(fd):
            os.fchmod(fd, stat.S_IMODE(os.fstat(fd).st_mode) & ~OTHERS_WRITE)
            logger.warning(
                "others could write to the checkpoints in %s, and so have code run as you; now they cannot. "
                "To let them read: chmod -R go+rX,go-w %s",
                *(path, for_shell(path)),
            )
    finally:
        os.close(fd)
    return False


def _unfit(directory: str, reason: str) -> InputError:
    return InputError(
        f"checkpoints cannot lie in {directory}: {reason}",
        where="hpc_elastic.frameworks",
        fix="give a directory in which you can write, or leave it out: then they lie in the run directory",
    )


def complete_orders(names: Iterable[str], marks: Iterable[str], of: str = "") -> list[_Order]:
    """Return the complete checkpoints, the newest first.

    Args:
        names: the names in the directory of checkpoints.
        marks: the names in the directory of marks.
        of: the name of the object.
    """
    orders = [mark.order for mark in complete_marks(marks, of)]
    if len(orders) >= KEPT:  # marks of older ones were taken away
        orders += sorted({one for one in _orders(names).values() if one < orders[-1]}, reverse=True)
    return orders


def outdated(
    names: Iterable[str], complete: Sequence[_Order], keep: int, left: Iterable[_Order] = ()
) -> list[str]:
    """Return the checkpoints to remove: all that are older than the newest `keep` complete ones.

    Args:
        names: the names in the directory of checkpoints.
        complete: the complete ones, the newest first.
        keep: how many complete ones are kept.
        left: complete ones that the run has gone back behind: the user may want one.
    """
    if len(complete) < keep:
        return []
    stay = {*left}
    return [name for name, one in _orders(names).items() if one < complete[keep - 1] and one not in stay]


def _orders(names: Iterable[str]) -> dict[str, _Order]:
    """Return round, branch and step of those names that are of checkpoints."""
    found = ((name, _NAME.fullmatch(name)) for name in names)
    return {name: (int(match[2]), int(match[3] or 0), int(match[1])) for name, match in found if match}


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


def same_name(what: str, name: str, kind: str) -> InputError:
    """Return the error of a training that would end with the state of another one of its name."""
    return InputError(
        f"another {what} {f'of the name {name!r}' if name else 'without a name'} was completed in this "
        "program: this one would have its state, and make no step",
        where=f"hpc_elastic.frameworks: {kind}",
        fix=f'give each {what} a name: {kind}(..., name="fold2")',
    )


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


def check_memory(place: str, replicas: int, *, memory: bool, **switches: object) -> None:
    """Refuse switches that are neither True nor False, and a number of second copies that cannot be.

    Raises:
        InputError: names it, and the place.
    """
    for name, value in {**switches, "memory": memory}.items():
        if not isinstance(value, bool):  # "no" would count as yes
            raise InputError(f"{name} is {value!r}", where=place, fix="give True or False, or leave it out")
    if replicas == 1 and not memory:
        raise InputError(
            "replicas=1 needs the copies of memory=True, and memory is False",
            where=place,
            fix="leave memory out, or replicas",
        )
    if replicas not in {0, 1}:
        raise InputError(f"replicas is {replicas!r}", where=place, fix="give 0 or 1, or leave it out")
