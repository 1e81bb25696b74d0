"""The rules of the dynamic rendezvous, one by one."""

from __future__ import annotations

import pytest

from hpc_elastic.rendezvous import dynamic_rules
from hpc_elastic.rendezvous.dynamic_rules import (
    DynamicState,
    NodeAction,
    NodeDesc,
    NodePlace,
    Operation,
    Pulse,
    Quorum,
    StateView,
)
from tests.rendezvous.dynamic_build import (
    FOREVER,
    LIMITS,
    N1,
    N2,
    N3,
    N4,
    N10,
    beside,
    gathering,
    running,
    view,
)

FULL = running(N1, N2, N3)
CLOSED = DynamicState(closed=True)


@pytest.mark.parametrize(
    ("known", "action"),
    [
        (view(DynamicState()), NodeAction.ADD_TO_PARTICIPANTS),
        (view(gathering(N2)), NodeAction.ADD_TO_PARTICIPANTS),
        (view(beside(gathering(N2), waiting=(N1,))), NodeAction.ADD_TO_PARTICIPANTS),
        (view(gathering(N1)), NodeAction.SYNC),
        (view(gathering(N1))._replace(beat_at=-5.0), NodeAction.KEEP_ALIVE),
        (view(gathering(N1, N2), now=29.0, quorum_since=0.0), NodeAction.SYNC),
        (view(gathering(N1, N2), now=30.0, quorum_since=0.0), NodeAction.MARK_RENDEZVOUS_COMPLETE),
        (view(gathering(N1), now=99.0, quorum_since=0.0), NodeAction.SYNC),
        (view(running(N1, N2)), NodeAction.FINISH),
        (view(running(N2, N3)), NodeAction.ADD_TO_WAIT_LIST),
        (view(beside(running(N2, N3), waiting=(N1,))), NodeAction.SYNC),
        (view(FULL, N4), NodeAction.ADD_TO_REDUNDANCY_LIST),
        (view(beside(FULL, waiting=(N4,)), N4), NodeAction.SYNC),
        (view(beside(FULL, spare=(N4,)), N4), NodeAction.SYNC),
        (view(beside(FULL, spare=(N4,)), N4)._replace(beat_at=-5.0), NodeAction.KEEP_ALIVE),
        (view(beside(running(N1, N2), spare=(N4,)), N4), NodeAction.REMOVE_FROM_REDUNDANCY_LIST),
        (view(CLOSED), NodeAction.ERROR_CLOSED),
        (view(beside(FULL, spare=(N4,))._replace(closed=True), N4), NodeAction.ERROR_CLOSED),
    ],
)
def test_joining(known: StateView, action: NodeAction) -> None:
    """Each situation of a node that wants to be in has its action."""
    assert action is dynamic_rules.join(known, FOREVER)


@pytest.mark.parametrize(
    ("state", "me", "action"),
    [
        (gathering(N1), N1, NodeAction.REMOVE_FROM_PARTICIPANTS),
        (beside(running(N2, N3), waiting=(N1,)), N1, NodeAction.REMOVE_FROM_WAIT_LIST),
        (running(N2, N3), N1, NodeAction.ERROR_TIMEOUT),
        (DynamicState(), N1, NodeAction.ERROR_TIMEOUT),
        (running(N1, N2), N1, NodeAction.FINISH),
        (beside(FULL, spare=(N4,)), N4, NodeAction.SYNC),
    ],
)
def test_a_deadline_is_rolled_back(state: DynamicState, me: NodeDesc, action: NodeAction) -> None:
    """After the deadline a node takes itself out; a round that is there, and a spare, have none."""
    assert action is dynamic_rules.join(view(state, me, now=101.0), 100.0)


def test_nobody_rolls_back_for_ever() -> None:
    """If taking itself out does not work either, the node gives up."""
    assert NodeAction.ERROR_TIMEOUT is dynamic_rules.join(view(gathering(N1), now=106.0), 100.0)


