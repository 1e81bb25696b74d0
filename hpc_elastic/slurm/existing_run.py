"""The directory of a run that is there already: is it one, and may this user read it?"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator

from hpc_elastic.errors import RunDirError
from hpc_elastic.paths import RUNS_FOLDER, RunPaths
from hpc_elastic.slurm.run_dir import owner_of


def is_run(paths: RunPaths) -> bool:
    """Tell whether a directory holds a run, of `submit` or of a script of the user's own."""
    return os.path.exists(paths.identity) or os.path.isdir(paths.journal)


def names_of_runs(folder: str = RUNS_FOLDER) -> Iterator[str]:
    """Yield the names of the runs in a folder, sorted; of other folders than the usual one only one's own."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    for name in names:
        paths = RunPaths(os.path.join(folder, name))
        if _is_second_name(paths.root):
            continue
        if is_run(paths) and (folder == RUNS_FOLDER or os.stat(paths.root).st_uid == os.geteuid()):
            yield name


def _is_second_name(place: str) -> bool:
    """Tell whether a place is a link to a run beside it, as submitit's folder has one for each job."""
    return os.path.islink(place) and os.path.dirname(os.path.realpath(place)) == os.path.realpath(
        os.path.dirname(place)
    )


def existing_run(path: str, where: str, fix: str) -> RunPaths:
    """Return the run in a directory.

    Args:
        path: the directory.
        where: what the user gave it as.
        fix: where the user gets the name of one from.

    Raises:
        RunDirError: it is not there, no directory, somebody else's, cannot be read, or holds no run.
    """
    paths = RunPaths(path)
    if not os.path.isdir(path):
        is_there = os.path.lexists(path)
        what = f"{path} is not a directory" if is_there else f"the directory {path} does not exist"
        raise RunDirError(what, where=where, fix=fix)
    if os.stat(path).st_uid != os.geteuid():
        raise _foreign(paths, path, where, fix)
    if not os.access(path, os.R_OK | os.X_OK):
        raise RunDirError(
            f"the run directory {path} cannot be read", where=where, fix=f"chmod u+rwx {shlex.quote(path)}"
        )
    if not is_run(paths):
        raise _no_run(paths, path, where, fix)
    return paths


def _foreign(paths: RunPaths, path: str, where: str, fix: str) -> RunDirError:
    """Return what is to be said of somebody else's directory; nothing in it is followed or opened."""
    owner = owner_of(os.path.realpath(path))
    if not os.access(path, os.X_OK):
        what = f"{path} belongs to user {owner}, and others cannot look into it"
    elif any(map(os.path.lexists, (paths.identity, paths.journal))):
        what = f"the run in {path} belongs to user {owner}"
    else:
        return _no_run(paths, path, where, fix)
    return RunDirError(what, where=where, fix="ask its owner")


def _no_run(paths: RunPaths, path: str, where: str, fix: str) -> RunDirError:
    """Return what is to be said of a directory that holds no run."""
    inside = [name for name, _ in zip(names_of_runs(path), range(3), strict=False)]
    shown = path if set(path) - {".", "/"} else os.path.abspath(path)
    return RunDirError(
        f"{shown} is not a run directory: it has no {os.path.basename(paths.identity)}",
        where=where,
        fix=f"it holds runs; name one of them, such as {os.path.join(path, inside[-1])}" if inside else fix,
    )
