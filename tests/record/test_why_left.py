"""What asked for the end of a start of the job, as people are told."""

from __future__ import annotations

import pytest

from hpc_elastic.record.journal import Cause, Drained, DrainExplained, Requeued
from hpc_elastic.record.why_left import (
    NO_ANSWER,
    RUNS_ON,
    as_counted,
    asked_by,
    requeued_for,
    sent_signal,
    who_asked,
)
from tests.meet.build import E0, after, drain, formed, start

SENT = "a SIGTERM that somebody sent"


@pytest.mark.parametrize(
    ("detail", "named", "later"),
    [
        ("SIGTERM", "SIGTERM", SENT),
        (f"SIGTERM: {NO_ANSWER}SIGKILL may follow 30 s after SIGTERM", "SIGTERM", SENT),
        (f"SIGTERM: {RUNS_ON}", SENT, SENT),
        ("SIGTERM: preempted, with grace until 20:24:49", "", ""),
        ("SIGTERM: preempted, without grace; the job is requeued", "", ""),
        ("SIGTERM: the job is requeued: preempted without grace, a node is down, or by hand", "", ""),
        ("SIGTERM: the job ends (Slurm's reason: Odd)", "", ""),
        ("", "", ""),
        ("the drain of n3 (bad: disk)", "the drain of n3 (bad: disk)", "the drain of n3 (bad: disk)"),
        (
            f"the drain of n3 (bad disk): {RUNS_ON}",
            "the drain of n3 (bad disk)",
            "the drain of n3 (bad disk)",
        ),
        ("submitit's signal", "submitit's signal", "submitit's signal"),
    ],
)
def test_only_slurm_tells_what_a_signal_is(detail: str, named: str, later: str) -> None:
    """Before its answer a signal has its own name only; after a denial somebody has sent it."""
    assert named == asked_by(Cause.PREEMPTION, detail)
    assert later == asked_by(Cause.PREEMPTION, detail, runs_on=True)
    assert "" == asked_by(Cause.TIME_LIMIT, detail, runs_on=True)


def test_the_state_knows_the_newest_answer() -> None:
    """Of the drain, else of what was drained; what was asked for something else does not count."""
    asked = drain()._replace(detail="SIGTERM")
    state = after(start(), formed(1), asked)
    assert "SIGTERM" == who_asked(state, Cause.PREEMPTION)
    assert "" == who_asked(state, Cause.NODE_LOSS)
    denied = after(start(), formed(1), asked, DrainExplained(E0, Cause.PREEMPTION, RUNS_ON))
    assert SENT == who_asked(denied, Cause.PREEMPTION)
    over = after(start(), formed(1), Drained(E0, Cause.PREEMPTION, 7, f"SIGTERM: {RUNS_ON}"))
    assert SENT == who_asked(over, Cause.PREEMPTION)


@pytest.mark.parametrize(
    ("detail", "drained", "named"),
    [
        (f"{SENT}: requeue 1 of at most 500", "SIGTERM", SENT),
        ("the job is preempted: requeue 1 of at most 500", "SIGTERM", ""),
        ("the job is preempted: requeue 1 of at most 500", f"SIGTERM: {RUNS_ON}", SENT),
        ("", f"SIGTERM: {RUNS_ON}", SENT),
        ("", "SIGTERM", ""),
        ("the drain of n3 (x): requeue 1 of at most 500", "the drain of n3 (x)", "the drain of n3 (x)"),
    ],
    ids=["named", "preempted", "an older version", "no words", "signal alone", "node drain"],
)
def test_a_requeue_is_named_by_who_knew_most(detail: str, drained: str, named: str) -> None:
    """The batch script asks Slurm after the agents; older records have the agents' answer only."""
    state = after(start(), formed(1), Drained(E0, Cause.PREEMPTION, 7, drained))
    assert named == requeued_for(state, Requeued(E0, Cause.PREEMPTION, detail))
    assert "" == requeued_for(state, Requeued(E0, Cause.REQUEUE, detail))


def test_what_a_signal_counts_as() -> None:
    """Told only with the words of a budget."""
    assert f"{SENT}, which counts as a preemption" == as_counted(SENT)
    assert "the job is preempted" == as_counted("the job is preempted")
    assert ["SIGTERM", "SIGTERM", "", ""] == [sent_signal(one) for one in (SENT, "SIGTERM", "", "a stop")]
