"""What a node does next when its clock does not begin at 0, and when its conclusions are out of date."""

from __future__ import annotations

import pytest

from hpc_elastic.meet import rules
from hpc_elastic.meet.member_names import Phase, Roster, Seen
from hpc_elastic.meet.rules import (
    READ_S,
    Announce,
    Fenced,
    FormRound,
    Gathering,
    JoinAction,
    Joining,
    LookFirst,
    MeetingSettings,
    TooFew,
    Wait,
    Waited,
    announces_at_once,
    join,
    wait_on,
)
from hpc_elastic.record.state import RunState
from tests.meet.build import (
    NODES,
    REQUEUED,
    after,
    crash,
    formed,
    joining,
    loss,
    node_id,
    roster,
    seen,
    start,
)

T0 = 1000.0
SETTINGS = MeetingSettings(min_nodes=2, max_nodes=3, join_timeout=600, last_call_timeout=30, lease=4)
EVERYBODY = tuple(node_id(node) for node in NODES)
NAMES = ("n1", "n2", "n3", "n4", "n5", "n6")


def here(*nodes: str, at: float = T0) -> Roster:
    """Return a roster of nodes that join, as they were last seen."""
    return roster(*(seen(node, at=at) for node in nodes))


def step(view: Joining, now: float, since: float = T0) -> JoinAction:
    """Return what a node does that has waited since a time, as if it had looked all the while."""
    waited = wait_on(view, Waited(since), since)
    return join(view, wait_on(view, waited, now), now)


@pytest.mark.parametrize(("me", "after_s"), [("n2", 2.0), ("n3", 4.0)])
def test_each_further_node_forms_the_round_a_while_later(me: str, after_s: float) -> None:
    """Since all were in."""
    settings = SETTINGS._replace(leader_patience=2.0)
    view = joining(after(start()), here(*NODES, at=T0 + 3), me=me, settings=settings)
    assert Wait(3, ()) == step(view, T0 + after_s - 0.1)
    assert FormRound(EVERYBODY) == step(view, T0 + after_s)


def test_the_first_node_needs_longer_for_more_nodes() -> None:
    """It reads what each of them has brought."""
    settings = SETTINGS._replace(leader_patience=0.0)
    view = joining(after(start()), here(*NODES), me="n2", settings=settings)
    assert Wait(3, ()) == step(view, T0 + 3 * READ_S * 0.9)
    assert FormRound(EVERYBODY) == step(view, T0 + 3 * READ_S * 1.01)


def test_a_start_is_announced_by_others_a_while_later() -> None:
    """Since they came."""
    view = joining(RunState(), {})._replace(announces=False)
    assert Wait(0, ()) == step(view, T0 + 0.9)
    assert Announce() == step(view, T0 + 1.0)


def test_few_nodes_announce_a_start() -> None:
    """The first ones, or a handful where the names are not known; of few nodes all, since any may be late."""
    names, all_of = tuple(f"node{number:04d}" for number in range(1024)), SETTINGS._replace(min_nodes=1024)
    assert names[:3] == tuple(name for name in names if announces_at_once(name, names, all_of))
    assert 3 <= sum(announces_at_once(name, (), all_of) for name in names) <= 16
    assert all(announces_at_once(name, (), SETTINGS._replace(min_nodes=15)) for name in names)


def test_where_no_names_are_known_those_that_announce_form_the_round() -> None:
    """They look at the others from the start; where all of them are gone the first by name does."""
    names = tuple(f"node{number:04d}" for number in range(64))
    settings = SETTINGS._replace(min_nodes=64, max_nodes=64)
    state = after(start(expected=()))
    first, *later = [name for name in names if announces_at_once(name, (), settings)]
    beside = next(name for name in names if name < first)

    def view_of(me: str, there: tuple[str, ...]) -> Joining:
        own = announces_at_once(me, (), settings)
        return joining(state, here(*there), me=me, settings=settings)._replace(announces=own)

    assert isinstance(step(view_of(first, names), T0), FormRound)
    assert all(isinstance(step(view_of(one, names), T0), Wait) for one in (beside, *later))
    for there in (names, ()):  # the node itself is seen, or not yet
        intervals = [rules.look_interval(view_of(one, there), T0) for one in (first, beside)]
        assert [0.0, settings.heartbeat_interval] == intervals
    left = tuple(name for name in names if name not in (first, *later))
    turns = [Gathering(view_of(one, left), T0).turn for one in (*left[:3], left[-1])]
    assert [0, 1, 2, len(left) - 1] == turns


def test_the_last_call_is_of_a_time_since_there_are_enough() -> None:
    """A node that is too few has its own time."""
    view = joining(after(start()), here("n1", "n2", at=T0 + 29), settings=SETTINGS)
    assert Wait(2, ("n3",)) == step(view, T0 + 29.9)
    assert FormRound(EVERYBODY[:2]) == step(view, T0 + 30.0)
    alone = joining(after(start(expected=())), here("n1", at=T0 + 599), settings=SETTINGS)
    assert Wait(1, ()) == step(alone, T0 + 1)
    assert Wait(1, ()) == step(alone, T0 + 599.9)
    assert TooFew(1, (), timed_out=True) == step(alone, T0 + 600.0)


