"""What a node does next, on its way into a round and in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.meet import rules
from hpc_elastic.meet.member_names import Phase, Roster
from hpc_elastic.meet.rules import (
    Announce,
    AskToJoin,
    Fenced,
    FormRound,
    JoinAction,
    Joined,
    Joining,
    LeaveRun,
    LookFirst,
    MeetingSettings,
    Spare,
    TooFew,
    Wait,
    Waited,
    join,
)
from hpc_elastic.record.journal import AfterDrain, Cause, RoundFormed
from hpc_elastic.record.state import RunState
from tests.meet.build import (
    NODES,
    REQUEUED,
    RESUBMITTED,
    after,
    crash,
    drain,
    ending,
    formed,
    joining,
    loss,
    node_id,
    roster,
    seen,
    start,
)

SETTINGS = MeetingSettings(min_nodes=2, max_nodes=3, join_timeout=600, last_call_timeout=30, lease=4)
ALL_IN = roster(seen("n1"), seen("n2"), seen("n3"))
TWO_IN = roster(seen("n1"), seen("n2"))
EVERYBODY = tuple(node_id(node) for node in NODES)


def step(view: Joining, now: float = 0.0, since: float = 0.0) -> JoinAction:
    """Return what a node does that has waited since a time, as if it had looked all the while."""
    waited = rules.wait_on(view, Waited(since), since)
    return join(view, rules.wait_on(view, waited, now), now)


# Between rounds


def test_a_round_forms_when_everybody_is_in() -> None:
    """With all expected nodes there is nothing to wait for."""
    assert FormRound(EVERYBODY) == step(joining(after(start()), ALL_IN))


def test_only_the_first_node_forms_at_once() -> None:
    """The others leave it to the first, so that one record is written and not many."""
    assert Wait(3, ()) == step(joining(after(start()), ALL_IN, me="n2"))


def test_a_late_leader_is_not_waited_for() -> None:
    """If the first node does not act, the second does after a while, and the third after another."""
    fresh = roster(seen("n1", at=2.0), seen("n2", at=2.0), seen("n3", at=2.0))
    second, third = (joining(after(start()), fresh, me=node) for node in ("n2", "n3"))
    assert Wait(3, ()) == step(second, now=0.9)
    assert FormRound(EVERYBODY) == step(second, now=1.0)
    assert Wait(3, ()) == step(third, now=1.9)
    assert FormRound(EVERYBODY) == step(third, now=2.0)


def test_the_first_nodes_announce_a_start() -> None:
    """Only if none of them does, another one may after a while."""
    view = joining(RunState(), {})
    assert Announce() == step(view)
    assert Wait(0, ()) == step(view._replace(announces=False), now=0.9)
    assert Announce() == step(view._replace(announces=False), now=1.0)


def test_a_run_that_ends_meanwhile_is_not_started_again() -> None:
    """The ending may land after the next start's agents have begun to join; a resubmission starts anew."""
    view = joining(after(start(), ending()), {})._replace(epoch=REQUEUED)
    assert LeaveRun() == step(view)
    assert Announce() == step(view._replace(epoch=RESUBMITTED))


def test_nothing_is_concluded_from_an_old_look() -> None:
    """Before a node forms a round or gives up on the others it looks at them, if it has not just done so."""
    gone = roster(seen("n1", at=100.0), *(seen(n, Phase.RUNNING, at=0.0) for n in ("n2", "n3")))
    state = after(start(), formed(1), crash(1))
    rejoining = {**gone, **roster(seen("n1", round_number=2, at=100.0))}
    view = joining(state, rejoining)
    assert isinstance(step(view._replace(looked_at=100.0), since=100.0, now=100.0), TooFew)
    assert LookFirst() == step(view._replace(looked_at=98.0), since=100.0, now=100.0)
    full = joining(after(start()), ALL_IN)
    assert LookFirst() == step(full._replace(looked_at=-2.0))
    assert FormRound(EVERYBODY) == step(full._replace(looked_at=-1.9))


