"""The fold of the journal: what each record does, and what it may not do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.record.journal import (
    AfterDrain,
    Budget,
    Cause,
    Decision,
    Drained,
    Entry,
    Epoch,
    NeverAsked,
    NodeLeft,
    NodeUnfit,
    Record,
    Requeued,
    RoundEnded,
    RunEnded,
    SizeWanted,
    StopAgreed,
    StopKind,
    TaskStopped,
)
from hpc_elastic.record.state import RunState, apply, fits, fold
from tests.meet.build import (
    E0,
    NODES,
    RELAUNCHED,
    REQUEUED,
    RESUBMITTED,
    after,
    crash,
    drain,
    ending,
    formed,
    loss,
    member,
    node_id,
    start,
)
from tests.record import records

DRAINED = Drained(E0, Cause.PREEMPTION, 100, "")


def test_an_epoch_opens_the_run() -> None:
    """The first start tells the job and the nodes that are to come."""
    state = after(start())
    assert (E0, "17", NODES) == (state.epoch, state.job_id, state.expected)
    assert state.running is None
    assert not state.leaving


@pytest.mark.parametrize("newer", [RELAUNCHED, REQUEUED, RESUBMITTED])
def test_a_newer_epoch_starts_anew(newer: Epoch) -> None:
    """A newer start forgets the nodes lost, the drain and the round of the older one."""
    state = after(start(), formed(1), loss(1, "n2"), drain(), DRAINED, start(newer, ("n7",)))
    assert newer == state.epoch
    assert ("n7",) == state.expected
    assert (None, None, None) == (state.round, state.drain, state.drained)
    assert frozenset() == state.lost
    assert not state.leaving


@pytest.mark.parametrize("epoch", [E0, REQUEUED])
def test_an_epoch_is_announced_once(epoch: Epoch) -> None:
    """The same start again, or an older one, changes nothing."""
    state = after(start(REQUEUED), formed(1, epoch=REQUEUED))
    assert not fits(state, start(epoch, ("other",)))


def test_epochs_are_ordered() -> None:
    """A requeue beats a relaunch, a submission beats both."""
    assert Epoch(0, 0, 0, 5) < Epoch(0, 0, 1, 0) < Epoch(0, 0, 7, 3) < Epoch(1, 0, 0, 0)


def test_rounds_are_numbered_for_life() -> None:
    """A round's number goes on over requeues and submissions."""
    state = after(start(), formed(1), start(REQUEUED), formed(2, epoch=REQUEUED), start(RESUBMITTED))
    assert not fits(state, formed(1, epoch=RESUBMITTED))
    assert 3 == after(formed(3, epoch=RESUBMITTED), state=state).rounds


def test_a_round_is_formed_once() -> None:
    """Whoever comes second with a round finds it formed."""
    state = after(start(), formed(1))
    assert not fits(state, formed(1, ("n1",)))
    assert not fits(state, formed(2))


def test_a_round_of_an_older_epoch_is_refused() -> None:
    """A leader that was frozen over a requeue forms no round in the new start."""
    assert not fits(after(start(), start(REQUEUED)), formed(1, epoch=E0))


@pytest.mark.parametrize("last", [drain(), DRAINED, ending()])
def test_no_round_is_formed_while_leaving(last: Entry) -> None:
    """Once the run is being left, or has ended, nobody starts workers again."""
    state = after(start(), formed(1), crash(1), last)
    assert state.leaving
    assert not fits(state, formed(2))


def test_a_round_clears_the_way() -> None:
    """A new round forgets the pause that led to it, and takes back nodes that have returned."""
    pause = drain(AfterDrain.REJOIN, Cause.MEMBERSHIP)
    state = after(start(), formed(1), pause, StopAgreed(1, 5), loss(1, "n2", "n3"), formed(2, ("n1", "n2")))
    assert (None, None, None) == (state.drain, state.stop_step, state.ended)
    assert frozenset({"n3"}) == state.lost


def test_a_round_ends_once() -> None:
    """The first cause counts; the others who saw the same thing change nothing."""
    state = after(start(), formed(1), crash(1))
    assert state.running is None
    assert not fits(state, loss(1, "n2"))
    assert not fits(state, crash(1))
    assert 1 == state.crashes