@pytest.mark.parametrize(
    ("operation", "state", "before", "after"),
    [
        (
            dynamic_rules.exit_round,
            running(N1, N2),
            NodeAction.REMOVE_FROM_PARTICIPANTS,
            NodeAction.ERROR_TIMEOUT,
        ),
        (dynamic_rules.exit_round, running(N2), NodeAction.FINISH, NodeAction.FINISH),
        (dynamic_rules.close, running(N1), NodeAction.MARK_RENDEZVOUS_CLOSED, NodeAction.ERROR_TIMEOUT),
        (dynamic_rules.close, CLOSED, NodeAction.FINISH, NodeAction.FINISH),
        (dynamic_rules.leave, running(N1), NodeAction.REMOVE_FROM_PARTICIPANTS, NodeAction.ERROR_TIMEOUT),
        (
            dynamic_rules.leave,
            beside(FULL, waiting=(N1,)),
            NodeAction.REMOVE_FROM_PARTICIPANTS,
            NodeAction.ERROR_TIMEOUT,
        ),
        (dynamic_rules.leave, running(N2), NodeAction.FINISH, NodeAction.FINISH),
        (dynamic_rules.leave, CLOSED, NodeAction.FINISH, NodeAction.FINISH),
        (dynamic_rules.keep_alive, running(N1), NodeAction.FINISH, NodeAction.ERROR_TIMEOUT),
        (dynamic_rules.keep_alive, running(N2), NodeAction.FINISH, NodeAction.FINISH),
    ],
)
def test_other_operations(
    operation: Operation, state: DynamicState, before: NodeAction, after: NodeAction
) -> None:
    """Before and after the deadline."""
    late = view(state, now=101.0)._replace(beat_at=0.0)
    assert (before, after) == (operation(view(state), 100.0), operation(late, 100.0))


def test_leaving_takes_a_node_off_every_list() -> None:
    """A node that waits or stands by goes from there."""
    waits, stands = beside(running(N2), waiting=(N1,)), beside(FULL, spare=(N4,))
    assert NodeAction.REMOVE_FROM_WAIT_LIST is dynamic_rules.leave(view(waits), FOREVER)
    assert NodeAction.REMOVE_FROM_REDUNDANCY_LIST is dynamic_rules.leave(view(stands, N4), FOREVER)


def test_a_beat_is_given_when_it_is_due() -> None:
    """A timer that wakes a little early still beats; a node that was given up does not."""
    state = running(N1, N2)
    assert NodeAction.FINISH is dynamic_rules.keep_alive(view(state, now=3.0)._replace(beat_at=0.0), FOREVER)
    assert NodeAction.KEEP_ALIVE is dynamic_rules.keep_alive(
        view(state, now=4.9)._replace(beat_at=0.0), FOREVER
    )
    assert NodeAction.FINISH is dynamic_rules.keep_alive(
        view(state, N3, now=4.9)._replace(beat_at=0.0), FOREVER
    )


# What actions change


def test_a_participant_brings_a_port_and_a_beat() -> None:
    """Joining takes the node off the wait list and advances its counter."""
    state = dynamic_rules.apply(NodeAction.ADD_TO_PARTICIPANTS, view(beside(gathering(N2), waiting=(N1,))))
    assert NodePlace(-1, 25_000) == state.participants[N1]
    assert (frozenset(), 2, False) == (state.wait_list, state.beats[N1], state.complete)


def test_the_last_place_completes_the_round() -> None:
    """With the most nodes that are wanted nobody waits any longer."""
    state = dynamic_rules.apply(NodeAction.ADD_TO_PARTICIPANTS, view(gathering(N2, N3)))
    assert state.complete
    assert (N1, N2, N3) == state.members
    assert ("n1", 25_000) == (state.master_addr, state.master_port)


def test_ranks_follow_numbers_in_names() -> None:
    """Node 2 comes before node 10."""
    state = dynamic_rules.apply(NodeAction.MARK_RENDEZVOUS_COMPLETE, view(gathering(N10, N2)))
    assert [0, 1] == [state.participants[one].rank for one in (N2, N10)]
    assert ("n2", 20_001) == (state.master_addr, state.master_port)


def test_waiting_and_standing_by() -> None:
    """A node is on one list at a time."""
    spare = dynamic_rules.apply(NodeAction.ADD_TO_REDUNDANCY_LIST, view(FULL, N4))
    assert {N4} == spare.redundancy_list
    waits = dynamic_rules.apply(NodeAction.ADD_TO_WAIT_LIST, view(spare, N4))
    assert (frozenset({N4}), frozenset(), 2) == (waits.wait_list, waits.redundancy_list, waits.beats[N4])
    gone = dynamic_rules.apply(NodeAction.REMOVE_FROM_WAIT_LIST, view(waits, N4))
    assert (frozenset(), False) == (gone.wait_list, N4 in gone.beats)


def test_closing_says_who() -> None:
    """Who finds the rendezvous closed can be told by whom."""
    state = dynamic_rules.apply(NodeAction.MARK_RENDEZVOUS_CLOSED, view(FULL))
    assert (True, "n1_1_0") == (state.closed, state.closed_by)


