"""What a run has been through, by cause."""

from __future__ import annotations

from hpc_elastic.record.journal import (
    AfterDrain,
    Answer,
    Asked,
    Cause,
    DrainExplained,
    DrainRequested,
    Entry,
    Epoch,
    Member,
    NodeLeft,
    Record,
    Requeued,
    RoundEnded,
    RoundFormed,
)
from hpc_elastic.record.state import RunState, fold
from hpc_elastic.report.causes_text import (
    requeues_text,
    restarts_text,
    signals_of,
    task_requeues,
    tasks_text,
    used_text,
)
from tests.meet.build import E0, RESUBMITTED, formed, start


def test_ends_and_requeues_are_counted_by_cause() -> None:
    """The most frequent first; only those of the submission that is asked for."""
    counts = {Cause.CRASH: 1, Cause.NODE_LOSS: 2, Cause.HANG: 0}
    assert "2 node losses, 1 crash" == restarts_text(counts)
    causes = [Cause.PREEMPTION, Cause.TIME_LIMIT, Cause.PREEMPTION]
    records = [
        Record(number, 0.0, "batch", Requeued(Epoch(1, 0, number, 0), cause))
        for number, cause in enumerate(causes)
    ]
    assert "2 preemptions, 1 time limit" == requeues_text(records, 1)
    assert "" == requeues_text(records, 0)


def rounds(*answers: Answer | None) -> list[Record]:
    """Return the records of rounds that a node has left after SIGTERM, with Slurm's answers; may be none."""
    entries: list[Entry] = [start(expected=())]
    for number, answer in enumerate(answers, 1):
        asked = DrainRequested(Cause.PREEMPTION, "n1", AfterDrain.REJOIN, "", asked=Asked("SIGTERM"))
        entries += [formed(number), asked]
        entries += [DrainExplained(E0, Cause.PREEMPTION, "why", answer=answer)] if answer else []
        entries.append(RoundEnded(number, Cause.PREEMPTION, ("n1",), None))
    return [Record(number, 0.0, "n1", entry) for number, entry in enumerate(entries, 1)]


def test_signals_are_not_counted_as_preemptions_before_people() -> None:
    """Neither what Slurm has denied nor what it has not told; the budgets count them together."""
    records = rounds(Answer.CONFIRMS, Answer.DENIES, None)
    counts = fold(RunState(), records).counts
    assert {Cause.PREEMPTION: 3} == counts
    assert "2 SIGTERMs, 1 preemption" == restarts_text(counts, signals_of(records))
    handed = Record(20, 0.0, "batch", Requeued(E0, Cause.PREEMPTION, "why", signal="SIGTERM"))
    assert "1 SIGTERM" == requeues_text([handed], 0)
    resubmitted = Record(20, 0.0, "n1", start(RESUBMITTED))
    assert {} == signals_of([*records, resubmitted])


def test_budgets_are_told_with_their_causes() -> None:
    """Without a budget only what was used."""
    assert "2 of 500 requeues (2 preemptions)" == used_text(2, 500, "requeue", "2 preemptions")
    assert "1 failure" == used_text(1, None, "failure", "")


def test_the_requeues_of_tasks_are_added_up() -> None:
    """Each task counts for itself; what the ids of its agents tell is what Slurm has counted."""
    now, before = Epoch(1, 0, 0, 0), Epoch(0, 0, 0, 0)
    member = Member("n1.8@7_0-2-0", "n1", 1)
    records = [
        Record(1, 0.0, "n1", RoundFormed(1, before, (Member("n1.8@3_0-9-0", "n1", 1),), "n1", 1, None)),
        Record(2, 0.0, "n1", RoundFormed(2, now, (member, Member("n2.8@7_1-0-0", "n2", 1)), "n1", 1, None)),
        Record(3, 0.0, "n2", NodeLeft(now, "n3.8@7_10-1-0", "n3", Cause.PREEMPTION)),
    ]
    times = task_requeues(records, ["n1.9@7_0-3-0+1-0-0-0+joining+3+1+2", "news+3"], 1)
    assert {"7_0": 3, "7_10": 1} == times
    assert "4 requeues of single tasks (at most 500 for each; the most: task 7_0, 3)" == tasks_text(
        times, 500
    )
    assert "1 requeue of single tasks (at most 5 for each; all of task 7_1)" == tasks_text({"7_1": 1}, 5)
    assert "0 requeues of single tasks (at most 5 for each)" == tasks_text({}, 5)