def test_a_late_end_does_not_hit_the_next_round() -> None:
    """An end of round 1 that arrives in round 2 changes nothing."""
    assert not fits(after(start(), formed(1), crash(1), formed(2)), crash(1))


def test_only_a_loss_makes_nodes_lost() -> None:
    """A crash names where it happened, but the node is still there."""
    assert frozenset() == after(start(), formed(1), crash(1)).lost
    assert frozenset({"n2"}) == after(start(), formed(1), loss(1, "n2")).lost


def test_budgets_live_over_requeues() -> None:
    """Failures and requeues are counted over all starts of a submission."""
    state = after(start(), formed(1), crash(1), formed(2), crash(2), Requeued(E0, Cause.PREEMPTION))
    state = after(start(REQUEUED), formed(3, epoch=REQUEUED), crash(3), state=state)
    assert (3, 1) == (state.crashes, state.requeues)


def test_a_resubmission_renews_the_budgets() -> None:
    """Who submits the run again starts with full budgets."""
    state = after(start(), formed(1), crash(1), Requeued(E0, Cause.PREEMPTION), start(RESUBMITTED))
    assert (0, 0) == (state.crashes, state.requeues)


def test_a_requeue_of_an_older_epoch_is_refused() -> None:
    """A batch script that was left behind counts for nothing."""
    assert not fits(after(start(), start(REQUEUED)), Requeued(E0, Cause.PREEMPTION))


def test_causes_are_counted_apart() -> None:
    """Lost nodes and changes of membership are no failures of the workers."""
    state = after(
        start(), formed(1), loss(1, "n2"), formed(2), RoundEnded(2, Cause.MEMBERSHIP, (), None), formed(3)
    )
    assert 0 == state.crashes
    assert {Cause.NODE_LOSS: 1, Cause.MEMBERSHIP: 1} == state.counts


def test_leaving_beats_rejoining() -> None:
    """A preemption that comes during a pause turns it into leaving, not the other way round."""
    pause = drain(AfterDrain.REJOIN, Cause.MEMBERSHIP)
    paused = after(start(), formed(1), pause)
    assert drain() == after(drain(), state=paused).drain
    assert not fits(after(start(), formed(1), drain()), pause)


def test_a_pause_needs_a_round() -> None:
    """Between rounds there is nobody to pause; and one pause is enough."""
    pause = drain(AfterDrain.REJOIN, Cause.MEMBERSHIP)
    assert not fits(after(start()), pause)
    assert not fits(after(start(), formed(1), crash(1)), pause)
    assert not fits(
        after(start(), formed(1), pause), drain(AfterDrain.REJOIN, Cause.MEMBERSHIP)._replace(node="n2")
    )


def test_a_preemption_between_rounds_counts() -> None:
    """Who is told to leave while nothing runs leaves."""
    assert after(start(), drain()).leaving


def test_one_stop_step_is_agreed_on() -> None:
    """The first agreed step stands, and only during a drain of the running round."""
    running = after(start(), formed(1))
    assert not fits(running, StopAgreed(1, 5))
    state = after(drain(), StopAgreed(1, 5), state=running)
    assert 5 == state.stop_step
    assert not fits(state, StopAgreed(1, 6))
    assert not fits(after(drain(), state=running), StopAgreed(2, 5))


def test_one_start_is_drained_once() -> None:
    """The first word on a drain stands, and an older start says nothing any more."""
    state = after(start(), formed(1), drain(), DRAINED)
    assert not fits(state, DRAINED._replace(step=200))
    assert not fits(after(start(), start(REQUEUED)), DRAINED)


@pytest.mark.parametrize("decision", list(Decision))
def test_a_run_ends_once(decision: Decision) -> None:
    """The first ending is the ending; a drain or requeue does not change it."""
    state = after(start(), formed(1), ending(decision))
    assert not fits(state, ending(Decision.FAILED))
    assert not fits(state, DRAINED)
    assert not fits(state, drain())
    assert fits(state, start(REQUEUED)) == (decision is Decision.HELD)


def test_a_resubmission_opens_an_ended_run() -> None:
    """A run that has ended goes on only when somebody submits it again."""
    state = after(start(), formed(1), ending(Decision.FAILED), start(RESUBMITTED))
    assert state.ending is None
    assert not state.leaving


