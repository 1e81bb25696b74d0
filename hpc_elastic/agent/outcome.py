"""How an agent's part of a run ended. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from hpc_elastic.agent.spec import RunResult, WorkerGroup, WorkerState
from hpc_elastic.ids import ExitCode
from hpc_elastic.rendezvous.journal import Decision
from hpc_elastic.rendezvous.state import RunState

if TYPE_CHECKING:
    from hpc_elastic.multiprocessing.errors import ProcessFailure


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
    return Outcome(ExitCode.REQUEUE, f"stopped for {cause.value.replace('_', ' ')}")


def _result(decision: Decision, group: WorkerGroup, failures: dict[int, ProcessFailure]) -> RunResult:
    if decision is Decision.DONE:
        return _succeeded(group)
    if decision is Decision.FAILED:
        return RunResult(WorkerState.FAILED, {}, failures)
    return RunResult(WorkerState.STOPPED)


def _succeeded(group: WorkerGroup) -> RunResult:
    """Commands return nothing, so every rank's return value is None."""
    return RunResult(WorkerState.SUCCEEDED, {worker.global_rank: None for worker in group.workers})
