"""The options of an agent, the run and start that it takes part in, and its meeting with the others."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable

from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import StoreError
from hpc_elastic.ids import Env
from hpc_elastic.meet.interface import free_port
from hpc_elastic.meet.membership import Membership, NodeFacts
from hpc_elastic.meet.rules import MeetingSettings
from hpc_elastic.meet.shared_fs import SharedFsRendezvous, Waiting
from hpc_elastic.meet.shared_run import RunDeps, RunFacts, SharedRun
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.node.agent import NodeAgent
from hpc_elastic.node.loop import EventLoop
from hpc_elastic.node.setup.agent_log import AgentLog
from hpc_elastic.node.setup.agent_setup import AgentTimes, SignalMeanings
from hpc_elastic.node.workers.local_group import Command
from hpc_elastic.paths import RunPaths, round_scope
from hpc_elastic.record import checkpoints
from hpc_elastic.record.array_task import epoch_now
from hpc_elastic.record.journal import Decision, Epoch, MarkedCheckpoint, Member
from hpc_elastic.record.run_directory import holds_submitted_run, tidy_run_dir
from hpc_elastic.record.run_log import RunLog
from hpc_elastic.record.state import RunState
from hpc_elastic.settings.of_commands import AgentSettings
from hpc_elastic.slurm.client import parse
from hpc_elastic.slurm.client.environment import SlurmEnv
from hpc_elastic.slurm.run_jobs.may_start import is_own_script, refuse_running_elsewhere
from hpc_elastic.store.kv import open_round_store
from hpc_elastic.store.lock import ContentionLock
from hpc_elastic.store.shared_dir import SharedDirStore
from hpc_elastic.store.trust import HeldRoot

_MARKS_AT_ONCE = 1000
_agents = itertools.count()


def ended_before(paths: RunPaths, slurm: SlurmEnv | None) -> RunState | None:
    """Return the state of a run that has ended before anybody in this job had an agent.

    Below the run's own batch script the agents write these messages.

    Raises:
        RunDirError: another job that is still active works on the run.
    """
    if is_own_script(paths, os.environ):
        return None
    state = RunLog(SharedDirStore(paths.root), SystemClock(), "").refresh()
    if slurm is not None:
        refuse_running_elsewhere(paths, state, slurm.run_job)
    epoch = current_epoch(state, slurm, None, None)
    is_of_this_job = slurm is not None and state.job_id == slurm.run_job
    is_taken_up = epoch.submission > max(state.epoch.submission, 0) and not holds_submitted_run(paths)
    return None if state.ending is None or is_of_this_job or is_taken_up else state


def rendezvous_of(
    options: LaunchOptions,
    slurm: SlurmEnv | None,
    loop: EventLoop,
    say: Callable[[str], None],
    check_place: Callable[[], None],
) -> SharedFsRendezvous:
    """Return how an agent meets the others in its run directory, which has been prepared.

    Args:
        options: the options of the agent.
        slurm: the facts of Slurm's environment, if it started it as a step.
        loop: where the agent waits.
        say: shows a line in its log.
        check_place: raises if another directory is in the place of the run's.
    """
    paths, clock = options.paths, SystemClock()
    store = SharedDirStore(paths.root)
    journal = RunLog(store, clock, options.node, ContentionLock(paths.lock, clock))
    epoch = current_epoch(
        journal.refresh(), slurm, os.environ.get(Env.SUBMISSION), os.environ.get(Env.RELAUNCH)
    )
    again = next(_agents)  # one process may have several agents, at once or one after the other
    task = slurm.task if slurm else None
    node_id = f"{options.node}.{os.getpid()}{f'-{again}' if again else ''}{task.tag if task else ''}"
    member = Member(node_id, options.node, options.slots, options.command.role)
    facts = NodeFacts(member, host=os.uname().nodename, addr=options.master_addr or options.addr)
    expected = slurm.node_names if slurm and task is None else ()
    settings = options.rendezvous._replace(may_outgrow=task is not None)
    batch_host = _batch_host() if task is None else ""
    run = SharedRun(
        journal,
        Membership(store, clock, facts, epoch, settings),
        RunFacts(options.run_id, slurm.run_job if slurm else "", expected, batch_host),
        settings,
        RunDeps(
            clock,
            latest_checkpoint=lambda: _latest_checkpoint(paths, say),
            tidy=lambda first: _tidy(paths, first, options.settings.keep_logs),
            open_store=lambda number: open_round_store(paths.root, round_scope(number)),
            check_place=check_place,
        ),
    )
    port = options.master_port
    offer_port = free_port if port is None else lambda: port  # the record of a round tells the true one
    waiting = Waiting(loop.wait, offer_port, lambda: bool(loop.signals), say, paths.root)
    return SharedFsRendezvous(run, waiting)


def _tidy(paths: RunPaths, first_round: int, keep_logs: int) -> None:
    """Remove files that are not needed any more; if there are many, only some of them."""
    tidy_run_dir(paths, first_round, keep_logs)
    checkpoints.remove_superseded(paths, most=_MARKS_AT_ONCE)


def current_epoch(
    state: RunState, slurm: SlurmEnv | None, submission: str | None, relaunch: str | None
) -> Epoch:
    """Return the start of the run that this agent belongs to.

    Slurm counts the starts of a job; an agent started by hand, or as a task of an array, begins a new
    one if the last was left.
    """
    if slurm is not None and slurm.task is not None:
        return epoch_now(state, int(submission or 0), slurm.task)
    known = state.epoch._replace(submission=max(state.epoch.submission, 0), relaunch=0)
    if slurm is None:
        left = state.drained is not None or state.leave_cause is not None
        return known._replace(restart=known.restart + 1) if left else known
    if submission is not None:
        return Epoch(int(submission), slurm.link, slurm.restart_count, int(relaunch or 0))
    # a user's own script: another job takes the run up where the last one left it
    done = state.ending is not None and state.ending.decision is Decision.DONE
    another = state.job_id not in ("", slurm.job_ref) and not done
    return Epoch(known.submission + another, slurm.link, slurm.restart_count, 0)


def _latest_checkpoint(paths: RunPaths, say: Callable[[str], None]) -> MarkedCheckpoint | None:
    try:
        found = checkpoints.find(paths)
    except OSError as error:
        raise StoreError(f"{paths.checkpoints}: {error.strerror}") from error
    if found.text:
        say(found.text)
    return MarkedCheckpoint(*found.checkpoint) if found.checkpoint else None


def _batch_host() -> str:
    """Return the node that runs the batch script above this step, empty if there is none.

    Slurm runs it on the first node of the allocation.
    """
    if Env.SUBMISSION not in os.environ:
        return ""
    nodes = parse.expand(os.environ.get("SLURM_JOB_NODELIST", ""))
    return nodes[0] if nodes else ""


class LaunchOptions(NamedTuple):
    """Everything `hpc-elastic run` was asked for, in checked form."""

    paths: RunPaths
    run_id: str
    rendezvous: MeetingSettings
    slots: int  # workers on this node
    command: Command  # the command of each worker
    title: str  # its name for people
    settings: AgentSettings
    times: AgentTimes
    signals: SignalMeanings
    node: str
    addr: str
    master_addr: str | None = None
    master_port: int | None = None


class OpenAgent(NamedTuple):
    """An agent that is ready to run, and its parts."""

    agent: NodeAgent
    run: SharedRun
    loop: EventLoop
    log: AgentLog
    own_log: AgentLog  # only the agent's file, not the console
    root: HeldRoot  # the run directory
    scratch: str  # the agent's directory in the node's memory
    shares_console: bool = False  # with the agents on the other nodes of the same step
