"""What the records within a round do to the state of the run, and those that come too late."""

from __future__ import annotations

import pytest

from hpc_elastic.record.journal import (
    AfterDrain,
    Answer,
    Cause,
    Decision,
    Drained,
    DrainExplained,
    Entry,
    Epoch,
    FailedAlike,
    FailedLeaving,
    HangSuspected,
    NeverAsked,
    NodeLeft,
    NodeSlow,
    NodeTaken,
    NodeUnfit,
    Note,
    Notified,
    RanksStopped,
    Requeued,
    RoundEnded,
    RunEvent,
    StopAgreed,
    WarningHeld,
)
from hpc_elastic.record.progress import BEGINNING
from hpc_elastic.record.state import MOST_FAILED_LEAVING, NO_EPOCH, RunState, fits
from tests.meet.build import (
    E0,
    REQUEUED,
    RESUBMITTED,
    after,
    crash,
    drain,
    ending,
    formed,
    loss,
    node_id,
    start,
)

RUNS = (start(), formed(1))
OVER = (*RUNS, crash(1))
SECOND = (*OVER, formed(2))


def hang(number: int, look: int) -> HangSuspected:
    """Return a suspicion in a round."""
    return HangSuspected(number, look, "n1", "rank 0 for 600 s")


@pytest.mark.parametrize(
    ("entries", "entry", "look"),
    [
        (RUNS, hang(1, 1), 1),
        (RUNS, hang(1, 2), None),
        (RUNS, hang(1, 0), None),
        ((*RUNS, hang(1, 1)), hang(1, 2), 2),
        ((*RUNS, hang(1, 1)), hang(1, 3), 1),
        ((*RUNS, hang(1, 1)), hang(1, 1)._replace(node="n2"), 1),
        (RUNS, hang(2, 1), None),
        (SECOND, hang(1, 1), None),
        (SECOND, hang(2, 1), 1),
        ((start(),), hang(1, 1), None),
        (OVER, hang(1, 1), None),
        ((*RUNS, drain()), hang(1, 1), None),
        ((*RUNS, ending()), hang(1, 1), None),
        ((*RUNS, drain(AfterDrain.REJOIN)), hang(1, 1), 1),
    ],
)
def test_looks_at_a_hang_are_counted_one_by_one(
    entries: tuple[Entry, ...], entry: HangSuspected, look: int | None
) -> None:
    """Only in the round that runs, and while nobody leaves; the first with a number counts."""
    state = after(*entries, entry)
    assert look == (None if state.hang is None else state.hang.look)
    assert state.hang is None or state.hang.node == "n1"


@pytest.mark.parametrize(
    ("entries", "stopped"),
    [
        ((*RUNS, RanksStopped(1, "n1", (0, 1))), {"n1": (0, 1)}),
        ((*RUNS, RanksStopped(1, "n1", (0, 1)), RanksStopped(1, "n1", (1,))), {"n1": (1,)}),
        ((*RUNS, RanksStopped(1, "n1", (0,)), RanksStopped(1, "n2", (2,))), {"n1": (0,), "n2": (2,)}),
        ((*RUNS, RanksStopped(1, "n1", (0,)), RanksStopped(1, "n2", ())), {"n1": (0,)}),
        ((*RUNS, RanksStopped(1, "n1", (0,)), RanksStopped(1, "n1", ())), {}),
        ((*RUNS, RanksStopped(2, "n1", (0,))), {}),
        ((start(), RanksStopped(1, "n1", (0,))), {}),
        ((*OVER, RanksStopped(1, "n1", (0,))), {}),
        ((*RUNS, RanksStopped(1, "n1", (0,)), crash(1)), {}),
        ((*SECOND, RanksStopped(1, "n1", (0,))), {}),
    ],
)
def test_ranks_that_stand_still_are_known_by_their_node(
    entries: tuple[Entry, ...], stopped: dict[str, tuple[int, ...]]
) -> None:
    """Each node tells of its own, in the round that runs; the end of the round forgets them."""
    assert stopped == after(*entries).stopped_ranks


