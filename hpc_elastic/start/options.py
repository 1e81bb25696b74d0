"""The options of an agent, in checked form, and the agent that is made from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from hpc_elastic.meet.rules import MeetingSettings
from hpc_elastic.meet.shared_run import SharedRun
from hpc_elastic.multiprocessing.logs import LogsSpecs
from hpc_elastic.node.agent import NodeAgent
from hpc_elastic.node.decision import RestartBudgets
from hpc_elastic.node.loop import EventLoop
from hpc_elastic.node.probe.rules import ProbeOptions
from hpc_elastic.node.setup.agent_log import AgentLog
from hpc_elastic.node.setup.agent_setup import AgentTimes, SignalMeanings
from hpc_elastic.node.setup.hang_times import HangOptions
from hpc_elastic.paths import RunPaths
from hpc_elastic.settings.setting import agents
from hpc_elastic.settings.table import JobSettings
from hpc_elastic.store.root import HeldRoot

if TYPE_CHECKING:
    from hpc_elastic.processes.numa import NumaOptions


class LaunchOptions(NamedTuple):
    """Everything `hpc-elastic run` was asked for, in checked form."""

    paths: RunPaths
    run_id: str
    rendezvous: MeetingSettings
    slots: int  # workers on this node
    argv: tuple[str, ...]  # what each worker runs
    title: str  # its name for people
    logs: LogsSpecs
    prefixes: str
    max_restarts: int
    times: AgentTimes
    signals: SignalMeanings
    node: str
    addr: str
    role: str = "default_role"
    master_addr: str | None = None
    master_port: int | None = None
    entrypoint: Callable[..., Any] | None = None  # what each worker runs instead of a program
    args: tuple[Any, ...] = ()  # of the entrypoint
    start_method: str = "spawn"  # of the entrypoint
    numa: NumaOptions | None = None
    virtual_local_rank: bool = False
    stdout_filters: tuple[str, ...] | None = None  # which teed lines also go to a common file
    stderr_filters: tuple[str, ...] | None = None
    event_log_handler: str = "null"
    hangs: HangOptions = HangOptions()  # how long workers may make no progress
    watch_node_drain: bool = False  # leave nodes that Slurm drains
    # of how many rounds the workers' logs stay; 0: of all
    keep_logs: int = agents(JobSettings.keep_logs)
    preload: tuple[str, ...] = ()  # modules that are imported once on this node
    tracker_ids: bool = False  # trackers know the run again after each start
    probe: ProbeOptions = ProbeOptions()  # what a node is asked before it joins
    budgets: RestartBudgets = RestartBudgets()  # of all causes but crashes


class OpenAgent(NamedTuple):
    """An agent that is ready to run, and its parts."""

    agent: NodeAgent
    run: SharedRun
    loop: EventLoop
    log: AgentLog
    own_log: AgentLog  # only the agent's file, not the console
    root: HeldRoot  # the run directory
    shares_console: bool = False  # with the agents on the other nodes of the same step