def test_between_rounds_the_job_is_not_given_up_in_haste() -> None:
    """One lease of silence makes the next round smaller; only three of them make it impossible."""
    state = after(start(), formed(1), crash(1))
    members = roster(seen("n1", round_number=2, at=20), seen("n2", round_number=2, at=20), seen("n3", at=10))
    settings = SETTINGS._replace(min_nodes=3)
    view = joining(state, members, settings=settings)
    assert isinstance(step(view, since=20, now=20), Wait)
    assert isinstance(step(view, since=20, now=22), TooFew)
    smaller = joining(state, members)
    assert FormRound(EVERYBODY[:2]) == step(smaller, since=20, now=20)


def test_the_batch_host_is_waited_for_longer() -> None:
    """Without it this start of the job ends, so that one lease of silence is not enough."""
    state = after(start()._replace(batch_host="n3"), formed(1), crash(1))
    members = roster(seen("n1", round_number=2, at=20), seen("n2", round_number=2, at=20), seen("n3", at=10))
    view = joining(state, members)
    assert Wait(2, ("n3",)) == step(view, since=20, now=20)
    assert FormRound(EVERYBODY[:2]) == step(view, since=20, now=22)


def test_only_a_few_look_at_all_the_others() -> None:
    """A node that is not to form the round waits for the record of it."""
    many = roster(*(seen(f"n{i}") for i in range(200)))
    state = after(start(expected=tuple(f"n{i}" for i in range(200))))
    intervals = [rules.look_interval(joining(state, many, me=f"n{i}"), now=0) for i in (0, 2, 3, 199)]
    assert [0.0, 0.0, 2.0, 2.0] == intervals


def test_expected_nodes_are_waited_for() -> None:
    """The minimum does not start without a node that Slurm has given."""
    assert Wait(2, ("n3",)) == step(joining(after(start()), TWO_IN))


def test_last_call_ends_the_wait() -> None:
    """A node that does not come holds the others up for the last call only."""
    fresh = roster(seen("n1", at=29.0), seen("n2", at=29.0))
    view = joining(after(start()), fresh)
    assert Wait(2, ("n3",)) == step(view, now=29.9)
    assert FormRound(EVERYBODY[:2]) == step(view, now=30.0)


def test_last_call_starts_with_the_minimum() -> None:
    """What a node waited before there were enough does not count."""
    view = joining(after(start()), TWO_IN)
    waited = rules.wait_on(view, Waited(since=-500.0), 0.0)
    assert Wait(2, ("n3",)) == join(view, waited, 0.0)


def test_last_call_starts_when_the_round_before_has_ended() -> None:
    """Who has stood beside a round for long gives its members the same time to come back as anybody."""
    members = roster(
        seen("n3", round_number=2),
        seen("n4", round_number=2),
        *(seen(n, Phase.RUNNING) for n in ("n1", "n2")),
    )
    running = after(start(), formed(1, ("n1", "n2")))
    waited = rules.wait_on(joining(running, members, me="n3"), Waited(0.0), 1.0)
    assert waited.quorum_since is None
    over = joining(after(crash(1), state=running), members, me="n3")
    assert 2.0 == rules.wait_on(over, waited, 2.0).quorum_since


def test_last_call_starts_again_when_too_few_are_left() -> None:
    """A node that came and went does not shorten the last call of those who come later."""
    both = joining(after(start()), TWO_IN)
    alone = joining(after(start()), roster(seen("n1")))
    waited = rules.wait_on(both, Waited(0.0), 0.0)
    waited = rules.wait_on(alone, waited, 20.0)
    assert waited.quorum_since is None


def test_a_full_round_waits_for_nobody() -> None:
    """With the most nodes that are wanted there is nothing to wait for, whoever is expected."""
    members = roster(*(seen(node) for node in ("n1", "n2", "n3", "n4")))
    state = after(start(expected=("n1", "n2", "n3", "n4")))
    assert FormRound(EVERYBODY) == step(joining(state, members))


