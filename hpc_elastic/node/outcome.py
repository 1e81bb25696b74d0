"""How an agent's part of a run ended. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hpc_elastic.errors import TakenOverError
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.node.spec import RunResult, WorkerState
from hpc_elastic.record.causes import CAUSES
from hpc_elastic.record.journal import Cause, Decision
from hpc_elastic.record.state import RunState

if TYPE_CHECKING:
    from hpc_elastic.multiprocessing.errors import FailureRecord, ProcessFailure


class Outcome(NamedTuple):
    """How this agent's part of the run ended."""

    exit_code: int
    reason: str
    failure: dict[str, Any] | None = None
    result: RunResult = RunResult(WorkerState.STOPPED)
    error: Exception | None = None  # the error that ended it, where no worker did
    cause: Cause | None = None  # of a start that is over, and no budget is spent; None: another end

    @property
    def is_followed(self) -> bool:
        """Whether another start of the run, or of this task, is to come, as far as this agent knows."""
        return self.exit_code == ExitCode.REQUEUE and self.cause is not None and CAUSES[self.cause].requeues


FENCED = Outcome(ExitCode.FENCED, "a newer start of this run exists")


def outcome_of(state: RunState, values: Mapping[int, Any], failures: Mapping[int, ProcessFailure]) -> Outcome:
    """Return how this agent's part ended, given how the run stands.

    Args:
        state: the run.
        values: the last return values of this node's workers, by global rank; programs return None.
        failures: the last failures of this node, by global rank.
    """
    ending = state.ending
    if ending is not None:
        result = _result(ending.decision, values, failures)
        return Outcome(ending.exit_code, ending.reason, ending.failure, result)
    cause = state.drained.cause if state.drained else state.leave_cause
    if cause is None and not values:
        result = RunResult(WorkerState.FAILED, {}, failures)
        return Outcome(ExitCode.FAILED, "left without a word to the others", None, result)
    if cause is None:
        return Outcome(ExitCode.OK, "all workers of this node succeeded", None, _succeeded(values))
    code = ExitCode.OK if cause is Cause.STOP else ExitCode.REQUEUE  # the run is not to be requeued
    asked = state.drained or state.drain
    is_spent = asked is not None and asked.budget is not None  # the run is held, or has failed
    return Outcome(code, _stopped_text(state, cause), cause=None if is_spent else cause)


def _stopped_text(state: RunState, cause: Cause) -> str:
    from hpc_elastic.record.why_left import asked_by  # noqa: PLC0415 - not on the way to a start

    drained = state.drained
    asker = asked_by(cause, drained.detail, drained.asked).text if drained is not None else ""
    what = "want of fit nodes" if state.only_unfit else cause.value.replace("_", " ")
    words = "on request" if cause is Cause.STOP else f"for {asker or what}"
    step = drained.step if drained is not None else None
    return f"stopped {words}" + ("" if step is None else f", checkpoint of step {step}")


def out_of_touch(root: str, error: Exception, failure: FailureRecord | None, *, signalled: bool) -> Outcome:
    """Return how an agent ends that can read and write the run directory no more.

    Args:
        root: the run directory.
        error: its last error.
        failure: a worker's failure that no other node knows.
        signalled: whether the agent was asked to leave.
    """
    reason = f"the run directory {root} does not answer"
    if failure is not None:
        where = f"see {failure.log}" if failure.log else "see above"
        reason += f"; the failure of rank {failure.rank} could not be recorded ({where})"
    if signalled:
        return Outcome(ExitCode.REQUEUE, f"{reason}: {error}", error=error)
    return Outcome(ExitCode.FAILED, f"{reason}: {error}", None, RunResult(WorkerState.FAILED), error)


def taken_over(error: TakenOverError) -> Outcome:
    """Return how an agent ends that finds another directory in the place of the run's."""
    reason = f"{error.where}: {error.message}; the workers are ended, nothing is requeued"
    return Outcome(ExitCode.FAILED, reason, None, RunResult(WorkerState.FAILED), error)


def _result(
    decision: Decision, values: Mapping[int, Any], failures: Mapping[int, ProcessFailure]
) -> RunResult:
    if decision is Decision.DONE:
        return _succeeded(values)
    if decision is Decision.FAILED:
        return RunResult(WorkerState.FAILED, {}, failures)
    return RunResult(WorkerState.STOPPED)


def _succeeded(values: Mapping[int, Any]) -> RunResult:
    return RunResult(WorkerState.SUCCEEDED, values)
