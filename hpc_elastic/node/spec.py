"""The work of an agent and its result; names and meaning as in torch.distributed.elastic.agent."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

from hpc_elastic.data_fields import DataClass, DataFields
from hpc_elastic.errors import InputError

if TYPE_CHECKING:
    from hpc_elastic.meet.interface import RendezvousHandler
    from hpc_elastic.multiprocessing.errors import ProcessFailure
    from hpc_elastic.multiprocessing.std import Std

DEFAULT_ROLE = "default"
"""What `ElasticAgent.run` calls the workers if nobody says; an agent of one spec goes by the spec's role."""


class SpecError(InputError, AssertionError):
    """A `WorkerSpec` cannot be used; torch raises an AssertionError, without a word."""


class WorkerState(str, Enum):
    """State of a group of workers; it changes for the group as a whole."""

    UNKNOWN = "UNKNOWN"
    INIT = "INIT"
    HEALTHY = "HEALTHY"
    UNHEALTHY = "UNHEALTHY"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"

    @staticmethod
    def is_running(state: WorkerState) -> bool:
        """Tell whether workers in this state are (perhaps) alive."""
        return state in (WorkerState.HEALTHY, WorkerState.UNHEALTHY)


class WorkerSpec(DataClass):
    """The work of this node.

    Args:
        role: name of the workers' task.
        local_world_size: workers on this node.
        rdzv_handler: brings the nodes together.
        fn: older name of `entrypoint`; deprecated.
        entrypoint: a command, or a function.
        args: arguments of the entrypoint; ``${local_rank}`` stands for the worker's local rank.
        max_restarts: how often the workers may be started again after one has failed. An agent over a
            shared run directory counts for the run, over all nodes and requeues; any other one its own.
        monitor_interval: longest time between two looks at the workers [s], for agents that are not
            told of exits; our own agents are.
        master_port: port of the workers' process group; None: a free one per round.
        master_addr: address of the workers' process group; None: that of group rank 0.
        local_addr: address of this node for the others; None: its host name.
        event_log_handler: name of the destination of events, see `hpc_elastic.events`.
        numa_options: binds each worker to the CPUs near its GPU, see `hpc_elastic.processes.numa`.
        duplicate_stdout_filters: teed lines with one of these texts also go to one common file.
        duplicate_stderr_filters: the same for stderr.
        virtual_local_rank: each worker sees its own GPU alone, and is local rank 0.
        redirects: which streams go to files; older spelling, belongs to the agent's logs_specs.
        tee: which streams go to files and to the console; the same.

    Raises:
        SpecError: a value cannot be used.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]] = DataFields(  # type: ignore[assignment]
        role="default_role",
        local_world_size=1,
        rdzv_handler=None,
        fn=None,
        entrypoint=None,
        args=(),
        max_restarts=3,
        monitor_interval=0.1,
        master_port=None,
        master_addr=None,
        local_addr=None,
        event_log_handler="null",
        numa_options=None,
        duplicate_stdout_filters=None,
        duplicate_stderr_filters=None,
        virtual_local_rank=False,
        redirects=None,
        tee=None,
    )

    def __init__(  # noqa: PLR0913 - torch's signature
        self,
        role: str = "default_role",
        local_world_size: int = 1,
        rdzv_handler: RendezvousHandler | None = None,
        fn: Callable[..., Any] | None = None,
        entrypoint: Callable[..., Any] | str | None = None,
        args: tuple[Any, ...] = (),
        max_restarts: int = 3,
        monitor_interval: float = 0.1,
        master_port: int | None = None,
        master_addr: str | None = None,
        local_addr: str | None = None,
        event_log_handler: str = "null",
        numa_options: object = None,
        duplicate_stdout_filters: Sequence[str] | None = None,
        duplicate_stderr_filters: Sequence[str] | None = None,
        virtual_local_rank: bool = False,  # noqa: FBT001, FBT002 - torch's signature
        *,
        redirects: Std | Mapping[int, Std] | None = None,
        tee: Std | Mapping[int, Std] | None = None,
    ) -> None:
        self.role = role
        self.local_world_size = local_world_size
        self.rdzv_handler = rdzv_handler
        self.fn = fn
        self.entrypoint: Callable[..., Any] | str = entrypoint  # type: ignore[assignment]
        self.args = args
        self.max_restarts = max_restarts
        self.monitor_interval = monitor_interval
        self.master_port = master_port
        self.master_addr = master_addr
        self.local_addr = local_addr
        self.event_log_handler = event_log_handler
        self.numa_options = numa_options
        self.duplicate_stdout_filters = duplicate_stdout_filters
        self.duplicate_stderr_filters = duplicate_stderr_filters
        self.virtual_local_rank = virtual_local_rank
        self.redirects = redirects
        self.tee = tee
        if fn is not None:
            _warn_of_fn()
        self.__post_init__()

    def __post_init__(self) -> None:
        """Check the values; a data class derived from this one calls it, too.

        Raises:
            SpecError: a value cannot be used.
        """
        chosen = self.fn or self.entrypoint
        if not chosen:
            raise SpecError("no entrypoint: a WorkerSpec needs a command or a function to run")
        _check("entrypoint", isinstance(chosen, str) or callable(chosen), chosen, "a command or a function")
        _check("args", _is_list(self.args), self.args, "a tuple")
        handler, workers = self.rdzv_handler, self.local_world_size
        _check("rdzv_handler", not isinstance(handler, str), handler, "a RendezvousHandler")
        _check("local_world_size", _is_at_least(1, workers), workers, "at least 1")
        _check("monitor_interval", _is_positive(self.monitor_interval), self.monitor_interval, "positive")
        _check("max_restarts", _is_at_least(0, self.max_restarts), self.max_restarts, "at least 0")
        self.entrypoint = chosen

    def get_entrypoint_name(self) -> str:
        """Return a short name of the program or function."""
        if isinstance(self.entrypoint, str):
            return os.path.basename(self.entrypoint)
        return str(getattr(self.entrypoint, "__qualname__", type(self.entrypoint).__qualname__))


def _check(name: str, holds: bool, value: object, must_be: str) -> None:  # noqa: FBT001 - one line per rule
    if not holds:
        raise SpecError(f"{name} is {value!r}, it must be {must_be}", where="WorkerSpec")


def _is_list(value: object) -> bool:
    return hasattr(value, "__iter__") and not isinstance(value, str)


def _is_at_least(least: int, value: object) -> bool:
    return hasattr(value, "__index__") and value.__index__() >= least


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and value > 0


def _warn_of_fn() -> None:
    import warnings  # noqa: PLC0415 - rare

    warnings.warn(
        "WorkerSpec.fn will be deprecated, please use WorkerSpec.entrypoint instead",
        DeprecationWarning,
        stacklevel=3,
    )


class Worker:
    """One worker's places in the world of a round.

    Args:
        local_rank: on this node, for this agent.
        global_rank: among all workers; may be another one after each rendezvous, as the following.
        role_rank: among all workers of the same role.
        world_size: how many workers there are.
        role_world_size: how many of them have the same role.
    """

    __slots__ = ("global_rank", "id", "local_rank", "role_rank", "role_world_size", "world_size")

    def __init__(
        self,
        local_rank: int,
        global_rank: int = -1,
        role_rank: int = -1,
        world_size: int = -1,
        role_world_size: int = -1,
    ) -> None:
        self.id: Any = None  # the agent's name for it once it is started: for local agents its pid
        self.local_rank = local_rank
        self.global_rank = global_rank
        self.role_rank = role_rank
        self.world_size = world_size
        self.role_world_size = role_world_size

    def __repr__(self) -> str:
        return (
            f"local_rank={self.local_rank},global_rank={self.global_rank},role_rank={self.role_rank}"
            f",world_size={self.world_size},role_world_size={self.role_world_size}"
        )


class WorkerGroup:
    """The workers of this node as one unit."""

    __slots__ = (
        *("spec", "workers", "store", "group_rank", "group_world_size", "master_addr", "master_port"),
        "state",
    )

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        self.workers = [Worker(local_rank) for local_rank in range(spec.local_world_size)]
        self.store: Any = None
        self.group_rank: int | None = None
        self.group_world_size: int | None = None
        self.master_addr: str | None = None
        self.master_port: int | None = None
        self.state = WorkerState.INIT


class RunResult(DataClass):
    """How the workers of this agent ended, by global rank; those that the agent ended are in neither map.

    Args:
        state: SUCCEEDED, FAILED, or STOPPED if they were not needed any more.
        return_values: of functions; None for programs.
        failures: of those that failed by themselves.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]] = DataFields(  # type: ignore[assignment]
        "state", return_values=dict, failures=dict
    )

    def __init__(
        self,
        state: WorkerState,
        return_values: Mapping[int, Any] | None = None,
        failures: Mapping[int, ProcessFailure] | None = None,
    ) -> None:
        self.state = state
        self.return_values: Mapping[int, Any] = {} if return_values is None else return_values
        self.failures: Mapping[int, ProcessFailure] = {} if failures is None else failures

    def is_failed(self) -> bool:
        """Tell whether the workers failed; workers that cannot go on nor end have failed, too."""
        return self.state in (WorkerState.FAILED, WorkerState.UNHEALTHY)


class ElasticAgent(ABC):
    """Runs and supervises the workers of one node."""

    @abstractmethod
    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Run the workers to their end, over all restarts.

        Returns:
            The workers' results, or their failures.
        """

    @abstractmethod
    def get_worker_group(self, role: str = DEFAULT_ROLE) -> WorkerGroup:
        """Return the worker group; do not change it."""
