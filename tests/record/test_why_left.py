"""What asked for the end of a start of the job, as people are told."""

from __future__ import annotations

import pytest

from hpc_elastic.record.journal import (
    NO_SIGNAL,
    Answer,
    Asked,
    Cause,
    Drained,
    DrainExplained,
    Requeued,
)
from hpc_elastic.record.why_left import (
    RUNS_ON,
    Asker,
    asked_by,
    asked_text,
    requeued_for,
    who_asked,
    words_of,
)
from tests.meet.build import E0, after, drain, formed, start

SENT = "a SIGTERM that a user sent"


TERM = Asked("SIGTERM")
DENIED = Asked("SIGTERM", Answer.DENIES, RUNS_ON)
UNNAMED = "a preemption, a node that is down, or scontrol requeue (Slurm does not tell which)"


@pytest.mark.parametrize(
    ("detail", "asked", "named", "later"),
    [
        ("", TERM, "SIGTERM", SENT),
        ("", Asked("SIGTERM", Answer.SILENT, "no answer; SIGKILL may follow"), "SIGTERM", SENT),
        ("", DENIED, SENT, SENT),
        ("", Asked("SIGTERM", Answer.CONFIRMS, "preempted, with grace until 20:24:49"), "", ""),
        ("", Asked("SIGTERM", Answer.REQUEUES, "the job is requeued"), UNNAMED, None),
        ("", NO_SIGNAL, "", ""),
        ("the drain of n3 (bad: disk)", NO_SIGNAL, "the drain of n3 (bad: disk)", None),
        ("the drain of n3 (x)", Asked("", Answer.DENIES, RUNS_ON), "the drain of n3 (x)", None),
        ("submitit's signal", NO_SIGNAL, "submitit's signal", None),
        (f"SIGTERM: {RUNS_ON}", NO_SIGNAL, f"SIGTERM: {RUNS_ON}", None),  # words of somebody, no signal
        (f"{SENT}", NO_SIGNAL, SENT, None),
    ],
)
def test_only_slurm_tells_what_a_signal_is(detail: str, asked: Asked, named: str, later: str | None) -> None:
    """Before its answer a signal has its own name only; after a denial somebody has sent it."""
    assert named == asked_by(Cause.PREEMPTION, detail, asked).text
    assert (named if later is None else later) == asked_by(Cause.PREEMPTION, detail, asked, runs_on=True).text
    assert Asker() == asked_by(Cause.TIME_LIMIT, detail, asked, runs_on=True)


def test_the_drain_of_a_node_names_node_and_reason() -> None:
    """It is no preemption, so that its cause alone would not tell which node."""
    assert "the drain of n3 (x)" == asked_by(Cause.NODE_DRAIN, "the drain of n3 (x)", NO_SIGNAL).text
    assert Asker() == asked_by(Cause.NODE_DRAIN, "", TERM)


def test_the_state_knows_the_newest_answer() -> None:
    """Of the drain, else of what was drained; what was asked for something else does not count."""
    asked = drain()._replace(detail="", asked=TERM)
    state = after(start(), formed(1), asked)
    assert "SIGTERM" == who_asked(state, Cause.PREEMPTION).text
    assert "" == who_asked(state, Cause.NODE_LOSS).text
    denies = DrainExplained(E0, Cause.PREEMPTION, RUNS_ON, answer=Answer.DENIES)
    assert SENT == who_asked(after(start(), formed(1), asked, denies), Cause.PREEMPTION).text
    over = after(start(), formed(1), Drained(E0, Cause.PREEMPTION, 7, "", asked=DENIED))
    assert SENT == who_asked(over, Cause.PREEMPTION).text


@pytest.mark.parametrize(
    ("signal", "detail", "asked", "named"),
    [
        ("SIGTERM", "", TERM, SENT),
        ("", "", TERM, ""),
        ("", "", Asked("SIGTERM", Answer.REQUEUES, "the job is requeued"), ""),
        ("", "", DENIED, SENT),
        ("", "the drain of n3 (x)", NO_SIGNAL, "the drain of n3 (x)"),
    ],
    ids=["named", "signal alone", "no reason", "the agents knew", "node drain"],
)
def test_a_requeue_is_named_by_who_knew_most(signal: str, detail: str, asked: Asked, named: str) -> None:
    """The batch script asks Slurm after the agents; what it says in words decides nothing."""
    state = after(start(), formed(1), Drained(E0, Cause.PREEMPTION, 7, detail, asked=asked))
    back = Requeued(E0, Cause.PREEMPTION, f"{SENT}: requeue 1 of at most 500", signal=signal)
    assert named == requeued_for(state, back).text
    assert "" == requeued_for(state, back._replace(cause=Cause.REQUEUE)).text


def test_what_a_signal_counts_as() -> None:
    """Told only with the words of a budget, and of signals that somebody has sent."""
    assert f"{SENT}, which counts as a preemption" == Asker("SIGTERM", is_sent=True).as_counted
    assert ["SIGTERM", SENT, ""] == [one.as_counted for one in (Asker("SIGTERM"), Asker(words=SENT), Asker())]


def test_words_are_those_of_the_signal_and_of_slurm() -> None:
    """What is not known is left out."""
    entry = drain()._replace(detail="", asked=DENIED)
    assert f"SIGTERM: {RUNS_ON}" == asked_text(entry)
    given = (("", TERM), ("a stop", NO_SIGNAL), ("", NO_SIGNAL))
    assert ["SIGTERM", "a stop", ""] == [words_of(*each) for each in given]
