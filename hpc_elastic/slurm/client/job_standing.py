"""How a job stands by Slurm's own facts. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.record.journal import Cause, Epoch
from hpc_elastic.record.state import RunState
from hpc_elastic.slurm.client.parse import JobState, between_s, job_state


def is_held_reason(reason: str) -> bool:
    """Tell whether a job is held, by Slurm's reason, such as ``JobHeldUser``."""
    return "held" in reason.lower()


class JobFacts(NamedTuple):
    """Slurm's facts about the job."""

    state: JobState
    word: str  # the state in Slurm's own word
    reason: str
    restarts: int
    may_requeue: bool
    nodes: int  # that it still has
    preempted: bool  # Slurm ended it to make room; not merely warned
    warned: bool = False  # its preemption has begun: it is in its grace, or was
    node_list: str = ""  # as Slurm writes it
    held: bool = False  # it waits, and does not start before a user releases it
    granted_s: float | None = None  # from its start to its end, ahead while it runs; None: not known

    @property
    def not_started(self) -> bool:
        """Whether it was put back because its nodes could not start it; then it is held as well."""
        return self.reason == "launch_failed_requeued_held"

    @property
    def is_expediting(self) -> bool:
        """Whether it starts again as soon as there are nodes; until then its owner can change nothing."""
        return self.word == "EXPEDITING"

    @property
    def to_be_released(self) -> bool:
        """Whether it is held, or will be as soon as its processes have ended (``scontrol requeuehold``)."""
        return self.held or (self.state is JobState.COMPLETING and is_held_reason(self.reason))


GONE = JobFacts(JobState.ENDED, "", "None", 0, may_requeue=False, nodes=0, preempted=False)
"""A job that Slurm does not know, or no longer."""


def job_facts(fields: Mapping[str, str]) -> JobFacts:
    """Return the facts in the fields of ``scontrol show job``.

    A job in its preemption grace has a PreemptTime and is RUNNING; one that was ended for preemption
    has PreemptTime equal to EndTime, other than one that the user cancelled during its grace.
    """
    word = fields.get("JobState", "")
    reason = fields.get("Reason", "None")
    preempt_time = fields.get("PreemptTime", "None")
    warned = preempt_time not in ("None", "")
    state = job_state(word)
    return JobFacts(
        state=state,
        word=word,
        reason=reason,
        restarts=_number(fields.get("Restarts", "")),
        may_requeue=fields.get("Requeue", "1") != "0",
        nodes=_number(fields.get("NumNodes", "")),
        preempted=warned and preempt_time == fields.get("EndTime"),
        warned=warned,
        node_list="" if fields.get("NodeList") == "(null)" else fields.get("NodeList", ""),
        granted_s=between_s(fields.get("StartTime", ""), fields.get("EndTime", "")),
        held=_is_held(state, fields),
    )


def _is_held(state: JobState, fields: Mapping[str, str]) -> bool:
    if fields.get("JobState") in ("REQUEUE_HOLD", "SPECIAL_EXIT"):
        return True
    says_so = is_held_reason(fields.get("Reason", "")) or fields.get("Priority") == "0"
    return state is JobState.PENDING and says_so


def _number(text: str) -> int:
    found = re.match(r"\d+", text)
    return int(found[0]) if found else 0


def signal_not_from_slurm(job: JobFacts | None, restarts: int) -> bool:
    """Tell whether Slurm does nothing to the job, so that a signal was none of Slurm's own.

    Args:
        job: Slurm's facts; None if it does not answer.
        restarts: the restart count that this start of the job was given.
    """
    return job is not None and standing(job, restarts) is Standing.RUNNING and not job.warned


class Standing(Enum):
    """How the job stands when its script is about to end."""

    UNKNOWN = "Slurm does not answer, or in a word that is not known"
    RUNNING = "it runs"
    REQUEUED = "Slurm has put it back into the queue"
    TIME_LIMIT = "it ends for its time limit"
    NODE_DOWN = "it ends because a node is down"
    PREEMPTED = "it ends because it was preempted"
    SCRIPT_DIED = "it ends because its batch script was killed"
    CANCELLED = "it was cancelled"
    ENDING = "it ends for another reason"