def test_without_a_list_there_is_a_last_call() -> None:
    """When nobody knows who will come, the minimum waits for more."""
    state = after(start(expected=()))
    assert Wait(2, ()) == step(joining(state, TWO_IN), now=2.0)
    fresh = roster(seen("n1", at=29.0), seen("n2", at=29.0))
    assert FormRound(EVERYBODY[:2]) == step(joining(state, fresh), now=30.0)


def test_ranks_follow_slurm() -> None:
    """Nodes stand in Slurm's order, not in that of their names or arrival."""
    state = after(start(expected=("n3", "n1", "n2")))
    view = joining(state, ALL_IN, me="n3")
    assert FormRound((node_id("n3"), node_id("n1"), node_id("n2"))) == step(view)


def test_without_slurm_ranks_follow_names() -> None:
    """Where nobody told an order, names count, with numbers as numbers; strangers come last."""
    settings = MeetingSettings(min_nodes=3, max_nodes=3)
    members = roster(seen("n10"), seen("n2"), seen("n9"))
    view = joining(after(start(expected=())), members, me="n2", settings=settings)
    assert FormRound(("n2.1", "n9.1", "n10.1")) == step(view)
    view = joining(after(start(expected=("n10",))), members, me="n10", settings=settings)
    assert FormRound(("n10.1", "n2.1", "n9.1")) == step(view)


def test_the_silent_are_left_out() -> None:
    """A joining node whose lease has run out is not taken into a round."""
    members = roster(seen("n1", at=10), seen("n2", at=10), seen("n3", at=0))
    assert [node_id("n1"), node_id("n2")] == rules.joiners(joining(after(start()), members), now=10)


def test_a_node_counts_itself() -> None:
    """A node that was slow to beat still knows that it is there."""
    assert [node_id("n1")] == rules.joiners(joining(after(start()), roster(seen("n1"))), now=100)


def test_who_wants_another_round_is_not_in() -> None:
    """Nodes that still want an older round, or run, are no joiners; they are waited for."""
    state = after(start(), formed(1), crash(1))
    members = roster(seen("n1", round_number=2), seen("n2", round_number=1), seen("n3", Phase.RUNNING))
    assert Wait(1, ("n2", "n3")) == step(joining(state, members))


def test_after_a_round_only_the_living_are_waited_for() -> None:
    """A lost node does not hold up the next round: no last call, no join timeout."""
    state = after(start(), formed(1), loss(1, "n3"))
    members = roster(*(seen(node, round_number=2, at=20) for node in ("n1", "n2")), seen("n3", Phase.RUNNING))
    assert FormRound(EVERYBODY[:2]) == step(joining(state, members), now=20, since=20)


@pytest.mark.parametrize("min_nodes", [2, 3])
def test_who_has_succeeded_in_a_round_that_failed_comes_back(min_nodes: int) -> None:
    """Its workers had ended well before one elsewhere failed: it lives, so it is waited for."""
    state = after(start(), formed(1), crash(1))
    waiting = (seen("n1", round_number=2, at=20), seen("n2", round_number=2, at=20))
    settings = SETTINGS._replace(min_nodes=min_nodes)
    on_its_way = joining(
        state, roster(*waiting, seen("n3", Phase.SUCCEEDED, at=19)), settings=settings, me="n1"
    )
    assert Wait(2, ("n3",)) == step(on_its_way, now=20, since=20)
    back = joining(state, roster(*waiting, seen("n3", round_number=2, at=20)), settings=settings)
    assert FormRound(EVERYBODY) == step(back, now=20, since=20)