@pytest.mark.parametrize(
    ("entries", "is_held"),
    [
        (RUNS, True),
        ((start(),), False),
        (OVER, False),
        (SECOND, False),
        ((*RUNS, drain()), False),
        ((*RUNS, drain(AfterDrain.REJOIN, Cause.MEMBERSHIP)), False),
    ],
)
def test_a_warning_is_held_back_in_its_round_only(entries: tuple[Entry, ...], is_held: bool) -> None:
    """Once workers are asked there is nothing left to hold back."""
    held = WarningHeld(1, "n1", 600.0, 120.0)
    state = after(*entries, held)
    assert (held if is_held else None) == state.held_warning
    assert after(*OVER, formed(2), state=None).held_warning is None


def test_a_new_round_forgets_the_held_warning_the_hang_and_the_slow_nodes() -> None:
    """They were facts of the old one."""
    slow = NodeSlow(1, "n2", 1, 3.0, 1.0)
    state = after(*RUNS, WarningHeld(1, "n1", 600.0, 120.0), hang(1, 1), slow)
    assert (600.0, 1, {"n2": slow}) == (
        state.held_warning and state.held_warning.left_s,
        state.hang and state.hang.look,
        state.slow,
    )
    state = after(crash(1), formed(2), state=state)
    assert (None, None, {}) == (state.held_warning, state.hang, state.slow)


@pytest.mark.parametrize(
    ("entries", "slow"),
    [
        (RUNS, 3.0),
        ((start(),), None),
        (OVER, None),
        (SECOND, None),
        ((*RUNS, NodeSlow(1, "n2", 1, 2.0, 1.0)), 2.0),
        ((*RUNS, NodeSlow(1, "n3", 1, 2.0, 1.0)), 3.0),
    ],
)
def test_a_slow_node_is_told_once_in_its_round(entries: tuple[Entry, ...], slow: float | None) -> None:
    """The first word on a node counts."""
    found = after(*entries, NodeSlow(1, "n2", 1, 3.0, 1.0)).slow.get("n2")
    assert slow == (None if found is None else found.step_s)


@pytest.mark.parametrize(
    ("entries", "asks"), [(RUNS, False), ((start(),), True), (OVER, True), (SECOND, True)]
)
def test_only_the_round_that_runs_shows_that_workers_do_not_ask(
    entries: tuple[Entry, ...], asks: bool
) -> None:
    """What is said of another one is too late."""
    assert asks is not after(*entries, NeverAsked(1)).never_asks


@pytest.mark.parametrize(
    ("step", "never_asks", "tells"), [(5, False, True), (0, False, True), (-1, True, False)]
)
def test_workers_that_agree_on_a_step_ask_whether_to_stop(step: int, never_asks: bool, tells: bool) -> None:
    """A stop without a step does not show it."""
    state = after(*RUNS, NeverAsked(1), drain(), StopAgreed(1, step))
    assert (step, never_asks, tells) == (state.stop_step, state.never_asks, state.progress.tells)


def test_no_step_is_agreed_on_after_the_round() -> None:
    """Nor one of another round."""
    assert after(*RUNS, drain(), crash(1), StopAgreed(1, 5)).stop_step is None
    assert after(*RUNS, drain(), StopAgreed(2, 5)).stop_step is None
    assert after(*RUNS, StopAgreed(1, 5)).stop_step is None


ALIKE = FailedAlike(E0, 1, "n2")
BOTH = ("n1", "n2")


@pytest.mark.parametrize(
    ("entries", "nodes"),
    [
        ((*OVER, ALIKE), BOTH),
        ((*OVER, ALIKE._replace(node="n1")), ("n1",)),
        ((*OVER, ALIKE, ALIKE._replace(node="n3")), BOTH),
        ((*OVER, ALIKE._replace(number=2)), ("n1",)),
        ((*OVER, ALIKE._replace(epoch=REQUEUED)), ("n1",)),
        ((*RUNS, RoundEnded(1, Cause.CRASH, (), None), ALIKE), ()),
        ((*RUNS, crash(1)._replace(nodes=("n1", "n3")), ALIKE), ("n1", "n3")),
    ],
)
def test_one_more_node_that_failed_alike_is_named_in_the_end_of_the_round(
    entries: tuple[Entry, ...], nodes: tuple[str, ...]
) -> None:
    """One is enough, of the same round; the row of the same failures has the same end."""
    state = after(*entries)
    assert state.ended is not None
    assert nodes == state.ended.nodes
    assert (nodes,) == tuple(one.nodes for one in state.repeated)


