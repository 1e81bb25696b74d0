"""The cause of each stop, with the node or the line to blame, from the records that tell it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hpc_elastic.account.account import account_of
from hpc_elastic.account.facts import Doing, WorkFact
from hpc_elastic.account.spans import History
from hpc_elastic.account.stops import Stop
from hpc_elastic.record.journal import (
    AfterDrain,
    Answer,
    Asked,
    Cause,
    Decision,
    Drained,
    DrainExplained,
    DrainRequested,
    DrillBegan,
    DrillCalledOff,
    Entry,
    Epoch,
    EpochStarted,
    Member,
    NodeLeft,
    NodeTaken,
    NodeUnfit,
    Note,
    Record,
    Requeued,
    Role,
    RoundEnded,
    RoundFormed,
    RunEnded,
    SetupFailure,
)
from hpc_elastic.report.explain.facts import StopFact
from hpc_elastic.report.explain.words import cause_of

EPOCH = Epoch(0, 0, 0, 0)
NODES = ("n1", "n2", "n3")
STARTED = EpochStarted(EPOCH, "7", NODES, "n1")
MEMBERS = tuple(Member(f"{name}.1", name, 1) for name in NODES)
FIRST = RoundFormed(1, EPOCH, MEMBERS, "n1", 1, None)
SIGTERM = Asked("SIGTERM")
LEAVE = DrainRequested(Cause.PREEMPTION, "n1", AfterDrain.LEAVE, "", EPOCH, asked=SIGTERM)
ELASTIC = EpochStarted(EPOCH, "7", NODES)  # of an array, which has no batch host


def stops(*entries: Entry, facts: Sequence[WorkFact] = (), ender: Role = Role.SCRIPT) -> list[Stop]:
    """Return the stops of a run by its records, one each second; `ender` writes its end."""
    records = [
        Record(number, float(number), "n1", entry, ender if isinstance(entry, RunEnded) else Role.AGENT)
        for number, entry in enumerate(entries, 1)
    ]
    return [one.stop for one in account_of(History(records, facts)).stops]


def text(stop: Stop) -> str:
    """Return the cause of a stop for people."""
    return cause_of(StopFact(stop, stop, 1, 0.0, 0, stop.nodes))


def test_a_cancelled_run_was_cancelled_though_its_agents_heard_only_a_signal() -> None:
    """Slurm may be too slow to say what the signal means; the ending of the run tells it."""
    drained = Drained(EPOCH, Cause.PREEMPTION, None, "", asked=SIGTERM)
    (stop,) = stops(STARTED, FIRST, LEAVE, drained, RunEnded(Decision.CANCELLED, 1, "cancelled", None))
    assert (Cause.CANCEL, "the job was cancelled") == (stop.cause, text(stop))


def test_a_run_cancelled_in_the_grace_of_a_preemption_was_preempted() -> None:
    """Slurm has confirmed the preemption, which stopped the workers."""
    said = DrainExplained(EPOCH, Cause.PREEMPTION, "preempted", answer=Answer.CONFIRMS)
    (stop,) = stops(STARTED, FIRST, LEAVE, said, RunEnded(Decision.CANCELLED, 1, "cancelled", None))
    assert Cause.PREEMPTION is stop.cause


@pytest.mark.parametrize(
    ("answer", "back", "ender", "cause"),
    [
        (Answer.REQUEUES, (), Role.COMMAND, Cause.PREEMPTION),
        (None, (Requeued(EPOCH, Cause.PREEMPTION),), Role.COMMAND, Cause.PREEMPTION),
        (None, (Requeued(EPOCH, Cause.PREEMPTION),), Role.SCRIPT, Cause.CANCEL),
    ],
    ids=["back by Slurm", "back by its script", "never back"],
)
def test_a_run_cancelled_in_the_queue_had_stopped_for_another_reason(
    answer: Answer | None, back: tuple[Entry, ...], ender: Role, cause: Cause
) -> None:
    """A script that wants to put its job back may find it cancelled; that is no queue."""
    said = () if answer is None else (DrainExplained(EPOCH, Cause.PREEMPTION, "requeued", answer=answer),)
    way = (LEAVE, *said, Drained(EPOCH, Cause.PREEMPTION, None, "", asked=SIGTERM), *back)
    (stop,) = stops(STARTED, FIRST, *way, RunEnded(Decision.CANCELLED, 1, "cancelled", None), ender=ender)
    assert cause is stop.cause


def test_a_preemption_before_the_first_step_is_one_stop_that_no_round_has_followed() -> None:
    """The workers tell the step that they go on from after Slurm has asked for their nodes."""
    lines = [
        WorkFact(1, Doing.STARTED, 2.1, 2.1, "n1.1", 2),
        WorkFact(1, Doing.STEP, 3.5, 3.5, "n1.1", 3, 1, began=0),
    ]
    (stop,) = stops(
        STARTED, FIRST, LEAVE, Drained(EPOCH, Cause.PREEMPTION, 1, "", asked=SIGTERM), facts=lines
    )
    assert (1, None, True) == (stop.step, stop.resumed, stop.left)


def test_the_answer_of_slurm_is_the_cause_before_the_nodes_have_left() -> None:
    """Whoever looks at a run that drains sees why."""
    (stop,) = stops(STARTED, FIRST, LEAVE, DrainExplained(EPOCH, Cause.REQUEUE, "requeued by hand"))
    assert Cause.REQUEUE is stop.cause


def test_a_signal_that_nobody_could_explain_is_not_called_a_preemption() -> None:
    """The agent was killed as it had asked; the next submission goes on, and records nothing of that."""
    again = EpochStarted(EPOCH._replace(submission=1), "8", NODES, "n1")
    stop = stops(STARTED, FIRST, LEAVE, again)[0]
    assert ("SIGTERM", "SIGTERM, and Slurm did not say why") == (stop.asker.signal, text(stop))
    told = DrainExplained(EPOCH, Cause.PREEMPTION, "preempted", answer=Answer.CONFIRMS)
    stop = stops(STARTED, FIRST, LEAVE, told, again)[0]
    assert ("", "preemption") == (stop.asker.signal, text(stop))


def test_agents_that_vanished_with_their_srun_are_told_by_what_the_script_saw() -> None:
    """Their nodes and their job are there: the script has started them again."""
    said = "srun ended with exit code 137"
    again = EpochStarted(Epoch(0, 0, 0, 1), "7", NODES, "n1")
    (stop,) = stops(STARTED, FIRST, Note(EPOCH, said), again)
    assert (Cause.AGENT_ERROR, said, said, False) == (stop.cause, stop.detail, text(stop), stop.left)
    (stop,) = stops(STARTED, FIRST, EpochStarted(Epoch(0, 0, 1, 0), "7", NODES, "n1"))
    assert (None, True) == (stop.cause, stop.left)


def test_nodes_that_are_unfit_are_not_called_lost() -> None:
    """The node is named with the reason of its probe."""
    unfit, left = NodeUnfit(EPOCH, "n2", "the link is slow"), Drained(EPOCH, Cause.NODE_LOSS, None, "")
    (stop,) = stops(STARTED, unfit, left, Requeued(EPOCH, Cause.NODE_LOSS))
    assert (Cause.NODE_LOSS, ("n2",), {"n2": "the link is slow"}) == (stop.cause, stop.nodes, stop.unfit)
    assert "1 node unfit: n2 (the link is slow)" == text(stop)


def test_nodes_that_a_user_had_slurm_take_are_not_called_lost() -> None:
    """The record of that comes later, and names the one of the loss."""
    lost = RoundEnded(1, Cause.NODE_LOSS, ("n2", "n3"), None)
    taken = NodeTaken(EPOCH, "n3", "it was set down in Slurm", 3)
    (stop,) = stops(STARTED, FIRST, lost, taken)
    assert {"n3": "it was set down in Slurm"} == stop.taken
    assert "lost n2; n3 was taken away: it was set down in Slurm" == text(stop)


def test_nodes_that_never_came_are_named() -> None:
    """They are to blame for a start that is given up."""
    said = "2 of 3 nodes joined; missing: n2"
    left = Drained(EPOCH, Cause.JOIN_TIMEOUT, None, said, missing=("n2",))
    (stop,) = stops(STARTED, left, Requeued(EPOCH, Cause.JOIN_TIMEOUT, said))
    assert (Cause.JOIN_TIMEOUT, ("n2",)) == (stop.cause, stop.nodes)
    assert f"too few nodes came: {said}" == text(stop)


def test_what_took_the_nodes_is_the_cause_not_that_too_few_are_left() -> None:
    """After a preemption of some tasks of an array the others wait in vain, and leave as well."""
    ended = RoundEnded(1, Cause.PREEMPTION, ("n2",), None)
    (stop,) = stops(ELASTIC, FIRST, ended, Drained(EPOCH, Cause.JOIN_TIMEOUT, None, "1 of 2 nodes"))
    assert (Cause.PREEMPTION, True) == (stop.cause, stop.left)


@pytest.mark.parametrize(
    ("requeued", "told"),
    [
        (
            Requeued(EPOCH, Cause.LAUNCH_FAILURE, "setup failed", SetupFailure("source env", "setup", 1)),
            "setup failed (exit code 1): source env",
        ),
        (Requeued(EPOCH, Cause.LAUNCH_FAILURE, "the batch script was killed"), "the batch script was killed"),
        (Requeued(EPOCH, Cause.LAUNCH_FAILURE), "the agents could not start"),
    ],
)
def test_what_could_not_start_is_told(requeued: Requeued, told: str) -> None:
    """A line of the job script, or the script itself; only without either it is the agents."""
    (stop,) = stops(STARTED, requeued)
    assert (Cause.LAUNCH_FAILURE, requeued.failure, told) == (stop.cause, stop.setup, text(stop))


def test_each_node_of_an_array_that_was_called_away_is_named_with_its_reason() -> None:
    """Also one that leaves while the others stop for another one; one that follows a wish is not."""
    away = [
        NodeLeft(EPOCH, "n2.1", "n2", Cause.REQUEUE),
        NodeLeft(EPOCH, "n3.1", "n3", Cause.PREEMPTION, asked=Asked("SIGTERM", Answer.DENIES)),
    ]
    wish = DrainRequested(Cause.REQUEUE, "n2", AfterDrain.REJOIN, "", EPOCH)
    (stop,) = stops(ELASTIC, FIRST, wish, away[0], RoundEnded(1, Cause.REQUEUE, ("n2",), None), away[1])
    assert (Cause.REQUEUE, ("n2", "n3")) == (stop.cause, stop.nodes)
    by_hand, by_signal = "the task was requeued with scontrol requeue", "a SIGTERM that a user sent"
    assert f"n2 left: {by_hand}; n3 left: {by_signal}" == text(stop)
    asked = DrainRequested(Cause.STOP, "", AfterDrain.LEAVE, "hpc-elastic stop")
    (stop,) = stops(ELASTIC, FIRST, asked, away[0])
    assert ((), "stopped by the user") == (stop.leavers, text(stop))


def test_a_signal_that_slurm_explains_as_a_node_leaves_is_no_preemption() -> None:
    """One that stays one for another node is."""
    away = [
        NodeLeft(EPOCH, "n2.1", "n2", Cause.CANCEL),
        NodeLeft(EPOCH, "n3.1", "n3", Cause.PREEMPTION, asked=Asked("SIGTERM", Answer.CONFIRMS)),
    ]
    signal = RoundEnded(1, Cause.PREEMPTION, ("n2",), None)
    (stop,) = stops(ELASTIC, FIRST, signal, away[0])
    assert (Cause.CANCEL, ("n2",)) == (stop.cause, stop.nodes)
    (stop,) = stops(ELASTIC, FIRST, signal, *reversed(away))
    assert (Cause.PREEMPTION, {"n2", "n3"}) == (stop.cause, set(stop.nodes))


def test_a_drill_is_told_as_one() -> None:
    """So that nobody looks for a fault at night; one that was called off has done nothing."""
    drill = DrillBegan(EPOCH, "1", "n3", "drill: the agent on n3 is killed")
    lost = RoundEnded(1, Cause.NODE_LOSS, ("n3",), None)
    (stop,) = stops(STARTED, FIRST, drill, lost)
    assert "lost n3; drill: the agent on n3 is killed" == text(stop)
    (stop,) = stops(STARTED, FIRST, drill, DrillCalledOff(EPOCH, "1", "nothing was struck"), lost)
    assert "lost n3" == text(stop)


def test_a_round_that_paused_for_nodes_which_never_came_has_ended_for_want_of_them() -> None:
    """That it paused for another membership says nothing of the end."""
    said = "1 of 2 nodes joined; missing: n2"
    paused = RoundEnded(1, Cause.MEMBERSHIP, (), None)
    (stop,) = stops(STARTED, FIRST, paused, Drained(EPOCH, Cause.JOIN_TIMEOUT, None, said, missing=("n2",)))
    assert (Cause.JOIN_TIMEOUT, ("n2",)) == (stop.cause, stop.nodes)