def test_who_has_succeeded_and_is_silent_is_lost() -> None:
    """A node that dies after its workers have ended well does not hold up the next round for ever."""
    state = after(start(), formed(1), crash(1))
    members = roster(
        seen("n1", round_number=2, at=20),
        seen("n2", round_number=2, at=20),
        seen("n3", Phase.SUCCEEDED, at=8),
    )
    assert FormRound(EVERYBODY[:2]) == step(joining(state, members), now=20, since=20)
    three = joining(state, members, settings=SETTINGS._replace(min_nodes=3))
    assert TooFew(2, ("n3",), timed_out=False) == step(three, now=20, since=20)


def test_what_is_known_from_before_the_last_round_ends_no_start() -> None:
    """A round may form and fail between two looks: its members' names of the round before are no farewell."""
    state = after(start(), formed(1), loss(1, "n3"), formed(2, ("n1", "n2")), crash(2))
    members = roster(*(seen(node, Phase.SUCCEEDED, at=19) for node in ("n1", "n2")))
    assert Wait(0, ("n1", "n2")) == step(joining(state, members), now=20, since=20)


def test_who_had_succeeded_in_an_older_round_is_not_waited_for() -> None:
    """Its name is left over from a round before the last one."""
    state = after(start(), formed(1), crash(1), formed(2, ("n1", "n2")), crash(2))
    members = roster(
        *(seen(node, round_number=3, at=20) for node in ("n1", "n2")), seen("n3", Phase.SUCCEEDED, at=19)
    )
    assert FormRound(EVERYBODY[:2]) == step(joining(state, members), now=20, since=20)


def test_a_lost_node_that_comes_back_is_taken() -> None:
    """Who was lost and joins again is in."""
    state = after(start(), formed(1), loss(1, "n3"))
    members = roster(*(seen(node, round_number=2) for node in NODES))
    assert FormRound(EVERYBODY) == step(joining(state, members))


def test_too_few_are_left() -> None:
    """When the minimum cannot be reached any more, nobody waits for the deadline."""
    state = after(start(), formed(1, ("n1", "n2")), loss(1, "n2"))
    members = roster(seen("n1", round_number=2, at=20), seen("n2", Phase.RUNNING))
    assert TooFew(1, ("n2",), timed_out=False) == step(joining(state, members), now=20, since=20)


def test_those_who_are_still_to_come_are_left() -> None:
    """Who is alive and does not wait for the next round yet is neither lost nor forgotten."""
    state = after(start(), formed(1), loss(1, "n3"))
    members = roster(seen("n1", round_number=2, at=20), seen("n2", Phase.RUNNING, at=20))
    settings = SETTINGS._replace(min_nodes=3, max_nodes=3)
    view = joining(state, members, settings=settings)
    assert TooFew(2, ("n3",), timed_out=False) == step(view, now=20, since=20)


def test_the_join_timeout_names_who_is_missing() -> None:
    """At the deadline the nodes that did not come are named, in the order of their numbers."""
    state = after(start(expected=("n1", "n2", "n10", "n9")))
    settings = SETTINGS._replace(min_nodes=4, max_nodes=4)
    view = joining(state, roster(seen("n1", at=600), seen("n2", at=600)), settings=settings)
    assert Wait(2, ("n9", "n10")) == step(view, now=599)
    assert TooFew(2, ("n9", "n10"), timed_out=True) == step(view, now=600)


def test_enough_nodes_never_time_out() -> None:
    """The deadline is for the minimum; with it the last call decides."""
    members = roster(seen("n1", at=600), seen("n2", at=600))
    view = joining(after(start()), members)
    assert FormRound(EVERYBODY[:2]) == join(view, Waited(since=0, quorum_since=500), 600)


# Beside a round


def test_a_member_has_joined() -> None:
    """Who is in the round's record is in."""
    assert Joined(formed(1)) == step(joining(after(start(), formed(1)), ALL_IN))


def test_a_newcomer_asks_for_a_place() -> None:
    """A round with room is asked to take the newcomer in."""
    state = after(start(), formed(1, ("n1", "n2")))
    assert AskToJoin() == step(joining(state, ALL_IN, me="n3"))


