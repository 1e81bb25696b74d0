"""What becomes of a job once srun has returned. Pure.

Records decide, not exit codes: an ending in the journal is final, and Slurm is asked only what it has
done with the job already. A cancelled job is never brought back.

    ending in the journal                          -> Exit with its code
    a newer start of the run exists                -> Leave: this script is a left-over
    drained on the user's wish (stop, Ctrl-C)      -> Exit 0, recorded as stopped
    the local runner itself was told to end        -> Exit 75, recorded as stopped
    Slurm does not answer                          -> Leave: nothing is known, so nothing is done
    Slurm has put the job back itself              -> Leave, recorded
    cancelled by the user                          -> Exit, recorded as cancelled
    ended by Slurm: limit, preemption, node down   -> Requeue
    running and drained                            -> Requeue
    running, neither ended nor drained             -> Relaunch while that budget lasts, then Requeue

Every Requeue is bounded; a spent budget ends the run as failed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from hpc_elastic.ids import ExitCode
from hpc_elastic.rendezvous.journal import (
    Cause,
    Decision,
    Epoch,
    EpochStarted,
    Record,
    RoundFormed,
    RunEnded,
    Then,
)
from hpc_elastic.rendezvous.state import RunState, apply
from hpc_elastic.slurm.parse import JobState, job_state

MAX_RELAUNCH = 3
MAX_REQUEUES = 500
MAX_STARTS_IN_VAIN = 5
LOGIN = "login"  # writer of the records that the commands of the login node make
CANCELLED_CODE = 130  # as a program that was interrupted
_NEVER_STARTED = {
    int(ExitCode.USAGE): "their flags are wrong",
    126: "Python cannot be run",
    127: "Python was not found on the nodes",
}
USERS_WISH = (Cause.STOP, Cause.INTERRUPT)
_PLANNED = (Cause.PREEMPTION, Cause.TIME_LIMIT)
_WORDS = {
    Cause.NODE_LOSS: "nodes were lost",
    Cause.PREEMPTION: "Slurm wants the nodes back",
    Cause.TIME_LIMIT: "the time limit",
    Cause.JOIN_TIMEOUT: "too few nodes came",
    Cause.AGENT_ERROR: "the agents could not go on",
}


class JobFacts(NamedTuple):
    """What Slurm says about the job."""

    state: JobState
    word: str  # the state in Slurm's own word
    reason: str
    restarts: int
    may_requeue: bool
    nodes: int  # that it still has
    preempted: bool  # Slurm ended it to make room; not merely warned


GONE = JobFacts(JobState.ENDED, "", "None", 0, may_requeue=False, nodes=0, preempted=False)
"""A job that Slurm does not know, or no longer."""


def job_facts(fields: Mapping[str, str]) -> JobFacts:
    """Return the facts in the fields of ``scontrol show job``.

    A job in its preemption grace has a PreemptTime and is RUNNING; one that was ended for preemption
    has PreemptTime equal to EndTime, other than one that the user cancelled during its grace.
    """
    word = fields.get("JobState", "")
    preempt_time = fields.get("PreemptTime", "None")
    return JobFacts(
        state=job_state(word),
        word=word,
        reason=fields.get("Reason", "None"),
        restarts=_number(fields.get("Restarts", "")),
        may_requeue=fields.get("Requeue", "1") != "0",
        nodes=_number(fields.get("NumNodes", "")),
        preempted=preempt_time not in ("None", "") and preempt_time == fields.get("EndTime"),
    )


def _number(text: str) -> int:
    found = re.match(r"\d+", text)
    return int(found[0]) if found else 0


class Standing(Enum):
    """How the job stands when its script is about to end."""

    UNKNOWN = "Slurm does not answer"
    RUNNING = "it runs"
    REQUEUED = "Slurm has put it back into the queue"
    TIME_LIMIT = "it ends for its time limit"
    NODE_DOWN = "it ends because a node is down"
    PREEMPTED = "it ends because it was preempted"
    CANCELLED = "it was cancelled"
    ENDING = "it ends for another reason"


_ENDINGS = (
    (Standing.TIME_LIMIT, "TimeLimit", "TIMEOUT"),
    (Standing.NODE_DOWN, "NodeDown", "NODE_FAIL"),
)
_CAUSE_OF = {
    Standing.TIME_LIMIT: Cause.TIME_LIMIT,
    Standing.NODE_DOWN: Cause.NODE_LOSS,
    Standing.PREEMPTED: Cause.PREEMPTION,
}


def standing(job: JobFacts | None, restarts: int) -> Standing:
    """Tell how a job stands.

    Args:
        job: what Slurm says; None if it does not answer.
        restarts: the restart count that this start of the job was given.
    """
    if job is None:
        return Standing.UNKNOWN
    if job.restarts > restarts or job.state in (JobState.PENDING, JobState.REQUEUED):
        return Standing.REQUEUED
    if job.state in (JobState.RUNNING, JobState.SUSPENDED):
        return Standing.RUNNING
    return _why_it_ends(job)


def _why_it_ends(job: JobFacts) -> Standing:
    """Tell why a job ends. While it is COMPLETING only a cancelled one has no reason."""
    for stands, reason, word in _ENDINGS:
        if job.reason == reason or job.word == word:
            return stands
    if job.preempted or job.word == "PREEMPTED":
        return Standing.PREEMPTED
    cancelled = job.word.startswith("CANCELLED") or job.state is JobState.COMPLETING
    return Standing.CANCELLED if cancelled and job.reason in ("None", "") else Standing.ENDING


class Budgets(NamedTuple):
    """How often each way to go on may be taken."""

    max_relaunch: int = MAX_RELAUNCH  # in one start of the job
    max_requeues: int = MAX_REQUEUES  # in one submission
    max_starts_in_vain: int = MAX_STARTS_IN_VAIN  # starts in a row without a round, when not asked to leave


class Facts(NamedTuple):
    """Everything the decision rests on."""

    state: RunState
    epoch: Epoch  # of this start
    job: JobFacts | None
    job_id: str
    srun_exit_code: int
    in_vain: int  # newest starts in a row, this one included, in which no round was formed
    ended_by: str = ""  # the signal that told the runner of a local run to end


class Exit(NamedTuple):
    """End with this code; `record` is to be written unless the run has ended already."""

    code: int
    why: str
    record: RunEnded | None = None


class Requeue(NamedTuple):
    """Record it, hand the job back to Slurm, end with code 75."""

    cause: Cause
    why: str


class Relaunch(NamedTuple):
    """Start the step again on the nodes that are left."""

    nodes: int
    why: str


class Leave(NamedTuple):
    """Do nothing to the job and end with this code."""

    code: int
    why: str
    requeued: Cause | None = None  # Slurm has requeued the job itself: to be recorded


Choice = Exit | Requeue | Relaunch | Leave


def decide(facts: Facts, budgets: Budgets) -> Choice:
    """Choose what becomes of the job."""
    if facts.state.epoch > facts.epoch:
        return Leave(ExitCode.FENCED, "a newer start of this run exists")
    state = apply(facts.state, EpochStarted(facts.epoch, facts.job_id, ()))
    if state.ending is not None:
        return _by_record(state.ending)
    cause = drain_cause(state)
    if cause in USERS_WISH:
        return _stopped(state)
    if facts.ended_by:
        ending = ended_by(facts.ended_by, state)
        return Exit(ending.exit_code, f"the run is stopped: {ending.reason}", ending)
    stands = standing(facts.job, facts.epoch.restart)
    if stands is Standing.RUNNING and cause is None:
        return _without_word(facts, budgets)
    return _asked_to_leave(facts, stands, cause, budgets)


def _by_record(ending: RunEnded) -> Exit:
    failed = ending.decision is Decision.FAILED
    code = (ending.exit_code or ExitCode.FAILED) if failed else ending.exit_code
    return Exit(code, f"the run is {ending.decision.value}" + (f": {ending.reason}" if ending.reason else ""))


def drain_cause(state: RunState) -> Cause | None:
    """Return why this start is being left, None if nobody asked for that."""
    if state.drained is not None:
        return state.drained.cause
    if state.drain is not None and state.drain.then is Then.LEAVE:
        return state.drain.cause
    return None


def _stopped(state: RunState) -> Exit:
    asked = state.drained or state.drain
    how = "interrupted" if drain_cause(state) is Cause.INTERRUPT else "on request"
    detail = f"{how} ({asked.detail})" if asked is not None and asked.detail else how
    step = state.drained.step if state.drained is not None else None
    reason = detail + ("" if step is None else f"; checkpoint of step {step}")
    ending = RunEnded(Decision.STOPPED, ExitCode.OK, reason, None)
    return Exit(ExitCode.OK, f"the run is stopped: {reason}", ending)


def ended_by(name: str, state: RunState) -> RunEnded:
    """Return the ending of a local run whose runner a signal has told to end.

    Args:
        name: the signal.
        state: the run; the step of what was saved is shown if it is known.
    """
    step = state.drained.step if state.drained is not None else None
    reason = f"ended by {name}" + ("" if step is None else f"; checkpoint of step {step}")
    return RunEnded(Decision.STOPPED, ExitCode.REQUEUE, reason, None)


def _asked_to_leave(facts: Facts, stands: Standing, cause: Cause | None, budgets: Budgets) -> Choice:
    match stands:
        case Standing.UNKNOWN:
            return Leave(ExitCode.REQUEUE, "Slurm does not answer, so the job is left as it is")
        case Standing.REQUEUED:
            why = "Slurm has requeued the job itself"
            return Leave(ExitCode.REQUEUE, why, cause or Cause.PREEMPTION)
        case Standing.CANCELLED:
            ending = RunEnded(Decision.CANCELLED, CANCELLED_CODE, "the job was cancelled", None)
            return Exit(CANCELLED_CODE, "the job was cancelled, so it is not requeued", ending)
        case Standing.ENDING:
            reason = facts.job.reason if facts.job else ""
            return Leave(ExitCode.REQUEUE, f"Slurm ends the job (Reason={reason}), so it is not requeued")
        case _:
            return _requeue(facts, _CAUSE_OF.get(stands) or cause or Cause.AGENT_ERROR, budgets)


def _without_word(facts: Facts, budgets: Budgets) -> Choice:
    """Choose for a running job whose srun returned though the run goes on: srun or all agents died."""
    code = facts.srun_exit_code
    if code in _NEVER_STARTED and facts.state.epoch < facts.epoch:
        return _failed(
            f"no agent could start, {_NEVER_STARTED[code]} (exit code {code} of srun); see the lines above"
        )
    said = f"srun ended with exit code {code} and the run has neither ended nor drained"
    if facts.epoch.relaunch > 0 and facts.state.epoch < facts.epoch:
        return _requeue(facts, Cause.AGENT_ERROR, budgets, f"{said}; no agent could be started again")
    if facts.epoch.relaunch < budgets.max_relaunch and facts.job is not None and facts.job.nodes > 0:
        count = f"{facts.epoch.relaunch + 1} of {budgets.max_relaunch}"
        nodes = facts.job.nodes
        on = f"{nodes} {'node' if nodes == 1 else 'nodes'}"
        return Relaunch(nodes, f"{said}; start the agents again on {on} ({count})")
    return _requeue(facts, Cause.AGENT_ERROR, budgets, said)


def _requeue(facts: Facts, cause: Cause, budgets: Budgets, said: str = "") -> Choice:
    why = said or _WORDS.get(cause, cause.value)
    used = facts.state.requeues if facts.state.epoch.submission == facts.epoch.submission else 0
    if cause not in _PLANNED and facts.in_vain >= budgets.max_starts_in_vain:
        return _failed(
            f"{facts.in_vain} starts of the job in a row brought no workers up; the last one: {why}"
        )
    if used >= budgets.max_requeues:
        return _failed(f"the budget of {budgets.max_requeues} requeues (max_requeues) is spent; now: {why}")
    if facts.job is not None and not facts.job.may_requeue:
        return _failed(f"{why}, and this job may not be requeued (it was submitted with --no-requeue)")
    return Requeue(cause, f"{why}: requeue {used + 1} of at most {budgets.max_requeues}")


def _failed(reason: str) -> Exit:
    record = RunEnded(Decision.FAILED, ExitCode.FAILED, reason, None)
    return Exit(ExitCode.FAILED, f"the run is failed: {reason}", record)


def starts_in_vain(records: Iterable[Record], epoch: Epoch) -> int:
    """Return how many of the newest starts of a submission, up to this one, formed no round.

    Relaunches of the agents belong to one start.
    """
    formed: dict[tuple[int, int], bool] = {(epoch.submission, epoch.restart): False}
    for record in records:
        entry = record.entry
        if isinstance(entry, EpochStarted | RoundFormed) and entry.epoch.submission == epoch.submission:
            start = (entry.epoch.submission, entry.epoch.restart)
            formed[start] = formed.get(start, False) or isinstance(entry, RoundFormed)
    count = 0
    for _, had_round in sorted(formed.items(), reverse=True):
        if had_round:
            break
        count += 1
    return count
