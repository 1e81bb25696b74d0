"""Who is lost, as far as one observer can tell, and who observes when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.meet import liveness, rules
from hpc_elastic.meet.liveness import (
    STALL_LEASES,
    TURN_BEATS,
    WATCHERS,
    View,
    is_on_watch,
    judge,
    silent,
)
from hpc_elastic.meet.member_names import Phase, Roster, Seen, Suspicion
from tests.meet.build import E0, after, formed, joining, loss, node_id, roster, seen, start

LEASE = 4.0
BEAT = 1.0


def running(node: str, at: float = 0.0) -> Seen:
    """Return a member whose workers run, last seen to change at a time [s]."""
    return seen(node, Phase.RUNNING, at=at)


def view(*entries: Seen, me: str = "n1", suspicions: tuple[Suspicion, ...] = ()) -> View:
    """Return what an observer knows of a round of these members."""
    members: Roster = roster(*entries)
    return View(node_id(me), tuple(members), members, frozenset(suspicions), LEASE, BEAT)


def suspicion(of: str, by: str, counter: int = 0) -> Suspicion:
    """Return one member's suspicion of another."""
    return Suspicion(node_id(of), E0, counter, node_id(by))


def lost(known: View, now: float) -> list[str]:
    """Return the nodes that are lost."""
    return [member.rpartition(".")[0] for member in judge(known, now).lost]


def four(silent_since: float = 6.0) -> tuple[Seen, ...]:
    """Return four members at time 10; n2 is silent."""
    return running("n1", 10), running("n2", silent_since), running("n3", 10), running("n4", 10)


def test_one_observer_alone_gives_nobody_up() -> None:
    """A silent member is suspected, and the suspicion is told."""
    verdict = judge(view(*four()), 10.0)
    assert () == verdict.lost
    assert (suspicion("n2", "n1"),) == verdict.suspected


def test_nobody_is_suspected_within_the_lease() -> None:
    """A member that has beaten within the lease is alive."""
    assert ((), ()) == judge(view(*four(silent_since=6.1)), 10.0)


def test_two_observers_give_a_member_up() -> None:
    """What two have seen by their own clocks is a loss."""
    assert ["n2"] == lost(view(*four(), suspicions=(suspicion("n2", "n3"),)), 10.0)


@pytest.mark.parametrize(
    "mark",
    [suspicion("n2", "n1"), suspicion("n2", "n3", counter=1), suspicion("n4", "n3"), suspicion("n2", "n9")],
    ids=["own", "refuted", "of another", "by no member"],
)
def test_other_marks_are_no_second_observer(mark: Suspicion) -> None:
    """An observer does not confirm itself, nor does a mark about another state of affairs."""
    assert [] == lost(view(*four(), suspicions=(mark,)), 10.0)


def test_a_silent_observer_confirms_nothing() -> None:
    """The mark of a member that is silent itself does not count."""
    members = (
        running("n1", 10),
        running("n2", 5),
        running("n3", 5),
        *(running(f"n{i}", 10) for i in (4, 5, 6)),
    )
    assert [] == lost(view(*members, suspicions=(suspicion("n2", "n3"),)), 10.0)


def test_a_second_observer_is_waited_for_a_bounded_time() -> None:
    """If nobody else looks, one observer that has told its suspicion is enough after two heartbeats."""
    known = view(*four(), suspicions=(suspicion("n2", "n1"),))
    fresh = {
        key: entry._replace(changed_at=12.0) for key, entry in known.roster.items() if key != node_id("n2")
    }
    known = known._replace(roster={**known.roster, **fresh})
    assert [] == lost(known, 11.9)
    assert ["n2"] == lost(known, 12.0)
    slower = known._replace(heartbeat_interval=1.5)
    assert ([], ["n2"]) == (lost(slower, 12.9), lost(slower, 13.0))


def test_of_two_the_other_is_given_up_at_once() -> None:
    """Where nobody is left to agree, nobody is asked."""
    assert ["n2"] == lost(view(running("n1", 10), running("n2", 6)), 10.0)
    gone = seen("n3", Phase.LEFT)
    assert ["n2", "n3"] == lost(view(running("n1", 10), running("n2", 6), gone), 10.0)


def test_who_has_succeeded_may_still_agree() -> None:
    """A node whose workers are done waits for the others and sees who is silent; it is asked, too."""
    done = seen("n3", Phase.SUCCEEDED)
    members = running("n1", 10), running("n2", 6), done
    assert [] == lost(view(*members), 10.0)
    assert ["n2"] == lost(view(*members, suspicions=(suspicion("n2", "n3"),)), 10.0)


def test_a_member_that_left_is_lost_at_once() -> None:
    """Who leaves while the round runs is missed without any lease."""
    assert ["n2"] == lost(view(running("n1"), seen("n2", Phase.LEFT), running("n3")), 0.0)


def test_who_has_succeeded_is_not_lost() -> None:
    """A node whose workers are all done may be silent."""
    assert [] == lost(view(running("n1", 100), seen("n2", Phase.SUCCEEDED), running("n3", 100)), 100.0)


