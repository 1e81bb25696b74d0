"""One agent's mark among the members, and its view of the others."""

from __future__ import annotations

import pytest

from hpc_elastic.errors import RendezvousStateError
from hpc_elastic.meet.liveness import is_alive
from hpc_elastic.meet.member_names import Phase, Suspicion, parse_name
from hpc_elastic.meet.membership import NODES, Membership, NodeFacts
from hpc_elastic.meet.rules import MeetingSettings
from hpc_elastic.record.journal import MEMBERS, Epoch, news_name
from hpc_elastic.store.memory import MemoryStore
from hpc_elastic.testing.clock import FakeClock
from tests.meet.build import E0, REQUEUED, member, node_id

SETTINGS = MeetingSettings(heartbeat_interval=1.0, lease=4.0)


def new_member(store: MemoryStore, clock: FakeClock, node: str, epoch: Epoch = E0) -> Membership:
    """Return a node's membership."""
    facts = NodeFacts(member(node, 2), f"host-{node}", f"{node}.cluster")
    return Membership(store, clock, facts, epoch, SETTINGS)


@pytest.fixture
def mine(memory_store: MemoryStore, clock: FakeClock) -> Membership:
    """Return the membership of node n1."""
    return new_member(memory_store, clock, "n1")


@pytest.fixture
def theirs(memory_store: MemoryStore, clock: FakeClock) -> Membership:
    """Return the membership of node n2."""
    return new_member(memory_store, clock, "n2")


def test_an_offer_is_read_by_others(mine: Membership, theirs: Membership) -> None:
    """What a node brings is known to the one that forms the round."""
    theirs.offer(1, 20_001)
    offer = mine.read_offer(node_id("n2"), 1)
    assert offer is not None
    assert (member("n2", 2), "host-n2", "n2.cluster", 20_001) == offer
    assert mine.read_offer(node_id("n3"), 1) is None
    assert mine.read_offer(node_id("n2"), 2) is None


def test_an_offer_is_for_one_round(memory_store: MemoryStore, theirs: Membership) -> None:
    """A node that comes back after a round tells anew what it brings, and takes the old offer away."""
    theirs.offer(1, 20_001)
    theirs.offer(2, 20_002)
    assert ["n2.1.2.json"] == memory_store.list("nodes")


def test_a_member_has_one_name(memory_store: MemoryStore, mine: Membership, clock: FakeClock) -> None:
    """However often a node beats, it has one name, and its counter grows."""
    mine.set_phase(Phase.JOINING, 1)
    for _ in range(3):
        clock.advance(1.0)
        mine.beat_if_due()
    mine.set_phase(Phase.RUNNING, 1)
    assert ["n1.1+0-0-0-0+running+1+4+0"] == memory_store.list(MEMBERS)


def test_beats_come_at_the_interval(memory_store: MemoryStore, mine: Membership, clock: FakeClock) -> None:
    """Between two beats nothing is written."""
    mine.beat_if_due()
    assert [] == memory_store.list(MEMBERS)
    mine.set_phase(Phase.RUNNING, 1)
    before = memory_store.list(MEMBERS)
    clock.advance(0.9)
    mine.beat_if_due()
    mine.ensure_phase(Phase.RUNNING, 1)
    assert before == memory_store.list(MEMBERS)
    clock.advance(0.1)
    mine.beat_if_due()
    assert before != memory_store.list(MEMBERS)


def live_nodes(observer: Membership, clock: FakeClock) -> set[str]:
    """Return the nodes that an observer takes for alive after a look."""
    seen = observer.look()
    return {entry.name.node for entry in seen.values() if is_alive(entry, clock.monotonic(), SETTINGS.lease)}


def test_a_silent_member_loses_its_lease(mine: Membership, theirs: Membership, clock: FakeClock) -> None:
    """A node that stops beating is gone after its lease, for those that go on beating and looking."""
    theirs.set_phase(Phase.RUNNING, 1)
    mine.set_phase(Phase.RUNNING, 1)
    assert {"n1", "n2"} == live_nodes(mine, clock)
    for second in range(1, 5):
        clock.advance(1.0)
        mine.beat_if_due()
        alive = live_nodes(mine, clock)
        assert ({"n1", "n2"} if second < 4 else {"n1"}) == alive


def test_who_was_away_judges_nobody(mine: Membership, theirs: Membership, clock: FakeClock) -> None:
    """A node that was stopped itself gives everybody a new lease before it gives anybody up."""
    theirs.set_phase(Phase.RUNNING, 1)
    mine.set_phase(Phase.RUNNING, 1)
    live_nodes(mine, clock)
    clock.advance(100.0)
    assert {"n1", "n2"} == live_nodes(mine, clock)


