"""The parts of an agent."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from hpc_elastic.clock import Clock
from hpc_elastic.meet.shared_fs import SharedFsRendezvous
from hpc_elastic.multiprocessing.context import StartSettings
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.node.listeners.telemetry_hooks import Services, TelemetryMaker, tell_nobody
from hpc_elastic.node.loop import EventLoop
from hpc_elastic.node.setup.agent_log import AgentLog
from hpc_elastic.node.setup.hang_times import HangOptions
from hpc_elastic.node.setup.notices import NoNotices, Notices
from hpc_elastic.node.stop_rules import DrainTimes
from hpc_elastic.node.workers.local_group import Command
from hpc_elastic.node.workers.worker_env import RunEnv
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import AfterDrain, Cause
from hpc_elastic.record.state import RunState
from hpc_elastic.settings.of_commands import AgentSettings, RunSettings
from hpc_elastic.settings.setting import agents
from hpc_elastic.settings.table import JobSettings

if TYPE_CHECKING:
    from hpc_elastic.node.listeners.gpu_sampler import GpuSampler


class AgentTimes(NamedTuple):
    """How long things may take [s]."""

    drain: DrainTimes = DrainTimes()
    shutdown: float = agents(RunSettings.shutdown_timeout)  # workers told to end, before SIGKILL
    told: float = math.inf  # the same in a drain, whose time is the limit otherwise
    exit_barrier: float = agents(JobSettings.exit_barrier_timeout)


class SignalMeanings(NamedTuple):
    """The meanings of signals to the agent."""

    drain: tuple[int, ...] = (signal.SIGTERM, signal.SIGHUP)  # the nodes are wanted back now
    warning: tuple[int, ...] = (signal.SIGUSR1, signal.SIGUSR2)  # the time limit is near
    interrupt: tuple[int, ...] = (signal.SIGINT,)

    def cause(self, number: int) -> Cause:
        """Return the meaning of a signal."""
        if number in self.warning:
            return Cause.TIME_LIMIT
        return Cause.INTERRUPT if number in self.interrupt else Cause.PREEMPTION


def is_fit(_state: RunState) -> str:
    """Say nothing against this node."""
    return ""


class AgentParts(NamedTuple):
    """The parts of an agent."""

    clock: Clock
    loop: EventLoop
    log: AgentLog
    rendezvous: SharedFsRendezvous
    command: Command
    run: RunEnv
    start: StartSettings
    paths: RunPaths
    scratch: str  # private node-local directory
    times: AgentTimes
    signals: SignalMeanings
    on_timeout: AfterDrain  # LEAVE: hand the job back when too few nodes come; REJOIN: fail
    on_signal: AfterDrain = AfterDrain.LEAVE  # REJOIN: a node that is wanted back leaves alone
    services: Services = Services()  # watch over the workers where that is asked for
    telemetry: TelemetryMaker = tell_nobody
    hangs: HangOptions = HangOptions()  # how long workers may make no progress
    environ: Mapping[str, str] = {}  # of this process, for processes beside the workers
    settings: AgentSettings = AgentSettings()
    notices: Notices = NoNotices()  # requests to drain, beside signals
    gpus: GpuSampler | None = None  # samples the use of the GPUs, if that is asked for
    unfit: Callable[[RunState], str] = is_fit  # asked before each rendezvous why this node must not join