def test_who_failed_alike_changes_the_newest_failure_alone() -> None:
    """Those before it stay in the row; an end that is no failure is in no row."""
    state = after(*OVER, formed(2), crash(2), ALIKE._replace(number=2))
    assert (("n1",), BOTH) == tuple(one.nodes for one in state.repeated)
    state = after(*OVER, formed(2), loss(2, "n3"), ALIKE._replace(number=2))
    assert (("n1",),) == tuple(one.nodes for one in state.repeated)
    assert state.ended is not None
    assert ("n3", "n2") == state.ended.nodes
    assert () == after(*RUNS, loss(1, "n3"), ALIKE).repeated
    assert not fits(after(*RUNS), ALIKE)


def failed(node: str, number: int = 1, epoch: Epoch = E0) -> FailedLeaving:
    """Return a worker that failed as all were leaving."""
    return FailedLeaving(epoch, number, node, {"rank": 1})


LEAVES = (*RUNS, drain())


@pytest.mark.parametrize(
    ("entries", "entry", "nodes"),
    [
        (LEAVES, failed("n2"), ("n2",)),
        ((*LEAVES, failed("n2")), failed("n2")._replace(failure={"rank": 3}), ("n2",)),
        ((*LEAVES, failed("n2")), failed("n3"), ("n2", "n3")),
        (RUNS, failed("n2"), ()),
        ((*RUNS, drain(AfterDrain.REJOIN)), failed("n2"), ()),
        (LEAVES, failed("n2", number=2), ()),
        (LEAVES, failed("n2", epoch=REQUEUED), ()),
        ((*LEAVES, crash(1)), failed("n2"), ()),
        ((start(), drain()), failed("n2"), ()),
    ],
)
def test_who_fails_while_all_leave_is_told_once_a_node(
    entries: tuple[Entry, ...], entry: FailedLeaving, nodes: tuple[str, ...]
) -> None:
    """In the round that is left, of this start."""
    assert nodes == tuple(one.node for one in after(*entries, entry).failed_leaving)


def test_of_many_nodes_that_fail_while_all_leave_some_are_told() -> None:
    """The others would say the same."""
    many = [failed(f"m{number}") for number in range(MOST_FAILED_LEAVING + 2)]
    assert tuple(many[:MOST_FAILED_LEAVING]) == after(*LEAVES, *many).failed_leaving


def explained(cause: Cause, detail: str = "said", answer: Answer = Answer.CONFIRMS) -> DrainExplained:
    """Return Slurm's answer about a signal."""
    return DrainExplained(E0, cause, detail, answer=answer)


@pytest.mark.parametrize(
    ("asked", "entry", "cause", "said"),
    [
        (drain(), explained(Cause.TIME_LIMIT), Cause.TIME_LIMIT, "said"),
        (drain(), explained(Cause.TIME_LIMIT)._replace(epoch=REQUEUED), Cause.PREEMPTION, None),
        (drain(cause=Cause.STOP), explained(Cause.TIME_LIMIT), Cause.STOP, "said"),
        (drain(cause=Cause.INTERRUPT), explained(Cause.TIME_LIMIT), Cause.INTERRUPT, "said"),
        (drain(AfterDrain.REJOIN, Cause.MEMBERSHIP), explained(Cause.TIME_LIMIT), Cause.MEMBERSHIP, None),
    ],
)
def test_slurm_explains_a_signal(asked: Entry, entry: DrainExplained, cause: Cause, said: str | None) -> None:
    """Its answer gives the cause, other than that of a user's wish; where no signal asked it says nothing."""
    state = after(*RUNS, asked, entry)
    assert state.drain is not None
    assert (cause, said) == (state.drain.cause, state.explained and state.explained.detail)
    is_of_signal = said is not None and cause is Cause.TIME_LIMIT
    assert (Answer.CONFIRMS, "said") == (state.drain.asked.answer, state.drain.asked.said) or not is_of_signal


def test_the_same_explanation_changes_nothing() -> None:
    """Another cause, or other words, do; without a drain there is nothing to explain."""
    first = explained(Cause.TIME_LIMIT)
    state = after(*RUNS, drain(), first)
    assert not fits(state, first._replace(left_s=5.0, answer=Answer.DENIES))
    assert fits(state, explained(Cause.PREEMPTION))
    assert fits(state, explained(Cause.TIME_LIMIT, "more"))
    assert not fits(after(*RUNS), first)
    assert after(crash(1), state=after(*RUNS, drain(), first)).explained == first


