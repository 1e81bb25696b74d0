"""A run directory belongs to one user; what somebody else could write to is not read."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterable

from hpc_elastic.errors import RunDirError
from hpc_elastic.store import files


def require_own(root: str, where: str) -> None:
    """Refuse a directory, or a link to one, that others have made or can write to.

    Args:
        root: the directory.
        where: names it in the error.

    Raises:
        RunDirError: it is not this user's alone.
        OSError: the file system does not tell.
    """
    of_link, found = files.retry(lambda: os.lstat(root)), files.retry(lambda: os.stat(root))
    for status in (of_link, found):
        if status.st_uid != os.geteuid():
            raise RunDirError(
                f"it belongs to user {status.st_uid}, not to you",
                where=where,
                fix="choose a directory of your own, or work as the user who made it",
            )
    if found.st_mode & 0o022:
        mode = found.st_mode & 0o777
        raise RunDirError(
            f"others can write to it (mode {mode:o})", where=where, fix=f"chmod 700 {shlex.quote(root)}"
        )


def require_own_entries(root: str, names: Iterable[str], where: str) -> None:
    """Refuse what others have put into a directory before it was closed to them.

    Args:
        root: the directory, which is this user's.
        names: entries of it; files and links of this user's are fine.
        where: names it in the error.

    Raises:
        RunDirError: one is somebody else's, or a directory that others can write to.
        OSError: the file system does not tell.
    """
    for name in names:
        path = os.path.join(root, name)
        try:
            found = files.retry(lambda path=path: os.lstat(path))  # type: ignore[misc] # one path for each
        except FileNotFoundError:
            continue
        why, fix = "", f"see who made it, then: rm -r {shlex.quote(path)}"
        if found.st_uid != os.geteuid():
            why = f"belongs to user {found.st_uid}, not to you"
        elif stat.S_ISDIR(found.st_mode) and found.st_mode & 0o022:
            why = f"can be written to by others (mode {stat.S_IMODE(found.st_mode):o})"
            fix = f"see what is in it, then: chmod go-w {shlex.quote(path)}"
        if why:
            raise RunDirError(f"{path} {why}", where=where, fix=f"{fix}; or choose another --run-dir")