@given(entries=st.lists(records.entries, max_size=25))
def test_what_does_not_fit_changes_nothing(entries: list[Entry]) -> None:
    """`fits` is right about every record in every state."""
    state = RunState()
    for entry in entries:
        new = apply(state, entry)
        assert fits(state, entry) == (new != state)
        state = new


@given(entries=st.lists(records.entries, max_size=25), cut=st.integers(0, 25))
def test_reading_in_parts_is_reading_at_once(entries: list[Entry], cut: int) -> None:
    """Whoever reads the journal in two parts holds the same state as who reads it whole."""
    numbered = [Record(i, 0.0, "", entry) for i, entry in enumerate(entries, 1)]
    whole = fold(RunState(), numbered)
    assert whole == fold(fold(RunState(), numbered[:cut]), numbered[cut:])
    assert len(entries) == whole.last


@given(entries=st.lists(records.entries, max_size=40))
def test_the_state_never_goes_back(entries: list[Entry]) -> None:
    """Epoch and round number only grow; within a submission so do the budgets; an ending stays.

    Only a run that is held may be ended by its user.
    """
    old = RunState()
    for entry in entries:
        new = apply(old, entry)
        assert new.epoch >= old.epoch
        assert new.rounds - old.rounds in (0, 1)
        if new.epoch.submission == old.epoch.submission:
            assert new.crashes >= old.crashes
            assert new.requeues >= old.requeues
            if old.ending is not None and old.ending != new.ending:
                assert new.ending is not None
                assert Decision.HELD is old.ending.decision
                assert new.ending.decision in (Decision.STOPPED, Decision.CANCELLED)
        if new.running is not None:
            assert new.epoch == new.running.epoch
        old = new


@given(entries=st.lists(records.entries, max_size=30))
def test_a_record_takes_effect_once(entries: list[Entry]) -> None:
    """A record that was written twice by agents that saw the same thing counts once."""
    state = RunState()
    for entry in entries:
        state = apply(state, entry)
        if not isinstance(entry, Requeued):
            assert not fits(state, entry) or entry == state.drain


def test_a_crash_beside_a_lost_node_is_counted_as_the_loss() -> None:
    """When the next round forms without a vanished node, the crash before it costs no restart."""
    before = (start(), formed(1, ("n1", "n2")), crash(1))
    assert 1 == after(*before).crashes
    state = after(*before, formed(2, ("n1",))._replace(lost=("n2",)))
    assert (0, 1) == (state.crashes, state.counts[Cause.NODE_LOSS])
    assert frozenset({"n2"}) == state.lost


def test_a_loss_that_ended_no_round_counts_when_the_job_is_requeued() -> None:
    """One that did is counted already."""
    requeue = Requeued(E0, Cause.NODE_LOSS)
    assert 1 == after(start(), formed(1), requeue).used(Cause.NODE_LOSS)
    assert 1 == after(start(), formed(1), loss(1, "n2"), requeue).used(Cause.NODE_LOSS)
    assert 1 == after(start(), formed(1), crash(1), requeue).used(Cause.NODE_LOSS)


def test_a_size_for_an_older_submission_is_refused() -> None:
    """Who asked did not know of the newer one."""
    state = after(start(RESUBMITTED))
    assert state.size == after(SizeWanted(0, 2, "late"), state=state).size
    assert SizeWanted(1, 2, "now") == after(SizeWanted(1, 2, "now"), state=state).size


def test_failures_and_hangs_are_restarts() -> None:
    """A round that ended to take in a node is none."""
    ends = [
        RoundEnded(number, cause, (), None)
        for number, cause in enumerate((Cause.CRASH, Cause.HANG, Cause.MEMBERSHIP), 1)
    ]
    entries = [entry for ended in ends for entry in (formed(ended.number), ended)]
    assert 2 == after(start(), *entries).restarts


def test_a_request_of_another_start_asks_for_nothing() -> None:
    """An agent that lives on from an earlier start drains nobody."""
    asked = drain()
    assert after(start(), formed(1), asked._replace(epoch=E0)).leaving
    assert not after(start(REQUEUED), formed(1, epoch=REQUEUED), asked._replace(epoch=E0)).leaving


