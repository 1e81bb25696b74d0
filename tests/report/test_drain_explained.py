"""What Slurm says about a drain under way, as the state and the timeline hold it."""

from __future__ import annotations

import pytest

from hpc_elastic.record.journal import (
    AfterDrain,
    Answer,
    Asked,
    Cause,
    Drained,
    DrainExplained,
    DrainRequested,
    Entry,
    Epoch,
    EpochStarted,
    Member,
    Record,
    Requeued,
    RoundFormed,
)
from hpc_elastic.record.state import RunState, fold
from hpc_elastic.record.why_left import (
    RUNS_ON,
    asked_text,
)
from hpc_elastic.report.run_status import RunView, status_of
from hpc_elastic.report.timeline import timeline
from hpc_elastic.slurm.client.job_standing import job_facts

EPOCH, TERM = Epoch(0, 0, 0, 0), Asked("SIGTERM")
FORMED = RoundFormed(1, EPOCH, (Member("n1.1", "n1", 2),), "n1", 1, None)
ASKED = DrainRequested(Cause.PREEMPTION, "n1", AfterDrain.LEAVE, "", EPOCH, asked=TERM)
WHY = DrainExplained(EPOCH, Cause.CANCEL, "the job was cancelled", 12.0)


def records(*entries: Entry) -> list[Record]:
    """Return records of a run with one round."""
    return [
        Record(number, float(number), "n1", entry)
        for number, entry in enumerate((EpochStarted(EPOCH, "7", ("n1",)), FORMED, *entries), 1)
    ]


def test_the_reason_replaces_what_was_assumed() -> None:
    """Once; the same again, of a node that asked too, changes nothing."""
    state = fold(RunState(), records(ASKED, WHY, WHY._replace(left_s=11.0)))
    assert state.drain is not None
    assert (Cause.CANCEL, "SIGTERM: the job was cancelled") == (state.drain.cause, asked_text(state.drain))
    assert (WHY, Cause.CANCEL) == (state.explained, state.leave_cause)


def test_the_reason_of_a_further_signal_replaces_the_first() -> None:
    """A job that is cancelled while it drains for a preemption is a cancelled one."""
    preempted = DrainExplained(EPOCH, Cause.PREEMPTION, "preempted, with grace until 10:00:00", 60.0)
    state = fold(RunState(), records(ASKED, preempted, WHY))
    assert state.drain is not None
    assert (Cause.CANCEL, "SIGTERM: the job was cancelled") == (state.drain.cause, asked_text(state.drain))
    assert WHY == state.explained


def test_a_reason_of_nothing_changes_nothing() -> None:
    """No drain is under way, or it is another start's."""
    assert fold(RunState(), records(WHY)).explained is None
    foreign = WHY._replace(epoch=Epoch(0, 0, 1, 0))
    assert fold(RunState(), records(ASKED, foreign)).explained is None


def test_the_timeline_tells_what_was_known_when() -> None:
    """First the signal alone, then its reason."""
    texts = [moment.text for moment in timeline(records(ASKED, WHY))]
    assert [
        "drain asked for on n1: SIGTERM",
        "Slurm says: the job was cancelled; workers have 12 s more",
    ] == (texts[-2:])


@pytest.mark.parametrize("signal", ["SIGTERM", ""])
def test_what_slurm_has_denied_is_called_no_preemption(signal: str) -> None:
    """From the drain to the queue, in the timeline and in the status, whether finish says so or not."""
    denied = DrainExplained(EPOCH, Cause.PREEMPTION, RUNS_ON, answer=Answer.DENIES)
    drained = Drained(EPOCH, Cause.PREEMPTION, 50, "", asked=Asked("SIGTERM", Answer.DENIES, RUNS_ON))
    back = Requeued(EPOCH, Cause.PREEMPTION, "why", signal=signal)
    asked = records(ASKED, denied)
    assert "draining: a SIGTERM that a user sent" == status_of(RunView(fold(RunState(), asked), 0)).text
    found = records(ASKED, denied, drained, back)
    assert [
        "Slurm says: the job runs on: a user has sent the signal",
        "drained (a SIGTERM that a user sent) in 2.0 s; checkpoint of step 50",
        "requeued (a SIGTERM that a user sent)",
    ] == [moment.text for moment in timeline(found)][-3:]
    view = RunView(fold(RunState(), found), 0, "7", handed_back=back)
    assert "drained at step 50 (a SIGTERM that a user sent), leaves the nodes" == status_of(view).text
    waits = view._replace(job=job_facts({"JobState": "PENDING", "Restarts": "1"}))
    assert "requeued after a SIGTERM that a user sent, waits for nodes" == status_of(waits).text


def test_a_requeue_is_told_by_what_finish_has_heard() -> None:
    """The agents may have left before Slurm has answered them."""
    drained = Drained(EPOCH, Cause.PREEMPTION, 50, "", asked=TERM)
    for signal, words in (("SIGTERM", "a SIGTERM that a user sent"), ("", "preemption")):
        back = Requeued(EPOCH, Cause.PREEMPTION, "a SIGTERM that a user sent", signal=signal)
        told = [moment.text for moment in timeline(records(ASKED, drained, back))][-2:]
        assert ["drained (SIGTERM) in 1.0 s; checkpoint of step 50", f"requeued ({words})"] == told
