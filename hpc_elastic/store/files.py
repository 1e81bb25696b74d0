"""Publishing and reading small files so that every client of a shared file system agrees.

What these functions rest on was measured on NFS v3 and v4, Gluster, MooseFS, sshfs and local disks:
a hard link to a name that exists fails on all of them, a directory listing is fresh within
milliseconds, and a name that was looked up before it existed can stay invisible for half a minute.
So a record is published by linking a finished private file to its name, and nobody looks up a name
that no listing has shown.
"""

from __future__ import annotations

import errno
import os

_STALE_RETRIES = 5
_LOST_RACE = (errno.EEXIST, errno.EPERM)  # sshfs reports EEXIST of a link as EPERM
_GONE = (errno.ENOENT, errno.ESTALE)
_counter = 0
TEMPORARY = ".tmp."
_NONCE = os.urandom(4).hex()  # host names and pids repeat in containers


def _private_name(directory: str) -> str:
    """Return a name in `directory` that no other process uses."""
    global _counter  # noqa: PLW0603 - only makes names unique within this process
    _counter += 1
    return os.path.join(directory, f"{TEMPORARY}{os.uname().nodename}.{os.getpid()}.{_counter}.{_NONCE}")


def _write_private(path: str, data: bytes, *, durable: bool) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(path, flags, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)


def sync_directory(directory: str) -> None:
    """Make the names in a directory durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def publish_new(path: str, data: bytes) -> bool:
    """Create `path` with `data`, complete or not at all, unless the name is taken.

    Returns:
        Whether this call created it. The answer is right even when the file system's first reply
        was lost and the repeated request finds our own link (two links to the private file).

    Raises:
        OSError: the file system refused (full, not writable, gone).
    """
    directory = os.path.dirname(path)
    private = _private_name(directory)
    try:
        _write_private(private, data, durable=True)
        try:
            os.link(private, path, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _LOST_RACE or not _is_taken(path):
                raise
            if _links(private) == 1:  # the private name only: the other file is not ours
                return False
    finally:
        _unlink_quietly(private)
    sync_directory(directory)
    return True


def _links(path: str) -> int:
    """Return the link count as the server knows it: opening makes a client ask, `stat` may not."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.fstat(fd).st_nlink
    finally:
        os.close(fd)


def _is_taken(path: str) -> bool:
    return os.path.basename(path) in os.listdir(os.path.dirname(path))


def replace(path: str, data: bytes, *, durable: bool = True) -> None:
    """Write a file that has one writer: readers see the old or the new content, never a part.

    Does not guarantee anything between two writers.

    Raises:
        OSError: the file system refused.
    """
    private = _private_name(os.path.dirname(path))
    try:
        _write_private(private, data, durable=durable)
        os.rename(private, path)
    except BaseException:
        _unlink_quietly(private)
        raise
    if durable:
        sync_directory(os.path.dirname(path))


def read(path: str) -> bytes | None:
    """Return the content of a file, or None if there is none.

    A file that is replaced while it is read shows up as ESTALE on network file systems; the path is
    then opened again a bounded number of times.
    """
    for _ in range(_STALE_RETRIES):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return _read_all(fd)
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return None
            if error.errno != errno.ESTALE:
                raise
    return None


def _read_all(fd: int) -> bytes:
    chunks = []
    while chunk := os.read(fd, 1 << 16):
        chunks.append(chunk)
    return b"".join(chunks)


def list_names(directory: str) -> list[str]:
    """Return the published names in a directory, sorted; an absent directory has none.

    Private files of writers and names the file system itself makes (``.nfs…``) are left out.
    """
    for _ in range(_STALE_RETRIES):
        try:
            return sorted(name for name in os.listdir(directory) if not name.startswith("."))
        except OSError as error:
            if error.errno == errno.ENOENT:
                return []
            if error.errno != errno.ESTALE:
                raise
    return []


def touch_name(directory: str, name: str) -> None:
    """Create an empty file: a fact that is told by its name alone."""
    fd = os.open(os.path.join(directory, name), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.close(fd)


def rename_name(directory: str, old: str, new: str) -> None:
    """Change a fact told by a name; creates it when the old name has vanished."""
    try:
        os.rename(os.path.join(directory, old), os.path.join(directory, new))
    except OSError as error:
        if error.errno not in _GONE:
            raise
        touch_name(directory, new)


def remove_name(directory: str, name: str) -> None:
    """Take a name away; it may be gone already."""
    _unlink_quietly(os.path.join(directory, name))


def _unlink_quietly(path: str) -> None:
    try:
        os.unlink(path)
    except OSError as error:
        if error.errno not in _GONE:
            raise
