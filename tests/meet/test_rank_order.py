"""How large the next round is, who is in it, and with which rank."""

from __future__ import annotations

from hpc_elastic.meet import rules
from hpc_elastic.meet.member_names import Phase
from hpc_elastic.meet.rules import (
    AskToJoin,
    FormRound,
    JoinAction,
    Joining,
    MeetingSettings,
    Spare,
    Wait,
    Waited,
    join,
    seats,
)
from hpc_elastic.record.journal import SizeWanted
from tests.meet.build import NODES, after, crash, formed, joining, loss, node_id, roster, seen, start

SETTINGS = MeetingSettings(min_nodes=2, max_nodes=3, join_timeout=600, last_call_timeout=30, lease=4)
ALL_IN = roster(seen("n1"), seen("n2"), seen("n3"))
EVERYBODY = tuple(node_id(node) for node in NODES)


def step(view: Joining, now: float = 0.0) -> JoinAction:
    """Return what a node does that has looked all the while since time 0."""
    waited = rules.wait_on(view, Waited(0.0), 0.0)
    return join(view, rules.wait_on(view, waited, now), now)


def test_the_wanted_size_is_kept_to() -> None:
    """A round takes in as many nodes as are wanted, within the job's bounds."""
    for wanted, expected in ((2, EVERYBODY[:2]), (1, EVERYBODY[:2]), (9, EVERYBODY)):
        assert FormRound(expected) == step(joining(after(start(), SizeWanted(0, wanted, "")), ALL_IN))


def test_a_spare_stands_by_a_round_of_the_wanted_size() -> None:
    """Room that is not wanted is not asked for; when it is wanted, it is."""
    members = roster(seen("n1", Phase.RUNNING), seen("n2", Phase.RUNNING), seen("n3", round_number=2))
    small = after(start(), SizeWanted(0, 2, ""), formed(1, ("n1", "n2")))
    assert Spare() == step(joining(small, members, me="n3"))
    assert AskToJoin() == step(joining(after(SizeWanted(0, 3, ""), state=small), members, me="n3"))


def test_a_spare_drives_nobody_out() -> None:
    """Who was in the last round is in the next, though another node comes first in Slurm's order."""
    state = after(start(), formed(1, ("n2", "n3")), crash(1))
    members = roster(*(seen(node, round_number=2) for node in NODES))
    settings = SETTINGS._replace(max_nodes=2)
    view = joining(state, members, me="n2", settings=settings)
    assert FormRound((node_id("n2"), node_id("n3"))) == step(view)


def test_a_spare_does_not_overtake_a_member_that_is_on_its_way() -> None:
    """A full round waits for a living member of the last one, and starts without it if it is lost."""
    state = after(start(), formed(1, ("n1", "n2")), crash(1))
    settings = SETTINGS._replace(max_nodes=2)
    slow = roster(
        seen("n1", Phase.RUNNING, at=3), seen("n2", round_number=2, at=3), seen("n3", round_number=2, at=3)
    )
    view = joining(state, slow, me="n2", settings=settings)
    assert Wait(2, ("n1",)) == step(view, now=5)
    gone = roster(
        seen("n1", Phase.RUNNING, at=0), seen("n2", round_number=2, at=3), seen("n3", round_number=2, at=3)
    )
    assert FormRound((node_id("n3"), node_id("n2"))) == step(view._replace(roster=gone), now=5)


def test_a_spare_takes_the_place_of_the_lost() -> None:
    """All others keep their ranks."""
    state = after(start(expected=("n1", "n2", "n3", "n4")), formed(1), loss(1, "n1"))
    members = roster(*(seen(node, round_number=2) for node in ("n2", "n3", "n4")))
    view = joining(state, members, me="n2")
    assert FormRound((node_id("n4"), node_id("n2"), node_id("n3"))) == step(view)


def test_a_smaller_round_closes_the_gap() -> None:
    """Without a replacement the ranks follow Slurm's order again."""
    state = after(start(), formed(1), loss(1, "n1"))
    members = roster(*(seen(node, round_number=2) for node in ("n2", "n3")))
    assert FormRound((node_id("n2"), node_id("n3"))) == step(joining(state, members, me="n2"))


def test_of_two_agents_on_a_node_one_keeps_its_place() -> None:
    """The other one takes the place that is free."""
    last = formed(1, ("n1", "n2"))
    assert ("n2.2", "n2.1") == seats(last, ["n2.1", "n2.2"])


def test_the_last_call_is_over_when_its_time_is() -> None:
    """A node that comes at that moment comes too late; the minimum forms its round."""
    for now, since in ((29.9, None), (30.0, 30.0)):
        view = joining(after(start()), roster(seen("n1", at=now), seen("n2", at=now)))
        waited = rules.wait_on(joining(after(start()), roster(seen("n1"), seen("n2"))), Waited(0.0), 0.0)
        assert since == rules.wait_on(view, waited, now).complete_since
