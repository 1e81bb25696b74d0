"""The names of torch.distributed.elastic.multiprocessing.api."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

from hpc_elastic.lazy_names import lazy_names
from hpc_elastic.multiprocessing.context import SubprocessContext
from hpc_elastic.multiprocessing.functions import MultiprocessContext
from hpc_elastic.multiprocessing.logs import DefaultLogsSpecs, LogsDest, LogsSpecs
from hpc_elastic.multiprocessing.pcontext import PContext, RunProcsResult, check_full_rank
from hpc_elastic.multiprocessing.signals import SignalException
from hpc_elastic.multiprocessing.std import Std, to_map

__all__ = [
    "DefaultLogsSpecs",
    "LogsDest",
    "LogsSpecs",
    "MultiprocessContext",
    "PContext",
    "RunProcsResult",
    "SignalException",
    "Std",
    "SubprocessContext",
    "get_std_cm",
    "to_map",
]

_HOMES = {  # names that torch's module has without offering them, and that programs import
    **dict.fromkeys(("ProcessFailure", "record"), ".errors"),
    **dict.fromkeys(("redirect_stderr", "redirect_stdout"), ".redirects"),
    "SubprocessHandler": ".subprocess_handler",
    "TailLog": ".tail_log",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)


def get_std_cm(
    std_rd: str, redirect_fn: Callable[[str], AbstractContextManager[None]]
) -> AbstractContextManager[None]:
    """Return a context that sends a standard stream to a file; it does nothing if there is no file."""
    return redirect_fn(std_rd) if std_rd else nullcontext()


def _validate_full_rank(d: Mapping[int, object], nprocs: int, what: str) -> None:
    """Check that a mapping has the local ranks 0 to n-1 and no other; see `check_full_rank`."""
    check_full_rank(what, d, nprocs)
