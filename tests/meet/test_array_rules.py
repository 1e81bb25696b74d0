"""What agents of array tasks do next, where it differs from the agents of one job."""

from __future__ import annotations

from hpc_elastic.meet import rules
from hpc_elastic.meet.member_names import MemberName, Phase, Seen
from hpc_elastic.meet.rules import (
    AskToJoin,
    Dismissed,
    Fenced,
    FormRound,
    JoinAction,
    Joining,
    MeetingSettings,
    Spare,
    Wait,
    Waited,
    join,
)
from hpc_elastic.record.journal import AfterDrain, Cause, Entry, Member, NodeLeft, RoundFormed, SizeWanted
from tests.meet.build import E0, after, drain, loss, start

SETTINGS = MeetingSettings(min_nodes=1, max_nodes=3, last_call_timeout=30, lease=4, may_outgrow=True)
A, B, C, D = "n1.1@12_0-0-0", "n2.1@12_1-0-0", "n3.1@12_2-0-0", "n4.1@13_0-0-0"
B_AGAIN = "n5.9@12_1-1-0"


def formed(number: int, *ids: str) -> RoundFormed:
    """Return a round of these agents."""
    members = tuple(Member(one, one.partition(".")[0], 1) for one in ids)
    return RoundFormed(number, E0, members, "addr", 20_000, None)


def step(me: str, entries: tuple[Entry, ...], **phases: tuple[str, Phase, int]) -> JoinAction:
    """Return what an agent does that sees others in phases of rounds, all of them alive."""
    roster = {one: Seen(MemberName(one, E0, phase, number, 1), 0.0) for one, phase, number in phases.values()}
    view = Joining(after(start(expected=()), *entries), roster, me, E0, SETTINGS)
    return join(view, rules.wait_on(view, Waited(0.0), 0.0), 0.0)


def joins(one: str, number: int = 2) -> tuple[str, Phase, int]:
    """Return how an agent shows that waits for a round."""
    return one, Phase.JOINING, number


def runs(one: str, number: int = 1) -> tuple[str, Phase, int]:
    """Return how an agent shows that is in a round."""
    return one, Phase.RUNNING, number


def left(one: str) -> NodeLeft:
    """Return the goodbye of an agent."""
    return NodeLeft(E0, one, one.partition(".")[0], Cause.PREEMPTION, "")


PAUSED = (formed(1, A, B, C), drain(AfterDrain.REJOIN), left(B), loss(1))


def test_nobody_waits_for_a_node_that_has_left() -> None:
    """Though a stale listing still shows it, or none has ever shown it."""
    both = {"a": joins(A), "c": joins(C)}
    assert FormRound((A, C)) == step(A, PAUSED, **both)
    assert FormRound((A, C)) == step(A, PAUSED, **both, b=("n2.1@12_1-0-0", Phase.STOPPED, 1))
    unknown = (formed(1, A, B, C), drain(AfterDrain.REJOIN), loss(1))
    assert isinstance(step(A, unknown, **both, b=("n2.1@12_1-0-0", Phase.STOPPED, 1)), Wait)


def test_an_outdated_agent_stands_down_and_is_in_no_round() -> None:
    """Whatever it does and the newer one does."""
    seen = {"a": joins(A), "b": joins(B), "again": joins(B_AGAIN)}
    entries = (formed(1, A, B), drain(AfterDrain.REJOIN), loss(1))
    assert isinstance(step(B, entries, **seen), Fenced)
    assert FormRound((A, B_AGAIN)) == step(A, entries, **seen)
    assert isinstance(step(B, (formed(1, A, C),), b=joins(B), again=("x.1@12_1-0-1", Phase.LEFT, 1)), Fenced)


def test_a_task_that_was_started_anew_takes_its_old_agents_place() -> None:
    """Even in a full round, which has to end for it; another spare does not ask."""
    full = (formed(1, A, B, C),)
    assert isinstance(step(B_AGAIN, full, again=joins(B_AGAIN), b=runs(B)), AskToJoin)
    assert isinstance(
        step(B_AGAIN, (*full, drain(AfterDrain.REJOIN)), again=joins(B_AGAIN), b=runs(B)), Spare
    )
    assert isinstance(step(D, full, d=joins(D)), Spare)


def test_spares_beyond_the_wanted_ones_are_dismissed() -> None:
    """The first ones of those that wait stay; without a word from the user all stand by."""
    waiting = {"b": joins(B), "c": joins(C)}
    one = formed(1, A)
    assert isinstance(step(C, (SizeWanted(0, 1, "", 1), one), **waiting), Dismissed)
    assert isinstance(step(B, (SizeWanted(0, 1, "", 1), one), **waiting), Spare)
    assert isinstance(step(B, (SizeWanted(0, 1, "", 0), one), **waiting), Dismissed)
    assert isinstance(step(C, (SizeWanted(0, 1, "", None), one), **waiting), Spare)
    assert isinstance(step(B, (SizeWanted(0, 2, "", 0), one), **waiting), AskToJoin)


def test_nobody_is_dismissed_while_a_place_may_become_free() -> None:
    """A member is called away: whoever stands by may be needed."""
    entries = (SizeWanted(0, 1, "", 0), formed(1, A), drain(AfterDrain.REJOIN))
    assert isinstance(step(B, entries, b=joins(B)), Spare)


def test_who_leaves_while_it_waits_is_in_no_round() -> None:
    """Its name still says that it waits."""
    both = {"a": joins(A, 1), "b": joins(B, 1)}
    assert FormRound((A,)) == step(A, (left(B), SizeWanted(0, 1, "", None)), **both)


def test_the_tasks_of_the_first_array_stay_longest() -> None:
    """A further array is given back first, whatever the nodes are called."""
    entries = (formed(1, D, A), drain(AfterDrain.REJOIN), loss(1), SizeWanted(0, 1, "", 0))
    assert FormRound((A,)) == step(A, entries, a=joins(A), d=joins(D))


def test_more_nodes_than_at_first_may_be_wanted() -> None:
    """An array can get more tasks; where it cannot, the most nodes hold."""
    size = SizeWanted(0, 4, "", 0)
    full = formed(1, A, B, C)
    assert isinstance(step(D, (size, full), d=joins(D)), AskToJoin)
    view = Joining(after(start(), size, full), {}, D, E0, SETTINGS._replace(may_outgrow=False))
    assert 3 == view.target