def test_asking_once_is_enough() -> None:
    """While the round already pauses, the newcomer waits."""
    state = after(start(), formed(1, ("n1", "n2")), drain(AfterDrain.REJOIN, Cause.MEMBERSHIP))
    assert Spare() == step(joining(state, ALL_IN, me="n3"))


def test_beside_a_full_round_a_node_is_a_spare() -> None:
    """A spare stands by without a deadline."""
    state = after(start(), formed(1))
    assert Spare() == step(joining(state, ALL_IN, me="n4"), now=100_000)


def test_an_agent_that_came_back_is_a_newcomer() -> None:
    """A new agent on a node of the round is not the member that the round knows."""
    state = after(start(), formed(1, ("n1", "n2")))
    view = joining(state, ALL_IN)._replace(me="n1.2")
    assert AskToJoin() == step(view)


# The end


@pytest.mark.parametrize("last", [drain(), ending()])
def test_nobody_joins_a_run_that_is_being_left(last: object) -> None:
    """A drain that leaves, or the end of the run, sends joining nodes away."""
    state = after(start(), formed(1), crash(1), last)  # type: ignore[arg-type]
    assert LeaveRun() == step(joining(state, ALL_IN))


def test_an_older_start_is_fenced() -> None:
    """A node of an older start gives way, whatever else there is."""
    assert Fenced() == step(joining(after(start(), start(REQUEUED), ending()), ALL_IN))


# In a round


def test_everybody_must_be_in_the_phase() -> None:
    """A barrier opens when all members are known to be there, in this round."""
    stopped = frozenset({Phase.STOPPED, Phase.LEFT})
    members = dict(roster(seen("n1", Phase.STOPPED), seen("n2", Phase.STOPPED)))
    assert not rules.all_in(formed(1), members, stopped)
    members |= roster(seen("n3", Phase.RUNNING))
    assert not rules.all_in(formed(1), members, stopped)
    members |= roster(seen("n3", Phase.LEFT, round_number=0))
    assert rules.all_in(formed(1), members, stopped)
    assert not rules.all_in(formed(2), {**members, **roster(seen("n1", Phase.STOPPED))}, stopped)


def test_few_members_put_agreements_together() -> None:
    """The first three members gather what the others tell."""
    wide = formed(1, ("n1", "n2", "n3", "n4"))
    assert [True, True, True, False] == [
        rules.is_proposer(wide, node_id(n)) for n in ("n1", "n2", "n3", "n4")
    ]


def test_all_ranks_stop_at_the_highest_step() -> None:
    """The step that everybody reaches and nobody has passed is the highest that was told."""
    assert rules.stop_step(["a", "b"], {"a": 7}) is None
    assert 9 == rules.stop_step(["a", "b"], {"a": 7, "b": 9, "c": 99})
    assert -1 == rules.stop_step(["a", "b"], {"a": -1, "b": -1})
    assert rules.stop_step([], {}) is None


# Properties

phases = st.sampled_from((Phase.JOINING, Phase.RUNNING, Phase.STOPPED, Phase.LEFT))


@st.composite
def _rosters(draw: st.DrawFn) -> Roster:
    nodes = draw(st.lists(st.sampled_from(("n1", "n2", "n3", "n4", "n10")), unique=True))
    own = seen("n1", at=draw(st.floats(0, 100)))
    others = (seen(node, draw(phases), draw(st.integers(1, 2)), draw(st.floats(0, 100))) for node in nodes)
    return {**roster(*others), **roster(own)}


