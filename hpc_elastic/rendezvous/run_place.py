"""Which directory a run gets that nobody has given one: a finished run does not stand in a new one's way."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import chain, count

from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import StoreError
from hpc_elastic.paths import RunPaths
from hpc_elastic.rendezvous.run_log import RunLog
from hpc_elastic.rendezvous.state import RunState
from hpc_elastic.store.shared_dir import SharedDirStore

_UNSAFE = str.maketrans(dict.fromkeys("/:[]%*?\"'<>|\\ \t\n", "-"))


def first_open(root: str, is_over: Callable[[RunPaths, RunState], bool]) -> str:
    """Return the first of ``root``, ``root_2``, ``root_3`` ... that holds no run, or one that goes on.

    A run that is over stays over, so that all agents of the next run come to the same directory,
    whenever each of them looks. A run whose agents were killed is not over: the next ones take it up.

    Args:
        root: the directory of the first run.
        is_over: whether a run is no place for new agents.

    Raises:
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
    """Tell whether a directory belongs to somebody else, who has used the same name in the same place."""
    try:
        return os.stat(path).st_uid != os.geteuid()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}", errno=error.errno) from error


def places(root: str) -> Iterator[str]:
    """Return the directories of the runs of one name, oldest first."""
    return chain([root], (f"{root}_{number}" for number in count(2)))


def has_ended(_paths: RunPaths, state: RunState) -> bool:
    """Tell whether a run is over for good."""
    return state.ending is not None


def was_left(_paths: RunPaths, state: RunState) -> bool:
    """Tell whether a run is over for good, or its agents have gone because they were told to."""
    return state.ending is not None or state.drained is not None or state.leave_cause is not None


def file_name(*words: str) -> str:
    """Return a name for a directory made of what a user has written, without what paths give a meaning."""
    return "_".join(word.translate(_UNSAFE).strip("-.") for word in words if word.strip("-./:[]"))
