"""Making and tidying the directory that holds a run; it must belong to this user alone."""

from __future__ import annotations

import errno
import os
import shlex

from hpc_elastic.errors import RunDirError, StoreError, TakenOverError
from hpc_elastic.paths import RunPaths
from hpc_elastic.store.files import make_directories
from hpc_elastic.store.ownership import require_own, require_own_entries
from hpc_elastic.store.shared_dir import segment_name
from hpc_elastic.store.trust.above import refuse_open
from hpc_elastic.store.trust.root import require_same, taken

_PASSING = (errno.EIO, errno.ESTALE, errno.ENOSPC, errno.EDQUOT, errno.EAGAIN, errno.ETIMEDOUT)


def prepare_run_dir(paths: RunPaths) -> None:
    """Make what is missing of the run directory; it must belong to this user alone.

    Raises:
        RunDirError: it cannot be made or belongs to somebody else, as does what is above or in it.
    """
    where = f"run directory {paths.root}"
    try:
        refuse_open(paths.root, where, spares_public=True, is_of_many=True)
        make_directories(paths.root)
        require_own(paths.root, where)
        present = set(os.listdir(paths.root))
        firsts = {each: os.path.relpath(each, paths.root).split(os.sep)[0] for each in paths.directories()}
        require_own_entries(paths.root, present.intersection(firsts.values()), where)
        for directory, first in firsts.items():
            if first not in present:
                make_directories(directory)
        make_directories(paths.agent_logs)
        make_directories(os.path.join(paths.journal, segment_name(1)))
    except OSError as error:
        if error.errno in _PASSING:
            raise StoreError(f"{paths.root}: {error.strerror}") from error
        in_the_way = isinstance(error, FileExistsError | NotADirectoryError)
        raise RunDirError(
            f"it cannot be used: {'it is no directory' if in_the_way else error.strerror}",
            where=where,
            fix="choose a directory on a shared file system that you can write to with --run-dir",
        ) from error


def holds_submitted_run(paths: RunPaths) -> bool:
    """Tell whether a directory holds what `submit` has put there.

    Raises:
        StoreError: the file system does not tell.
    """
    try:
        return any(_is_there(path) for path in (paths.identity, paths.script))
    except OSError as error:
        raise StoreError(f"{paths.identity}: {error.strerror}", errno=error.errno) from error


def _is_there(path: str) -> bool:
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def require_same_run(paths: RunPaths, run_id: str) -> None:
    """Check that a directory, if it is there, is this user's alone, and that of a run.

    Args:
        paths: the run.
        run_id: its name; empty: any.

    Raises:
        TakenOverError: it is not.
        StoreError: the file system does not tell.
    """
    try:
        require_same(paths.root, run_id)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise StoreError(f"{paths.root}: {error.strerror}", errno=error.errno) from error


def require_run(paths: RunPaths, run_id: str = "") -> None:
    """Check that a submitted run is where it was; what is gone is never made again.

    Args:
        paths: the run.
        run_id: its name, as it was submitted; empty: any.

    Raises:
        TakenOverError: another directory is in its place, others can write to it, or anybody can exchange it.
        RunDirError: the directory, or what was submitted in it, is gone.
        StoreError: the file system does not tell.
    """
    require_same_run(paths, run_id)
    _require_closed(paths)
    if holds_submitted_run(paths):
        return
    if run_id and _holds_only_others(paths):
        raise taken(paths.root, f"there is no {os.path.basename(paths.identity)} in it, but other files are")
    has_root = os.path.isdir(paths.root)
    raise RunDirError(
        f"there is no {os.path.basename(paths.identity)} in it" if has_root else "it is gone",
        where=f"run directory {paths.root}",
        fix="nothing was made or started here; put it back under this name, then: "
        f"hpc-elastic submit --resume {shlex.quote(paths.root)}",
    )


def _holds_only_others(paths: RunPaths) -> bool:
    """Tell whether a directory has entries, and none of a run's: no mount that is away looks like that."""
    try:
        entries = set(os.listdir(paths.root))
    except OSError:
        return False
    own = {os.path.relpath(each, paths.root).split(os.sep)[0] for each in paths.directories()}
    return bool(entries) and not entries & own


def _require_closed(paths: RunPaths) -> None:
    """Check that not anybody can put another directory in the place of a run's since it was submitted."""
    try:
        refuse_open(paths.root, f"run directory {paths.root}", is_of_many=True)
    except OSError as error:
        raise StoreError(f"{paths.root}: {error.strerror}", errno=error.errno) from error
    except RunDirError as error:
        raise TakenOverError(error.message, where=error.where, fix=error.fix) from None


def tidy_run_dir(paths: RunPaths, first_round: int, keep_logs: int = 0) -> None:
    """Take away what dead writers and the rounds before `first_round` have left; never fails for it.

    Args:
        paths: the files of the run.
        first_round: the oldest round that may still have workers.
        keep_logs: of how many rounds the workers' logs stay; 0: of all.
    """
    from hpc_elastic.store.leftovers import tidy  # noqa: PLC0415 - one agent of a start does it

    tidy(paths, first_round, keep_logs)