def test_a_late_beat_does_not_hide_that_a_node_was_away(
    mine: Membership, theirs: Membership, clock: FakeClock
) -> None:
    """It gives everybody a new lease at its next look, once."""
    theirs.set_phase(Phase.RUNNING, 1)
    mine.set_phase(Phase.RUNNING, 1)
    live_nodes(mine, clock)
    clock.advance(5.0)
    mine.beat_if_due()
    assert {"n1", "n2"} == live_nodes(mine, clock)
    for _ in range(4):
        clock.advance(1.0)
        mine.beat_if_due()
        mine.look()
    assert {"n1"} == live_nodes(mine, clock)


@pytest.mark.parametrize(("pause_s", "alive"), [(3.0, {"n1"}), (3.1, {"n1", "n2"})])
def test_who_has_not_beaten_for_half_a_lease_and_a_beat_was_away(
    mine: Membership, theirs: Membership, clock: FakeClock, pause_s: float, alive: set[str]
) -> None:
    """Not one moment before."""
    theirs.set_phase(Phase.RUNNING, 1)
    mine.set_phase(Phase.RUNNING, 1)
    live_nodes(mine, clock)
    clock.advance(1.0)
    mine.beat_if_due()
    clock.advance(pause_s)
    assert alive == live_nodes(mine, clock)


def test_a_suspicion_counts_from_when_this_node_had_it(
    memory_store: MemoryStore, mine: Membership, clock: FakeClock
) -> None:
    """Also if its mark was there already; having it again changes nothing."""
    mark = Suspicion(node_id("n2"), E0, 3, node_id("n1"))
    memory_store.mark(MEMBERS, mark.text())
    mine.look()
    since = clock.monotonic()
    for _ in range(2):
        mine.suspect(mark)
        clock.advance(1.0)
    assert {mark: since} == mine.suspected_at
    mine.keep_suspected([])
    mine.suspect(mark)
    assert {mark: clock.monotonic()} == mine.suspected_at


class _SlowStore(MemoryStore):
    """A store whose listings take time."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock = clock
        self.delay_s = 0.0

    def list(self, directory: str) -> list[str]:
        """List after a while."""
        self._clock.advance(self.delay_s)
        return super().list(directory)


def test_a_slow_look_judges_nobody(clock: FakeClock) -> None:
    """A listing that took most of a lease is no ground for a verdict."""
    store = _SlowStore(clock)
    mine, theirs = new_member(store, clock, "n1"), new_member(store, clock, "n2")
    theirs.set_phase(Phase.RUNNING, 1)
    mine.set_phase(Phase.RUNNING, 1)
    live_nodes(mine, clock)
    store.delay_s = 5.0
    assert {"n1", "n2"} == live_nodes(mine, clock)


@pytest.mark.parametrize(("delay_s", "alive"), [(2.0, {"n1"}), (2.1, {"n1", "n2"})])
def test_a_look_of_half_a_lease_is_long(clock: FakeClock, delay_s: float, alive: set[str]) -> None:
    """What takes no longer than that still tells who is there."""
    store = _SlowStore(clock)
    mine, theirs = new_member(store, clock, "n1"), new_member(store, clock, "n2")
    theirs.set_phase(Phase.RUNNING, 1)
    mine.set_phase(Phase.RUNNING, 1)
    for _ in range(3):
        live_nodes(mine, clock)
        clock.advance(1.0)
        mine.beat_if_due()
    store.delay_s = delay_s
    assert alive == live_nodes(mine, clock)


def test_older_starts_are_cleared_away(memory_store: MemoryStore, clock: FakeClock, mine: Membership) -> None:
    """Names of older starts are removed; a new start's and foreign names stay."""
    mine.set_phase(Phase.RUNNING, 1)
    newer = new_member(memory_store, clock, "n2", REQUEUED)
    newer.set_phase(Phase.JOINING, 2)
    memory_store.mark(MEMBERS, "foreign")
    memory_store.mark(MEMBERS, news_name(3))
    memory_store.mark(MEMBERS, Suspicion(node_id("n1"), E0, 3, node_id("n2")).text())
    newer.remove_older()
    assert ["foreign", "n2.1+0-0-1-0+joining+2+0+0"] == memory_store.list(MEMBERS)


def test_the_names_of_earlier_starts_of_a_task_are_cleared_away(
    memory_store: MemoryStore, clock: FakeClock
) -> None:
    """Those of the same task only, and none that is newer."""
    ids = ["n1.1@12_0-0-0", "n1.2@12_0-1-0", "n1.3@12_0-2-0", "n2.1@12_1-0-0", "n3.1"]
    members = [
        Membership(memory_store, clock, NodeFacts(member("n1")._replace(node_id=one), "h", "a"), E0, SETTINGS)
        for one in ids
    ]
    for one in members:
        one.set_phase(Phase.JOINING, 1)
    mine = members[1]
    mine.look()
    mine.remove_outdated()
    assert set(ids[1:]) == {name.partition("+")[0] for name in memory_store.list(MEMBERS)}
    members[4].look()
    members[4].remove_outdated()
    assert set(ids[1:]) == {name.partition("+")[0] for name in memory_store.list(MEMBERS)}


