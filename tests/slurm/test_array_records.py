"""What the journal of a run in array mode tells of its tasks."""

from __future__ import annotations

import pytest

from hpc_elastic.record.array_task import TaskStart
from hpc_elastic.record.journal import (
    Cause,
    Entry,
    Epoch,
    Member,
    NodeLeft,
    Record,
    RoundFormed,
    StopKind,
    TaskStopped,
)
from hpc_elastic.slurm.end.history import given_up, goodbye_of, stopped, task_starts_in_vain

EPOCH = Epoch(0, 0, 0, 0)
FIRST = TaskStart("12_0", 0, 0)
SECOND = TaskStart("12_0", 1, 0)
OTHER = TaskStart("12_1", 0, 0)


def records(*entries: Entry) -> list[Record]:
    """Return a journal with these entries."""
    return [Record(number, 0.0, "test", entry) for number, entry in enumerate(entries, 1)]


@pytest.mark.parametrize("host", ["given-up-rack3", "held7", "batch", "held", "given-up@12_0-0-0"])
def test_a_host_may_be_called_as_it_likes(host: str) -> None:
    """What its agent records is the goodbye of an agent, and neither gives its task up nor holds it."""
    leaves = NodeLeft(EPOCH, f"{host}.7{FIRST.tag}", host, Cause.PREEMPTION, "SIGTERM")
    assert leaves == goodbye_of(records(leaves), FIRST)
    assert frozenset() == given_up(records(leaves))
    assert 0 == task_starts_in_vain(records(leaves), FIRST)


def left(start: TaskStart, words: str = "SIGTERM") -> NodeLeft:
    """Return the goodbye of an agent."""
    return NodeLeft(EPOCH, f"n1.7{start.tag}", "n1", Cause.PREEMPTION, words)


def formed(*starts: TaskStart) -> RoundFormed:
    """Return a round of the agents of some starts."""
    members = tuple(Member(f"n{number}.7{one.tag}", f"n{number}", 2) for number, one in enumerate(starts))
    return RoundFormed(1, EPOCH, members, "n1", 1, None)


GIVEN_UP = stopped(FIRST, EPOCH, StopKind.GIVEN_UP, "n1", "no GPU")
IN_VAIN = stopped(FIRST, EPOCH, StopKind.FAILED, "n1", "no GPU")
PLAIN = formed()._replace(members=(Member("n1.7", "n1", 2),))  # its agent is no task's
HELD = stopped(FIRST, EPOCH, StopKind.HELD, "n1", "budget spent")


def test_the_newest_goodbye_of_a_start_is_found() -> None:
    """Of its agent; those of other starts, and of batch scripts, are none."""
    assert left(FIRST, "again") == goodbye_of(records(left(FIRST), left(FIRST, "again"), IN_VAIN), FIRST)
    plain = left(FIRST)._replace(node_id="n1.7")  # its agent is no task's
    assert left(FIRST) == goodbye_of(records(left(FIRST), plain), FIRST)
    for entry in (left(SECOND), left(OTHER), GIVEN_UP, IN_VAIN, HELD, formed(FIRST)):
        assert goodbye_of(records(entry), FIRST) is None


def test_what_batch_scripts_record() -> None:
    """Which start of which task, where, and why."""
    assert TaskStopped(EPOCH, StopKind.GIVEN_UP, "12_0", 0, "n1", "no GPU") == GIVEN_UP


@pytest.mark.parametrize(
    ("entries", "tasks"),
    [
        ((), set()),
        ((GIVEN_UP,), {"12_0"}),
        ((IN_VAIN, HELD, left(FIRST)), set()),
        ((GIVEN_UP, formed(OTHER)), {"12_0"}),
        ((GIVEN_UP, formed(OTHER, SECOND)), set()),
        ((formed(FIRST), GIVEN_UP), {"12_0"}),
        ((GIVEN_UP, PLAIN), {"12_0"}),
    ],
    ids=[
        "nothing",
        "given up",
        "otherwise gone",
        "another task runs",
        "runs again",
        "ran before",
        "no tasks",
    ],
)
def test_a_task_is_given_up_until_it_is_in_a_round(entries: tuple[Entry, ...], tasks: set[str]) -> None:
    """Whichever start of it is."""
    assert tasks == given_up(records(*entries))


@pytest.mark.parametrize(
    ("entries", "restart", "count"),
    [
        ((), 0, 1),
        ((), 2, 3),
        ((formed(FIRST),), 0, 0),
        ((formed(FIRST),), 2, 2),
        ((left(SECOND),), 1, 0),
        ((left(SECOND),), 0, 1),
        ((formed(FIRST), formed(SECOND)), 3, 2),
        ((formed(OTHER), left(OTHER)), 1, 2),
        ((IN_VAIN, GIVEN_UP, HELD), 1, 2),
        ((left(FIRST)._replace(node_id="n1.7"), formed(FIRST)), 1, 1),
    ],
)
def test_starts_in_vain_are_counted_since_the_last_useful_one(
    entries: tuple[Entry, ...], restart: int, count: int
) -> None:
    """One that was in a round, or left by itself; later starts and those of other tasks do not count."""
    assert count == task_starts_in_vain(records(*entries), FIRST._replace(restart=restart))
