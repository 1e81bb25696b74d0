"""How long starts of a job have trained, and when that is said to be too little."""

from __future__ import annotations

import pytest

from hpc_elastic.record.array_task import TaskStart
from hpc_elastic.record.journal import (
    Cause,
    Drained,
    Entry,
    Epoch,
    EpochStarted,
    Member,
    NodeLeft,
    Record,
    RoundEnded,
    RoundFormed,
    StopAgreed,
)
from hpc_elastic.record.progress import Trained, trained
from hpc_elastic.slurm.end.history import short_time_text, task_trained

FIRST, SECOND = Epoch(0, 0, 0, 0), Epoch(0, 0, 1, 0)
LIMIT = Cause.TIME_LIMIT


def began(epoch: Epoch) -> EpochStarted:
    """Return the begin of a start."""
    return EpochStarted(epoch, "7", ("n1",))


def formed(number: int, epoch: Epoch = FIRST) -> RoundFormed:
    """Return a round."""
    return RoundFormed(number, epoch, (Member("n1.1", "n1", 1),), "n1", 1, None)


def found(*written: tuple[float, str, Entry]) -> list[Trained]:
    """Return what these records tell: when, by whom, what."""
    return trained([Record(number, at, by, entry) for number, (at, by, entry) in enumerate(written, 1)])


def drained(epoch: Epoch, cause: Cause = LIMIT) -> Drained:
    """Return the end of a drain."""
    return Drained(epoch, cause, 40, "")


def test_the_time_of_all_rounds_of_a_start_counts() -> None:
    """Until a round has failed, or its workers have agreed where to stop."""
    starts = found(
        (0, "n1.1", began(FIRST)),
        (2, "n1.1", formed(1)),
        (12, "n1.1", RoundEnded(1, Cause.CRASH, ("n1",), None)),
        (13, "n1.1", began(FIRST._replace(relaunch=1))),
        (15, "n1.2", formed(2)),
        (20, "n1.1", StopAgreed(2, 40)),
        (29, "n2.1", drained(FIRST)),
        (50, "n1.1", began(SECOND)),
        (51, "n1.1", formed(3, SECOND)),
        (54, "n1.1", drained(SECOND, Cause.PREEMPTION)),
    )
    assert [Trained(15.0, LIMIT), Trained(3.0, Cause.PREEMPTION)] == starts


def test_clocks_of_two_nodes_are_not_compared() -> None:
    """Where another node has written the end nobody knows how long it was."""
    starts = found((0, "n1.1", began(FIRST)), (2, "n1.1", formed(1)), (9, "n2.1", drained(FIRST)))
    assert [Trained(None, LIMIT)] == starts


def test_only_the_newest_submission_is_told_of() -> None:
    """What was before it had other limits."""
    later = Epoch(1, 0, 0, 0)
    starts = found((0, "n1.1", began(FIRST)), (2, "n1.1", formed(1)), (9, "n1.1", began(later)))
    assert [Trained()] == starts
    assert [] == found()


def test_a_task_of_an_array_has_worked_in_the_rounds_with_its_agents() -> None:
    """Also of srun started again; what others did meanwhile, or its earlier starts, is not its work."""
    me, again, before, other = "n1.1@7_0-1-0", "n1.2@7_0-1-1", "n1.1@7_0-0-0", "n2.1@7_1-0-0"

    def of(number: int, *node_ids: str) -> RoundFormed:
        return RoundFormed(number, FIRST, tuple(Member(one, one[:2], 1) for one in node_ids), "n1", 1, None)

    written: list[tuple[float, Entry]] = [
        (0, of(1, before, other)),
        (100, RoundEnded(1, Cause.PREEMPTION, ("n1",), None)),
        (100, NodeLeft(FIRST, before, "n1", Cause.PREEMPTION, "")),
        (101, of(2, other, "n3.1")),  # an agent that no task has started
        (200, RoundEnded(2, Cause.MEMBERSHIP, (), None)),
        (201, of(3, me, other)),
        (211, RoundEnded(3, Cause.CRASH, ("n1",), None)),
        (212, of(4, again, other)),
        (215, StopAgreed(4, 9)),
        (290, NodeLeft(FIRST, again, "n1", LIMIT, "")),
    ]
    records = [Record(number, at, "n2.1", entry) for number, (at, entry) in enumerate(written, 1)]
    assert Trained(13.0, LIMIT) == task_trained(records, TaskStart("7_0", 1, 1))
    assert Trained(100.0, Cause.PREEMPTION) == task_trained(records, TaskStart("7_0", 0, 0))
    assert Trained() == task_trained(records, TaskStart("7_9", 0, 0))


@pytest.mark.parametrize(
    ("starts", "limit_s", "told"),
    [
        ([], 120.0, ""),
        ([Trained(12.0, LIMIT)], None, ""),
        ([Trained(None, LIMIT)], 120.0, ""),
        ([Trained(60.0, LIMIT)], 120.0, ""),
        ([Trained(12.0, Cause.PREEMPTION)], 120.0, ""),
        ([Trained(59.9, LIMIT)], 120.0, "this start has trained for 60 s of a time limit of 120 s"),
        (
            [Trained(1.0, LIMIT), Trained(), Trained(25.0, LIMIT), Trained(12.4, LIMIT)],
            120.0,
            "the last 2 starts have each trained for 12 to 25 s of a time limit of 120 s",
        ),
    ],
)
def test_little_use_of_a_time_limit_is_told(starts: list[Trained], limit_s: float | None, told: str) -> None:
    """Of starts that it has ended, one after the other."""
    text = short_time_text(starts, limit_s)
    assert told == text.partition("; ")[0]
    assert bool(told) == ("a longer --time" in text)