def test_who_was_never_seen_is_not_judged() -> None:
    """Nobody is given up by an observer that has not looked yet."""
    empty = View(node_id("n1"), (node_id("n1"), node_id("n2")), {}, frozenset(), LEASE, BEAT)
    assert ((), ()) == judge(empty, 100.0)


def test_a_spare_may_judge() -> None:
    """An observer need not be a member of the round."""
    assert ["n2"] == lost(
        view(running("n2", 6), running("n3", 10), me="n9", suspicions=(suspicion("n2", "n3"),)), 10
    )


def test_of_a_mark_without_its_time_the_end_of_the_lease_counts() -> None:
    """Where it is known since when an observer suspects, two heartbeats count from then."""
    mark = suspicion("n2", "n1")
    known = view(*four(silent_since=6.0), suspicions=(mark,))
    assert [] == lost(known._replace(suspected_at={}), 11.5)
    assert [] == lost(known._replace(suspected_at={mark: 10.0}), 11.9)
    assert ["n2"] == lost(known._replace(suspected_at={mark: 9.0}), 11.0)
    assert [] == lost(known._replace(suspected_at={mark: 9.0}, suspicions=frozenset()), 11.0)


def test_lost_members_come_in_the_order_of_the_round() -> None:
    """Those that have left and those that are silent; strangers to the round are not judged."""
    known = view(running("n3", 5), seen("n2", Phase.LEFT), running("n1", 10), running("n9", 0))
    known = known._replace(members=(node_id("n3"), node_id("n2"), node_id("n1")))
    verdict = judge(known, 10.0)
    assert ((node_id("n3"), node_id("n2")), ()) == verdict


@pytest.mark.parametrize(
    ("phase", "age", "expected"),
    [
        (Phase.RUNNING, 3.9, True),
        (Phase.RUNNING, 4.0, False),
        (Phase.JOINING, 3.9, True),
        (Phase.LEFT, 0.0, False),
        (Phase.SUCCEEDED, 0.0, False),
    ],
)
def test_who_is_alive(phase: Phase, age: float, expected: bool) -> None:
    """Who has beaten within the lease and has not said goodbye."""
    assert expected is liveness.is_alive(seen("n1", phase, at=10 - age), 10, LEASE)


def test_three_leases_of_silence_are_sure() -> None:
    """Also if most fell silent together; who has said goodbye is not among them."""
    entries = [running("n1", 0), running("n2", 0), running("n3", 0.1), seen("n4", Phase.LEFT, at=0)]
    assert {node_id("n1"), node_id("n2")} == liveness.surely_silent(entries, STALL_LEASES * LEASE, LEASE)


def test_who_is_long_lost() -> None:
    """Who is silent, on a node that was lost before the last round and is not in it."""
    state = after(start(), formed(1), loss(1, "n3"), formed(2, ("n1", "n2")))
    members = roster(running("n1", 0), running("n2", 9), running("n3", 0), running("n4", 0))
    assert {node_id("n3")} == liveness.long_lost(members, state, LEASE, LEASE)
    assert frozenset() == liveness.long_lost(members, state, LEASE - 0.1, LEASE)
    assert frozenset() == liveness.long_lost(members, after(start()), 99.0, LEASE)
    back = after(start(), formed(1), loss(1, "n3"), formed(2, ("n1", "n2", "n3")))
    assert frozenset() == liveness.long_lost(members, back, 99.0, LEASE)
    ended = after(start(), formed(1), loss(1, "n3"))
    assert frozenset() == liveness.long_lost(members, ended, 99.0, LEASE)
    heard = roster(running("n3", 98))
    assert frozenset() == liveness.long_lost(heard, state, 99.0, LEASE)


# A stalled file system


def test_most_members_silent_together_is_a_stall() -> None:
    """They are neither lost nor suspected until three leases are over."""
    members = (running("n1", 100), running("n2", 0), running("n3", 1), running("n4", 100))
    assert ((), ()) == judge(view(*members), 4.0 + 1.0)
    assert ((), ()) == judge(view(*members), STALL_LEASES * LEASE - 0.1)
    late = judge(view(*members), STALL_LEASES * LEASE + 1.0)
    assert {node_id("n2"), node_id("n3")} == {mark.node_id for mark in late.suspected}


def test_a_stall_that_ends_leaves_no_trace() -> None:
    """Whoever beats again is alive; one that stays silent alone is judged as such."""
    members = (running("n1", 6), running("n2", 0), running("n3", 6), running("n4", 6))
    assert {node_id("n2")} == silent(roster(*members[1:]).values(), 6.0, LEASE)


def test_half_of_the_members_may_be_lost_together() -> None:
    """Two of four others: no majority, so no stall."""
    members = (*(running(f"n{i}", 10) for i in (1, 2, 3)), running("n4", 5), running("n5", 5))
    assert {node_id("n4"), node_id("n5")} == silent(roster(*members[1:]).values(), 10.0, LEASE)


