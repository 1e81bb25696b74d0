"""The abilities of a directory, tried out from one node. `probe_findings` judges them."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager

from hpc_elastic.clock import Clock, SystemClock
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.store import files
from hpc_elastic.store.mount import Mount, mount_at

PREFIX = ".hpc_elastic-probe-"
_REPEATS = 5
_SAMPLE = b"." * 4096  # a block, so that a full file system or quota shows
_LOST = (errno.EEXIST, errno.EPERM)  # sshfs says EPERM
_BUSY = (errno.EAGAIN, errno.EACCES)
_CHILD_TIMEOUT_S = 20.0
_CHILD = """
import fcntl, sys
with open(sys.argv[1], "rb+") as file:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(3)
"""
_CHILD_BUSY = 3


class Space(NamedTuple):
    """The space left on a file system for an ordinary user."""

    free: int  # [bytes]
    inodes: int | None  # None where files are not counted


class DirectoryProbe(NamedTuple):
    """One node's view of a directory."""

    path: str
    node: str
    mount: Mount
    owner: int  # user id
    mode: int  # permissions
    space: Space
    failures: Mapping[str, str]  # operation → its failure; empty if all work
    create_s: float | None  # median time to create an empty file [s]
    list_s: float | None  # median time to list a directory of a few names [s]


class DoesNotWorkError(Exception):
    """A trial on a file system failed; the text has its result."""


def nearest(path: str) -> str:
    """Return a directory itself or, if it is not there yet, the nearest one above it."""
    place = os.path.abspath(path)
    while not os.path.exists(place):
        place = os.path.dirname(place)
    return place


def probe_directory(path: str) -> DirectoryProbe:
    """Try out a directory: a private subdirectory is made in it and taken away again.

    Raises:
        OSError: there is no such directory, or it cannot be looked at.
    """
    status = os.stat(path)
    failures = dict.fromkeys(ALL, "")
    create_s = list_s = None
    try:
        with private_directory(path) as private:
            failures = try_out(private, ALL)
            create_s, list_s = _latencies(private, SystemClock())
    except OSError as error:
        failures = {WRITE: error.strerror or str(error)}
    return DirectoryProbe(
        path=os.path.realpath(path),
        node=os.uname().nodename,
        mount=mount_at(path),
        owner=status.st_uid,
        mode=status.st_mode & 0o7777,
        space=space_of(path),
        failures=failures,
        create_s=create_s,
        list_s=list_s,
    )


def quick_probe(path: str) -> dict[str, str]:
    """Try only things that take milliseconds: writing, exclusive names, a lock.

    Returns:
        The trial and its failure; empty if it works.
    """
    try:
        with private_directory(path) as private:
            return try_out(private, QUICK)
    except OSError as error:
        return {WRITE: error.strerror or str(error)}


def space_of(path: str) -> Space:
    """Return the space left on the file system of a path."""
    found = os.statvfs(path)
    return Space(found.f_bavail * found.f_frsize, found.f_favail if found.f_files else None)


@contextmanager
def private_directory(path: str) -> Iterator[str]:
    """Make a directory of one's own for a short time."""
    private = os.path.join(path, f"{PREFIX}{os.uname().nodename}.{os.getpid()}.{os.urandom(4).hex()}")
    os.mkdir(private, 0o700)
    try:
        yield private
    finally:
        remove(private)


def remove(directory: str) -> None:
    """Take a flat directory of one's own away, as far as the file system lets."""
    try:
        for name in os.listdir(directory):
            files.remove_name(directory, name)
        os.rmdir(directory)
    except OSError:
        pass


def try_out(directory: str, names: tuple[str, ...]) -> dict[str, str]:
    """Try some things in a directory of one's own; return why each does not work, empty if it does."""
    found = {}
    for number, name in enumerate(names):
        try:
            _TRIALS[name](os.path.join(directory, f"{number}"))
            found[name] = ""
        except DoesNotWorkError as error:
            found[name] = str(error)
        except OSError as error:
            found[name] = error.strerror or str(error)
    return found


