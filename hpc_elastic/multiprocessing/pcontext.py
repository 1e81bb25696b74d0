"""The torch-shaped seam: a group of processes, its settings and its result."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from hpc_elastic.clock import Clock, SystemClock
from hpc_elastic.data_fields import DataClass, DataFields
from hpc_elastic.ids import SHUTDOWN_S, Env
from hpc_elastic.multiprocessing.errors.failure import ProcessFailure
from hpc_elastic.multiprocessing.logs import LogsSpecs
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.processes.guard import Guard
from hpc_elastic.processes.linux import MARKER_ENV
from hpc_elastic.processes.process import ProcessSpec

if TYPE_CHECKING:
    from hpc_elastic.multiprocessing.signals import SignalTrap
    from hpc_elastic.processes.preload.preloader import Preloader

Entrypoint: TypeAlias = str | Callable[..., Any]


class RunProcsResult(DataClass):
    """The end of a group, or its failures; keys are local ranks.

    Args:
        return_values: of the functions that returned, None for programs that ended well.
        failures: the processes that failed by themselves, the earliest first.
        stdouts: the log files, empty where the stream was not redirected.
        stderrs: the same.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]] = DataFields(  # type: ignore[assignment]
        return_values=dict, failures=dict, stdouts=dict, stderrs=dict
    )

    def __init__(
        self,
        return_values: dict[int, Any] | None = None,
        failures: dict[int, ProcessFailure] | None = None,
        stdouts: dict[int, str] | None = None,
        stderrs: dict[int, str] | None = None,
    ) -> None:
        self.return_values = {} if return_values is None else return_values
        self.failures = {} if failures is None else failures
        self.stdouts = {} if stdouts is None else stdouts
        self.stderrs = {} if stderrs is None else stderrs

    def is_failed(self) -> bool:
        """Return whether any process has failed."""
        return bool(self.failures)


class StartSettings(NamedTuple):
    """How processes are started and guarded.

    Args:
        ignore_signals: start ignored in the workers; all others have their default action.
        guard: ends the workers' processes when this process is SIGKILLed; None: there is no guard.
        owns_process: this process has no children but the workers and the guard, unless they
            stay in its session; finds left-overs that cleared their environment.
        base_env: below the workers' own variables; None means this process's environment.
        cwd: directory of the workers; None means the present one.
        clock: monotonic time for deadlines, wall time for failures.
        grace_s: from the death signal to SIGKILL by default [s].
        is_driven: a loop with its own signal handlers copies the logs and stops the group. Otherwise
            death signals become `SignalException` and a thread copies the logs.
        trap: where the caller turns death signals into `SignalException` already, its trap for them.
        preloader: forks programs that Python runs; None starts each by itself.
        beside: other children of this process that are no workers; they may change.
    """

    ignore_signals: tuple[int, ...] = ()
    guard: Guard | None = None
    owns_process: bool = False
    base_env: Mapping[str, str] | None = None
    cwd: str | None = None
    clock: Clock = SystemClock()
    grace_s: float = SHUTDOWN_S
    is_driven: bool = True
    trap: SignalTrap | None = None
    preloader: Preloader | None = None
    beside: Collection[int] = ()


ON_ITS_OWN: Final = StartSettings(is_driven=False)
"""What a caller without a loop gets."""


class NoTrap:
    """In place of a `SignalTrap` where a loop has its own handlers."""

    def install(self) -> None:
        """Do nothing."""

    def uninstall(self) -> None:
        """Do nothing."""

    def restore(self) -> None:
        """Do nothing."""

    @contextmanager
    def held(self) -> Iterator[None]:
        """Do nothing."""
        yield

    @contextmanager
    def open(self) -> Iterator[int | None]:
        """Do nothing."""
        yield None


