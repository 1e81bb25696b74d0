"""What followed a drill, from the journal alone: what it has done, and what something else has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from hpc_elastic.record.journal import (
    AfterDrain,
    Cause,
    Decision,
    Drained,
    DrainExplained,
    DrainRequested,
    Entry,
    Epoch,
    EpochStarted,
    MarkedCheckpoint,
    Member,
    NodeLeft,
    Note,
    Record,
    Requeued,
    RoundEnded,
    RoundFormed,
    RunEnded,
    SizeWanted,
    StopAgreed,
)
from hpc_elastic.report.drill_report import MEANWHILE, Course, InjectedFault, Saved, course_of, verdict

EPOCH = Epoch(0, 0, 0, 0)
CRASH = InjectedFault(frozenset({Cause.CRASH}), "n2", "n2.1", 3, 1, 10.0, 4, step=50)
HANG = CRASH._replace(causes=frozenset({Cause.HANG}))
LOSS = CRASH._replace(causes=frozenset({Cause.NODE_LOSS}), rank=None)
PREEMPT = CRASH._replace(causes=frozenset({Cause.PREEMPTION}), rank=None, is_whole=True)
OF_TASK = PREEMPT._replace(is_whole=False)
REQUEUE = PREEMPT._replace(causes=frozenset({Cause.REQUEUE, Cause.PREEMPTION}))


def formed(number: int, *members: str, lost: tuple[str, ...] = ()) -> RoundFormed:
    """Return a round of some agents, given as ``n1.1``."""
    found = tuple(Member(one, one.partition(".")[0], 2) for one in members or ("n1.1", "n2.1"))
    return RoundFormed(number, EPOCH, found, "n1", 1, None, lost)


def crashed(node: str, rank: int, exitcode: int = -9, number: int = 1) -> RoundEnded:
    """Return the end of a round by a worker."""
    failure: dict[str, Any] = {"rank": rank, "exitcode": exitcode}
    return RoundEnded(number, Cause.CRASH, (node,), failure)


def drain(cause: Cause, node: str, then: AfterDrain = AfterDrain.LEAVE, detail: str = "") -> DrainRequested:
    """Return a request to save and stop."""
    return DrainRequested(cause, node, then, detail)


def follow(
    fault: InjectedFault, *entries: Entry, saved: tuple[Saved, ...] = (), begun: Mapping[int, int] = {}
) -> Course:
    """Return what is known once these records have followed, one a second after the drill."""
    before = [Record(number, 1.0, "n1", Note(EPOCH, "x")) for number in range(1, fault.last + 1)]
    after = [
        Record(number, fault.at + number - fault.last, "n1", entry) for number, entry in enumerate(entries, 5)
    ]
    return course_of([*before, *after], fault, saved, begun)


@pytest.mark.parametrize(
    ("fault", "entries", "told"),
    [
        (CRASH, [crashed("n2", 3)], "round 1 ended: a worker failed (n2; rank 3, signal 9)"),
        (CRASH, [crashed("n2", 3, 137)], "round 1 ended: a worker failed (n2; rank 3, exit code 137)"),
        (HANG, [RoundEnded(1, Cause.HANG, ("n1", "n2"), None)], "round 1 ended: the workers hung (n1, n2)"),
        (
            LOSS,
            [RoundEnded(1, Cause.NODE_LOSS, ("n1", "n2"), None)],
            "round 1 ended: a node was lost (n1, n2)",
        ),
        (LOSS, [crashed("n1", 0, 1), formed(2, "n1.1", lost=("n2",))], "(n1; rank 0, exit code 1)"),
        (
            LOSS,
            [drain(Cause.MEMBERSHIP, "n2", AfterDrain.REJOIN, "n2 wants to join")],
            "pause asked for: n2 wants to join",
        ),
        (LOSS, [EpochStarted(Epoch(0, 0, 0, 1), "7", ())], "the job started again"),
        (PREEMPT, [drain(Cause.PREEMPTION, "n1")], "preemption: told by n1"),
        (OF_TASK, [NodeLeft(EPOCH, "n2.1", "n2", Cause.PREEMPTION)], "n2 left: preemption"),
        (REQUEUE, [Requeued(EPOCH, Cause.REQUEUE)], "the job was handed back"),
    ],
)
def test_what_a_drill_has_done_is_known_by_whom_it_struck(
    fault: InjectedFault, entries: list[Entry], told: str
) -> None:
    """The first record about that round, node and worker, for a cause of the drill's, is its notice."""
    course = follow(fault, *entries)
    assert told in course.phases[0].text
    assert ("noticed", 1.0) == course.phases[0][:2]
    assert () == course.others


