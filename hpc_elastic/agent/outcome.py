"""How an agent's part of a run ended. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from hpc_elastic.agent.spec import RunResult, WorkerGroup, WorkerState
from hpc_elastic.ids import ExitCode
from hpc_elastic.rendezvous.journal import Cause, Decision
from hpc_elastic.rendezvous.state import RunState

if TYPE_CHECKING:
    from hpc_elastic.multiprocessing.errors import FailureRecord, ProcessFailure


class Outcome(NamedTuple):
    """How this agent's part of the run ended."""

    exit_code: int
    reason: str
    failure: dict[str, Any] | None = None
    result: RunResult = RunResult(WorkerState.STOPPED)


FENCED = Outcome(ExitCode.FENCED, "a newer start of this run exists")


def outcome_of(state: RunState, group: WorkerGroup, failures: dict[int, ProcessFailure]) -> Outcome:
    """Return how this agent's part ended, given how the run stands.

    Args:
        state: the run.
        group: this agent's workers as they last were.
        failures: what failed on this node last, by global rank.
    """
    ending = state.ending
    if ending is not None:
        result = _result(ending.decision, group, failures)
        return Outcome(ending.exit_code, ending.reason, ending.failure, result)
    cause = state.drained.cause if state.drained else state.leave_cause
    if cause is None:
        return Outcome(ExitCode.OK, "all workers of this node succeeded", None, _succeeded(group))
    return Outcome(ExitCode.REQUEUE, _stopped_text(state, cause))


def _stopped_text(state: RunState, cause: Cause) -> str:
    words = "on request" if cause is Cause.STOP else f"for {cause.value.replace('_', ' ')}"
    step = state.drained.step if state.drained else None
    return f"stopped {words}" + ("" if step is None else f", checkpoint of step {step}")


def out_of_touch(root: str, error: Exception, failure: FailureRecord | None, *, signalled: bool) -> Outcome:
    """Return how an agent ends that can read and write the run directory no more.

    Args:
        root: the run directory.
        error: what it said last.
        failure: a worker's failure that nobody else knows of.
        signalled: whether the agent was asked to leave.
    """
    reason = f"the run directory {root} does not answer"
    if failure is not None:
        where = f"see {failure.log}" if failure.log else "see above"
        reason += f"; the failure of rank {failure.rank} could not be recorded ({where})"
    return Outcome(ExitCode.REQUEUE if signalled else ExitCode.FAILED, f"{reason}: {error}")


def _result(decision: Decision, group: WorkerGroup, failures: dict[int, ProcessFailure]) -> RunResult:
    if decision is Decision.DONE:
        return _succeeded(group)
    if decision is Decision.FAILED:
        return RunResult(WorkerState.FAILED, {}, failures)
    return RunResult(WorkerState.STOPPED)


def _succeeded(group: WorkerGroup) -> RunResult:
    """Commands return nothing, so every rank's return value is None."""
    return RunResult(WorkerState.SUCCEEDED, {worker.global_rank: None for worker in group.workers})