def test_a_round_without_participants_is_over() -> None:
    """When the last one goes, the next round begins; who was in it stays known."""
    state = dynamic_rules.without(running(N1, N2), {N1})
    assert (0, True) == (state.round, state.complete)
    state = dynamic_rules.without(state, {N2})
    assert (1, False, (N1, N2)) == (state.round, state.complete, state.members)
    assert 1 == dynamic_rules.without(state, {N2}).round


# Who is missed


def test_who_vanishes_is_lost_and_who_leaves_is_not() -> None:
    """Leaving on purpose, waiting again and standing by are no loss."""
    assert (N2,) == dynamic_rules.without(FULL, {N2}).lost
    left = dynamic_rules.without(FULL, {N2}, went=True)
    assert not left.lost
    assert {N2} == left.left
    assert () == beside(dynamic_rules.without(FULL, {N2}), waiting=(N2,)).lost
    assert () == dynamic_rules.without(gathering(N1, N2), {N2}, went=True).lost


def test_a_place_that_was_left_on_purpose_is_not_free() -> None:
    """A spare does not make a finishing run start again."""
    left = dynamic_rules.without(FULL, {N2}, went=True)
    assert NodeAction.SYNC is dynamic_rules.join(view(beside(left, spare=(N4,)), N4), FOREVER)
    lost = dynamic_rules.without(FULL, {N2})
    assert NodeAction.REMOVE_FROM_REDUNDANCY_LIST is dynamic_rules.join(
        view(beside(lost, spare=(N4,)), N4), FOREVER
    )


@pytest.mark.parametrize(
    ("state", "joined", "count"),
    [
        (FULL, 0, 0),
        (FULL, None, 0),
        (beside(running(N1, N2), waiting=(N3, N4)), 0, 2),
        (beside(running(N1, N2), waiting=(N3,)), None, 1),
        (beside(FULL, spare=(N4,)), 0, 0),
        (dynamic_rules.without(FULL, {N2}), 0, 1),
        (dynamic_rules.without(FULL, {N2}, went=True), 0, 0),
        (dynamic_rules.without(FULL, {N1}), 0, 1),
        (dynamic_rules.without(FULL, {N1}, went=True), 0, 1),
        (running(N1, N2, number=1), 0, 1),
        (gathering(N2, number=1), 0, 1),
        (beside(FULL, waiting=(N4,))._replace(closed=True), 0, 0),
    ],
)
def test_who_waits(state: DynamicState, joined: int | None, count: int) -> None:
    """Waiting nodes count; a round that is over or short of a member counts as one; spares never do."""
    assert count == dynamic_rules.nodes_waiting(state, N1, joined)


# Time


def test_the_quorum_begins_when_it_is_seen() -> None:
    """Each node counts the last call from when it saw enough participants; fewer stop it."""
    enough = gathering(N1, N2)
    first = dynamic_rules.quorum_of(enough, LIMITS, None, 7.0)
    assert Quorum(0, 7.0) == first == dynamic_rules.quorum_of(gathering(N1, N2, N3), LIMITS, first, 9.0)
    assert dynamic_rules.quorum_of(gathering(N1), LIMITS, first, 9.0) is None
    assert dynamic_rules.quorum_of(running(N1, N2), LIMITS, first, 9.0) is None
    assert Quorum(1, 9.0) == dynamic_rules.quorum_of(gathering(N1, N2, number=1), LIMITS, first, 9.0)


def test_a_counter_that_stands_still_is_dead() -> None:
    """Only the observer's own time counts; a new number is a sign of life, whatever it is."""
    pulses = dynamic_rules.observe({}, {N1: 5, N2: 5}, 100.0)
    pulses = dynamic_rules.observe(pulses, {N1: 5, N2: 4}, 110.0)
    assert {N1: Pulse(5, 100.0), N2: Pulse(4, 110.0)} == pulses
    assert {N1} == dynamic_rules.dead(pulses, N3, 115.0, 15.0)
    assert frozenset() == dynamic_rules.dead(pulses, N1, 115.0, 15.0)
    assert frozenset() == dynamic_rules.dead(dynamic_rules.start_anew(pulses, 115.0), N3, 115.0, 15.0)
    assert {N2: Pulse(4, 110.0)} == dynamic_rules.observe(pulses, {N2: 4}, 120.0)


# At the bounds


@pytest.mark.parametrize(
    ("now", "action"),
    [
        (100.0, NodeAction.SYNC),
        (100.1, NodeAction.REMOVE_FROM_PARTICIPANTS),
        (105.0, NodeAction.REMOVE_FROM_PARTICIPANTS),
        (105.1, NodeAction.ERROR_TIMEOUT),
    ],
)
def test_a_deadline_has_passed_after_it(now: float, action: NodeAction) -> None:
    """At its moment there is time left; taking itself out has five seconds more."""
    known = view(gathering(N1), now=now)._replace(beat_at=now)
    assert action is dynamic_rules.join(known, 100.0)