@pytest.mark.parametrize(
    ("fault", "entry", "told"),
    [
        (HANG, crashed("n1", 0, 1), "round 1 ended: a worker failed (n1; rank 0, exit code 1)"),
        (HANG, RoundEnded(1, Cause.HANG, ("n1",), {"rank": 0}), "round 1 ended: the workers hung (n1)"),
        (CRASH, crashed("n1", 0, 1), "exit code 1), perhaps for want of rank 3: no record says so"),
        (CRASH, crashed("n2", 3, 1), "round 1 ended: a worker failed (n2; rank 3, exit code 1)"),
        (CRASH, RoundEnded(1, Cause.NODE_LOSS, ("n2",), None), "round 1 ended: a node was lost (n2)"),
    ],
)
def test_what_something_else_has_done_is_not_taken_for_the_drill(
    fault: InjectedFault, entry: Entry, told: str
) -> None:
    """The worker that was struck is gone with its round, so that there is nothing left to be noticed."""
    course = follow(fault, entry, formed(2))
    assert [] == course.phases
    assert [MEANWHILE] == [phase.name for phase in course.others]
    assert told in course.others[0].text
    assert course.is_over
    came_back, text = verdict(course)
    assert not came_back
    assert text.startswith("another event came before an agent noticed the drill: round 1 ended")


@pytest.mark.parametrize(
    ("fault", "entry"),
    [
        (HANG, drain(Cause.PREEMPTION, "n1")),
        (HANG, SizeWanted(0, 1, "hpc-elastic scale")),
        (LOSS, RoundEnded(1, Cause.NODE_LOSS, ("n1",), None)),
        (LOSS, drain(Cause.MEMBERSHIP, "n3", AfterDrain.REJOIN)),
        (OF_TASK, drain(Cause.PREEMPTION, "n1", AfterDrain.REJOIN)),
        (PREEMPT, crashed("n1", 0, 1)),
        (CRASH, EpochStarted(Epoch(0, 0, 1, 0), "7", ())),
    ],
)
def test_a_drill_that_nobody_has_noticed_yet_is_waited_for(fault: InjectedFault, entry: Entry) -> None:
    """What happened meanwhile is told, and is not the notice."""
    course = follow(fault, entry)
    assert ([], 1, False) == (course.phases, len(course.others), course.is_over)
    came_back, text = verdict(course)
    assert not came_back
    assert text.startswith(
        "no agent has noticed it: the run has no record of it; the run recorded another event meanwhile: "
    )


def test_a_crash_beside_a_lost_node_is_told_when_it_is_clear_what_it_was() -> None:
    """Workers that fail for want of the node are part of it; others are not. Till then nothing is said."""
    assert follow(LOSS, crashed("n1", 0, 1)) == follow(LOSS)
    course = follow(LOSS, crashed("n1", 0, 1), formed(2, "n1.1"))
    assert ["noticed", "running again"] == [phase.name for phase in course.phases]
    assert "round 2 was formed without the agent that was killed" == course.phases[0].text
    assert ["round 1 ended: a worker failed (n1; rank 0, exit code 1)"] == [one.text for one in course.others]


def test_what_follows_is_told_until_the_run_is_back() -> None:
    """Steps are counted from where all stopped; what happens later is no part of the drill."""
    course = follow(
        PREEMPT,
        drain(Cause.PREEMPTION, "n1"),
        DrainExplained(EPOCH, Cause.PREEMPTION, "the job runs on"),
        StopAgreed(1, 60),
        Drained(EPOCH, Cause.PREEMPTION, 60, ""),
        Requeued(EPOCH, Cause.PREEMPTION),
        EpochStarted(Epoch(0, 0, 1, 0), "7", ()),
        formed(2),
        crashed("n1", 0, 1, number=2),
        saved=(Saved(60, 12.5),),
    )
    names = [
        "noticed",
        "Slurm says",
        "saved",
        "workers told",
        "stopped",
        "requeued",
        "started again",
        "running again",
    ]
    assert names == [phase.name for phase in course.phases]
    assert ((), True) == (course.others, course.agreed)
    assert (True, "the run came back; 60 steps computed again") == verdict(course)


