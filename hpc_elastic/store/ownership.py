"""A run directory belongs to one user; what somebody else could write to is not read."""

from __future__ import annotations

import os
import shlex

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
