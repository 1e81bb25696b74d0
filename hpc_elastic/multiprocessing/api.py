"""The names of torch.distributed.elastic.multiprocessing.api."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from hpc_elastic.multiprocessing.context import SubprocessContext
from hpc_elastic.multiprocessing.functions import MultiprocessContext
from hpc_elastic.multiprocessing.logs import DefaultLogsSpecs, LogsDest, LogsSpecs
from hpc_elastic.multiprocessing.pcontext import PContext, RunProcsResult, SignalException
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


def get_std_cm(
    std_rd: str, redirect_fn: Callable[[str], AbstractContextManager[None]]
) -> AbstractContextManager[None]:
    """Return what sends a standard stream to a file for a while; nothing is sent if there is no file."""
    return redirect_fn(std_rd) if std_rd else nullcontext()