_ENDINGS = (
    (Standing.TIME_LIMIT, "TimeLimit", "TIMEOUT"),
    (Standing.NODE_DOWN, "NodeDown", "NODE_FAIL"),
    (Standing.SCRIPT_DIED, "JobLaunchFailure", "LAUNCH_FAILED"),
    (Standing.SCRIPT_DIED, "OutOfMemory", "OUT_OF_MEMORY"),
)
_RAISED = "RaisedSignal:"  # since Slurm 23.02, followed by the signal that ended the script: 9(Killed)
_CAUSE_OF = {
    Standing.TIME_LIMIT: Cause.TIME_LIMIT,
    Standing.NODE_DOWN: Cause.NODE_LOSS,
    Standing.PREEMPTED: Cause.PREEMPTION,
    Standing.SCRIPT_DIED: Cause.LAUNCH_FAILURE,
}
_BY_SIGNAL = (Cause.PREEMPTION, Cause.TIME_LIMIT, None)  # the conclusions of agents from a signal alone


def standing(job: JobFacts | None, restarts: int) -> Standing:
    """Tell how a job stands.

    Args:
        job: Slurm's facts; None if it does not answer.
        restarts: the restart count that this start of the job was given.
    """
    if job is None:
        return Standing.UNKNOWN
    if job.restarts > restarts or job.state in (JobState.PENDING, JobState.REQUEUED):
        return Standing.REQUEUED
    if job.state is JobState.UNKNOWN:
        return Standing.UNKNOWN
    if job.state in (JobState.RUNNING, JobState.SUSPENDED):
        return Standing.RUNNING
    return _why_it_ends(job)


def unknown_text(job: JobFacts | None) -> str:
    """Return why a job's standing is unknown."""
    return (
        "Slurm does not answer"
        if job is None
        else f"Slurm calls its state {job.word}, which is not known here"
    )


def _why_it_ends(job: JobFacts) -> Standing:
    """Tell why a job ends. While it is COMPLETING only a cancelled one has no reason."""
    for stands, reason, word in _ENDINGS:
        if job.reason == reason or job.word == word:
            return stands
    if job.reason.startswith(_RAISED):
        return Standing.SCRIPT_DIED
    cancelled = job.word.startswith("CANCELLED")
    if job.word == "PREEMPTED" or (job.preempted and not cancelled):
        return Standing.PREEMPTED
    is_silent = (cancelled or job.state is JobState.COMPLETING) and job.reason in ("None", "")
    return Standing.CANCELLED if is_silent else Standing.ENDING


_DUE_TO = re.compile(r"\*\*\* JOB \d+ ON \S+ CANCELLED AT \S+ DUE TO ([A-Z ]+)")
_TOLD = (
    ("PREEMPTION", Cause.PREEMPTION),
    ("NODE FAILURE", Cause.NODE_LOSS),
    ("TIME LIMIT", Cause.TIME_LIMIT),
    ("JOB REQUEUE", Cause.REQUEUE),
)


def due_to(log: str) -> Cause | None:
    """Return why Slurm ended a job last, by its words in the log of the batch script.

    A job that is back in the queue shows its reason nowhere else.

    Args:
        log: the end of the log.
    """
    found = _DUE_TO.findall(log)
    return next((cause for words, cause in _TOLD if found and found[-1].startswith(words)), None)


def true_cause(
    job: JobFacts | None, stands: Standing, asked: Cause | None, *, told: Cause | None = None
) -> Cause | None:
    """Return why a start of the job ends: the reason of Slurm, else that of the agents.

    One signal may mean several things, so that agents that were only signalled do not know.

    Args:
        job: Slurm's facts.
        stands: how the job stands.
        asked: why the agents leave; None if they were not asked to.
        told: why Slurm has put the job back into the queue, if that is known.
    """
    if stands is Standing.SCRIPT_DIED and asked is Cause.NODE_LOSS:  # the script died with its node
        return asked
    if stands in _CAUSE_OF:
        return _CAUSE_OF[stands]
    if asked not in _BY_SIGNAL or job is None:
        return asked
    if job.warned:
        return Cause.PREEMPTION
    if stands is Standing.REQUEUED:
        return Cause.LAUNCH_FAILURE if job.not_started else told or Cause.REQUEUE
    return asked


def unfit_text(state: RunState, epoch: Epoch) -> str:
    """Return in words that too few nodes are fit; empty if nodes were lost as well, or all are fit.

    Args:
        state: the run.
        epoch: of the start that ends; nodes that were unfit in an earlier one do not count.
    """
    if not state.only_unfit or state.epoch != epoch:
        return ""
    node, reason = min(state.unfit.items())
    return f"too few nodes are fit ({node}: {reason})"
