"""What an agent does whose node is not fit for work: it says so to all and stays out."""

from __future__ import annotations

from hpc_elastic.errors import RendezvousError
from hpc_elastic.ids import ExitCode
from hpc_elastic.meet.shared_run import SharedRun
from hpc_elastic.node.outcome import Outcome
from hpc_elastic.node.setup.agent_setup import AgentParts
from hpc_elastic.node.setup.journal_entries import insist
from hpc_elastic.node.spec import RunResult, WorkerState
from hpc_elastic.record.journal import Cause, NodeUnfit, Then
from hpc_elastic.record.state import RunState


def stay_out(parts: AgentParts, reason: str) -> Outcome:
    """Record that this node stays out of this start of the run; return how its agent ends.

    If too few nodes are left this start is over: the job is handed back to get another node.

    Args:
        parts: the agent.
        reason: what is wrong, its value, what is needed and what to do.
    """
    run = parts.rendezvous.run
    parts.log.say(f"{run.node} is unfit and stays out: {reason}")

    def write() -> None:
        run.announce()
        state = run.commit(NodeUnfit(run.membership.epoch, run.node, reason))
        if parts.on_signal is Then.REJOIN:  # a job of its own, which gets another node
            run.report_left(Cause.NODE_LOSS, reason)
        too_few = too_few_left(run, state)
        if too_few and parts.on_timeout is Then.LEAVE:
            run.report_drained(Cause.NODE_LOSS, too_few)

    insist(write, parts, parts.clock.monotonic() + parts.times.exit_barrier)
    drained = run.state.drained
    then = f": {drained.detail}" if drained is not None and drained.detail else "; others go on without it"
    error = RendezvousError(f"{run.node} is unfit: {reason}")
    result = RunResult(WorkerState.FAILED)
    return Outcome(ExitCode.UNFIT, f"{run.node} is unfit{then}", None, result, error)


def too_few_left(run: SharedRun, state: RunState) -> str:
    """Return that the minimum of nodes cannot be reached without the unfit ones; empty if it can.

    Where nobody has named the nodes that are to come, somebody else may.
    """
    left = [node for node in state.expected if node not in state.lost]
    if not state.expected or len(left) >= run.settings.min_nodes or state.running is not None:
        return ""
    names = ", ".join(sorted(state.unfit))
    have = f"{len(left)} of {len(state.expected)} nodes are left"
    return f"{have}, {run.settings.min_nodes} are needed; unfit: {names}"