def test_a_node_beside_the_round_may_be_unfit() -> None:
    """One in it is not: its probe has passed."""
    state = after(start(), formed(1, ("n1", "n2")))
    assert {} == after(NodeUnfit(E0, "n1", "why"), state=state).unfit
    assert {"n3": "why"} == after(NodeUnfit(E0, "n3", "why"), state=state).unfit


def test_a_size_and_its_spares_hold_for_their_submission() -> None:
    """A later start of it, too; the next submission has its own."""
    asked = after(start(), SizeWanted(0, 2, "scale", spares=1))
    for epoch, expected in ((E0, (2, 1)), (REQUEUED, (2, 1)), (RESUBMITTED, (None, None))):
        state = after(start(epoch), state=asked) if epoch > E0 else asked
        assert expected == (state.wanted, state.spares)
    assert (None, None) == (after(start()).wanted, after(start()).spares)


@pytest.mark.parametrize(
    ("budget", "used", "requeues"),
    [
        (Budget.NODE_LOSSES, (0, 1), 1),
        (Budget.PREEMPTIONS, (1, 0), 1),
        (Budget.TIME_LIMITS, (1, 1), 2),
        (Budget.REQUEUES, (0, 0), 0),
        (None, (0, 0), 0),
    ],
)
def test_a_release_gives_back_the_budget_that_was_spent(
    budget: Budget | None, used: tuple[int, int], requeues: int
) -> None:
    """That of a cause and its requeues, or all requeues where it is theirs or is not told."""
    second, third = REQUEUED, REQUEUED._replace(restart=REQUEUED.restart + 1)
    spent = after(
        start(),
        Requeued(E0, Cause.NODE_LOSS),
        start(second),
        Requeued(second, Cause.PREEMPTION),
        RunEnded(Decision.HELD, 75, "spent", None, budget=budget),
    )
    released = after(start(third), state=spent)
    assert (1, 1) == (spent.used(Cause.NODE_LOSS), spent.used(Cause.PREEMPTION))
    assert used == (released.used(Cause.NODE_LOSS), released.used(Cause.PREEMPTION))
    assert (2, requeues) == (spent.requeues, released.requeues)
    assert released.ending is None


@pytest.mark.parametrize("decision", list(Decision))
def test_the_end_of_a_task_is_told_once_and_as_long_as_the_run_goes_on(decision: Decision) -> None:
    """A held run goes on when its tasks are released; after any other ending nobody counts them."""
    stopped = TaskStopped(E0, StopKind.FAILED, "12_1", 0, "n1", "why")
    assert (stopped,) == after(start(), stopped, stopped._replace(detail="again")).tasks_stopped
    assert () == after(start(), stopped._replace(epoch=REQUEUED)).tasks_stopped
    late = after(start(), ending(decision), stopped)
    assert ((stopped,) if decision is Decision.HELD else ()) == late.tasks_stopped


def test_a_start_without_its_batch_host_is_left() -> None:
    """Nobody would end or requeue it; an unfit batch host still has its script."""
    on_batch_host = start()._replace(batch_host="n1")
    for entries, cause in (
        ((loss(1, "n1"),), Cause.NODE_LOSS),
        ((loss(1, "n2"),), None),
        ((crash(1), NodeUnfit(E0, "n1", "why")), None),
    ):
        assert cause is after(on_batch_host, formed(1), *entries).leave_cause


@pytest.mark.parametrize(
    ("entries", "only"),
    [
        ((NodeUnfit(E0, "n3", "why"), Drained(E0, Cause.NODE_LOSS, None, "")), True),
        ((NodeUnfit(E0, "n3", "why"), Drained(E0, Cause.PREEMPTION, None, "")), False),
        ((NodeUnfit(E0, "n3", "why"),), False),
        ((Drained(E0, Cause.NODE_LOSS, None, ""),), False),
        (
            (formed(1), loss(1, "n2"), NodeUnfit(E0, "n3", "why"), Drained(E0, Cause.NODE_LOSS, None, "")),
            False,
        ),
    ],
)
def test_a_start_is_left_for_unfit_nodes_alone(entries: tuple[Entry, ...], *, only: bool) -> None:
    """Where too few are left, and none of them was lost."""
    assert only is after(start(), *entries).only_unfit


def test_only_failures_and_hangs_are_restarts() -> None:
    """One of each counts for itself."""
    assert 1 == after(start(), formed(1), crash(1)).restarts
    assert 0 == after(start(), formed(1), loss(1, "n2")).restarts


