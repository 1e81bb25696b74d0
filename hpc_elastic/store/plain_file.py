"""Opening the files of a run: plain files and directories of this user's, never one that blocks.

A user who can write into a directory can put a FIFO, a link to an endless device or any large file where
a record is expected. So a name proves nothing: an opened file is judged by its descriptor, before
a byte is read. Root may look at the runs of all users, at files of their owner.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from hpc_elastic.errors import UnfitFileError
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.paths import closed_above
from hpc_elastic.text import for_shell

MOST_BYTES = 16 << 20  # of a small file; none that this package writes has as much
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_CHUNK = 1 << 16
_STREAM = "/dev/stdin|/dev/fd/[0-9]+|/proc/self/fd/[0-9]+"  # others can make files in /dev/shm
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_EXPLAINED = (  # explained by a look at the name: a link, a socket, a directory, another user's
    errno.ELOOP,
    errno.ENOTDIR,
    errno.ENXIO,
    errno.EISDIR,
    errno.EACCES,
)
_KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFDIR: "a directory",
    stat.S_IFREG: "a plain file",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_NUMBERS = {stat.S_IFLNK: errno.ELOOP, stat.S_IFDIR: errno.EISDIR}


def read_plain(path: str, *, limit: int = MOST_BYTES, own: bool = True, alone: bool = True) -> bytes:
    """Return the content of a plain file.

    Args:
        path: the file.
        limit: of its size [bytes].
        own: it must be this user's or root's, and no link to one.
        alone: no other user may write to it; others could give such a file any name and content. Each
            reader that says otherwise gives the reason.

    Raises:
        UnfitFileError: it is foreign, no plain file, larger, or open to others.
        OSError: the file system refused.
    """
    fd, found = _open(path, os.O_RDONLY, own=own)
    try:
        if alone and found.st_mode & OTHERS_WRITE:
            raise _open_to_others(path, found.st_mode)
        chunks, size = [], 0
        while max(size, found.st_size) <= limit and (chunk := os.read(fd, _CHUNK)):
            chunks.append(chunk)
            size += len(chunk)  # it may grow while it is read
        if max(size, found.st_size) > limit:
            raise _too_large(path, max(size, found.st_size), limit)
        return b"".join(chunks)
    finally:
        close_quietly(fd)


class GivenFile(NamedTuple):
    """A file that the user has named, as it was read.

    Attributes:
        data: its content.
        found: as its descriptor has told it.
        acl: its extended attribute system.posix_acl_access; None where it has none.
    """

    data: bytes
    found: os.stat_result
    acl: bytes | None


def read_given(path: str, *, limit: int = MOST_BYTES) -> bytes:
    """Return the content of a file that the user has named, as `given_file` reads it."""
    return given_file(path, limit=limit).data


def given_file(path: str, *, limit: int = MOST_BYTES) -> GivenFile:
    """Read a file that the user has named: anybody's, or a stream of this process.

    Args:
        path: the file.
        limit: of its size [bytes].

    Raises:
        UnfitFileError: it is no plain file and no stream such as /dev/stdin or /dev/fd/63, or larger.
        OSError: the file system refused.
    """
    is_stream = re.fullmatch(_STREAM, path)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC) if is_stream else open_plain(path, own=False)
    with open(fd, "rb") as file:
        data = file.read(limit + 1)
        found, acl = os.fstat(fd), acl_of(fd)
    if len(data) > limit:
        raise _too_large(path, max(len(data), found.st_size), limit)
    return GivenFile(data, found, acl)


def acl_of(place: str | int) -> bytes | None:
    """Return the POSIX ACL of a file or directory as it is stored; None if it has none.

    Args:
        place: path or descriptor.
    """
    try:
        return os.getxattr(place, "system.posix_acl_access")
    except OSError:  # or the file system has no such lists
        return None


def open_plain(path: str, flags: int = os.O_RDONLY, *, own: bool = True) -> int:
    """Open a plain file of any size and return its descriptor; never blocks.

    Args:
        path: the file.
        flags: how to open it; a file that is made has mode 0600.
        own: it must be this user's or root's, and no link to one.

    Raises:
        UnfitFileError: it is foreign, or no plain file.
        OSError: the file system refused.
    """
    return _open(path, flags, own=own)[0]


def open_in_directory(path: str) -> tuple[int, os.stat_result]:
    """Open a plain file to read it; return its descriptor, and the state of the directory that it is in.

    The file is looked up in the directory that was opened, so that both belong together also where another
    user exchanges a directory on the way.

    Raises:
        UnfitFileError: it is foreign, or no plain file.
        OSError: the file system refused.
    """
    directory, name = os.path.split(path)
    above = os.open(directory or os.curdir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with _explained(path, stat.S_IFREG):
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | _FLAGS, dir_fd=above)
        try:
            require_kind(path, os.fstat(fd), stat.S_IFREG, own=True)
            return fd, os.fstat(above)
        except BaseException:
            close_quietly(fd)
            raise
    finally:
        close_quietly(above)


def open_to_append(path: str, mode: int = 0o600) -> int:
    """Open a plain file of this user's for writing at its end, and return its descriptor; never blocks.

    Args:
        path: the file, which is made if it is not there.
        mode: its permissions then, without those of the umask.

    Raises:
        UnfitFileError: it is foreign, or no plain file.
        OSError: the file system refused.
    """
    fd = _open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, own=True, mode=mode)[0]
    os.set_blocking(fd, True)  # as programs expect of the log that they write to
    return fd


def list_plain(directory: str, *, links: bool = False) -> list[str]:
    """Return all names in a directory of this user's or root's, in no order.

    Args:
        directory: the directory.
        links: follow a link to one.

    Raises:
        UnfitFileError: it is foreign, or a link.
        OSError: the file system refused.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | (0 if links else os.O_NOFOLLOW) | _FLAGS
    with _explained(directory, stat.S_IFDIR):
        fd = os.open(directory, flags)
    try:
        require_kind(directory, os.fstat(fd), stat.S_IFDIR, own=True)
        return os.listdir(fd)
    finally:
        close_quietly(fd)


