"""Start, watch and end a group of local processes (names as in torch.distributed.elastic).

    context    SubprocessContext: run a program, and        functions    MultiprocessContext: run a function
               start_processes: a group in one call         group        the common part of both
    process    one child: own session, dies with its parent     stop, reap   end it and its children
    guard      survives the agent's SIGKILL                     logs, tail   files, and lines on the console
    errors     error files and their summaries

Names load their module when first used: a worker that imports `errors.record` pays for no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_elastic.lazy_names import lazy_names

if TYPE_CHECKING:
    from hpc_elastic.multiprocessing.context import SubprocessContext, start_processes
    from hpc_elastic.multiprocessing.errors.failure import ProcessFailure
    from hpc_elastic.multiprocessing.functions import MultiprocessContext
    from hpc_elastic.multiprocessing.logs import DefaultLogsSpecs, LogsDest, LogsSpecs, load_logs_specs
    from hpc_elastic.multiprocessing.pcontext import PContext, RunProcsResult, StartSettings
    from hpc_elastic.multiprocessing.signals import SignalException
    from hpc_elastic.multiprocessing.std import Std, to_map
    from hpc_elastic.processes.guard import Guard
    from hpc_elastic.processes.process import WorkerStartError

_HOMES = {
    "PContext": "pcontext",
    "StartSettings": "pcontext",
    "SubprocessContext": "context",
    "Guard": ".processes.guard",
    "DefaultLogsSpecs": "logs",
    "LogsDest": "logs",
    "LogsSpecs": "logs",
    "Std": "std",
    "to_map": "std",
    "WorkerStartError": ".processes.process",
    "RunProcsResult": "pcontext",
    "SignalException": "signals",
    "_validate_full_rank": "api",
    "MultiprocessContext": "functions",
    "ProcessFailure": "errors.failure",
    "load_logs_specs": "logs",
    "start_processes": "context",
}

__all__ = [
    "DefaultLogsSpecs",
    "Guard",
    "LogsDest",
    "LogsSpecs",
    "MultiprocessContext",
    "PContext",
    "ProcessFailure",
    "RunProcsResult",
    "SignalException",
    "StartSettings",
    "Std",
    "SubprocessContext",
    "WorkerStartError",
    "load_logs_specs",
    "start_processes",
    "to_map",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