@given(
    members=_rosters(),
    expected=st.lists(st.sampled_from(("n1", "n2", "n3", "n4")), unique=True).map(tuple),
    low=st.integers(1, 4),
    room=st.integers(0, 2),
    waited=st.builds(Waited, st.floats(0, 100), st.none() | st.floats(0, 100), st.none() | st.floats(0, 100)),
)
def test_a_round_is_never_too_small_or_too_large(
    members: Roster, expected: tuple[str, ...], low: int, room: int, waited: Waited
) -> None:
    """Whatever a node knows, it forms rounds within the bounds, of different living nodes."""
    settings = MeetingSettings(min_nodes=low, max_nodes=low + room)
    view = joining(after(start(expected=expected)), members, settings=settings)
    action = join(view, waited, now=100.0)
    if isinstance(action, FormRound):
        assert low <= len(action.node_ids) <= low + room
        assert len(set(action.node_ids)) == len(action.node_ids)
        assert set(action.node_ids) <= set(rules.joiners(view, now=100.0))


@given(members=_rosters(), now=st.floats(0, 200))
def test_everybody_chooses_the_same_order(members: Roster, now: float) -> None:
    """Nodes that have seen the same thing would form the same round."""
    state = after(start())
    mine = rules.joiners(joining(state, members), now)
    theirs = rules.joiners(joining(state, dict(reversed(list(members.items())))), now)
    assert mine == theirs


@given(count=st.integers(1, 6), lost=st.sets(st.integers(0, 5)))
def test_ranks_are_stable(count: int, lost: set[int]) -> None:
    """The nodes that are left keep their order in the next round."""
    nodes = tuple(f"n{i}" for i in range(count))
    left = [node for i, node in enumerate(nodes) if i not in lost]
    first: RoundFormed = formed(1, nodes)
    state = after(start(expected=nodes), first, loss(1, *(set(nodes) - set(left))))
    members = roster(*(seen(node, round_number=2) for node in reversed(left)))
    assert [node_id(node) for node in left] == rules.joiners(joining(state, members, me="n99"), now=0)


def test_who_has_seen_no_quorum_has_no_last_call_behind_it() -> None:
    """However long it has waited: the others may have come just now."""
    late = roster(seen("n1", at=100.0), seen("n2", at=100.0))
    view = joining(after(start()), late)
    assert Wait(2, ("n3",)) == join(view, Waited(0.0), 100.0)
    assert FormRound(EVERYBODY[:2]) == join(view, Waited(0.0, quorum_since=70.0), 100.0)


def test_the_last_call_ends_for_all_at_the_same_moment() -> None:
    """From then on the second node counts the patience with the first."""
    members = roster(seen("n1", at=30.0), seen("n2", at=30.0))
    view = joining(after(start()), members, me="n2", settings=SETTINGS)
    times = {
        now: rules.wait_on(view, Waited(0.0, quorum_since=0.0), now).complete_since for now in (29.9, 30.0)
    }
    assert {29.9: None, 30.0: 30.0} == times


def test_a_newcomer_is_not_held_up_by_another_one() -> None:
    """Only members of the last round go first; where they are gone the first to come are taken."""
    state = after(start(), formed(1, ("n1", "n2")), loss(1, "n2"))
    two = SETTINGS._replace(max_nodes=2)
    members = roster(
        seen("n1", round_number=2), seen("n3", round_number=2), seen("n4", Phase.STOPPED, round_number=1)
    )
    assert FormRound((node_id("n1"), node_id("n3"))) == step(joining(state, members, settings=two))
    back = roster(*members.values(), seen("n2", Phase.STOPPED, round_number=1))
    assert isinstance(step(joining(state, back, settings=two)), Wait)


@pytest.mark.parametrize(("there", "expected", "interval"), [(9, 0, 2.0), (9, 900, 9.0), (900, 9, 9.0)])
def test_in_a_large_job_nodes_look_more_rarely(there: int, expected: int, interval: float) -> None:
    """By the nodes that are there or that are expected, whichever are more; a few never matter."""
    members = roster(*(seen(f"n{number}") for number in range(there)))
    state = after(start(expected=tuple(f"n{number}" for number in range(expected))))
    view = joining(state, members, me="n8", settings=SETTINGS._replace(heartbeat_interval=2.0))
    assert interval == rules.look_interval(view, 0.0)
