"""The ending of a run that its user has stopped. Pure."""

from __future__ import annotations

from hpc_elastic.ids import ExitCode
from hpc_elastic.record.journal import Cause, Decision, RunEnded, Then
from hpc_elastic.record.state import RunState
from hpc_elastic.record.why_left import asked_text

USERS_WISH = (Cause.STOP, Cause.INTERRUPT)


def drain_cause(state: RunState) -> Cause | None:
    """Return why this start is being left, None without a request."""
    if state.drained is not None:
        return state.drained.cause
    if state.drain is not None and state.drain.then is Then.LEAVE:
        return state.drain.cause
    return None


def stopped(state: RunState) -> RunEnded:
    """Return the ending of a run that is left on its user's wish.

    Args:
        state: the run; the step of the last save is included if it is known.
    """
    asked = state.drained or state.drain
    how = "interrupted" if drain_cause(state) is Cause.INTERRUPT else "on request"
    told = "" if asked is None else asked_text(asked)
    reason = f"{how} ({told})" if told else how
    step = state.drained.step if state.drained is not None else None
    reason += "" if step is None else f"; checkpoint of step {step}"
    return RunEnded(Decision.STOPPED, ExitCode.OK, reason, None)


def is_killed_stop(state: RunState) -> bool:
    """Tell whether all workers have stopped on the user's wish, while Slurm ends the job.

    Then the batch script may be killed before it can write the ending down.
    """
    drained = state.drained
    return drained is not None and drained.cause in USERS_WISH and state.explained is not None