@pytest.mark.parametrize("answer", [Answer.REQUEUES, Answer.SILENT])
def test_an_explanation_without_a_cause_replaces_none_that_names_it(answer: Answer) -> None:
    """An agent has given the job back before another signal was asked about: Slurm shows no cause then."""
    killed, unnamed = explained(Cause.LAUNCH_FAILURE), explained(Cause.PREEMPTION, "requeued", answer)
    assert not fits(after(*RUNS, drain(), killed), unnamed)
    assert fits(after(*RUNS, drain(), unnamed), killed)
    assert fits(after(*RUNS, drain(), explained(Cause.PREEMPTION, "?", Answer.DENIES)), unnamed)


def test_the_loss_and_the_message_are_noted_as_they_are_told() -> None:
    """By the record of the loss, and by the event and what it is about."""
    state = after(*OVER, NodeTaken(E0, "n2", "set down", 3), NodeTaken(E0, "n3", "set down", 4))
    assert frozenset({3, 4}) == state.taken
    sent = [Notified(E0, event, 7) for event in list(RunEvent)[:2]]
    state = after(*OVER, *sent)
    assert {(one.event, 7) for one in sent} == state.notified
    assert state.notified == after(start(REQUEUED), state=state).notified


def test_a_note_of_an_older_start_is_not_shown() -> None:
    """The newest one of this start is."""
    state = after(start(REQUEUED), Note(REQUEUED, "new"))
    assert not fits(state, Note(E0, "old"))
    assert Note(REQUEUED, "newer") == after(Note(REQUEUED, "newer"), state=state).note
    assert NO_EPOCH < E0
    assert RunState().note is None


@pytest.mark.parametrize(("step", "newest"), [(40, 40), (0, 0), (None, BEGINNING)])
def test_a_start_is_drained_with_what_was_saved(step: int | None, newest: int) -> None:
    """The step of the drain is known then."""
    assert newest == after(*LEAVES, Drained(E0, Cause.PREEMPTION, step, "")).progress.newest


def same(number: int, message: str = "boom", saved: int | None = None) -> RoundEnded:
    """Return a failure of a round."""
    return RoundEnded(number, Cause.CRASH, ("n1",), {"message": message}, saved)


@pytest.mark.parametrize(
    ("ends", "rows"),
    [
        ((same(1), same(2)), 2),
        ((same(1), same(2, "bang")), 1),
        ((same(1), same(2, saved=5)), 1),
        ((same(1), same(2, saved=5), same(3, saved=5)), 2),
        ((same(1), same(2, "bang"), same(3, "bang")), 2),
        ((same(1), same(2), same(3, "bang"), same(4, "bang")), 2),
        ((same(1), RoundEnded(2, Cause.MEMBERSHIP, (), None)), 1),
        ((same(1), RoundEnded(2, Cause.MEMBERSHIP, (), None), same(3)), 2),
        ((RoundEnded(1, Cause.MEMBERSHIP, (), None),), 0),
    ],
)
def test_the_same_failure_is_counted_as_long_as_nothing_is_saved(
    ends: tuple[RoundEnded, ...], rows: int
) -> None:
    """Another failure, or another saved step, begins a new row; other ends are in none."""
    state = after(start(), *(entry for end in ends for entry in (formed(end.number), end)))
    assert tuple(end for end in ends if end.cause is Cause.CRASH)[-rows:] == state.repeated or rows == 0
    assert rows == len(state.repeated)
    assert state.repeated == after(start(REQUEUED), state=state).repeated
    assert () == after(start(RESUBMITTED), state=state).repeated


def test_a_crash_that_a_lost_node_explains_leaves_the_row() -> None:
    """Those before it stay; a node that was lost before any round explains nothing."""
    state = after(*OVER, formed(2), crash(2), formed(3, ("n1",))._replace(lost=("n2",)))
    assert (crash(1),) == state.repeated
    assert frozenset({"n9"}) == after(start(), formed(1)._replace(lost=("n9",))).lost


