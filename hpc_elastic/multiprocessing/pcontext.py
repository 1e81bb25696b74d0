"""The torch-shaped seam: a group of processes, its settings and what it came to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from hpc_elastic.clock import Clock, SystemClock
from hpc_elastic.multiprocessing.errors.failure import ProcessFailure
from hpc_elastic.multiprocessing.guard import Guard
from hpc_elastic.multiprocessing.logs import LogsDest, LogsSpecs


class RunProcsResult(NamedTuple):
    """The end of a group, or its first failures; keys are local ranks.

    stdouts and stderrs are the log files, empty where a stream was not redirected.
    """

    return_values: dict[int, Any]
    failures: dict[int, ProcessFailure]
    stdouts: dict[int, str]
    stderrs: dict[int, str]

    def is_failed(self) -> bool:
        """Return whether any process has failed."""
        return bool(self.failures)


class SignalException(Exception):  # noqa: N818 - torch's name
    """A death signal came; for code that turns signals into exceptions, which this package does not.

    Args:
        msg: says who got it.
        sigval: the signal.
    """

    def __init__(self, msg: str, sigval: int) -> None:
        super().__init__(msg)
        self.sigval = sigval


class StartSettings(NamedTuple):
    """How processes are started and guarded.

    Args:
        ignore_signals: start ignored in the workers; all others have their default action.
        guard: ends what workers started when this process is SIGKILLed; None does without.
        owns_process: this process has no children but the workers and the guard, unless they
            stay in its session; finds left-overs that cleared their environment.
        base_env: below the workers' own variables; None means this process's environment.
        cwd: directory of the workers; None means the present one.
        clock: monotonic time for deadlines, wall time for failures.
    """

    ignore_signals: tuple[int, ...] = ()
    guard: Guard | None = None
    owns_process: bool = False
    base_env: Mapping[str, str] | None = None
    cwd: str | None = None
    clock: Clock = SystemClock()


_DEFAULTS: Final = StartSettings()


class PContext(ABC):
    """A group of processes that run the same entrypoint; make one, `start`, `wait`, `close`.

    Args:
        name: of the group, for messages.
        entrypoint: what to run.
        args: arguments by local rank 0..n-1.
        envs: environment by local rank.
        logs_specs: where logs go.
        log_line_prefixes: what stands before each teed line, by local rank.
        settings: see `StartSettings`.

    Raises:
        RuntimeError: args and envs do not have the same local ranks.
    """

    def __init__(  # noqa: PLR0913 - torch's signature
        self,
        name: str,
        entrypoint: str,
        args: Mapping[int, Sequence[object]],
        envs: Mapping[int, Mapping[str, str]],
        logs_specs: LogsSpecs,
        log_line_prefixes: Mapping[int, str] | None = None,
        *,
        settings: StartSettings = _DEFAULTS,
    ) -> None:
        _check_full_rank("args", args, len(args))
        _check_full_rank("envs", envs, len(args))
        self.name = name
        self.entrypoint = entrypoint
        self.args = args
        self.envs = envs
        self.nprocs = len(args)
        self.logs = LogsDest({}, {}, {}, {}, {})
        self._logs_specs = logs_specs
        self._prefixes = log_line_prefixes
        self._settings = settings
        self._clock = settings.clock

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
    def close(self, death_sig: int | None = None, timeout: float = 30) -> None:
        """End all processes."""


def _check_full_rank(what: str, mapping: Mapping[int, object], nprocs: int) -> None:
    expected = set(range(nprocs))
    if set(mapping) != expected:
        raise RuntimeError(
            f"{what}, local rank mapping mismatch, expected: {expected}, actual: {set(mapping)}"
        )
