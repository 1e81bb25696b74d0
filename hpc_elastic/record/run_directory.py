"""The directory that holds a run: its choice, its making, its tidying; it belongs to this user alone."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from itertools import chain, count

from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import RunDirError, StoreError, TakenOverError
from hpc_elastic.paths import MAX_NAME, RunPaths, own_name, readable_name
from hpc_elastic.record.run_log import RunLog
from hpc_elastic.record.state import RunState
from hpc_elastic.store.files import make_directories, retry
from hpc_elastic.store.shared_dir import SharedDirStore, segment_name
from hpc_elastic.store.trust import refuse_open, require_own, require_own_entries, require_same, taken
from hpc_elastic.text import for_shell

_PASSING = (errno.EIO, errno.ESTALE, errno.ENOSPC, errno.EDQUOT, errno.EAGAIN, errno.ETIMEDOUT)


def prepare_run_dir(paths: RunPaths) -> None:
    """Make the missing parts of the run directory; it must belong to this user alone.

    Raises:
        RunDirError: it cannot be made, or a part of it, or a directory above it, is another user's.
    """
    where = f"run directory {paths.root}"
    try:
        refuse_open(paths.root, where, spares_public=True, is_of_many=True)
        # a file system may hide parts for a moment that several nodes make at once
        retry(lambda: _make_parts(paths, where), errno.ENOENT)
    except OSError as error:
        if error.errno in _PASSING:
            raise StoreError(f"{paths.root}: {error.strerror}") from error
        in_the_way = isinstance(error, FileExistsError | NotADirectoryError)
        raise RunDirError(
            f"{_part(error, paths)} cannot be used: {'it is no directory' if in_the_way else error.strerror}",
            where=where,
            fix="choose a directory on a shared file system that you can write to with --run-dir",
        ) from error


def _make_parts(paths: RunPaths, where: str) -> None:
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


def _part(error: OSError, paths: RunPaths) -> str:
    """Return the directory in the run directory in which something could not be made, else `it`."""
    place = os.path.dirname(error.filename or "")
    return os.path.relpath(place, paths.root) if place.startswith(paths.root + os.sep) else "it"


def holds_submitted_run(paths: RunPaths) -> bool:
    """Tell whether a directory holds the files of `submit`.

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
    """Check that a submitted run is where it was; a directory that is gone is never made again.

    Args:
        paths: the run.
        run_id: its name, as it was submitted; empty: any.

    Raises:
        TakenOverError: another directory is in its place, others can write to it, or anybody can exchange it.
        RunDirError: the directory, or the submitted job in it, is gone.
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
        f"hpc-elastic submit --resume {for_shell(paths.root)}",
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
    """Take away leftovers of dead writers and of rounds before `first_round`; never fails for it.

    Args:
        paths: the files of the run.
        first_round: the oldest round that may still have workers.
        keep_logs: of how many rounds the workers' logs stay; 0: of all.
    """
    from hpc_elastic.store.leftovers import tidy  # noqa: PLC0415 - one agent of a start does it

    tidy(paths, first_round, keep_logs)


def first_open(root: str, is_over: Callable[[RunPaths, RunState], bool]) -> str:
    """Return the first of ``root``, ``root+2``, ``root+3`` ... that holds no run, or one that goes on.

    A run that is over stays over, so that all agents of the next run come to the same directory,
    whenever each of them looks. A run whose agents were killed is not over: the next ones take it up.

    Args:
        root: the directory of the first run.
        is_over: whether a run is no place for new agents.

    Raises:
        RunDirError: a directory above it is none, or another user's.
        StoreError: the file system does not tell.
        RendezvousStateError: the records of a run cannot be read.
    """
    for paths in map(RunPaths, places(root)):
        if _is_foreign(paths.root):
            continue
        if not os.path.isdir(paths.journal):
            return paths.root
        if not is_over(paths, RunLog(SharedDirStore(paths.root), SystemClock(), "").refresh()):
            return paths.root
    raise RuntimeError("numbers have come to an end")


def _is_foreign(path: str) -> bool:
    """Tell whether a directory or link is another user's, with the same name in the same place."""
    try:
        return any(look(path).st_uid != os.geteuid() for look in (os.lstat, os.stat))
    except FileNotFoundError:
        return False
    except (NotADirectoryError, PermissionError) as error:
        raise RunDirError(
            f"it cannot be looked at: {error.strerror}",
            where=f"run directory {path}",
            fix="name a directory of your own, by --run-dir or as the endpoint",
        ) from error
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}", errno=error.errno) from error


def places(root: str) -> Iterator[str]:
    """Return the directories of the runs of one name, oldest first; no run id is called so (`own_name`)."""
    return chain([root], (f"{root}+{number}" for number in count(2)))


def above_runs(path: str) -> str:
    """Return a directory for runs at a path; beside it if that is a file, such as that of a store."""
    return f"{path}.runs" if os.path.isfile(path) else path


def has_ended(_paths: RunPaths, state: RunState) -> bool:
    """Tell whether a run is over for good."""
    return state.ending is not None


def was_left(_paths: RunPaths, state: RunState) -> bool:
    """Tell whether a run is over for good, or its agents have left on request."""
    return state.ending is not None or state.drained is not None or state.leave_cause is not None


def directory_name(run_id: str, place: str) -> str:
    """Return the name of the directory in which agents meet that know a run id, a place, or both.

    Args:
        run_id: empty if there is none; other ids never get the same name.
        place: for example an endpoint ``host:port``.
    """
    where = readable_name(place) if len(place) <= MAX_NAME else own_name(place)
    return "_".join(filter(None, (own_name(run_id), where)))
