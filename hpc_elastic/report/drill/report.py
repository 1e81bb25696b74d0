"""What a drill did to a run, from the records that followed it. Pure.

What else happened to the run meanwhile is told apart by the round, node, worker and cause that the
records name, and is never taken for the drill's. Times are wall times of several nodes and of the file
server: spans are as exact as their clocks agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hpc_elastic.record.journal import (
    Cause,
    Decision,
    Drained,
    DrainExplained,
    DrainRequested,
    EpochStarted,
    FailedLeaving,
    NodeLeft,
    Record,
    Requeued,
    RoundEnded,
    RoundFormed,
    RunEnded,
    SizeWanted,
    StopAgreed,
    TaskStopped,
)
from hpc_elastic.report.drill.traces import Blow, is_stop_of_task, is_trace, is_trace_after, is_undecided
from hpc_elastic.report.timeline import CAUSES, failure_text, stop_text, task_stopped_text
from hpc_elastic.text import count_text

MEANWHILE = "not the drill"  # name of what something else has done
_NOTABLE = (RoundEnded, DrainRequested, DrainExplained, NodeLeft, TaskStopped, EpochStarted, SizeWanted)


class Saved(NamedTuple):
    """A durable checkpoint and when it became so [s since the epoch]."""

    step: int
    at: float


class DrillPhase(NamedTuple):
    """One thing that followed, and how long after the drill began [s]."""

    name: str
    after_s: float
    text: str


class Course(NamedTuple):
    """What followed a drill so far.

    Attributes:
        phases: in the order of their times.
        resumed: the round that the run came back with; None until then.
        ending: how the run ended, if it did.
        steps_lost: steps that are computed again; None if that is not known.
        others: what happened meanwhile that the drill has not done.
        overtaken: whether something else has ended what the drill was done to before anybody noticed it.
        agreed: whether the workers stop at a step that all have agreed on, and whose checkpoint is `saved`.
        unsaved: what its workers did not save, as the end of a sentence; empty if nothing, or nobody knows.
        had_nothing_to_save: whether no step was completed since a checkpoint that was there before the drill.
    """

    phases: list[DrillPhase]
    resumed: RoundFormed | None
    ending: RunEnded | None
    steps_lost: int | None
    others: tuple[DrillPhase, ...] = ()
    overtaken: bool = False
    agreed: bool = False
    unsaved: str = ""
    had_nothing_to_save: bool = False

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self.resumed is not None or self.ending is not None or self.overtaken

    @property
    def noticed(self) -> bool:
        """Whether anybody has noticed."""
        return any(phase.name == "noticed" for phase in self.phases)


def course_of(records: Sequence[Record], blow: Blow, saved: Sequence[Saved]) -> Course:
    """Return what followed a drill.

    Args:
        records: the journal.
        blow: what was done, to whom and when.
        saved: all durable checkpoints.
    """
    after = [record for record in records if record.number > blow.last]
    noticed = next(
        (record for at, record in enumerate(after) if is_trace(record.entry, blow, after[at:])), None
    )
    since = [record for record in after if noticed is not None and record.number > noticed.number]
    formed = _resumed(noticed, since)
    if formed is not None:
        since = [record for record in since if record.number <= formed.number]
    phases, step = _phases(blow, noticed, since, saved)
    if formed is not None:
        phases.append(DrillPhase("running again", formed.at - blow.at, _running(formed.entry)))
    ended = _first(after, RunEnded) if formed is None else None
    ending = ended.entry if ended is not None and isinstance(ended.entry, RunEnded) else None
    others = tuple(
        DrillPhase(MEANWHILE, record.at - blow.at, _told(record.entry) + _perhaps(record, blow))
        for record in (after if noticed is None else [*_before(after, noticed), *since])
        if isinstance(record.entry, _NOTABLE)
        and not _belongs(record, noticed, blow)
        and not (noticed is None and is_undecided(record.entry, blow))
    )
    phases.sort(key=lambda phase: phase.after_s)
    resumed = formed.entry if formed is not None and isinstance(formed.entry, RoundFormed) else None
    overtaken = noticed is None and blow.rank is not None and _is_over(after, blow.round)
    agreed = any(isinstance(one.entry, StopAgreed) and one.entry.step >= 0 for one in since)
    lost, unsaved = _lost(step, resumed), _unsaved(since, phases, resumed)
    had_nothing = resumed is not None and resumed.checkpoint is not None and lost == 0
    had_nothing = had_nothing and bool(saved) and all(mark.at < blow.at for mark in saved)
    return Course(phases, resumed, ending, lost, others, overtaken, agreed, unsaved, had_nothing)


def _unsaved(since: Iterable[Record], phases: Iterable[DrillPhase], resumed: RoundFormed | None) -> str:
    """Return what the workers did not save, though they were to."""
    entries = [record.entry for record in since]
    failed = next((one for one in entries if isinstance(one, FailedLeaving)), None)
    if failed is not None:
        return f"a worker failed instead of saving: {failure_text(failed.failure)}"
    step = next((one.step for one in entries if isinstance(one, StopAgreed)), -1)
    is_saved = any(phase.name == "saved" for phase in phases)
    if resumed is None or step < 0 or is_saved or (resumed.checkpoint and resumed.checkpoint.step >= step):
        return ""
    return f"no checkpoint of step {step}, at which all stopped, was marked"


def _phases(
    blow: Blow, noticed: Record | None, since: list[Record], saved: Iterable[Saved]
) -> tuple[list[DrillPhase], int | None]:
    """Return what came of the drill until the run was back, and the last step that was completed."""
    phases: list[DrillPhase] = []
    step = blow.step

    def add(name: str, record: Record | None, text: str) -> None:
        if record is not None:
            phases.append(DrillPhase(name, record.at - blow.at, text))

    if noticed is not None:
        add("noticed", noticed, _noticed(noticed.entry, blow))
    explained = _first([one for one in since if _belongs(one, noticed, blow)], DrainExplained)
    if explained is not None and isinstance(explained.entry, DrainExplained):
        add("Slurm says", explained, explained.entry.detail)
    agreed = _first(since, StopAgreed)
    if agreed is not None and isinstance(agreed.entry, StopAgreed):
        at = agreed.entry.step
        step = at if at >= 0 else step  # without ticks nobody knows a step
        add("workers told", agreed, stop_text(agreed.entry))
        durable = next((mark for mark in saved if mark.step >= at and mark.at >= blow.at), None)
        if durable is not None:
            phases.append(DrillPhase("saved", durable.at - blow.at, f"step {durable.step}"))
    add("stopped", _first(since, Drained), "all workers of this start have stopped")
    left = next((record for record in since if is_stop_of_task(record.entry, blow)), None)
    add("stopped", left, f"all workers on {blow.node} have stopped")
    add("requeued", _first(since, Requeued), "the job is back in the queue")
    add("started again", _first(since, EpochStarted), "the agents are back")
    return phases, step


def verdict(course: Course, but: str = "") -> tuple[bool, str]:
    """Tell whether the run came back as it was to, and what there is to say, in one line.

    Args:
        course: what followed the drill.
        but: what was wrong though it came back, as the end of a sentence; empty if nothing was.
    """
    last = course.others[-1].text if course.others else ""
    if course.resumed is not None:
        lost = course.steps_lost
        steps = "" if lost is None else f"; {count_text(lost, 'step')} computed again"
        if lost is None and course.resumed.checkpoint is None:
            steps = "; what was lost is not known: it marks no checkpoint, and tells no step"
        also = f"; not the drill alone was at work: {last}" if last else ""
        buts = "".join(f"; but {one}" for one in (course.unsaved, but) if one)
        return not buts, f"the run came back{steps}{buts}{also}"
    if course.ending is not None:
        how = course.ending.decision.value
        if course.ending.decision is Decision.DONE:
            return False, "the run was done before it had to come back: drill a longer one"
        return False, f"the run did not come back: it ended {how} ({course.ending.reason})"
    if course.overtaken:
        return False, f"another event came before an agent noticed the drill: {last}; try the drill again"
    if not course.noticed:
        also = f"; what happened meanwhile was something else: {last}" if last else ""
        return False, f"no agent has noticed it: the run has no record of it{also}"
    return False, f"the run has not come back yet; the last that happened: {course.phases[-1].name}"


def _first(records: Sequence[Record], *kinds: type) -> Record | None:
    return next((record for record in records if isinstance(record.entry, kinds)), None)


def _before(records: Sequence[Record], end: Record) -> list[Record]:
    return [record for record in records if record.number < end.number]


def _resumed(noticed: Record | None, since: Sequence[Record]) -> Record | None:
    """Return the round that was formed once the drill had been noticed."""
    if noticed is not None and isinstance(noticed.entry, RoundFormed):
        return noticed
    return _first(since, RoundFormed)


def _belongs(record: Record, noticed: Record | None, blow: Blow) -> bool:
    """Tell whether a record is the notice of a drill, or follows from it."""
    if noticed is None or record.number < noticed.number:
        return False
    return record.number == noticed.number or is_trace_after(record.entry, noticed.entry, blow)


def _is_over(after: Sequence[Record], number: int) -> bool:
    """Tell whether a round has ended, or another one was formed since."""
    rounds = [one.entry.number for one in after if isinstance(one.entry, RoundEnded | RoundFormed)]
    return any(found >= number for found in rounds)


def _told(entry: object) -> str:
    """Return what a record tells, with whom it was about."""
    text = "the job was handed back"
    if isinstance(entry, RoundEnded):
        text = f"round {entry.number} ended: {CAUSES.get(entry.cause, entry.cause.value)}{_who(entry)}"
    elif isinstance(entry, DrainRequested):
        is_pause = entry.cause is Cause.MEMBERSHIP and entry.detail
        cause = CAUSES.get(entry.cause, entry.cause.value)
        told = f"{cause}: told by {entry.node or 'a command'}"
        text = f"pause asked for: {entry.detail}" if is_pause else told
    elif isinstance(entry, DrainExplained):
        text = f"Slurm says: {entry.detail}"
    elif isinstance(entry, NodeLeft):
        text = f"{entry.node} left: {CAUSES.get(entry.cause, entry.cause.value)}"
    elif isinstance(entry, SizeWanted):
        text = f"{count_text(entry.size, 'node')} wanted ({entry.detail})"
    elif isinstance(entry, RoundFormed):
        text = f"round {entry.number} was formed without the agent that was killed"
    elif isinstance(entry, EpochStarted):
        text = "the job started again"
    return task_stopped_text(entry) if isinstance(entry, TaskStopped) else text


def _noticed(entry: object, blow: Blow) -> str:
    """Return what the first record of a drill tells; SIGTERM alone passes for a preemption."""
    if Cause.REQUEUE in blow.causes and isinstance(entry, DrainRequested) and entry.cause is Cause.PREEMPTION:
        return f"{entry.detail or 'a signal'}, as when Slurm preempts: told by {entry.node}"
    return _told(entry)


def _perhaps(record: Record, blow: Blow) -> str:
    """Return what the failure of another worker than the one that was killed may have come of."""
    entry = record.entry
    is_near = isinstance(entry, RoundEnded) and (entry.cause, entry.number) == (Cause.CRASH, blow.round)
    if not is_near or record.at < blow.at or blow.rank is None or Cause.CRASH not in blow.causes:
        return ""
    return f", perhaps for want of rank {blow.rank}: no record says so"


def _who(entry: RoundEnded) -> str:
    nodes = ", ".join(entry.nodes)
    failure = entry.failure or {}
    if entry.cause is not Cause.CRASH or "rank" not in failure:
        return f" ({nodes})" if nodes else ""
    code = failure.get("exitcode", 0)
    how = f"signal {-code}" if isinstance(code, int) and code < 0 else f"exit code {code}"
    return f" ({nodes}; rank {failure['rank']}, {how})"


def _running(entry: object) -> str:
    if not isinstance(entry, RoundFormed):
        return ""
    nodes = count_text(len(entry.members), "node")
    begins = f"from step {entry.checkpoint.step}" if entry.checkpoint else "from the beginning"
    return f"round {entry.number} on {nodes}, {begins}"


def _lost(step: int | None, resumed: RoundFormed | None) -> int | None:
    if step is None or resumed is None:
        return None
    return max(0, step - (resumed.checkpoint.step if resumed.checkpoint else 0))