def test_as_many_as_are_needed_are_not_too_few() -> None:
    """However long the first one has waited."""
    view = joining(after(start()), here("n1", "n2", at=T0 + 700), settings=SETTINGS)
    waited = Waited(T0, quorum_since=T0 + 690)
    assert Wait(2, ("n3",)) == join(view, waited, T0 + 700)


def test_nodes_that_have_ended_before_they_told_their_names_are_not_waited_for() -> None:
    """With those that may still come there are too few."""
    settings = SETTINGS._replace(min_nodes=3)
    members = {**here("n1"), **roster(seen("n3", Phase.ABSENT, at=T0))}
    view = joining(after(start()), members, settings=settings)
    assert TooFew(2, ("n3",), timed_out=True, ended=True) == step(view, T0)


def test_a_node_that_is_not_chosen_waits() -> None:
    """Others form the round."""
    state = after(start(expected=("n1", "n2", "n3", "n4")))
    view = joining(state, here("n1", "n2", "n3", "n4", at=T0 + 99), me="n4", settings=SETTINGS)
    assert Wait(4, ()) == step(view, T0 + 100)


def test_an_older_start_joins_nothing() -> None:
    """Nor does anybody wait for a look who only waits."""
    assert Fenced() == step(joining(after(start(REQUEUED)), here(*NODES)), T0)
    view = joining(after(start()), here("n1", "n2"), settings=SETTINGS)._replace(looked_at=T0 - 100)
    assert Wait(2, ("n3",)) == step(view, T0)


def test_only_who_waits_for_this_round_is_ready() -> None:
    """Other phases and rounds do not count."""
    others = roster(
        seen("n2", Phase.ABSENT, at=T0),
        seen("n3", Phase.LEFT, at=T0),
        seen("n4", round_number=2, at=T0),
    )
    view = joining(after(start()), {**here("n1"), **others})
    assert [node_id("n1")] == Gathering(view, T0).ready


@pytest.mark.parametrize(
    ("running", "rounds", "since"),
    [(False, 1, T0), (False, 0, T0 + 9), (True, 1, None), (True, 0, None)],
)
def test_the_last_call_begins_with_the_end_of_the_round(
    running: bool, rounds: int, since: float | None
) -> None:
    """Of the round that a node has waited beside."""
    members = roster(*(seen(node, round_number=2, at=T0 + 9) for node in NODES))
    state = after(start(), formed(1), *(() if running else (crash(1),)))
    waited = Waited(T0, quorum_since=T0, complete_since=T0, rounds=rounds)
    found = wait_on(joining(state, members), waited, T0 + 9)
    assert Waited(T0, since, since, 1) == found


def test_too_few_are_never_complete() -> None:
    """Though nobody else may come."""
    view = joining(after(start(expected=("n1",))), here("n1"), settings=SETTINGS)
    assert Gathering(view, T0).is_complete
    assert Waited(T0) == wait_on(view, Waited(T0), T0)


@pytest.mark.parametrize(("expected", "often"), [(NODES, False), ((), True)])
def test_a_node_whose_name_is_not_seen_looks_often_where_nobody_knows_who_comes(
    expected: tuple[str, ...], *, often: bool
) -> None:
    """Else the first nodes do."""
    view = joining(after(start(expected=expected)), here("n1", "n2"), me="n3")
    assert often is (rules.look_interval(view, T0) == 0.0)


@pytest.mark.parametrize(
    ("age", "holds_s"), [(2.0, 2.0), (0.0, 4.0), (4.0, 8.0), (6.0, 6.0), (12.0, 1000.0), (13.0, 1000.0)]
)
def test_conclusions_hold_until_the_next_lease_runs_out(age: float, holds_s: float) -> None:
    """Of one, or of three leases of silence; not for another view, nor for an earlier time."""
    view = joining(after(start()), roster(seen("n1", at=T0 - age)), settings=SETTINGS)
    known = Gathering(view, T0, 7)
    assert known.holds_for(view, T0, 7)
    assert known.holds_for(view, T0 + holds_s * 0.9, 7)
    assert holds_s >= 1000.0 or not known.holds_for(view, T0 + holds_s, 7)
    assert not known.holds_for(view, T0 - 0.5, 7)
    assert not known.holds_for(view, T0, 8)
    assert not known.holds_for(view._replace(settings=SETTINGS._replace(lease=5)), T0, 7)
    assert not known.holds_for(view._replace(state=after(start(), formed(1))), T0, 7)


def test_usual_sizes_and_times() -> None:
    """One node, as torchrun has it; nothing has been waited for yet."""
    usual = MeetingSettings()
    assert (1, 1, 1.0, False) == (usual.min_nodes, usual.max_nodes, usual.leader_patience, usual.may_outgrow)
    assert "1:1" == rules.sizes_text(usual)
    assert "" == rules.sizes_text(usual._replace(may_outgrow=True))
    assert (None, None, 0) == Waited(T0)[1:]
    assert not TooFew(1, (), timed_out=True).ended
    assert joining(after(start()), {}).announces