def _write(path: str, data: bytes = _SAMPLE, *, durable: bool = False) -> None:
    with closing(OpenFile(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)) as file:
        files.write_all(file.fd, data)
        if durable:
            os.fsync(file.fd)


class OpenFile:
    """A file descriptor that `closing` closes."""

    def __init__(self, path: str, flags: int) -> None:
        self.fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def close(self) -> None:
        """Close it, which releases its lock."""
        os.close(self.fd)


def _try_write(at: str) -> None:
    _write(at)
    if files.read(at) != _SAMPLE:
        raise DoesNotWorkError("the bytes that are read are not those that were written")


def _try_exclusive(at: str) -> None:
    _write(at)
    try:
        _write(at)
    except FileExistsError:
        return
    raise DoesNotWorkError("the same name was created twice")


def _try_link(at: str) -> None:
    """Publish as the journal does; of two that want a name only the first may get it."""
    _write(f"{at}.first", b"first")
    _write(f"{at}.second", b"second")
    os.link(f"{at}.first", at)
    try:
        os.link(f"{at}.second", at)
    except OSError as error:
        if error.errno not in _LOST:
            raise
    if files.read(at) != b"first":
        raise DoesNotWorkError("the same name was linked twice")


def _try_rename(at: str) -> None:
    _write(at, b"old")
    _write(f"{at}.new", b"new")
    os.rename(f"{at}.new", at)
    if files.read(at) != b"new":
        raise DoesNotWorkError("the old content is still there")


def _try_fsync(at: str) -> None:
    _write(at, durable=True)
    files.sync_directory(os.path.dirname(at))


def try_lock(fd: int) -> bool:
    """Try to lock an open file as `hpc_elastic.store.lock` does, without waiting.

    Returns:
        Whether the lock is held now; False if another process has it.

    Raises:
        OSError: the file system has no locks.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _BUSY:
            raise
        return False
    return True


@contextmanager
def _locked(at: str) -> Iterator[None]:
    with closing(OpenFile(at, os.O_RDWR | os.O_CREAT)) as file:
        if not try_lock(file.fd):
            raise DoesNotWorkError("a free lock cannot be acquired")
        yield


def _try_lock(at: str) -> None:
    with _locked(at), closing(OpenFile(at, os.O_RDWR)) as other:
        if try_lock(other.fd):
            raise DoesNotWorkError("two open files had the lock at once")


def _try_lock_of_process(at: str) -> None:
    import subprocess  # noqa: PLC0415, TID251 - agents, which take a quick look, need none of it

    argv = [sys.executable, "-I", "-S", "-c", _CHILD, at]
    with _locked(at):
        try:
            done = subprocess.run(argv, check=False, capture_output=True, timeout=_CHILD_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise DoesNotWorkError("another process got no answer when it tried the lock") from None
    if done.returncode == 0:
        raise DoesNotWorkError("two processes had the lock at once")
    if done.returncode != _CHILD_BUSY:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise DoesNotWorkError(f"another process could not try the lock: {said[-1] if said else '?'}")


def _latencies(directory: str, clock: Clock) -> tuple[float, float]:
    """Return the medians of creating an empty file and of listing the directory [s]."""

    def measure(step: Callable[[str], object]) -> float:
        taken = []
        for number in range(_REPEATS):
            before = clock.monotonic()
            step(f"t{number}")
            taken.append(clock.monotonic() - before)
        return sorted(taken)[_REPEATS // 2]

    create_s = measure(lambda name: files.touch_name(directory, name))
    return create_s, measure(lambda _: os.listdir(directory))


WRITE = "writing"
EXCLUSIVE = "exclusive create"
LINK = "exclusive link"
RENAME = "rename"
FSYNC = "fsync"
LOCK = "lock, open files"
LOCK_PROCESS = "lock, processes"
_TRIALS: Mapping[str, Callable[[str], None]] = {
    WRITE: _try_write,
    EXCLUSIVE: _try_exclusive,
    LINK: _try_link,
    RENAME: _try_rename,
    FSYNC: _try_fsync,
    LOCK: _try_lock,
    LOCK_PROCESS: _try_lock_of_process,
}
ALL = tuple(_TRIALS)
QUICK = (WRITE, LINK, LOCK)
