"""Files that the user has named, changed where other users may write to a directory on the way.

A path proves nothing there: at each moment another user can put a link in the place of the file, or of a
directory above it. So the way to a file is walked once, by descriptors, and goes only through links that are
the user's or root's. A new content is a new file, which gets the name in the directory that was opened; it
never goes through the name. The content of a file that another user reads or writes meanwhile is not guarded.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import NoReturn

from hpc_elastic.errors import UnfitFileError
from hpc_elastic.store import files
from hpc_elastic.store.plain_file import (
    MOST_BYTES,
    GivenFile,
    acl_of,
    close_quietly,
    owner_name,
    require_kind,
)
from hpc_elastic.store.trust import trusted_uids
from hpc_elastic.text import for_shell

_MOST_LINKS = 40  # as the kernel follows
_STREAM = "/dev/(stdin|stdout|stderr|fd/[0-9]+)|/proc/self/fd/[0-9]+"  # opened by the shell
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NOCTTY
_WAY = os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW
_NEW = _FLAGS | os.O_RDWR | os.O_CREAT | os.O_EXCL
_NO_ATTRIBUTES = (errno.ENOTSUP, errno.ENODATA, errno.EPERM, errno.EACCES, errno.EINVAL)


class UsersFile:
    """A plain file that the user has named, held open together with its directory.

    Args:
        path: the file, as the user has named it.
        directory: descriptor of the directory that it is in.
        name: of the file there.
        file: descriptor of the file.

    Raises:
        UnfitFileError: it is no plain file.
    """

    def __init__(self, path: str, directory: int, name: str, file: int) -> None:
        self._path = path
        self._directory = directory
        self._name = name
        self._file = file
        self._found = os.fstat(file)
        require_kind(path, self._found, stat.S_IFREG, own=False)

    def read(self) -> bytes:
        """Return the content.

        Raises:
            UnfitFileError: it is larger than any text for this package.
            OSError: the file system refused.
        """
        with files.named(self._path):
            return _content(self._path, os.dup(self._file))

    def exchange(self, data: bytes, kept_as: str = "") -> None:
        """Put a file with another content in the place of this one, in one step; mode and owner stay.

        Args:
            data: the new content.
            kept_as: path of a new file that gets the old content; empty: it is not kept.

        Raises:
            FileExistsError: something has the name of the file for the old content.
            UnfitFileError: it has a second name, its owner cannot be kept, or it is not the file that was
                read any more; a link on the way to the other file is another user's.
            OSError: the file system refused. In each case the file is as before, and none is kept.
        """
        if self._found.st_nlink > 1:
            raise UnfitFileError(
                self._path,
                "it has a second name (a hard link), which would keep the old text",
                errno=errno.EMLINK,
                fix=f"work on a copy: cp {for_shell(self._path)} NEW",
            )
        private = os.path.basename(files.private_name(""))
        kept = self._kept(kept_as) if kept_as else nullcontext()
        with kept, _made(self._path, self._directory, private) as new, files.named(self._path):
            self._make_like(new)
            _write(new, data)
            self._require_same()
            os.rename(private, self._name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
            self._require_ours(new)
        _sync(self._directory)

    @contextmanager
    def _kept(self, path: str) -> Iterator[None]:
        """Keep the content in a new file, which is taken away again if something fails meanwhile."""
        with _way_to(path) as (directory, name), _made(path, directory, name) as new:
            with files.named(path):
                self._make_like(new)
                _write(new, self.read())
            yield

    def _make_like(self, new: int) -> None:
        """Give a new file the owner, the mode and the attributes of this one."""
        mine, found = os.fstat(new), self._found
        if (mine.st_uid, mine.st_gid) != (found.st_uid, found.st_gid):
            try:
                os.fchown(new, found.st_uid, found.st_gid)
            except PermissionError:
                raise self._foreign() from None
        os.fchmod(new, stat.S_IMODE(found.st_mode))
        with suppress(OSError):  # the file system has none
            for attribute in os.listxattr(self._file):
                _copy_attribute(attribute, self._file, new)

    def _foreign(self) -> UnfitFileError:
        is_mine = self._found.st_uid == os.geteuid()
        whose = "a group that you are not in" if is_mine else f"user {owner_name(self._found.st_uid)}"
        return UnfitFileError(
            self._path,
            f"it belongs to {whose}, and a new file would belong to you",
            errno=errno.EPERM,
            fix=f"work on a copy of your own: cp {for_shell(self._path)} NEW",
        )

    def _require_same(self) -> None:
        """Refuse to replace another file, or one that was changed meanwhile."""
        try:
            now = os.stat(self._name, dir_fd=self._directory, follow_symlinks=False)
        except FileNotFoundError:
            now = None
        if now is None or _identity(now) != _identity(self._found):
            raise self._changed()

    def _require_ours(self, new: int) -> None:
        """Refuse success where another user has put a file of theirs in the place of the new one."""
        there = os.stat(self._name, dir_fd=self._directory, follow_symlinks=False)
        if (there.st_dev, there.st_ino) != (os.fstat(new).st_dev, os.fstat(new).st_ino):
            raise self._changed()

    def _changed(self) -> UnfitFileError:
        return UnfitFileError(
            self._path,
            "another process has changed or exchanged it meanwhile",
            errno=errno.ESTALE,
            fix=f"look at it again: ls -l {for_shell(self._path)}; then try again",
        )


@contextmanager
def users_file(path: str) -> Iterator[UsersFile]:
    """Open a plain file that the user has named, to read it and then to change it.

    Args:
        path: the file; links on the way are followed if they are the user's or root's.

    Raises:
        UnfitFileError: it is no plain file, is too large, or a link on the way is another user's.
        OSError: it cannot be read or written.
    """
    with _way_to(path) as (directory, name):
        with files.named(path):
            file = os.open(name, os.O_RDWR | os.O_NONBLOCK | _FLAGS, dir_fd=directory)
        try:
            yield UsersFile(path, directory, name, file)
        finally:
            close_quietly(file)


def read_users_file(path: str) -> GivenFile:
    """Read a plain file that the user has named; links are followed if they are the user's or root's.

    Raises:
        UnfitFileError: it is no plain file, is too large, or a link on the way is another user's.
        OSError: it cannot be read.
    """
    with _way_to(path) as (directory, name):
        with files.named(path):
            try:
                file = os.open(name, os.O_RDONLY | os.O_NONBLOCK | _FLAGS, dir_fd=directory)
            except OSError:
                there = os.stat(name, dir_fd=directory, follow_symlinks=False)
                require_kind(path, there, stat.S_IFREG, own=True)  # says why
                raise
        try:
            found = os.fstat(file)
            require_kind(path, found, stat.S_IFREG, own=False)
            return GivenFile(_content(path, os.dup(file)), found, acl_of(file))
        finally:
            close_quietly(file)


def write_users_file(path: str, data: bytes) -> None:
    """Write a file that the user has named: a new one, or another content in the place of the old one.

    A pipe, a device or a stream of this process such as /dev/stdout takes the bytes. A pipe
    without a reader is an error.

    Raises:
        UnfitFileError: as for `UsersFile.exchange`; or it is another user's, or no file.
        OSError: the file system refused. An old file is as before.
    """
    if re.fullmatch(_STREAM, path):
        with files.named(path), open(path, "wb") as stream:
            stream.write(data)
        return
    with _way_to(path) as (directory, name):
        try:
            with files.named(path):
                file = os.open(name, os.O_WRONLY | os.O_NONBLOCK | _FLAGS, dir_fd=directory)
        except FileNotFoundError:
            _write_new(path, directory, name, data)
            return
        found = os.fstat(file)
        if stat.S_ISFIFO(found.st_mode) or stat.S_ISCHR(found.st_mode):
            _write_stream(path, file, data)
            return
        try:
            UsersFile(path, directory, name, file).exchange(data)
        finally:
            close_quietly(file)


def write_new_users_file(path: str, data: bytes) -> None:
    """Write a new file that the user has named.

    Raises:
        FileExistsError: something has this name.
        UnfitFileError: a link on the way is another user's.
        OSError: the file system refused; there is no new file.
    """
    with _way_to(path) as (directory, name):
        _write_new(path, directory, name, data)


def _write_new(path: str, directory: int, name: str, data: bytes) -> None:
    with _made(path, directory, name, 0o666) as new, files.named(path):
        _write(new, data)
    _sync(directory)


@contextmanager
def _way_to(path: str) -> Iterator[tuple[int, str]]:
    """Give the descriptor of the directory that a path ends in, and the name there; links are resolved.

    Raises:
        UnfitFileError: a link on the way is another user's.
        OSError: there is no such directory.
    """
    with files.named(path):
        here, name = _walk(path)
    try:
        yield here, name
    finally:
        close_quietly(here)


def _walk(path: str) -> tuple[int, str]:
    if not path:
        _fail(errno.ENOENT)
    here, names, links = _start_of(path), _parts(path), 0
    try:
        while names:
            name = names.pop(0)
            target = _step(path, here, name, is_last=not names)
            if target is None:
                return here, name
            if isinstance(target, int):
                os.close(here)
                here = target
                continue
            links += 1
            if links > _MOST_LINKS:
                _fail(errno.ELOOP)
            names = [*_parts(target), *names]
            if target.startswith("/"):
                os.close(here)
                here = _start_of(target)
        return _fail(errno.EISDIR)
    except BaseException:
        close_quietly(here)
        raise


def _step(path: str, here: int, name: str, *, is_last: bool) -> int | str | None:
    """Return the directory of a name, the target of a link, or None: it is the end of the way."""
    if not is_last:
        try:  # asking for a directory also has an automounter mount it
            return os.open(name, _WAY | os.O_DIRECTORY, dir_fd=here)
        except NotADirectoryError:
            pass
    try:
        entry = os.open(name, _WAY, dir_fd=here)
    except FileNotFoundError:
        if is_last:
            return None
        raise
    try:
        found = os.fstat(entry)
        if stat.S_ISLNK(found.st_mode):
            _require_trusted(path, name, found.st_uid)
            return os.readlink("", dir_fd=entry)
    finally:
        os.close(entry)
    if is_last:
        return None
    return _fail(errno.ENOTDIR)


def _require_trusted(path: str, link: str, owner: int) -> None:
    if owner not in trusted_uids():
        raise UnfitFileError(
            path,
            f"{link} is a link of user {owner_name(owner)}'s, which is not followed",
            errno=errno.ELOOP,
            fix=f"see where it leads: ls -l {for_shell(path)}; then give the real path",
        )


def _fail(number: int) -> NoReturn:
    raise OSError(number, os.strerror(number))


def _start_of(path: str) -> int:
    return os.open("/" if path.startswith("/") else os.curdir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _parts(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


def _identity(found: os.stat_result) -> tuple[int, int, int, int]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _content(path: str, file: int) -> bytes:
    with open(file, "rb") as opened:
        opened.seek(0)
        data = opened.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        what = f"it has more than {MOST_BYTES:,} bytes"
        raise UnfitFileError(path, what, errno=errno.EFBIG, fix="give a script or another text")
    return data


@contextmanager
def _made(path: str, directory: int, name: str, mode: int = 0o600) -> Iterator[int]:
    """Give the descriptor of a new file, which is taken away again if something fails; errors name a path."""
    with files.named(path):
        new = os.open(name, _NEW, mode, dir_fd=directory)
    try:
        yield new
    except BaseException:
        with suppress(OSError):  # another process may have taken it
            os.unlink(name, dir_fd=directory)
        raise
    finally:
        close_quietly(new)


def _copy_attribute(attribute: str, old: int, new: int) -> None:
    try:
        os.setxattr(new, attribute, os.getxattr(old, attribute))
    except OSError as error:
        if error.errno not in _NO_ATTRIBUTES:
            raise


def _write(new: int, data: bytes) -> None:
    """Write to a new file, and have the disk keep it."""
    files.write_all(new, data)
    os.fsync(new)


def _write_stream(path: str, stream: int, data: bytes) -> None:
    """Write to an opened pipe or device of the user's or root's, and close it."""
    with files.named(path), open(stream, "wb") as file:
        found = os.fstat(stream)
        require_kind(path, found, stat.S_IFMT(found.st_mode), own=True)
        os.set_blocking(stream, True)
        file.write(data)


def _sync(directory: int) -> None:
    """Make the names in a directory durable, as far as its permissions allow."""
    with suppress(OSError):
        opened = os.open(os.curdir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
