"""Files of checkpoints that frameworks unpickle: of this user's alone, and closed to others.

A pickle may run any code, so no file is read that another user could have written. Files are judged by their
descriptors: a user who may rename a directory above can put another file at their path at each moment.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from hpc_elastic import worker
from hpc_elastic.errors import UnfitFileError
from hpc_elastic.store.plain_file import OTHERS_WRITE, owner_name
from hpc_elastic.store.trust import exposures, others_write, trusted_uids
from hpc_elastic.text import for_shell

logger = logging.getLogger(__name__)

_OTHERS_ENTER = 0o011
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_PLACE = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_FIRST = 900  # some frameworks hand rank 0's path to all: a number that is free on each rank


def own_path(path: str) -> str:
    """Return a path by which a framework reads a checkpoint, also if other users exchange it meanwhile.

    Where others can exchange a directory above it, it leads through a descriptor, which stays open as long
    as this process lives. Elsewhere it is the same path.

    Args:
        path: of the checkpoint, a file or a directory; one that is not there is returned as it is.

    Raises:
        UnfitFileError: another user has made the checkpoint or a file of it, or can write to one. It ends the
            run, as no restart helps.
        OSError: the file system refused.
    """
    try:
        with opened(path) as fd:
            if not _is_closed_off(fd, path):
                _require_own_below(fd, path)
            return _by_descriptor(fd) if exposures(os.path.abspath(path)) else path
    except (FileNotFoundError, NotADirectoryError):
        return path
    except UnfitFileError as error:
        if worker.attached():
            worker.give_up(str(error))
        raise


def _by_descriptor(fd: int) -> str:
    try:
        kept = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST)
    except OSError:  # the process may have fewer
        kept = os.dup(fd)
    return f"/proc/self/fd/{kept}"


@contextmanager
def opened(path: str, flags: int = _READ, parent: int | None = None) -> Iterator[int]:
    """Give the descriptor of a file or directory, and close it afterwards.

    Raises:
        OSError: the file system refused.
    """
    fd = os.open(path, flags, dir_fd=parent)
    try:
        yield fd
    finally:
        os.close(fd)


def _is_closed_off(fd: int, path: str) -> bool:
    """Tell whether a checkpoint of this user's lies in a directory that no other user can enter."""
    require_own(fd, path, stat.S_IFMT(os.fstat(fd).st_mode), is_open=True)
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        return _has_closed(os.dup(fd))
    if os.path.islink(path):  # the file is elsewhere
        return False
    with opened(os.path.dirname(path) or os.curdir, _PLACE) as above:
        there = os.stat(os.path.basename(path), dir_fd=above, follow_symlinks=False)
        return os.path.samestat(there, os.fstat(fd)) and _has_closed(os.dup(above))


def _has_closed(here: int) -> bool:
    """Tell whether a directory, or one above it, is this user's or root's and closed to others; closes it."""
    trusted, before = trusted_uids(), None
    try:
        while True:
            found = os.fstat(here)
            if found.st_uid in trusted and not found.st_mode & _OTHERS_ENTER:
                return True
            if before is not None and os.path.samestat(before, found):
                return False  # the root is above itself
            before, above = found, os.open(os.pardir, _PLACE, dir_fd=here)
            os.close(here)
            here = above
    finally:
        os.close(here)


def _require_own_below(fd: int, path: str) -> None:
    """Refuse a checkpoint with a part that others have made or can write to; links in it are its owner's."""
    require_own(fd, path, stat.S_IFMT(os.fstat(fd).st_mode))
    if not stat.S_ISDIR(os.fstat(fd).st_mode):
        return
    for below, _, names, directory in os.fwalk(os.curdir, dir_fd=fd, onerror=_raise):
        place = os.path.normpath(os.path.join(path, below))
        require_own(directory, place, stat.S_IFDIR)
        for name in names:
            _require_own_entry(directory, os.path.join(place, name))


