"""The services and the telemetry of an agent, without effect. An agent uses them by default.

The classes with an effect, `NodeServices` and `NodeTelemetry`, are imported only on request.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.node.spec import WorkerGroup

if TYPE_CHECKING:
    from hpc_elastic.account.gpus import GpuSample
    from hpc_elastic.clock import Clock
    from hpc_elastic.node.loop import EventLoop
    from hpc_elastic.node.outcome import Outcome
    from hpc_elastic.settings.of_commands import AgentSettings
    from hpc_elastic.timer import FileTimerRequest
    from hpc_elastic.worker.channel import Channel


class Surroundings(NamedTuple):
    """The agent, as far as its services and listeners have to know it."""

    environ: Mapping[str, str]
    run_id: str
    run_dir: str
    node: str
    settings: AgentSettings
    scratch: str  # private node-local directory
    loop: EventLoop
    clock: Clock
    say: Callable[[str], None]  # shows a line in the agent's log
    backend: str = "shared_fs"


class AgentStep(NamedTuple):
    """Something an agent does that takes time."""

    key: str  # its metrics are called <key>.success and so on; torch's method that does the same
    event: str = ""  # the state told by its event; none if it is empty


RUN = AgentStep("SimpleElasticAgent.run")
RENDEZVOUS = AgentStep("SimpleElasticAgent._rendezvous", "RENDEZVOUS")
ASSIGN_RANKS = AgentStep("SimpleElasticAgent._assign_worker_ranks", "ASSIGN_WORKER_RANKS")
START = AgentStep("LocalElasticAgent._start_workers")


class MeasuredStep:
    """A block that is being measured."""

    has_failed = False  # for a failure that is no exception


class Telemetry:
    """The reports of an agent to listeners; this class reports nothing."""

    def step(self, _step: AgentStep) -> AbstractContextManager[MeasuredStep]:
        """Measure a block."""
        return nullcontext(MeasuredStep())

    def initializing(self) -> None:
        """Workers are wanted: the agent goes to the rendezvous."""

    def initialized(self) -> None:
        """The workers run."""

    def not_initialized(self) -> None:
        """The workers could not be started, or there was no round to start them for."""

    def stopping(self) -> None:
        """The workers get the signal to end; may be called again."""

    def stopped(self) -> None:
        """The workers are gone."""

    def state_changed(self) -> None:
        """The state of the worker group is another one."""

    def steps(self, _channels: Sequence[Channel], _now: float) -> None:
        """Look at the steps of the workers (monotonic time [s])."""

    def gpus(self, _samples: Sequence[GpuSample]) -> None:
        """The GPUs of this node have been sampled."""

    def watchdog(self, _name: str, _request: FileTimerRequest | None) -> None:
        """The watchdog has done something."""

    def ended(self, _outcome: Outcome) -> None:
        """The agent leaves."""

    def close(self) -> None:
        """The end of all reports."""


TelemetryMaker = Callable[[WorkerGroup, Callable[[], int]], Telemetry]
"""Makes the telemetry of an agent from its worker group, which is looked at whenever something is told, and
a function that returns how many rounds of the run have ended by a worker's failure."""


def tell_nobody(_group: WorkerGroup, _crashes: Callable[[], int]) -> Telemetry:
    """Return telemetry without listeners."""
    return Telemetry()


class Services:
    """Watches over the workers and the agent itself; this one does not."""

    state_timeout_s = math.inf  # how long a worker may be in state D [s]

    def open(self, _telemetry: Telemetry) -> None:
        """Begin, before there are workers."""

    def before_workers(self) -> Mapping[str, str]:
        """Prepare for a start of the workers; return variables for their environment."""
        return {}

    def stuck(self, _pids: Callable[[], Collection[int]]) -> tuple[int, ...]:
        """Look at the workers that run; return those that no signal will end."""
        return ()

    def reason(self, _pid: int) -> str:
        """Return why this agent has ended a worker, empty if it has not."""
        return ""

    def wake_at(self) -> float:
        """Return when to look again though nothing happens (monotonic time [s])."""
        return math.inf

    def after_workers(self) -> None:
        """Take note that the workers are gone."""

    def close(self) -> None:
        """End."""
