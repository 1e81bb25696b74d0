"""Which directory a run gets that nobody has given one: a finished run does not stand in a new one's way."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import chain, count

from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import RunDirError, StoreError
from hpc_elastic.paths import MAX_NAME, RunPaths, own_name, readable_name
from hpc_elastic.record.run_log import RunLog
from hpc_elastic.record.state import RunState
from hpc_elastic.store.shared_dir import SharedDirStore


def first_open(root: str, is_over: Callable[[RunPaths, RunState], bool]) -> str:
    """Return the first of ``root``, ``root+2``, ``root+3`` ... that holds no run, or one that goes on.

    A run that is over stays over, so that all agents of the next run come to the same directory,
    whenever each of them looks. A run whose agents were killed is not over: the next ones take it up.

    Args:
        root: the directory of the first run.
        is_over: whether a run is no place for new agents.

    Raises:
        RunDirError: a directory above it is none, or somebody else's.
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
    """Tell whether a directory or link is somebody else's, who has used the same name in the same place."""
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
    """Tell whether a run is over for good, or its agents have gone because they were told to."""
    return state.ending is not None or state.drained is not None or state.leave_cause is not None


def directory_name(run_id: str, place: str) -> str:
    """Return the name of the directory in which agents meet that know a run id, a place, or both.

    Args:
        run_id: empty if there is none; other ids never get the same name.
        place: for example an endpoint ``host:port``.
    """
    where = readable_name(place) if len(place) <= MAX_NAME else own_name(place)
    return "_".join(filter(None, (own_name(run_id), where)))
