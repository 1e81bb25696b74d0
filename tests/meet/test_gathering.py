"""What follows from the members is found once, and anew as soon as it may differ."""

from __future__ import annotations

import random

import pytest

from hpc_elastic.meet.member_names import Phase
from hpc_elastic.meet.membership import Membership, NodeFacts
from hpc_elastic.meet.rules import Gathering, Joining, MeetingSettings
from hpc_elastic.store.memory import MemoryStore
from hpc_elastic.testing.clock import FakeClock
from tests.meet.build import E0, after, crash, formed, member, node_id, start

SETTINGS = MeetingSettings(min_nodes=2, max_nodes=4, heartbeat_interval=1.0, lease=4.0)
NODES = ("n1", "n2", "n3", "n4", "n5")


def members_of(store: MemoryStore, clock: FakeClock) -> dict[str, Membership]:
    """Return the membership of each node."""
    return {
        node: Membership(store, clock, NodeFacts(member(node), node, node), E0, SETTINGS) for node in NODES
    }


def results(found: Gathering) -> tuple[object, ...]:
    """Return all that follows."""
    return (
        found.outdated,
        found.ready,
        found.turn,
        found.coming,
        found.surely_coming,
        found.missing,
        found.is_complete,
        found.chosen if found.ready else (),
    )


@pytest.mark.parametrize("seed", range(30))
def test_what_was_found_before_is_what_is_found_now(
    seed: int, memory_store: MemoryStore, clock: FakeClock
) -> None:
    """As long as an earlier result is said to hold, it is the one that a new look would give."""
    chance = random.Random(seed)
    state = after(start(expected=NODES if seed % 2 else ()), *((formed(1), crash(1)) if seed % 3 else ()))
    nodes = members_of(memory_store, clock)
    mine = nodes["n1"]
    kept: Gathering | None = None
    held = 0
    for _ in range(150):
        clock.advance(chance.choice((0.05, 0.3, 0.9)))
        for node in nodes.values():
            if node is mine or chance.random() < 0.7:
                node.beat_if_due()
        if chance.random() < 0.1:
            phase = chance.choice((Phase.JOINING, Phase.JOINING, Phase.STOPPED, Phase.LEFT, Phase.SUCCEEDED))
            chance.choice([*nodes.values()]).set_phase(phase, state.rounds + (phase is Phase.JOINING))
        if chance.random() < 0.8:
            mine.look()
        now = clock.monotonic()
        view = Joining(state, mine.roster, mine.node_id, E0, SETTINGS)
        if kept is not None and kept.holds_for(view, now, mine.changes):
            held += 1
            assert results(Gathering(view, now)) == results(kept)
        else:
            kept = Gathering(view, now, mine.changes)
    assert held > 0


def test_heartbeats_alone_are_no_change(memory_store: MemoryStore, clock: FakeClock) -> None:
    """A member that beats in time changes nothing; another phase, or a beat after a lease, does."""
    nodes = members_of(memory_store, clock)
    mine, other = nodes["n1"], nodes["n2"]
    for node in (mine, other):
        node.set_phase(Phase.JOINING, 1)
    mine.look()
    known = mine.changes
    for _ in range(3):
        clock.advance(1.0)
        mine.beat_if_due()
        other.beat_if_due()
        mine.look()
    assert known == mine.changes
    other.set_phase(Phase.STOPPED, 0)
    mine.look()
    assert known + 1 == mine.changes
    for _ in range(5):
        clock.advance(1.0)
        mine.beat_if_due()
        mine.look()
    assert known + 1 == mine.changes
    other.beat_if_due()
    mine.look()
    assert known + 2 == mine.changes


def test_a_record_and_the_end_of_a_lease_are_changes(memory_store: MemoryStore, clock: FakeClock) -> None:
    """What was found holds for this state of the run, and until the next lease runs out."""
    mine = members_of(memory_store, clock)["n1"]
    mine.set_phase(Phase.JOINING, 1)
    mine.look()
    now, state = clock.monotonic(), after(start())
    view = Joining(state, mine.roster, node_id("n1"), E0, SETTINGS)
    found = Gathering(view, now, mine.changes)
    assert found.holds_for(view, now + 3.9, mine.changes)
    assert not found.holds_for(view, now + 4.0, mine.changes)
    assert not found.holds_for(view._replace(state=after(formed(1), state=state)), now, mine.changes)
    assert not found.holds_for(view, now, mine.changes + 1)
