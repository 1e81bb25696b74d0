"""Publishing and reading small files so that every client of a shared file system agrees.

These functions rest on facts measured on NFS v3 and v4, Gluster, MooseFS, sshfs and local disks:
a hard link to a name that exists fails on all of them, a directory listing is fresh within
milliseconds, and a name that was looked up before it existed can stay invisible for half a minute.
So a record is published by linking a finished private file to its name, and no process looks up a name
that no listing has shown.

An error that passes (an interrupted call, a handle that the file server forgot, a private file that
a sweep took away while this process was frozen) is tried again a bounded number of times. Every
OSError that leaves here names the public path, never a private file.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import UnfitFileError
from hpc_elastic.store.plain_file import MOST_BYTES, close_quietly, list_plain, read_plain

PAUSES_S = (0.01, 0.03, 0.1, 0.3, 1.0)

_TRIES = 5
# On Gluster a file that was just replaced can be stale for as long as its caches hold: 1 s by default.
_PAUSES_S = (0.0, 0.001, 0.01, 0.05, 0.2, 0.5, 1.0)
_PASSING = (errno.EINTR, errno.ESTALE, errno.ETXTBSY)
_GONE = (errno.ENOENT, errno.ESTALE)
_CANNOT_SYNC = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)  # said of directories by some file systems
_counter = 0
TEMPORARY = ".tmp."
_PRIVATE = 0o600  # permissions
_T = TypeVar("_T")


def pid_namespace() -> str:
    """Return the mark of a container, as process ids repeat in the containers of a machine."""
    try:
        return f"{os.stat('/proc/self/ns/pid').st_ino:x}"
    except OSError:
        return "0"


_NONCE = f"{pid_namespace()}-{os.urandom(4).hex()}"  # host names and pids repeat in containers


def private_name(directory: str) -> str:
    """Return a name in `directory` that no other process uses; `leftovers` tells whose it is."""
    global _counter  # noqa: PLW0603 - only makes names unique within this process
    _counter += 1
    return os.path.join(directory, f"{TEMPORARY}{os.uname().nodename}.{os.getpid()}.{_counter}.{_NONCE}")


def retry(act: Callable[[], _T], *also: int) -> _T:
    """Return the result of `act`; try again a few times, ever later, while the error is one that passes.

    Args:
        act: the action; each try makes all of it.
        also: further numbers of errors that pass.

    Raises:
        OSError: the error of `act`.
    """
    for pause_s in _PAUSES_S:
        try:
            return act()
        except OSError as error:
            if error.errno not in (*_PASSING, *also):
                raise
        if pause_s:
            SystemClock().sleep(pause_s)
    return act()


@contextmanager
def named(path: str) -> Iterator[None]:
    """Have errors name `path`: calls on descriptors name nothing, others a private file."""
    try:
        yield
    except UnfitFileError:  # names it already
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error


def write_all(fd: int, data: bytes) -> None:
    """Write all bytes, also where a file system takes a part of them at a time.

    Raises:
        OSError: the file system refused; a part may be written.
    """
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _write_private(path: str, data: bytes, *, durable: bool) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(path, flags, _PRIVATE)
    try:
        write_all(fd, data)
        if durable:
            os.fsync(fd)
    except BaseException:
        close_quietly(fd)
        raise
    try:
        os.close(fd)
    except OSError as error:  # network file systems tell here that a write failed
        if not durable and error.errno != errno.EINTR:
            raise


@contextmanager
def _directory_of(path: str) -> Iterator[int]:
    """Open the directory of a file before it is changed, so that little can fail afterwards."""
    directory = os.path.dirname(path)
    fd = retry(lambda: os.open(directory, os.O_DIRECTORY))
    try:
        yield fd
    finally:
        close_quietly(fd)


def _sync(fd: int) -> None:
    """Make the names in an open directory durable, where the file system has a way to."""
    try:
        retry(lambda: os.fsync(fd))
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise


def sync_directory(directory: str) -> None:
    """Make the names in a directory durable.

    Raises:
        OSError: the file system refused.
    """
    with named(directory), _directory_of(os.path.join(directory, "")) as fd:
        _sync(fd)


def publish_new(path: str, data: bytes) -> bool:
    """Create `path` with `data`, complete or not at all, unless the name is taken.

    Returns:
        Whether this call created it. The answer is right even when the file system's first reply
        was lost and the repeated request finds our own link (two links to the private file).

    Raises:
        OSError: the file system refused (full, not writable, gone). Only when the very last step
            fails, which makes the new name durable, does the file exist all the same.
    """
    with named(path), _directory_of(path) as directory:
        tries, is_ours = _TRIES, None
        while is_ours is None:
            tries -= 1
            is_ours = _try_to_publish(path, data, is_last=tries == 0)
        if not is_ours and tries < _TRIES - 1:  # an earlier try may have made it and lost the reply
            is_ours = read(path) == data
        if is_ours:
            _sync(directory)
    return is_ours


def _try_to_publish(path: str, data: bytes, *, is_last: bool) -> bool | None:
    """Return whether this process created the name, or None if it should try again."""
    private = private_name(os.path.dirname(path))
    try:
        try:
            _write_private(private, data, durable=True)
        except OSError as error:
            if is_last or error.errno not in (*_PASSING, errno.EEXIST):  # EEXIST: our own, reply lost
                raise
            return None
        try:
            os.link(private, path, follow_symlinks=False)
        except OSError as error:
            return _judge_link(error, private, path, is_last=is_last)
        return True
    finally:
        _forget(private)


def _judge_link(error: OSError, private: str, path: str, *, is_last: bool) -> bool | None:
    """Return the meaning of a refused link: ours all the same, another writer's, or None to try again.

    Raises:
        OSError: `error`, if it is neither.
    """
    if _links(private) > 1:
        return True
    if error.errno == errno.EEXIST or (error.errno == errno.EPERM and is_listed(path)):
        return False  # sshfs reports EEXIST of a link as EPERM
    if is_last or error.errno not in (*_PASSING, errno.ENOENT):  # ENOENT: swept away
        raise error
    return None


def _links(path: str) -> int:
    """Return the link count as the server knows it: opening makes a client ask, `stat` may not."""
    try:
        fd = retry(lambda: os.open(path, os.O_NOFOLLOW))
    except OSError:
        return 0
    try:
        return os.fstat(fd).st_nlink
    finally:
        close_quietly(fd)


def is_listed(path: str) -> bool:
    """Tell whether a name is there, by a listing of its directory: no look-up that a client caches."""
    return os.path.basename(path) in retry(lambda: os.listdir(os.path.dirname(path)))


def move(private: str, path: str) -> None:
    """Give a finished private file, durable by itself, its name; it replaces the file of that name.

    Raises:
        OSError: the file system refused; as for `replace`.
    """
    with named(path), _directory_of(path) as directory:
        retry(lambda: os.rename(private, path))
        _sync(directory)


def replace(path: str, data: bytes, *, durable: bool = True) -> None:
    """Write a file that has one writer: readers see the old or the new content, never a part.

    Does not guarantee anything between two writers.

    Raises:
        OSError: the file system refused. Only when the very last step fails, which makes the new
            content durable, do readers see the new content all the same.
    """
    with named(path):
        if not durable:
            _rename_private(path, data, durable=False)
            return
        with _directory_of(path) as directory:
            _rename_private(path, data, durable=True)
            _sync(directory)


def _rename_private(path: str, data: bytes, *, durable: bool) -> None:
    passing = (*_PASSING, errno.EEXIST, errno.ENOENT)  # ENOENT: swept away, or renamed and the reply lost
    for is_last in (*[False] * (_TRIES - 1), True):
        private = private_name(os.path.dirname(path))
        try:
            _write_private(private, data, durable=durable)
            os.rename(private, path)
        except BaseException as error:
            _forget(private)
            if is_last or not isinstance(error, OSError) or error.errno not in passing:
                raise
        else:
            return


def read(path: str, *, limit: int = MOST_BYTES, alone: bool = True) -> bytes | None:
    """Return the content of a file, or None if there is none.

    A file that is replaced while it is read shows up as ESTALE or, for a moment, as absent on
    network file systems; the path is then opened again a bounded number of times.

    Args:
        path: the file.
        limit: of its size [bytes].
        alone: no other user may write to it; as for `read_plain`.

    Raises:
        UnfitFileError: it is another user's, no plain file, larger, or open to others.
        OSError: the file system refused.
    """
    for _ in range(_TRIES):
        try:
            with named(path):
                return retry(lambda: read_plain(path, limit=limit, alone=alone))
        except FileNotFoundError:
            if not _is_there(path):
                return None
    return None


def _is_there(path: str) -> bool:
    try:
        return is_listed(path)
    except OSError:
        return False


def list_names(directory: str) -> list[str]:
    """Return the published names in a directory, sorted; an absent directory has none.

    Private files of writers and names the file system itself makes (``.nfs…``) are left out.

    Raises:
        UnfitFileError: it is another user's, or no directory.
        OSError: the directory cannot be listed; never told as "empty", which would be a fact.
    """
    with named(directory):
        try:
            names = retry(lambda: list_plain(directory))
        except FileNotFoundError:
            return []
    return sorted([name for name in names if name[0] != "."])


def touch_name(directory: str, name: str) -> None:
    """Create an empty file: its name alone is the fact.

    Raises:
        OSError: the file system refused.
    """
    path = os.path.join(directory, name)
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    with named(path):
        close_quietly(retry(lambda: os.open(path, flags, _PRIVATE)))


def rename_name(directory: str, old: str, new: str) -> None:
    """Change a fact told by a name; creates it when the old name has vanished.

    Raises:
        OSError: the file system refused; the old name stays.
    """
    with named(os.path.join(directory, new)):
        try:
            retry(lambda: os.rename(os.path.join(directory, old), os.path.join(directory, new)))
        except FileNotFoundError:
            touch_name(directory, new)


def stir(directory: str) -> None:
    """Change a directory and change it back, so that this client reads it anew; needs no success."""
    private = private_name(directory)
    with suppress(OSError):
        os.close(
            os.open(private, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _PRIVATE)
        )
        os.unlink(private)


def remove_name(directory: str, name: str) -> None:
    """Take a name away; it may be gone already.

    Raises:
        OSError: the file system refused; the name stays.
    """
    path = os.path.join(directory, name)
    with named(path):
        _unlink(path)


def _unlink(path: str) -> None:
    try:
        retry(lambda: os.unlink(path))
    except OSError as error:
        if error.errno not in _GONE:
            raise


def _forget(path: str) -> None:
    """Remove a private file; if that fails it is a leftover like those of the dead."""
    try:
        _unlink(path)
    except OSError:
        pass


"""Between looks at a directory that several clients make; it was seen to be absent for 20 ms."""


def make_directory(path: str) -> bool:
    """Make a directory that only its owner can use, unless the name is there; the one above must exist.

    Returns:
        Whether it was made here, as far as the file system tells.

    Raises:
        OSError: the file system refused.
    """
    with named(path):
        try:
            retry(lambda: os.mkdir(path, 0o700))
        except FileExistsError:
            return False
        except OSError:
            if not os.path.isdir(path):  # file servers may refuse a directory that exists
                raise
            return False
        return True


def make_own(path: str) -> bool:
    """Make a directory that only its owner can use, and those above it that are missing.

    Returns:
        Whether it was made here; False: the name was there.

    Raises:
        OSError: the file system refused.
    """
    try:
        retry(lambda: _make_with_parents(path))
    except FileExistsError:
        return False
    return True


def _make_with_parents(path: str) -> None:
    try:
        os.mkdir(path, 0o700)
    except FileNotFoundError:
        make_directories(os.path.dirname(path))
        os.mkdir(path, 0o700)


def make_directories(path: str, mode: int = 0o700) -> None:
    """Make a directory, and those above it that are missing; anybody may make them at the same moment.

    Args:
        path: the directory.
        mode: the permissions of all that are made here, less those of the umask.

    Raises:
        OSError: the file system refused, or something else has the name.
    """
    for pause_s in PAUSES_S:
        try:
            _make_all(path, mode)
        except OSError as error:
            if not _passes(path, error):
                raise
        else:
            return
        SystemClock().sleep(pause_s)
    _make_all(path, mode)


def _make_all(path: str, mode: int) -> None:
    """Make a directory and those above it; unlike `os.makedirs`, all with the same permissions."""
    missing, above = [path], os.path.dirname(path)
    while above and not os.path.exists(above):
        missing.append(above)
        above = os.path.dirname(above)
    for each in reversed(missing):
        try:
            os.mkdir(each, mode)
        except OSError:  # file servers may have another error for a file that exists
            if not os.path.isdir(each):
                raise


def _passes(path: str, error: OSError) -> bool:
    if error.errno != errno.EEXIST:
        return error.errno in (errno.ENOENT, errno.ESTALE)
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except OSError:
        return True