class PContext(ABC):
    """A group of processes that run the same entrypoint; make one, `start`, `wait`, `close`.

    Args:
        name: of the group, for messages and before teed lines.
        entrypoint: a program or a function.
        args: arguments by local rank 0..n-1; a text alone is one argument.
        envs: environment by local rank.
        logs_specs: where logs go.
        log_line_prefixes: the prefix of each teed line, by local rank.
        duplicate_stdout_filters: teed lines with one of these texts also go to one common file.
        duplicate_stderr_filters: the same for stderr.
        numa_options: binds each worker to the CPUs near its GPU.
        settings: see `StartSettings`; None means `ON_ITS_OWN`.

    Raises:
        RuntimeError: args, envs and the files of the logs do not have the same local ranks.
        InputError: a log directory cannot be made.
    """

    def __init__(  # noqa: PLR0913 - torch's signature
        self,
        name: str,
        entrypoint: Entrypoint,
        args: Mapping[int, Sequence[Any]],
        envs: Mapping[int, Mapping[str, Any]],
        logs_specs: LogsSpecs,
        log_line_prefixes: Mapping[int, str] | None = None,
        duplicate_stdout_filters: Sequence[str] | None = None,
        duplicate_stderr_filters: Sequence[str] | None = None,
        numa_options: object = None,
        *,
        settings: StartSettings | None = None,
    ) -> None:
        check_full_rank("args", args, len(args))
        check_full_rank("envs", envs, len(args))
        self.name = name
        self.entrypoint = entrypoint
        self.args = {rank: _arguments(args[rank]) for rank in args}
        self.envs = {rank: {key: str(value) for key, value in env.items()} for rank, env in envs.items()}
        self.nprocs = len(args)
        self.logs = logs_specs.reify(self.envs)
        check_full_rank("stdouts", self.logs.stdouts, self.nprocs)
        check_full_rank("stderrs", self.logs.stderrs, self.nprocs)
        self._prefixes = log_line_prefixes
        self._numa_options = numa_options
        self._filters = (tuple(duplicate_stdout_filters or ()), tuple(duplicate_stderr_filters or ()))
        self._settings = ON_ITS_OWN if settings is None else settings
        self._clock = self._settings.clock

    def _spec(self, rank: int, argv: tuple[str, ...], marker: str) -> ProcessSpec:
        """Return how to start one worker; its environment carries the marker."""
        own = self._settings.base_env
        base = os.environ if own is None else own  # noqa: TID251 - workers inherit, as under torchrun
        outer = base.get(MARKER_ENV)
        env = {
            **base,
            **self.envs[rank],
            Env.ERROR_FILE: self.logs.error_files.get(rank, ""),
            MARKER_ENV: f"{outer},{marker}" if outer else marker,
        }
        return ProcessSpec(
            argv=argv,
            env=env,
            stdout=self.logs.stdouts.get(rank) or None,
            stderr=self.logs.stderrs.get(rank) or None,
            cwd=self._settings.cwd,
            ignore_signals=self._settings.ignore_signals,
            cpus=self._cpus(rank, env),
        )

    def _cpus(self, rank: int, env: Mapping[str, str]) -> tuple[int, ...]:
        if self._numa_options is None:
            return ()
        from hpc_elastic.processes.numa import cpus_of  # noqa: PLC0415 - rare

        return cpus_of(rank, self._numa_options, env)

    def _prefix(self, rank: int) -> bytes:
        if self._prefixes is not None and rank in self._prefixes:
            return self._prefixes[rank].encode()
        name = self.envs[rank].get("RANK") if self._settings.is_driven else None
        return (f"[{self.name}{rank}]:" if name is None else f"[rank {name}] ").encode()

    @property
    def stdouts(self) -> dict[int, str]:
        """The files of stdout by local rank, empty where it is not redirected."""
        return self.logs.stdouts

    @property
    def stderrs(self) -> dict[int, str]:
        """The files of stderr by local rank, empty where it is not redirected."""
        return self.logs.stderrs

    @property
    def filtered_stdout(self) -> str:
        """The file of the chosen lines of stdout, empty if there is none."""
        return self.logs.filtered_stdout

    @property
    def filtered_stderr(self) -> str:
        """The file of the chosen lines of stderr, empty if there is none."""
        return self.logs.filtered_stderr

    @property
    def error_files(self) -> dict[int, str]:
        """The error files by local rank; one exists once its worker has recorded an error."""
        return self.logs.error_files

    @abstractmethod
    def start(self) -> None:
        """Start all processes."""

    @abstractmethod
    def wait(self, timeout: float = -1, period: float = 1) -> RunProcsResult | None:
        """Wait until all have ended or one has failed; None when the timeout came first."""

    @abstractmethod
    def pids(self) -> dict[int, int]:
        """Return the pids by local rank."""

    @abstractmethod
    def close(self, death_sig: int | None = None, timeout: float | None = None) -> None:
        """End all processes."""


def _arguments(args: Sequence[Any]) -> tuple[Any, ...]:
    return (args,) if isinstance(args, str) else tuple(args)


def check_full_rank(what: str, mapping: Mapping[int, object], nprocs: int) -> None:
    """Check that a mapping has the local ranks 0 to n-1 and no other.

    Raises:
        RuntimeError: it has not.
    """
    expected = set(range(nprocs))
    if set(mapping) != expected:
        raise RuntimeError(
            f"{what}, local rank mapping mismatch, expected: {expected}, actual: {set(mapping)}"
        )