def test_a_resubmission_forgets_what_the_requeues_were_for() -> None:
    """And whether the workers ask: it may be another program."""
    state = after(start(), formed(1), NeverAsked(1), Requeued(E0, Cause.PREEMPTION))
    assert (1, True) == (state.used(Cause.PREEMPTION), state.never_asks)
    requeued, resubmitted = after(start(REQUEUED), state=state), after(start(RESUBMITTED), state=state)
    assert (1, True) == (requeued.used(Cause.PREEMPTION), requeued.never_asks)
    assert (0, False) == (resubmitted.used(Cause.PREEMPTION), resubmitted.never_asks)
    assert not after(start(), formed(1), start(REQUEUED)).never_asks


def test_only_a_crash_is_blamed_on_a_node_that_was_lost() -> None:
    """A hang beside it stays a hang."""
    hang = RoundEnded(1, Cause.HANG, ("n1",), None)
    state = after(start(), formed(1), hang, formed(2, ("n1",))._replace(lost=("n2",)))
    assert {Cause.HANG: 1} == state.counts


def test_a_run_that_has_ended_ends_no_round() -> None:
    """Who writes late changes nothing."""
    assert not fits(after(start(), formed(1), ending()), crash(1))


@pytest.mark.parametrize(
    ("asked", "left", "cause"),
    [
        ((drain(AfterDrain.REJOIN),), "n2", Cause.PREEMPTION),
        ((drain(AfterDrain.REJOIN),), "n9", Cause.CRASH),
        ((), "n9", Cause.CRASH),
    ],
)
def test_workers_fail_for_want_of_a_peer_that_was_asked_to_leave(
    asked: tuple[Entry, ...], left: str, cause: Cause
) -> None:
    """That is no crash; the end of a node beside the round explains nothing."""
    state = after(
        start(), formed(1), *asked, NodeLeft(E0, node_id(left), left, Cause.PREEMPTION, ""), crash(1)
    )
    assert {cause: 1} == state.counts


def test_a_node_that_leaves_before_it_has_workers_ends_the_round() -> None:
    """Also if Slurm has set it down: the workers of the others wait for it. Who has left is not lost."""
    state = after(start(), formed(1), NodeLeft(E0, node_id("n2"), "n2", Cause.NODE_LOSS, "down"))
    assert state.ended == RoundEnded(1, Cause.NODE_LOSS, ("n2",), None)
    assert ({Cause.NODE_LOSS: 1}, frozenset()) == (state.counts, state.lost)


def test_a_loss_that_is_told_of_a_node_that_has_left_is_none() -> None:
    """Unless another agent of that node stays; a node of an earlier round may be lost as well."""
    second = member("n2")._replace(node_id="n2.2")
    left = NodeLeft(E0, node_id("n2"), "n2", Cause.PREEMPTION, "")
    asked = (drain(AfterDrain.REJOIN), left)
    assert not fits(after(start(), formed(1), *asked), loss(1, "n2"))
    both = formed(1)._replace(members=(*formed(1).members, second))
    for entries, nodes in (((both, *asked), ("n2",)), ((formed(1), *asked), ("n9",))):
        assert frozenset(nodes) == after(start(), *entries, loss(1, *nodes)).lost


def test_a_hang_as_a_peer_leaves_is_one() -> None:
    """Only what fails for want of a peer is no fault of the workers."""
    left = NodeLeft(E0, node_id("n2"), "n2", Cause.PREEMPTION, "")
    hang = RoundEnded(1, Cause.HANG, ("n1",), None)
    assert {Cause.HANG: 1} == after(start(), formed(1), drain(AfterDrain.REJOIN), left, hang).counts


@pytest.mark.parametrize(("then", "stops"), [(AfterDrain.REJOIN, 1), (AfterDrain.LEAVE, 0)])
def test_a_stop_in_vain_is_one_after_which_the_start_goes_on(then: AfterDrain, stops: int) -> None:
    """Whoever leaves counts as a start."""
    entries = (
        start(),
        formed(1),
        drain(then),
        StopAgreed(1, 5),
        RoundEnded(1, Cause.PREEMPTION, ("n1",), None),
    )
    assert stops == after(*entries).progress.stops
