"""Which start of which task an agent belongs to, and which start of the run it shares."""

from __future__ import annotations

import pytest

from hpc_elastic.record.array_task import (
    TaskStart,
    epoch_now,
    is_newer,
    start_of,
    was_released,
)
from hpc_elastic.record.journal import (
    AfterDrain,
    Cause,
    Decision,
    Drained,
    DrainRequested,
    Entry,
    Epoch,
    EpochStarted,
    Member,
    NodeLeft,
    Record,
    RoundEnded,
    RoundFormed,
    RunEnded,
    StopKind,
    TaskStopped,
)
from hpc_elastic.record.state import RunState, fold

FIRST = TaskStart("12_0", 0, 0)
SECOND = TaskStart("12_0", 1, 0)
EPOCH = Epoch(0, 0, 2, 0)
STARTED = EpochStarted(EPOCH, "12", ())
IDS = ("n1.7@12_0-0-0", "n2.7@12_1-0-0")
ROUND = RoundFormed(1, EPOCH, (Member(IDS[0], "n1", 2), Member(IDS[1], "n2", 2)), "n1", 1, None)


def state_of(*entries: Entry) -> RunState:
    """Return the state after these entries."""
    return fold(RunState(), [Record(number, 0.0, "test", entry) for number, entry in enumerate(entries, 1)])


def left(node_id: str, cause: Cause = Cause.PREEMPTION) -> NodeLeft:
    """Return the goodbye of an agent."""
    return NodeLeft(EPOCH, node_id, node_id.partition(".")[0], cause, "SIGTERM")


def test_the_id_of_an_agent_tells_its_start() -> None:
    """A host name may hold nearly everything; other agents have no tag."""
    node_id = f"gpu-1.cluster@home.4711{SECOND.tag}"
    assert SECOND == start_of(node_id)
    assert "gpu-1.cluster@home" == node_id.rpartition(".")[0]
    assert "12" == SECOND.array
    assert [None, None, None] == [start_of(name) for name in ("n1.4711", "n1.4711-1", "a@b.1")]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("n1.1@12_0-1-0", "n1.1@12_0-0-3", True),
        ("n1.1@12_0-0-1", "n9.1@12_0-0-0", True),
        ("n1.1@12_0-0-0", "n1.1@12_0-0-0", False),
        ("n1.1@12_0-0-0", "n1.1@12_0-1-0", False),
        ("n1.1@12_1-1-0", "n1.1@12_0-0-0", False),
        ("n1.1@13_0-1-0", "n1.1@12_0-0-0", False),
        ("n1.2", "n1.1", False),
        ("n1.2", "n1.1@12_0-0-0", False),
        ("n1.2@12_0-1-0", "n1.1", False),
    ],
)
def test_only_the_same_task_has_newer_starts(one: str, other: str, *, expected: bool) -> None:
    """Restarts count before relaunches."""
    assert expected is is_newer(one, than=other)


@pytest.mark.parametrize(
    ("state", "submission", "expected"),
    [
        (RunState(), 0, Epoch(0, 0, 0, 0)),
        (state_of(STARTED), 0, EPOCH),
        (state_of(STARTED, ROUND), 0, EPOCH),
        (state_of(STARTED, ROUND), 1, Epoch(1, 0, 0, 0)),
        (state_of(STARTED, ROUND, left(IDS[0])), 0, EPOCH),
        (state_of(STARTED, ROUND, left(IDS[0]), left(IDS[1])), 0, Epoch(0, 0, 3, 0)),
        (state_of(STARTED, Drained(EPOCH, Cause.JOIN_TIMEOUT, None, "")), 0, Epoch(0, 0, 3, 0)),
        (state_of(STARTED, ROUND, DrainRequested(Cause.STOP, "", AfterDrain.LEAVE, "")), 0, EPOCH),
        (state_of(STARTED, Drained(EPOCH, Cause.STOP, None, "")), 0, EPOCH),
        (
            state_of(STARTED, ROUND, left(IDS[0]), left(IDS[1]), Drained(EPOCH, Cause.STOP, None, "")),
            0,
            EPOCH,
        ),
        (state_of(STARTED, RunEnded(Decision.DONE, 0, "", None)), 0, EPOCH),
        (state_of(STARTED, RunEnded(Decision.HELD, 76, "", None)), 0, EPOCH),
        (
            state_of(STARTED, ROUND, left(IDS[0]), left(IDS[1]), RunEnded(Decision.DONE, 0, "", None)),
            0,
            EPOCH,
        ),
    ],
    ids=[
        "new",
        "begun",
        "runs",
        "resubmitted",
        "one left",
        "all left",
        "too few",
        "being stopped",
        "stopped",
        "all left, then stopped",
        "done",
        "held",
        "all left, then done",
    ],
)
def test_all_tasks_share_a_start_until_it_is_left_as_a_whole(
    state: RunState, submission: int, expected: Epoch
) -> None:
    """Slurm's restart count of a task plays no part, and what the user ended does not begin again."""
    assert expected == epoch_now(state, submission)


HOLD = RunEnded(Decision.HELD, 76, "", None)
ON_HOLD = TaskStopped(EPOCH, StopKind.HELD, FIRST.task, FIRST.restart, "n1", "a budget is spent")


@pytest.mark.parametrize(
    ("entries", "start", "released"),
    [
        ((ROUND, ON_HOLD, HOLD), SECOND, True),
        ((ROUND, ON_HOLD, HOLD), FIRST, False),
        ((ROUND, ON_HOLD, HOLD), TaskStart("12_1", 1, 0), False),
        ((ROUND, left(IDS[0]), HOLD), SECOND, False),
        ((ROUND, left(f"held7.7{FIRST.tag}"), HOLD), SECOND, False),
        ((ROUND, ON_HOLD._replace(how=StopKind.GIVEN_UP), HOLD), SECOND, False),
        ((ROUND, ON_HOLD), SECOND, False),
        ((ROUND, ON_HOLD, RunEnded(Decision.DONE, 0, "", None)), SECOND, False),
    ],
    ids=[
        "released",
        "the same start",
        "another task",
        "not put on hold",
        "a host called held7",
        "given up",
        "not held",
        "done",
    ],
)
def test_a_task_is_released_by_its_next_start(
    entries: tuple[Entry, ...], start: TaskStart, released: bool
) -> None:
    """If it was put on hold with its run; then the run goes on in its next start."""
    state = state_of(STARTED, *entries)
    assert released is was_released(state, start)
    assert released is (Epoch(0, 0, 3, 0) == epoch_now(state, 0, start))
    assert EPOCH == epoch_now(state, 0)


def test_who_has_left_is_known_until_the_next_round() -> None:
    """A goodbye of another start of the run changes nothing."""
    state = state_of(STARTED, ROUND, left(IDS[0]))
    assert {IDS[0]} == state.left
    assert not state.deserted
    assert state == fold(
        state, [Record(4, 0.0, "test", left(IDS[1])._replace(epoch=Epoch(0, 0, 1, 0)))]
    )._replace(last=3)


def test_what_a_leaving_node_does_to_the_others_workers_is_no_crash() -> None:
    """They fail for want of a peer, which costs no restart; before anybody has left a crash is one."""
    asked = DrainRequested(Cause.PREEMPTION, "n1", AfterDrain.REJOIN, "SIGTERM")
    crash = RoundEnded(1, Cause.CRASH, ("n2",), {"message": "peer gone"})
    state = state_of(STARTED, ROUND, asked, left(IDS[0]), crash)
    assert (0, 1) == (state.crashes, state.used(Cause.PREEMPTION))
    assert 1 == state_of(STARTED, ROUND, asked, crash).crashes