@pytest.mark.parametrize(
    ("age", "sure", "likely"), [(3.0, True, True), (6.0, True, False), (12.0, False, False)]
)
def test_a_node_that_was_lost_before_the_last_round_is_given_up_later_for_sure(
    age: float, *, sure: bool, likely: bool
) -> None:
    """For the verdict that there are too few it has to be silent for longer."""
    state = after(start(), formed(1), loss(1, "n3"), formed(2, ("n1", "n2")), crash(2))
    joins = (seen(node, round_number=3, at=T0) for node in ("n1", "n2"))
    members = roster(*joins, seen("n3", Phase.RUNNING, at=T0 - age))
    known = Gathering(joining(state, members, settings=SETTINGS), T0)
    assert (sure, likely) == ("n3" in known.surely_coming, "n3" in known.coming)


def ended(*members: Seen, me: str = "n1") -> Gathering:
    """Return the conclusions between two rounds of three nodes."""
    state = after(start(), formed(1), crash(1))
    return Gathering(joining(state, roster(*members), me=me, settings=SETTINGS), T0)


def back(node: str, age: float = 0.0) -> Seen:
    """Return a node that waits for the second round."""
    return seen(node, round_number=2, at=T0 - age)


@pytest.mark.parametrize(
    ("members", "coming"),
    [
        ((back("n1"), back("n2")), {"n3"}),
        ((back("n1"), back("n2"), seen("n3", Phase.STOPPED, at=T0)), {"n3"}),
        ((back("n1"), back("n2"), seen("n3", Phase.SUCCEEDED, at=T0)), {"n3"}),
        ((back("n1"), back("n2"), seen("n3", Phase.LEFT, at=T0)), set()),
        ((back("n1"), back("n2"), seen("n3", Phase.STOPPED, at=T0 - 6)), set()),
        ((back("n1", 6.0), back("n3"), seen("n2", Phase.STOPPED, at=T0 - 6)), set()),
    ],
)
def test_members_of_the_last_round_come_back(members: tuple[Seen, ...], coming: set[str]) -> None:
    """Also those that were not seen yet; not after a goodbye, nor who is silent, by the others alone."""
    assert coming == ended(*members).coming


def test_a_member_that_is_in_another_phase_is_not_ready() -> None:
    """Whatever its round is."""
    view = joining(after(start()), {**here("n1"), **roster(seen("n2", Phase.STOPPED, at=T0))})
    assert [node_id("n1")] == Gathering(view, T0).ready


def test_before_all_are_in_only_the_first_node_forms_the_round() -> None:
    """The last call is of its own time; another one waits until it knows since when all are in."""
    view = joining(after(start()), here("n1", "n2", at=T0 + 10), settings=SETTINGS)
    assert wait_on(view, Waited(T0, quorum_since=T0), T0 + 10).complete_since is None
    over = view._replace(me=node_id("n2"))
    assert Wait(2, ("n3",)) == join(over, Waited(T0 - 100, quorum_since=T0 - 90), T0 + 10)


@pytest.mark.parametrize("expected", [NAMES, ()])
@pytest.mark.parametrize(
    "there", [("n2", "n3", "n4", "n5"), ("n1", "n2", "n3", "n4", "n5"), ("n6", "n1", "n2", "n3", "n4")]
)
def test_the_node_that_forms_a_later_round_at_once_looks_at_the_others_from_the_start(
    there: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    """It is the first one of the last round that is there, also beside nodes that come before it by name."""
    settings = SETTINGS._replace(min_nodes=4, max_nodes=4)
    end = crash(1) if "n5" in there else loss(1, "n5")
    state = after(start(expected=expected), formed(1, ("n5", "n4", "n3", "n2")), end)
    members = roster(*(seen(node, round_number=2, at=T0) for node in there))
    forms: list[str] = []
    looks: list[str] = []
    may: list[str] = []
    for node in there:
        view = joining(state, members, me=node, settings=settings)
        view = view._replace(announces=announces_at_once(node, expected, settings))
        forms += [node] * isinstance(step(view, T0), FormRound)
        looks += [node] * (rules.look_interval(view, T0) == 0.0)
        may += [node] * rules.may_be_first(view, expected)
    assert 1 == len(forms)
    assert set(forms) <= set(looks) & set(may)
    assert 3 == len(looks)


def test_a_node_looks_once_more_before_it_says_that_too_few_have_come() -> None:
    """Others may have come since its last look, which in a large job is long ago."""
    state, settings = after(start(expected=())), SETTINGS._replace(lease=60)
    view = joining(state, here("n1", at=T0), settings=settings)
    for looked_at, wanted in ((T0 + 599, LookFirst()), (T0 + 600, TooFew(1, (), timed_out=True))):
        assert wanted == step(view._replace(looked_at=looked_at), T0 + 600)
    assert Wait(1, ()) == step(view._replace(looked_at=T0 + 598), T0 + 599)