def test_steps_are_told_per_round(mine: Membership, theirs: Membership) -> None:
    """The steps told for one round are not mixed up with another's."""
    mine.tell_step(3, 120)
    theirs.tell_step(3, -1)
    theirs.tell_step(31, 7)
    mine.look(steps=True)
    assert {node_id("n1"): 120, node_id("n2"): -1} == mine.told_steps(3)


def test_a_damaged_offer_is_named(mine: Membership, theirs: Membership, memory_store: MemoryStore) -> None:
    """Nobody forms a round with a node whose words cannot be read."""
    theirs.offer(1, 20_001)
    (name,) = memory_store.list(NODES)
    memory_store.put(NODES, name, b"[1")
    with pytest.raises(RendezvousStateError, match=r"^nodes/.*n2.*the offer of a node, is damaged"):
        mine.read_offer(node_id("n2"), 1)


def test_changes_are_more_than_heartbeats(mine: Membership, theirs: Membership, clock: FakeClock) -> None:
    """A new member, a new phase, and a time in which this node could not see."""
    mine.set_phase(Phase.JOINING, 1)
    mine.look()
    seen = mine.changes
    theirs.set_phase(Phase.JOINING, 1)
    mine.look()
    assert mine.changes > seen
    seen = mine.changes
    clock.advance(1.0)
    theirs.beat_if_due()
    mine.beat_if_due()
    mine.look()
    assert seen == mine.changes
    theirs.set_phase(Phase.STOPPED, 1)
    mine.look()
    assert mine.changes > seen
    seen = mine.changes
    mine.forgive()
    assert mine.changes > seen


def test_nothing_is_known_before_the_first_look(mine: Membership) -> None:
    """No record, no member and no blindness; a beat without a name is none."""
    assert (0, 0, {}, frozenset()) == (mine.newest_record, mine.known, mine.roster, mine.suspicions)
    mine.tell_news()
    mine.beat_if_due()
    assert {} == mine.look()
    assert 0 == mine.newest_record


def test_only_running_workers_have_steps(memory_store: MemoryStore, mine: Membership) -> None:
    """They stand in the name."""
    mine.tell_steps = lambda: "5-0"
    for phase, steps in ((Phase.JOINING, ""), (Phase.RUNNING, "5-0"), (Phase.STOPPED, "")):
        mine.set_phase(phase, 1)
        (text,) = memory_store.list(MEMBERS)
        assert steps == (parse_name(text) or pytest.fail(text)).steps


def test_who_has_said_goodbye_says_nothing_more(memory_store: MemoryStore, mine: Membership) -> None:
    """A final phase stays, and news are told by those that are there."""
    mine.set_phase(Phase.SUCCEEDED, 1)
    (text,) = memory_store.list(MEMBERS)
    mine.leave(1)
    assert [text] == memory_store.list(MEMBERS)
    mine.tell_news()
    assert [text] != memory_store.list(MEMBERS)
    mine.set_phase(Phase.LEFT, 1)
    (text,) = memory_store.list(MEMBERS)
    mine.tell_news()
    assert [text] == memory_store.list(MEMBERS)


def test_a_suspicion_of_a_member_that_has_not_beaten_since_stays(
    memory_store: MemoryStore, mine: Membership, theirs: Membership
) -> None:
    """The one that it has refuted goes."""
    theirs.set_phase(Phase.RUNNING, 1)
    mine.set_phase(Phase.RUNNING, 1)
    mark = Suspicion(theirs.node_id, E0, 0, mine.node_id)
    mine.suspect(mark)
    mine.look()
    mine.object_to_refuted()
    assert mark.text() in memory_store.list(MEMBERS)
    theirs.set_phase(Phase.RUNNING, 1)
    mine.look()
    mine.object_to_refuted()
    assert mark.text() not in memory_store.list(MEMBERS)


def test_names_of_somebody_else_are_no_steps(memory_store: MemoryStore, mine: Membership) -> None:
    """A file server or a user may leave any name."""
    for name in ("notes+n1.1+120", "+n1.1+5", "3", "3+n1.1+1-", "3+n1.1+--1"):
        memory_store.mark("steps", name)
    mine.tell_step(3, 120)
    mine.look(steps=True)
    assert {node_id("n1"): 120} == mine.told_steps(3)
