"""What an agent's decision rests on."""

from __future__ import annotations

import pytest

from hpc_elastic.meet.member_names import Phase
from hpc_elastic.meet.shared_fs import SharedFsRendezvous
from hpc_elastic.node.decision import AgentFacts, Group, OwnFacts
from hpc_elastic.record.journal import Cause, RoundEnded
from hpc_elastic.store.memory import MemoryStore
from hpc_elastic.testing.clock import FakeClock
from tests.meet.one_node import MakeNode, node_maker, together


class TickingClock(FakeClock):
    """A clock on which looking takes time."""

    tick_s = 0.0

    def monotonic(self) -> float:
        """Return the time, and let some pass."""
        self.advance(self.tick_s)
        return super().monotonic()


def test_who_falls_silent_while_the_facts_are_gathered_has_not_stopped() -> None:
    """At no moment around the lease's end is a killed member gone without having vanished."""
    clock = TickingClock()
    node: MakeNode = node_maker(MemoryStore(), clock)
    first, _ = together(node, clock)
    run = first.run
    run.commit(RoundEnded(1, Cause.CRASH, ("n2",), None))
    run.set_phase(Phase.STOPPED)
    run.membership.look()
    seen = set()
    clock.tick_s = 0.001
    for _ in range(5000):
        facts = seen_by(first, Group.STOPPED)
        assert facts.others.vanished or not facts.others.everyone_stopped
        seen.add((facts.others.vanished, facts.others.everyone_stopped))
    assert {(False, False), (True, True)} <= seen


@pytest.fixture
def two(memory_store: MemoryStore, clock: FakeClock) -> tuple[SharedFsRendezvous, SharedFsRendezvous]:
    """Two nodes whose round has ended."""
    first, second = together(node_maker(memory_store, clock), clock)
    first.run.commit(RoundEnded(1, Cause.CRASH, ("n2",), None))
    return first, second


def facts_of(node: SharedFsRendezvous, group: Group) -> AgentFacts:
    """Return the facts of a node that has just looked at the others."""
    node.run.membership.look()
    return seen_by(node, group)


def seen_by(node: SharedFsRendezvous, group: Group) -> AgentFacts:
    """Return the facts of a node by its last look."""
    others = node.run.peer_view(is_gone=group.is_gone)
    return AgentFacts(node.run.state, node.run.membership.epoch, OwnFacts(1, group), others)


@pytest.mark.parametrize("group", list(Group))
def test_who_is_gone_is_looked_for_when_the_own_workers_are_gone(
    two: tuple[SharedFsRendezvous, SharedFsRendezvous], clock: FakeClock, group: Group
) -> None:
    """Before that nothing follows from it."""
    first, _ = two
    assert not facts_of(first, group).others.vanished
    for _ in range(6):
        clock.advance(1.0)
        first.run.membership.beat_if_due()
        first.run.membership.look()
    assert group.is_gone == facts_of(first, group).others.vanished


@pytest.mark.parametrize("group", list(Group))
def test_who_waits_for_the_next_round_has_moved_on(
    two: tuple[SharedFsRendezvous, SharedFsRendezvous], group: Group
) -> None:
    """That tells those whose own workers are gone that nobody waits for them."""
    first, second = two
    for phase in (Phase.STOPPED, Phase.JOINING):  # what a node told before the round may come late
        second.run.set_phase(phase)
        assert not facts_of(first, group).others.moved_on
    second.run.refresh()
    second._enter()
    assert group.is_gone == facts_of(first, group).others.moved_on


@pytest.mark.parametrize("group", list(Group))
def test_all_have_succeeded_only_with_the_own_workers(
    two: tuple[SharedFsRendezvous, SharedFsRendezvous], group: Group
) -> None:
    """Whatever the others have told, and whatever this node has told before."""
    for node in two:
        node.run.set_phase(Phase.SUCCEEDED)
    own, others = facts_of(two[0], group)[2:4]
    assert (group is Group.SUCCEEDED) == (own.group is Group.SUCCEEDED and others.everyone_succeeded)


def test_before_the_first_round_nobody_has_moved_on(memory_store: MemoryStore, clock: FakeClock) -> None:
    """There is nobody to wait for."""
    node = node_maker(memory_store, clock)("n1")
    node.run.announce()
    others = facts_of(node, Group.STOPPED).others
    assert (False, False, True) == (others.moved_on, others.vanished, others.everyone_stopped)


@pytest.mark.parametrize("group", list(Group))
def test_of_a_member_that_was_never_seen_nothing_is_known(
    two: tuple[SharedFsRendezvous, SharedFsRendezvous], group: Group
) -> None:
    """It has not moved on, for all that this node knows."""
    first, second = two
    membership = first.run.membership
    membership.look()
    other = second.run.membership.node_id
    membership.roster = {one: seen for one, seen in membership.roster.items() if one != other}
    assert not seen_by(first, group).others.moved_on


@pytest.mark.parametrize("group", list(Group))
def test_others_that_still_work_have_not_succeeded(
    two: tuple[SharedFsRendezvous, SharedFsRendezvous], group: Group
) -> None:
    """Though this node's own workers have."""
    first, _ = two
    first.run.set_phase(Phase.SUCCEEDED)
    facts = facts_of(first, group)
    assert (False, False) == (facts.others.everyone_succeeded, facts.others.everyone_stopped)


@pytest.mark.parametrize("group", list(Group))
def test_all_have_stopped_only_with_the_own_workers(
    two: tuple[SharedFsRendezvous, SharedFsRendezvous], group: Group
) -> None:
    """What this node has told before does not count for workers that run."""
    for node in two:
        node.run.set_phase(Phase.STOPPED)
    assert group.is_gone == facts_of(two[0], group).others.everyone_stopped


def test_who_runs_in_a_newer_round_does_not_wait_for_one(
    two: tuple[SharedFsRendezvous, SharedFsRendezvous],
) -> None:
    """Only who still waits has moved on."""
    first, second = two
    second.run.refresh()
    second._enter()
    assert facts_of(first, Group.STOPPED).others.moved_on
    second.run.set_phase(Phase.RUNNING)
    assert not facts_of(first, Group.STOPPED).others.moved_on
