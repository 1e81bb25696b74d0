"""What a run has been through, by cause."""

from __future__ import annotations

from hpc_elastic.rendezvous.journal import Cause, Epoch, Record, Requeued
from hpc_elastic.report.causes_text import requeues_text, restarts_text, used_text


def test_ends_and_requeues_are_counted_by_cause() -> None:
    """The most frequent first; only those of the submission that is asked for."""
    counts = {Cause.CRASH: 1, Cause.NODE_LOSS: 2, Cause.HANG: 0}
    assert "2 node losses, 1 crash" == restarts_text(counts)
    causes = [Cause.PREEMPTION, Cause.TIME_LIMIT, Cause.PREEMPTION]
    records = [
        Record(number, 0.0, "batch", Requeued(Epoch(1, number, 0), cause))
        for number, cause in enumerate(causes)
    ]
    assert "2 preemptions, 1 time limit" == requeues_text(records, 1)
    assert "" == requeues_text(records, 0)


def test_budgets_are_told_with_their_causes() -> None:
    """Without a budget only what was used."""
    assert "2 of 500 requeues (2 preemptions)" == used_text(2, 500, "requeue", "2 preemptions")
    assert "1 failure" == used_text(1, None, "failure", "")