def _require_own_entry(directory: int, path: str) -> None:
    name = os.path.basename(path)
    found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if found.st_uid not in trusted_uids():
        raise _foreign(path, found.st_uid)
    if found.st_mode & OTHERS_WRITE and stat.S_ISREG(found.st_mode):
        with opened(name, _READ | os.O_NOFOLLOW, directory) as fd:
            require_own(fd, path, stat.S_IFREG)


def _raise(error: OSError) -> None:
    raise error


def require_own(fd: int, path: str, kind: int, *, is_open: bool = False) -> None:
    """Refuse a file or directory of another kind, or that another user has made or can write to.

    Args:
        fd: its descriptor.
        path: names it in the error.
        kind: as in the module `stat`, such as S_IFREG.
        is_open: others may write to it.

    Raises:
        UnfitFileError: it is one.
        OSError: the file system does not tell.
    """
    found = os.fstat(fd)
    if stat.S_IFMT(found.st_mode) != kind:
        fix = f"see its kind: ls -l {for_shell(path)}"
        raise UnfitFileError(path, "it is no plain file", errno=errno.EINVAL, fix=fix)
    if found.st_uid not in trusted_uids():
        raise _foreign(path, found.st_uid)
    if not is_open and others_write(fd):
        place = path if kind == stat.S_IFDIR else os.path.dirname(path)
        raise UnfitFileError(
            path,
            f"others can write to it (mode {stat.S_IMODE(found.st_mode):o}), "
            "and so could have code run as you",
            errno=errno.EPERM,
            fix=f"if no other user has changed it: chmod -R go-w {for_shell(place)}",
        )


def _foreign(path: str, owner: int) -> UnfitFileError:
    return UnfitFileError(
        path,
        f"it belongs to user {owner_name(owner)}, and can hold code that would run as you",
        errno=errno.EPERM,
        fix="copy the checkpoint, if you trust that user, and load your copy",
    )


def close_to_others(path: str) -> None:
    """Have no other user write to a checkpoint that was just saved, as the umask would let a group.

    A directory is closed whole: other ranks may still write files into it. Nothing is done where a directory
    above is closed, or the umask has kept others out.

    Args:
        path: of the checkpoint; it need not be there.

    Raises:
        OSError: the file system refused.
    """
    with suppress(FileNotFoundError, NotADirectoryError), opened(path) as fd:
        found = os.fstat(fd)
        if found.st_uid != os.geteuid() or not others_write(fd) or _is_closed_off(fd, path):
            return
        allowed = 0o700 if stat.S_ISDIR(found.st_mode) else stat.S_IMODE(found.st_mode) & ~OTHERS_WRITE
        os.fchmod(fd, stat.S_IMODE(found.st_mode) & allowed)
        logger.warning(
            "others could write to the checkpoint %s, and so have code run as you; now they cannot. "
            "To let them read: chmod -R go+rX,go-w %s",
            *(path, for_shell(path)),
        )


def remove_below(directory: int, names: Iterable[str]) -> None:
    """Remove files and directories from an opened directory, as far as that is possible; of links the link.

    Args:
        directory: its descriptor.
        names: in it.
    """
    for name in names:
        with suppress(OSError):  # it is gone already, or another process writes into it
            _remove(directory, name)


def remove_checkpoints(directory: int, names: Iterable[str], part: re.Pattern[str]) -> None:
    """Remove checkpoints from an opened directory, as far as that is possible, and nothing else.

    Args:
        directory: its descriptor.
        names: in it.
        part: the names in a checkpoint; a directory with other ones is none.
    """
    for name in names:
        with suppress(OSError):  # as above; or it is no directory
            with opened(name, _READ | os.O_DIRECTORY | os.O_NOFOLLOW, directory) as here:
                found = os.listdir(here)
                if not all(map(part.fullmatch, found)):
                    continue
                remove_below(here, found)
            os.rmdir(name, dir_fd=directory)


def _remove(directory: int, name: str) -> None:
    if not stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=directory)
        return
    with opened(name, _READ | os.O_DIRECTORY | os.O_NOFOLLOW, directory) as here:
        remove_below(here, os.listdir(here))
    os.rmdir(name, dir_fd=directory)
