"""What a drill did to a run, from the records that followed it. Pure.

Times are wall times of several nodes and of the file server: spans are as exact as their clocks agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hpc_elastic.rendezvous.journal import (
    Decision,
    Drained,
    DrainRequested,
    EpochStarted,
    NodeLeft,
    Record,
    Requeued,
    RoundEnded,
    RoundFormed,
    RunEnded,
    StopAgreed,
)
from hpc_elastic.report.timeline import CAUSES

_NOTICES = (DrainRequested, RoundEnded, NodeLeft, Drained, EpochStarted, RunEnded)


class Saved(NamedTuple):
    """A durable checkpoint and when it became so [s since the epoch]."""

    step: int
    at: float


class Phase(NamedTuple):
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
    """

    phases: list[Phase]
    resumed: RoundFormed | None
    ending: RunEnded | None
    steps_lost: int | None

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self.resumed is not None or self.ending is not None

    @property
    def noticed(self) -> bool:
        """Whether anybody has noticed."""
        return bool(self.phases)


def course_of(
    records: Sequence[Record], last: int, began: float, step: int | None, saved: Iterable[Saved]
) -> Course:
    """Return what followed a drill.

    Args:
        records: the journal.
        last: number of the last record before it.
        began: when it was [s since the epoch].
        step: the last step that workers had completed then, if they tell.
        saved: all durable checkpoints.
    """
    after = [record for record in records if record.number > last]
    phases: list[Phase] = []

    def add(name: str, record: Record | None, text: str) -> None:
        if record is not None:
            phases.append(Phase(name, record.at - began, text))

    noticed = _first(after, *_NOTICES)
    add("noticed", noticed, _noticed(noticed))
    agreed = _first(after, StopAgreed)
    if agreed is not None and isinstance(agreed.entry, StopAgreed):
        step = agreed.entry.step
        add("workers told", agreed, f"all ranks stop at step {step}")
        durable = next((mark for mark in saved if mark.step >= step and mark.at >= began), None)
        if durable is not None:
            phases.append(Phase("saved", durable.at - began, f"step {durable.step}"))
    drained = _first(after, Drained)
    add("stopped", drained, "all workers of this start have stopped")
    add("requeued", _first(after, Requeued), "the job is back in the queue")
    add("started again", _first(after, EpochStarted), "the agents are back")
    formed = _resumed(after, noticed)
    add("running again", formed, _running(formed))
    resumed = formed.entry if formed is not None and isinstance(formed.entry, RoundFormed) else None
    ended = _first(after, RunEnded)
    ending = ended.entry if ended is not None and isinstance(ended.entry, RunEnded) else None
    phases.sort(key=lambda phase: phase.after_s)
    return Course(phases, resumed, ending, _lost(step, resumed))


def verdict(course: Course) -> tuple[bool, str]:
    """Tell whether the run came back, and what there is to say, in one line."""
    if course.resumed is not None:
        lost = course.steps_lost
        steps = "" if lost is None else f"; {lost} {'step' if lost == 1 else 'steps'} computed again"
        return True, f"the run came back{steps}"
    if course.ending is not None:
        how = course.ending.decision.value
        if course.ending.decision is Decision.DONE:
            return False, "the run was done before it had to come back: drill a longer one"
        return False, f"the run did not come back: it ended {how} ({course.ending.reason})"
    if not course.noticed:
        return False, "nobody has noticed: the run has no record of it"
    return False, f"the run has not come back yet; the last that happened: {course.phases[-1].name}"


def _first(records: Sequence[Record], *kinds: type) -> Record | None:
    return next((record for record in records if isinstance(record.entry, kinds)), None)


def _resumed(after: Sequence[Record], noticed: Record | None) -> Record | None:
    """Return the round that was formed once the drill had been noticed."""
    if noticed is None:
        return None
    return _first([record for record in after if record.number > noticed.number], RoundFormed)


def _noticed(record: Record | None) -> str:
    if record is None:
        return ""
    entry = record.entry
    if isinstance(entry, RoundEnded):
        why = CAUSES.get(entry.cause, entry.cause.value)
        who = f" ({', '.join(entry.nodes)})" if entry.nodes else ""
        return f"round {entry.number} ended: {why}{who}"
    if isinstance(entry, DrainRequested):
        return f"{CAUSES.get(entry.cause, entry.cause.value)}: told by {entry.node}"
    return f"recorded by {record.by}"


def _running(record: Record | None) -> str:
    if record is None or not isinstance(record.entry, RoundFormed):
        return ""
    entry = record.entry
    nodes = f"{len(entry.members)} {'node' if len(entry.members) == 1 else 'nodes'}"
    begins = f"from step {entry.checkpoint.step}" if entry.checkpoint else "from the beginning"
    return f"round {entry.number} on {nodes}, {begins}"


def _lost(step: int | None, resumed: RoundFormed | None) -> int | None:
    if step is None or resumed is None:
        return None
    return max(0, step - (resumed.checkpoint.step if resumed.checkpoint else 0))