@pytest.mark.parametrize(
    "operation",
    [dynamic_rules.exit_round, dynamic_rules.leave, dynamic_rules.close, dynamic_rules.keep_alive],
)
def test_other_operations_may_use_their_last_moment(operation: Operation) -> None:
    """They fail after it."""
    known = view(running(N1, N2), now=100.0)._replace(beat_at=0.0)
    assert NodeAction.ERROR_TIMEOUT is not operation(known, 100.0)
    assert NodeAction.ERROR_TIMEOUT is operation(known._replace(now=100.1), 100.0)


@pytest.mark.parametrize(
    ("nodes", "quorum", "over"),
    [
        ((N1,), Quorum(0, 0.0), False),
        ((N1, N2), Quorum(0, 0.0), True),
        ((N1, N2, N3), Quorum(0, 0.0), True),
        ((N1, N2, N3, N4), Quorum(0, 0.0), False),
        ((N1, N2), Quorum(0, 0.1), False),
        ((N1, N2), Quorum(1, 0.0), False),
        ((N1, N2), None, False),
    ],
)
def test_when_the_last_call_is_over(nodes: tuple[NodeDesc, ...], quorum: Quorum | None, over: bool) -> None:
    """Enough participants, no more than wanted, have waited for its whole time, in this round."""
    known = view(gathering(*nodes), now=LIMITS.last_call)._replace(quorum=quorum)
    assert over is dynamic_rules.is_last_call_over(known)


def test_a_spare_is_beside_a_round_that_has_room() -> None:
    """Then it goes to the wait list by way of joining again; with none it stands by."""
    assert NodeAction.ADD_TO_WAIT_LIST is dynamic_rules.join(view(running(N1, N2), N4), FOREVER)
    assert NodeAction.ADD_TO_REDUNDANCY_LIST is dynamic_rules.join(view(running(N1, N2, N3), N4), FOREVER)


def test_each_way_out_takes_a_node_off_its_list_only() -> None:
    """The others stay where they are, with their beats."""
    state = beside(FULL, waiting=(N4,), spare=(N10,))
    gone = dynamic_rules.without(state, {N10})
    assert {N4} == gone.wait_list
    assert not gone.redundancy_list
    assert FULL.participants == gone.participants
    assert N10 not in gone.beats
    assert FULL.beats.keys() <= gone.beats.keys()
    assert not gone.lost


def test_keeping_alive_advances_the_own_counter_by_one() -> None:
    """Nobody else's; one that was given up begins at one."""
    state = dynamic_rules.apply(NodeAction.KEEP_ALIVE, view(FULL))
    assert {**FULL.beats, N1: FULL.beats[N1] + 1} == state.beats
    assert 1 == dynamic_rules.apply(NodeAction.KEEP_ALIVE, view(FULL, N4)).beats[N4]


def test_nobody_leaves_a_rendezvous_that_is_closed() -> None:
    """There is no round that would miss it, and nobody waits in it."""
    closed = beside(running(N1, N2), waiting=(N3,))._replace(closed=True)
    assert NodeAction.FINISH is dynamic_rules.leave(view(closed), FOREVER)
    assert 0 == dynamic_rules.nodes_waiting(closed, N1, 0)


def test_a_counter_is_due_at_its_time() -> None:
    """Not a moment later."""
    known = view(running(N1, N2))
    due = known.beat_at + dynamic_rules._DUE * LIMITS.interval
    assert dynamic_rules.is_beat_due(known._replace(now=due))
    assert not dynamic_rules.is_beat_due(known._replace(now=due - 0.01))


def test_who_goes_before_a_round_is_complete_leaves_none() -> None:
    """The members of the round before are no longer together."""
    state = gathering(N1, N2)._replace(members=(N1, N2))
    assert frozenset() == dynamic_rules.without(state, {N1}, went=True).left
    assert frozenset({N1}) == dynamic_rules.without(running(N1, N2), {N1}, went=True).left


def test_who_was_in_a_round_that_forms_again_has_to_meet_the_others() -> None:
    """Though it is among those that gather."""
    assert 1 == dynamic_rules.nodes_waiting(gathering(N1, N2, number=3), N1, 3)
    assert 0 == dynamic_rules.nodes_waiting(running(N1, N2, number=3), N1, 3)
