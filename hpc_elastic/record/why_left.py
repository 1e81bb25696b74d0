"""What asked for the end of a start of the job, for people. Pure.

Agents take a signal for a preemption before Slurm has said what it was: a drain cannot wait for that.
Records and budgets count it as one. What people are told goes by what is known beside the cause.
"""

from __future__ import annotations

import re

from hpc_elastic.record.journal import Cause, Requeued
from hpc_elastic.record.state import RunState

RUNS_ON = "the job runs on: somebody has sent the signal"
"""Slurm's answer where the signal is none of its own; it stands in the records of runs."""
NO_ANSWER = "no answer; "
"""What is said in place of an answer begins so."""
_SENT = "that somebody sent"
_OWN = re.compile(rf"a (SIG\w+) {_SENT}")
_ANSWER = re.compile(
    rf": (?:(?P<denies>{RUNS_ON})|{NO_ANSWER}.*|(?P<confirms>preempted|the job is requeued|the job ends).*)$"
)


def early_text(left_s: float, before_s: float) -> str:
    """Return when workers are asked whose warning has come too early.

    Args:
        left_s: from the warning to the time limit [s].
        before_s: how long before the limit they are asked [s].
    """
    return (
        f"{left_s:.0f} s before the time limit, which is most of this start: workers are asked to save "
        f"{before_s:.0f} s before it"
    )


def asked_by(cause: Cause, detail: str, *, runs_on: bool = False) -> str:
    """Name what asked for the end; empty where the cause names it.

    Args:
        cause: as recorded.
        detail: what is recorded with it: the signal and Slurm's answer, or what else asked.
        runs_on: whether Slurm says since then that it does nothing to the job.
    """
    answer = _ANSWER.search(detail)
    if cause is not Cause.PREEMPTION or (answer is not None and answer["confirms"]):
        return ""
    asker = detail[: answer.start()] if answer is not None else detail
    is_denied = runs_on or (answer is not None and answer["denies"] is not None)
    return f"a {asker} {_SENT}" if is_denied and re.fullmatch(r"SIG\w+", asker) else asker


def who_asked(state: RunState, cause: Cause, *, runs_on: bool = False) -> str:
    """Name what asked for the end of the current start or round; empty where the cause names it.

    Args:
        state: the run.
        cause: why it ends, as recorded.
        runs_on: whether Slurm says since then that it does nothing to the job.
    """
    known = (one.detail for one in (state.drain, state.drained) if one is not None and one.cause is cause)
    return asked_by(cause, next(filter(None, known), ""), runs_on=runs_on)


def requeued_for(state: RunState, entry: Requeued) -> str:
    """Name what a job was handed back to Slurm for; empty where the cause names it.

    The batch script has asked Slurm later than the agents: where it does not name a signal it knows better
    than the signal alone.

    Args:
        state: the run before that.
        entry: the record of the batch script.
    """
    own = _OWN.match(entry.detail)
    named = own[0] if own is not None and entry.cause is Cause.PREEMPTION else who_asked(state, entry.cause)
    return "" if re.fullmatch(r"SIG\w+", named) else named


def as_counted(named: str) -> str:
    """Return the same with what it counts as, for the words of a budget."""
    return f"{named}, which counts as a preemption" if _OWN.fullmatch(named) else named


def sent_signal(named: str) -> str:
    """Return the signal in what asked for an end; empty if it was none."""
    found = re.fullmatch(rf"(?:a )?(SIG\w+)(?: {_SENT})?", named)
    return found[1] if found is not None else ""