def test_an_unfit_node_stays_so_until_it_is_in_a_round() -> None:
    """What another start says, or what is said after the end, changes nothing."""
    unfit = NodeUnfit(E0, "n3", "why")
    state = after(start(), unfit, formed(1, ("n1", "n2")))
    assert ({"n3": "why"}, frozenset({"n3"})) == (state.unfit, state.lost)
    assert {} == after(crash(1), formed(2), state=state).unfit
    assert not fits(after(start()), unfit._replace(epoch=REQUEUED))
    assert not fits(after(start(), ending()), unfit)


def gone(node: str, cause: Cause = Cause.TIME_LIMIT, epoch: Epoch = E0) -> NodeLeft:
    """Return the goodbye of a node."""
    return NodeLeft(epoch, node_id(node), node, cause, "")


@pytest.mark.parametrize(
    ("entries", "end"),
    [
        ((*RUNS, gone("n2")), (Cause.TIME_LIMIT, ("n2",))),
        ((*RUNS, gone("n2", epoch=REQUEUED)), None),
        ((*RUNS, gone("n9")), None),
        ((start(), gone("n2")), None),
        ((*LEAVES, gone("n2"), gone("n3")), None),
        ((*LEAVES, gone("n2"), gone("n3"), gone("n1")), (Cause.PREEMPTION, ("n1",))),
    ],
)
def test_a_round_that_its_nodes_have_left_is_over(
    entries: tuple[Entry, ...], end: tuple[Cause, tuple[str, ...]] | None
) -> None:
    """Without a drain the first one ends it; with one the last, for the reason of the drain."""
    ended = after(*entries).ended
    assert end == (None if ended is None else (ended.cause, ended.nodes))


def test_nobody_has_left_a_round_that_is_not() -> None:
    """Nor the round, as long as one of its nodes is there."""
    assert not after(start(), gone("n1")).deserted
    assert not after(*LEAVES, gone("n1"), gone("n2")).deserted
    assert after(*LEAVES, gone("n1"), gone("n2"), gone("n3")).deserted


@pytest.mark.parametrize(
    ("first", "then", "decision"),
    [
        (Decision.HELD, Decision.STOPPED, Decision.STOPPED),
        (Decision.HELD, Decision.CANCELLED, Decision.CANCELLED),
        (Decision.HELD, Decision.FAILED, Decision.HELD),
        (Decision.FAILED, Decision.STOPPED, Decision.FAILED),
        (Decision.DONE, Decision.CANCELLED, Decision.DONE),
    ],
)
def test_only_a_held_run_is_ended_once_more(first: Decision, then: Decision, decision: Decision) -> None:
    """By its user."""
    state = after(*OVER, ending(first), ending(then))
    assert state.ending is not None
    assert decision is state.ending.decision


def test_another_start_does_not_end_the_run() -> None:
    """Its agents live on and know less."""
    assert after(*OVER, ending()._replace(epoch=REQUEUED)).ending is None
    assert after(*OVER, ending()._replace(epoch=E0)).ending is not None


@pytest.mark.parametrize(
    ("entries", "cause", "used"),
    [
        ((*RUNS, RoundEnded(1, Cause.PREEMPTION, ("n1",), None)), Cause.PREEMPTION, 2),
        ((*RUNS, loss(1, "n2")), Cause.NODE_LOSS, 1),
        (RUNS, Cause.NODE_LOSS, 1),
        (
            (start(), NodeUnfit(E0, "n3", "why"), Drained(E0, Cause.NODE_LOSS, None, "")),
            Cause.NODE_LOSS,
            0,
        ),
    ],
)
def test_a_start_is_requeued_once(entries: tuple[Entry, ...], cause: Cause, used: int) -> None:
    """The loss of a node counts with its round; nodes that are unfit are not lost."""
    state = after(*entries, Requeued(E0, cause), Requeued(E0, cause))
    assert (used, 1, True) == (state.used(cause), state.requeues, state.requeued)
    assert not after(start(REQUEUED), state=state).requeued


@pytest.mark.parametrize(("then", "stays"), [(AfterDrain.LEAVE, True), (AfterDrain.REJOIN, False)])
def test_a_stop_that_a_requeue_has_overtaken_is_still_wanted(then: AfterDrain, stays: bool) -> None:
    """Other than a pause, which is over with the start."""
    state = after(*RUNS, drain(then, Cause.STOP), start(REQUEUED))
    assert stays is (state.drain is not None)
