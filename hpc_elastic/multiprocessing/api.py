"""The names of torch.distributed.elastic.multiprocessing.api."""

from __future__ import annotations

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
    "to_map",
]