@pytest.mark.parametrize(
    ("agreed", "saved", "had_nothing"),
    [
        (60, (Saved(60, 9.0),), True),
        (80, (Saved(60, 9.0), Saved(80, 12.5)), False),
        (60, (Saved(60, 9.0), Saved(60, 12.5)), False),
        (80, (Saved(60, 9.0),), False),
    ],
)
def test_workers_without_a_step_since_the_last_checkpoint_have_nothing_to_save(
    agreed: int, saved: tuple[Saved, ...], *, had_nothing: bool
) -> None:
    """They stop where they have begun, and show nothing of how long a save takes."""
    step = 80 if Saved(80, 12.5) in saved else 60
    back = formed(2)._replace(checkpoint=MarkedCheckpoint(step, ""))
    course = follow(PREEMPT, drain(Cause.PREEMPTION, "n1"), StopAgreed(1, agreed), back, saved=saved)
    assert had_nothing == course.had_nothing_to_save


@pytest.mark.parametrize(
    ("ends", "after_s"),
    [
        (
            [NodeLeft(EPOCH, "n2.1", "n2", Cause.PREEMPTION), RoundEnded(1, Cause.PREEMPTION, ("n2",), None)],
            3,
        ),
        (
            [RoundEnded(1, Cause.PREEMPTION, ("n2",), None), NodeLeft(EPOCH, "n2.1", "n2", Cause.PREEMPTION)],
            3,
        ),
        ([NodeLeft(EPOCH, "n1.1", "n1", Cause.PREEMPTION), drain(Cause.PREEMPTION, "n2")], None),
        ([crashed("n1", 0, 1)], None),
    ],
)
def test_a_task_has_stopped_when_its_agent_leaves(ends: list[Entry], after_s: int | None) -> None:
    """In array mode nothing is drained as a whole: the end of that node's workers is what Slurm waits for."""
    first = drain(Cause.PREEMPTION, "n2", AfterDrain.REJOIN)
    course = follow(OF_TASK, first, StopAgreed(1, 60), *ends, formed(2, "n1.1"))
    stopped = [phase for phase in course.phases if phase.name == "stopped"]
    expected = [] if after_s is None else [(float(after_s), "all workers on n2 have stopped")]
    assert expected == [phase[1:] for phase in stopped][:1]


def test_what_came_in_between_is_named_with_the_verdict() -> None:
    """The signal was taken for the drill's, and Slurm says that it was not."""
    course = follow(
        PREEMPT,
        drain(Cause.PREEMPTION, "n1"),
        DrainExplained(EPOCH, Cause.TIME_LIMIT, "the time limit is reached"),
        formed(2),
    )
    assert ["Slurm says: the time limit is reached"] == [phase.text for phase in course.others]
    assert verdict(course)[1].endswith(
        "not the drill alone was at work: Slurm says: the time limit is reached"
    )


def test_a_run_that_ended_has_not_come_back() -> None:
    """How it ended is said."""
    course = follow(CRASH, crashed("n2", 3), RunEnded(Decision.FAILED, 1, "no restart left", None))
    assert (False, "the run did not come back: it ended failed (no restart left)") == verdict(course)


@pytest.mark.parametrize(("step", "lost"), [(50, 50), (None, None)])
def test_workers_that_tell_no_step_do_not_ask(step: int | None, lost: int | None) -> None:
    """There is no step -1; what is computed again is told only as far as somebody knows it."""
    fault = PREEMPT._replace(step=step)
    course = follow(fault, drain(Cause.PREEMPTION, "n1"), StopAgreed(1, -1), formed(2))
    assert "the workers do not ask whether to stop" == next(
        one.text for one in course.phases if "told" in one.name
    )
    assert (lost, False) == (course.steps_lost, course.agreed)


def test_steps_of_workers_that_may_have_a_state_in_memory_are_at_most_lost() -> None:
    """They tell where they begin with their first step, and the drill is over before that."""
    entries = (crashed("n2", 3), formed(2))
    course = follow(CRASH, *entries, begun={1: 0})
    assert "round 2 on 2 nodes, newest checkpoint: none" == course.phases[-1].text
    assert (None, 50) == (course.steps_lost, course.most_lost)
    assert (True, "the run came back; at most 50 steps computed again") == verdict(course)
    told = follow(CRASH, *entries, begun={1: 0, 2: 49})
    assert "round 2 on 2 nodes, from step 49" == told.phases[-1].text
    assert (True, "the run came back; 1 step computed again") == verdict(told)
