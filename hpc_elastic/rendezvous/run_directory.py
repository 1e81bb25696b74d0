"""Making the directory that holds a run; it must belong to this user alone."""

from __future__ import annotations

import errno
import os

from hpc_elastic.errors import RunDirError, StoreError
from hpc_elastic.paths import RunPaths
from hpc_elastic.store.shared_dir import segment_name

_PASSING = (errno.EIO, errno.ESTALE, errno.ENOSPC, errno.EDQUOT, errno.EAGAIN, errno.ETIMEDOUT)


def prepare_run_dir(paths: RunPaths) -> None:
    """Make what is missing of the run directory; it must belong to this user alone.

    Raises:
        RunDirError: it cannot be made or belongs to somebody else.
    """
    try:
        os.makedirs(paths.root, mode=0o700, exist_ok=True)
        _check_owner(paths)
        present = set(os.listdir(paths.root))
        for directory in paths.directories():
            if os.path.relpath(directory, paths.root).split(os.sep)[0] not in present:
                os.makedirs(directory, mode=0o700, exist_ok=True)
        os.makedirs(paths.agent_logs, mode=0o700, exist_ok=True)
        os.makedirs(os.path.join(paths.journal, segment_name(1)), mode=0o700, exist_ok=True)
    except OSError as error:
        if error.errno in _PASSING:
            raise StoreError(f"{paths.root}: {error.strerror}") from error
        in_the_way = isinstance(error, FileExistsError | NotADirectoryError)
        raise RunDirError(
            f"it cannot be used: {'it is no directory' if in_the_way else error.strerror}",
            where=f"run directory {paths.root}",
            fix="choose a directory on a shared file system that you can write to with --run-dir",
        ) from error


def _check_owner(paths: RunPaths) -> None:
    """Refuse a directory, or a link to one, that others can write to or have made."""
    fix = "choose a directory of your own with --run-dir"
    for found in (os.lstat(paths.root), os.stat(paths.root)):
        if found.st_uid != os.geteuid():
            who = f"it belongs to user {found.st_uid}, not to you"
            raise RunDirError(who, where=f"run directory {paths.root}", fix=fix)
    mode = os.stat(paths.root).st_mode & 0o777
    if mode & 0o022:
        what = f"others can write to it (mode {mode:o})"
        raise RunDirError(what, where=f"run directory {paths.root}", fix=f"chmod 700 {paths.root}")