def owner_name(uid: int) -> str:
    """Return the name of a user."""
    import pwd  # noqa: PLC0415 - only for messages

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def access_fix(place: str, right: str) -> str:
    """Return the way to a file or directory without permission: chmod, or its owner.

    Args:
        place: the file or directory; that it is there can be seen.
        right: as the letters for chmod.
    """
    owner = os.lstat(place).st_uid
    if owner == os.geteuid():
        return f"chmod u+{right} {for_shell(place)}"
    return f"ask its owner, {owner_name(owner)}, for access to {for_shell(place)}"


def absence_fix(path: str, otherwise: str) -> str:
    """Return the way out where a path leads nowhere: access to the directory that hides it, or another one.

    Args:
        path: may only be out of sight.
        otherwise: the way out if it does not exist.
    """
    place = closed_above(path)
    return access_fix(place, "x") if place else otherwise


def _open(path: str, flags: int, *, own: bool, mode: int = 0o600) -> tuple[int, os.stat_result]:
    """Open a file; one that has just been replaced is found at the second try.

    An NFS client takes the file that a name had before, and keeps to it until it learns that the directory
    has changed: the file opened then has a stale handle. Opening the directory makes it ask.
    """
    try:
        return _open_once(path, flags, own=own, mode=mode)
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
    close_quietly(os.open(os.path.dirname(path) or os.curdir, os.O_RDONLY | os.O_DIRECTORY | _FLAGS))
    return _open_once(path, flags, own=own, mode=mode)


def _open_once(path: str, flags: int, *, own: bool, mode: int) -> tuple[int, os.stat_result]:
    with _explained(path, stat.S_IFREG):
        fd = os.open(path, flags | _FLAGS | (os.O_NOFOLLOW if own else 0), mode)
    try:
        found = os.fstat(fd)
        require_kind(path, found, stat.S_IFREG, own=own)
    except BaseException:
        close_quietly(fd)
        raise
    return fd, found


@contextmanager
def _explained(path: str, kind: int) -> Iterator[None]:
    """Name the kind of the entry, where that explains why it could not be opened."""
    try:
        yield
    except OSError as error:
        if error.errno in _EXPLAINED:
            _explain(path, kind)
        raise


def _explain(path: str, kind: int) -> None:
    try:
        found = os.lstat(path)
    except OSError:
        return
    if not (kind == stat.S_IFDIR and stat.S_ISREG(found.st_mode)):  # ENOTDIR says it
        require_kind(path, found, kind, own=True)


def require_kind(path: str, found: os.stat_result, kind: int, *, own: bool) -> None:
    """Refuse an entry of another kind, or another user's.

    Args:
        path: names it in the error.
        found: as its descriptor tells it.
        kind: as in the module `stat`, such as S_IFREG.
        own: it must be this user's or root's.

    Raises:
        UnfitFileError: it is not.
    """
    of_kind = stat.S_IFMT(found.st_mode)
    if of_kind != kind:
        what = f"it is {_KINDS.get(of_kind, 'of an unknown kind')}, not {_KINDS[kind]}"
        raise _unfit(path, what, _NUMBERS.get(of_kind, errno.EINVAL))
    if own and found.st_uid not in (os.geteuid(), 0) and not _is_for_root(path, found.st_uid):
        raise _unfit(path, f"it belongs to user {owner_name(found.st_uid)}, not to you", errno.EPERM)


def _is_for_root(path: str, owner: int) -> bool:
    """Tell whether root looks at a user's file in that user's directory."""
    return os.geteuid() == 0 and os.stat(os.path.dirname(path) or os.curdir).st_uid == owner


def _too_large(path: str, size: int, limit: int) -> UnfitFileError:
    return _unfit(path, f"it has {size:,} bytes; at most {limit:,} are read", errno.EFBIG)


def _open_to_others(path: str, mode: int) -> UnfitFileError:
    fix = f"see whether it is as you left it, then: chmod -R go-w {for_shell(os.path.dirname(path))}"
    what = f"others can write to it (mode {stat.S_IMODE(mode):o})"
    return UnfitFileError(path, what, errno=errno.EPERM, fix=fix)


def _unfit(path: str, what: str, number: int) -> UnfitFileError:
    fix = f"see where it comes from (ls -l {for_shell(path)}), and take it away"
    return UnfitFileError(path, what, errno=number, fix=fix)


def close_quietly(fd: int) -> None:
    """Close a descriptor through which nothing was written that is not yet known to be safe."""
    try:
        os.close(fd)
    except OSError:
        pass
