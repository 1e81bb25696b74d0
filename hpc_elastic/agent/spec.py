"""What an agent runs and how it went; names and meaning as in torch.distributed.elastic.agent."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from hpc_elastic.errors import InputError

if TYPE_CHECKING:
    from hpc_elastic.multiprocessing.errors import ProcessFailure
    from hpc_elastic.rendezvous.interface import RendezvousHandler


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


class WorkerSpec:
    """What to run on this node.

    Args:
        role: name of what the workers do.
        local_world_size: workers on this node.
        rdzv_handler: brings the nodes together.
        fn: older name of `entrypoint`.
        entrypoint: a command, or a function.
        args: arguments of the entrypoint; ``${local_rank}`` stands for the worker's local rank.
        max_restarts: how often the run may start its workers again after one has failed; counted
            for the run, over all nodes and requeues.
        monitor_interval: longest time between two looks at the workers [s], for agents that are not
            told of exits; our own agents are.
        master_port: port of the workers' process group; None: a free one per round.
        master_addr: address of the workers' process group; None: that of group rank 0.
        local_addr: address of this node for the others; None: its host name.

    Raises:
        InputError: a value cannot be used.
    """

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
    ) -> None:
        if local_world_size < 1:
            raise InputError(f"local_world_size is {local_world_size}, it must be at least 1")
        if monitor_interval <= 0:
            raise InputError(f"monitor_interval is {monitor_interval}, it must be positive")
        if max_restarts < 0:
            raise InputError(f"max_restarts is {max_restarts}, it must not be negative")
        chosen = entrypoint if entrypoint is not None else fn
        if chosen is None:
            raise InputError("no entrypoint: a WorkerSpec needs a command or a function to run")
        self.role = role
        self.local_world_size = local_world_size
        self.rdzv_handler = rdzv_handler
        self.entrypoint: Callable[..., Any] | str = chosen
        self.args = args
        self.max_restarts = max_restarts
        self.monitor_interval = monitor_interval
        self.master_port = master_port
        self.master_addr = master_addr
        self.local_addr = local_addr

    def get_entrypoint_name(self) -> str:
        """Return a short name of what is run."""
        if isinstance(self.entrypoint, str):
            return os.path.basename(self.entrypoint)
        return str(self.entrypoint.__qualname__)


class Worker(NamedTuple):
    """One worker's places in the world of a round."""

    local_rank: int
    id: int | None = None  # the process id, once started
    global_rank: int = -1
    role_rank: int = -1
    world_size: int = -1
    role_world_size: int = -1


class WorkerGroup:
    """The workers of this node as one unit."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        self.workers = [Worker(local_rank) for local_rank in range(spec.local_world_size)]
        self.store: Any = None
        self.group_rank: int | None = None
        self.group_world_size: int | None = None
        self.master_addr: str | None = None
        self.master_port: int | None = None
        self.state = WorkerState.INIT


class RunResult(NamedTuple):
    """How the workers of this agent ended, by global rank."""

    state: WorkerState
    return_values: Mapping[int, Any] = MappingProxyType({})
    failures: Mapping[int, ProcessFailure] = MappingProxyType({})

    def is_failed(self) -> bool:
        """Tell whether the workers failed."""
        return self.state is WorkerState.FAILED


class ElasticAgent(ABC):
    """Runs and supervises the workers of one node."""

    @abstractmethod
    def run(self, role: str = "default_role") -> RunResult:
        """Run the workers to their end, over all restarts.

        Returns:
            The workers' results, or their failures.
        """

    @abstractmethod
    def get_worker_group(self, role: str = "default_role") -> WorkerGroup:
        """Return the worker group; do not change it."""
