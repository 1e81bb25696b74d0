"""Workers that run a program, and groups of workers in one call (names as in torch.distributed.elastic)."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpc_elastic.multiprocessing.group import ProcessGroup
from hpc_elastic.multiprocessing.logs import DefaultLogsSpecs, LogsSpecs
from hpc_elastic.multiprocessing.pcontext import (
    ON_ITS_OWN,
    Entrypoint,
    PContext,
    RunProcsResult,
    StartSettings,
    check_full_rank,
)
from hpc_elastic.multiprocessing.signals import SignalException
from hpc_elastic.multiprocessing.std import Std
from hpc_elastic.processes.process import ChildProcess, spawn

if TYPE_CHECKING:
    from hpc_elastic.multiprocessing.subprocess_handler import SubprocessHandler


__all__ = [
    "PContext",
    "RunProcsResult",
    "SignalException",
    "StartSettings",
    "SubprocessContext",
    "start_processes",
]


class SubprocessContext(ProcessGroup):
    """A group of workers that run a program; arguments become texts."""

    def _spawn(self, rank: int) -> ChildProcess:
        argv = (str(self.entrypoint), *(str(arg) for arg in self.args[rank]))
        spec = self._spec(rank, argv, self._marker)
        preloader = self._settings.preloader
        return (None if preloader is None else preloader.fork(spec)) or spawn(spec)

    @property
    def subprocess_handlers(self) -> dict[int, SubprocessHandler]:
        """The started programs by local rank; look at them and signal them, the group does the rest."""
        from hpc_elastic.multiprocessing.subprocess_handler import SubprocessHandler  # noqa: PLC0415 - rare

        return {rank: SubprocessHandler.of(process, rank) for rank, process in self._processes.items()}


def start_processes(  # noqa: PLR0913 - torch's signature, and that of its older versions
    name: str,
    entrypoint: Entrypoint,
    args: Mapping[int, Sequence[Any]],
    envs: Mapping[int, Mapping[str, Any]] | None = None,
    logs_specs: LogsSpecs | str | os.PathLike[str] | None = None,
    log_line_prefixes: Mapping[int, str] | None = None,
    start_method: str = "spawn",
    numa_options: object = None,
    duplicate_stdout_filters: Sequence[str] | None = None,
    duplicate_stderr_filters: Sequence[str] | None = None,
    *,
    log_dir: str | os.PathLike[str] | None = None,
    redirects: Std | Mapping[int, Std] = Std.NONE,
    tee: Std | Mapping[int, Std] = Std.NONE,
    local_ranks_filter: Collection[int] | None = None,
    shutdown_timeout: float = ON_ITS_OWN.grace_s,
    settings: StartSettings | None = None,
) -> ProcessGroup:
    """Start one process per local rank and return them; end with `wait` or `close`.

    Args:
        name: of the group, for messages and before teed lines.
        entrypoint: a program, or a function that pickle can find by its name (not needed for fork).
        args: arguments by local rank 0..n-1; a text alone is one argument.
        envs: additional environment by local rank; None adds nothing.
        logs_specs: where logs go. A path, and the four arguments below, are the older spelling.
        log_line_prefixes: the prefix of each teed line, by local rank; else ``[<name><rank>]:``.
        start_method: of functions: ``spawn``, ``fork`` or ``forkserver``.
        numa_options: binds each worker to the CPUs near its GPU.
        duplicate_stdout_filters: teed lines with one of these texts also go to filtered_stdout.log.
        duplicate_stderr_filters: the same for stderr.
        log_dir: where the log directories are made.
        redirects: which streams go to files.
        tee: which streams go to files and to the console.
        local_ranks_filter: whose output reaches the console; none given means all.
        shutdown_timeout: from the death signal to SIGKILL, however the group ends [s].
        settings: how processes are started; `shutdown_timeout` goes before.

    Raises:
        RuntimeError: args and envs do not have the same local ranks.
        TypeError: log specs and the older spelling are both given.
        ValueError: there is no such start method.
        WorkerStartError: a program cannot be run; nothing is left running.
        SignalException: a death signal came meanwhile; nothing is left running.
    """
    envs = {rank: {} for rank in args} if envs is None else envs
    check_full_rank("args", args, len(args))
    check_full_rank("envs", envs, len(args))
    if isinstance(logs_specs, LogsSpecs) or callable(getattr(logs_specs, "reify", None)):
        if log_dir is not None or redirects or tee or local_ranks_filter:
            raise TypeError("give logs_specs, or log_dir, redirects, tee and local_ranks_filter, not both")
        specs: Any = logs_specs
    else:
        path = logs_specs if log_dir is None else log_dir
        specs = DefaultLogsSpecs(
            None if path is None else os.fspath(path), redirects, tee, local_ranks_filter
        )
    settings = (settings or ON_ITS_OWN)._replace(grace_s=shutdown_timeout, is_driven=False)
    context: ProcessGroup
    if isinstance(entrypoint, str):
        context = SubprocessContext(
            *(name, entrypoint, args, envs, specs, log_line_prefixes, numa_options),
            *(duplicate_stdout_filters, duplicate_stderr_filters),
            settings=settings,
        )
    else:
        from hpc_elastic.multiprocessing.functions import MultiprocessContext  # noqa: PLC0415

        context = MultiprocessContext(
            *(name, entrypoint, args, envs, start_method, specs, log_line_prefixes, numa_options),
            *(duplicate_stdout_filters, duplicate_stderr_filters),
            settings=settings,
        )
    context.start()
    return context