def test_two_losses_after_each_other_are_no_stall() -> None:
    """Who was lost before the last round holds up no later one while its silence is young."""
    state = after(start(), formed(1), loss(1, "n4"), formed(2), loss(2, "n3"))
    both = tuple(seen(node, round_number=3, at=20) for node in ("n1", "n2"))
    members = roster(*both, running("n3", 15), running("n4", 11))
    view = joining(state, members)
    waited = rules.wait_on(view, rules.Waited(20), 20)
    assert rules.FormRound((node_id("n1"), node_id("n2"))) == rules.join(view, waited, 20)


def test_who_dies_before_the_first_round_is_not_waited_for() -> None:
    """An agent that had come and fell silent is gone: nobody sits the join timeout out."""
    both = tuple(seen(node, at=20) for node in ("n1", "n2"))
    view = joining(after(start()), roster(*both, seen("n3", at=15)))
    formed_now = rules.join(view, rules.wait_on(view, rules.Waited(10), 20), 20)
    assert rules.FormRound((node_id("n1"), node_id("n2"))) == formed_now
    alone = joining(after(start()), roster(seen("n1", at=30), seen("n2", at=15), seen("n3", at=15)))
    gone = rules.join(alone, rules.wait_on(alone, rules.Waited(10), 30), 30)
    assert isinstance(gone, rules.TooFew)


def test_old_losses_do_not_make_a_stall() -> None:
    """Members that were lost long ago are not counted among those that fell silent together."""
    gone = [running(f"n{i}", 0) for i in range(3, 9)]
    members = (running("n1", 100), running("n2", 100), running("n9", 95), *gone)
    quiet = silent(roster(*members[1:]).values(), 100.0, LEASE)
    assert node_id("n9") in quiet


@given(ages=st.lists(st.floats(0, 30), max_size=8), more=st.floats(0, 60))
def test_silence_counts_in_the_end(ages: list[float], more: float) -> None:
    """A stall is assumed for a bounded time; who beats within the lease is never silent."""
    entries = [running(f"n{i}", 100.0 - age) for i, age in enumerate(ages)]
    quiet = silent(entries, 100.0 + more, LEASE)
    for i, age in enumerate(ages):
        if age + more < LEASE:
            assert node_id(f"n{i}") not in quiet
        if age + more >= STALL_LEASES * LEASE:
            assert node_id(f"n{i}") in quiet


# Turns


@pytest.mark.parametrize("world", [2, 3, 4, 5, 64, 1024])
def test_few_watch_at_a_time(world: int) -> None:
    """At most five members watch at any heartbeat, and at least two if there are so many."""
    for beat in range(0, 40 * TURN_BEATS, 3):
        on_watch = [rank for rank in range(world) if is_on_watch(rank, world, beat)]
        assert min(world, 3) <= len(on_watch) <= WATCHERS + liveness.IN_TURN
        assert set(range(min(world, WATCHERS))) <= set(on_watch)


@pytest.mark.parametrize("world", [4, 5, 6, 7, 20, 31])
def test_everybody_has_a_turn_that_is_long_enough(world: int) -> None:
    """Each member watches for a whole turn now and then, so that it can see a lease run out."""
    beats = range(world * TURN_BEATS)
    for rank in range(world):
        assert TURN_BEATS <= sum(is_on_watch(rank, world, beat) for beat in beats)
    assert TURN_BEATS * BEAT > LEASE + BEAT


def test_a_turn_outlasts_the_lease() -> None:
    """Eight heartbeats at least, else the lease and four more."""
    assert [8, 8, 9, 16] == [liveness.turn_beats(lease, 2.0) for lease in (1.0, 8.0, 10.0, 24.0)]
    assert 9 == liveness.turn_beats(11.9, 2.0)


def test_turns_go_round() -> None:
    """Two at a time, in the order of their ranks; the next two when the turn is over."""

    def in_turn(beat: int, turn: int = TURN_BEATS) -> list[int]:
        return [rank for rank in range(WATCHERS, 8) if is_on_watch(rank, 8, beat, turn)]

    turns = [[3, 4], [5, 6], [3, 7], [4, 5], [6, 7], [3, 4]]
    assert turns == [in_turn(TURN_BEATS * number) for number in range(6)]
    assert [[3, 4], [5, 6], [5, 6], [3, 7]] == [in_turn(beat, 2) for beat in (1, 2, 3, 4)]


def test_nobody_watches_alone() -> None:
    """A round of one member has nobody to watch."""
    assert not is_on_watch(0, 1, 0)


def test_the_next_expiry_is_that_of_a_living_peer() -> None:
    """An observer looks when the next lease runs out, not again for those that have."""
    known = view(running("n1", 0), running("n2", 1), running("n3", 8), seen("n4", Phase.LEFT, at=9))
    assert 12.0 == liveness.next_expiry(known, 10.0)
    assert 5.0 == liveness.next_expiry(known, 4.9)
    assert float("inf") == liveness.next_expiry(known, 12.0)
    unseen = known._replace(members=(*known.members, node_id("n5")))
    assert 12.0 == liveness.next_expiry(unseen, 10.0)
    own = view(running("n1", 0), running("n2", 1))
    assert 5.0 == liveness.next_expiry(own, 3.0)
