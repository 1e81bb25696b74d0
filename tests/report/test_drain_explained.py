"""What Slurm says about a drain under way, as the state and the timeline hold it."""

from __future__ import annotations

from hpc_elastic.rendezvous.journal import (
    Cause,
    DrainExplained,
    DrainRequested,
    Entry,
    Epoch,
    EpochStarted,
    Member,
    Record,
    RoundFormed,
    Then,
)
from hpc_elastic.rendezvous.state import RunState, fold
from hpc_elastic.report.timeline import timeline

EPOCH = Epoch(0, 0, 0)
FORMED = RoundFormed(1, EPOCH, (Member("n1.1", "n1", 2),), "n1", 1, None)
ASKED = DrainRequested(Cause.PREEMPTION, "n1", Then.LEAVE, "SIGTERM", EPOCH)
WHY = DrainExplained(EPOCH, Cause.CANCEL, "the job was cancelled", 12.0)


def records(*entries: Entry) -> list[Record]:
    """Return records of a run with one round."""
    return [
        Record(number, float(number), "n1", entry)
        for number, entry in enumerate((EpochStarted(EPOCH, "7", ("n1",)), FORMED, *entries), 1)
    ]


def test_the_reason_replaces_what_was_assumed() -> None:
    """Once; a second one, of a node that asked too, changes nothing."""
    state = fold(RunState(), records(ASKED, WHY, WHY._replace(cause=Cause.TIME_LIMIT)))
    assert state.drain is not None
    assert (Cause.CANCEL, "SIGTERM: the job was cancelled") == (state.drain.cause, state.drain.detail)
    assert (WHY, Cause.CANCEL) == (state.explained, state.leave_cause)


def test_a_reason_of_nothing_changes_nothing() -> None:
    """No drain is under way, or it is another start's."""
    assert fold(RunState(), records(WHY)).explained is None
    foreign = WHY._replace(epoch=Epoch(0, 1, 0))
    assert fold(RunState(), records(ASKED, foreign)).explained is None


def test_the_timeline_tells_what_was_known_when() -> None:
    """First the signal alone, then its reason."""
    texts = [moment.text for moment in timeline(records(ASKED, WHY))]
    assert [
        "drain asked for on n1: SIGTERM",
        "Slurm says: the job was cancelled; workers have 12 s more",
    ] == (texts[-2:])
