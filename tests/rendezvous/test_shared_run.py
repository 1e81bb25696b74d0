"""What a member of a round sees of the others, and what that costs."""

from __future__ import annotations

from hpc_elastic.rendezvous.journal import Cause, Then
from hpc_elastic.rendezvous.roster import Phase
from hpc_elastic.rendezvous.shared_fs import SharedFsRendezvous
from hpc_elastic.store.memory import MemoryStore
from hpc_elastic.testing.clock import FakeClock
from tests.rendezvous.one_node import MakeNode


def test_a_silent_member_is_noticed(node: MakeNode, clock: FakeClock) -> None:
    """Members that go on beating lose one that does not, within the lease and a beat."""
    first, second = _pair(node, clock)
    for _ in range(5):
        clock.advance(1.0)
        first.run.tick()
    assert ("n2",) == first.run.lost
    state = first.run.report_lost(1, first.run.lost)
    assert state.running is None
    assert frozenset({"n2"}) == state.lost
    assert second.run.tick().running is None


def _pair(node: MakeNode, clock: FakeClock) -> tuple[SharedFsRendezvous, SharedFsRendezvous]:
    """Return two nodes in one round: the second joins when the first has waited once."""
    second = node("n2", expected=("n1", "n2"))
    joined: list[SharedFsRendezvous] = []

    def wait(seconds: float) -> None:
        clock.advance(seconds)
        if not joined:
            joined.append(second)
            second._enter()

    first = node("n1", expected=("n1", "n2"), wait=wait)
    assert 2 == first.next_rendezvous().world_size
    assert 1 == second.next_rendezvous().rank
    return first, second


def _round_of(node: MakeNode, clock: FakeClock, names: tuple[str, ...]) -> list[SharedFsRendezvous]:
    """Return the handlers of nodes that are in one round."""
    handlers = [node(name, expected=names) for name in names]
    for handler in handlers[1:]:
        handler._enter()
    with_others: list[SharedFsRendezvous] = []

    def wait(seconds: float) -> None:
        clock.advance(seconds)
        if not with_others:
            with_others.extend(handlers[1:])
            for handler in handlers[1:]:
                handler._look_again()

    handlers[0]._waiting = handlers[0]._waiting._replace(wait=wait)
    for handler in handlers:
        assert len(names) == handler.next_rendezvous().world_size
    return handlers


def test_two_observers_agree_on_a_loss(node: MakeNode, clock: FakeClock) -> None:
    """One suspects, the second confirms; neither alone gives a third node up."""
    first, second, _ = _round_of(node, clock, ("n1", "n2", "n3"))
    for _ in range(4):
        clock.advance(1.0)
        first.run.tick()
        second.run.tick()
    clock.advance(1.0)
    first.run.tick()
    assert 1 == len(first.run.membership._store.list("members")) - 3
    assert () == first.run.lost
    second.run.tick()
    assert ("n3",) == second.run.lost


def test_an_observer_looks_when_a_lease_runs_out(node: MakeNode, clock: FakeClock) -> None:
    """The end of a lease is not slept over until the next heartbeat."""
    first, second = _pair(node, clock)
    clock.advance(0.5)
    second.run.membership.tell_news()
    for _ in range(4):
        clock.advance(first.run.next_turn_at() - clock.monotonic())
        first.run.tick()
    seen_at = first.run.membership.roster[second.run.membership.node_id].changed_at
    assert seen_at + first.run.settings.lease == first.run.next_turn_at()
    clock.advance(first.run.next_turn_at() - clock.monotonic())
    first.run.tick()
    assert ("n2",) == first.run.lost


class _CountingStore(MemoryStore):
    """A store that counts what is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[str] = []

    def mark(self, directory: str, name: str, *, instead_of: str | None = None) -> None:
        """Mark."""
        self.operations.append("mark")
        super().mark(directory, name, instead_of=instead_of)

    def read_after(self, log: str, number: int) -> list[tuple[int, bytes]]:
        """Read."""
        self.operations.append("read")
        return super().read_after(log, number)

    def list(self, directory: str) -> list[str]:
        """List."""
        self.operations.append("list")
        return super().list(directory)


def test_a_heartbeat_costs_two_operations(node: MakeNode, clock: FakeClock) -> None:
    """An observer reads the news in the names of the others, every fifth time in the journal instead."""
    store = _CountingStore()
    first = node("n1", expected=("n1", "n2"), store=store)
    second = node("n2", expected=("n1", "n2"), store=store)
    second._enter()

    def wait(seconds: float) -> None:
        clock.advance(seconds)
        second._look_again()

    first._waiting = first._waiting._replace(wait=wait)
    first.next_rendezvous()
    second.next_rendezvous()
    costs = []
    asked: set[str] = set()
    for _ in range(20):
        clock.advance(1.0)
        second.run.membership.beat_if_due()
        store.operations.clear()
        first.run.tick()
        costs.append(len(store.operations))
        asked.update(store.operations)
    assert [2] * 20 == costs
    assert "read" in asked


def test_news_reaches_an_observer_with_the_next_heartbeat(node: MakeNode, clock: FakeClock) -> None:
    """A record that another member adds is told in its name, one by the user in a name of its own."""
    first, second = _pair(node, clock)
    clock.advance(1.0)
    first.run.tick()
    second.run.request_drain(Cause.PREEMPTION, Then.LEAVE, "SIGTERM")
    clock.advance(1.0)
    state = first.run.tick()
    assert state.drain is not None


def test_leaving_is_noticed_at_once(node: MakeNode, clock: FakeClock) -> None:
    """A member that leaves while the round runs is missed without waiting for its lease."""
    first, second = _pair(node, clock)
    assert second.shutdown()
    first.run.tick(look=True)
    assert ("n2",) == first.run.lost


def test_a_finished_member_may_leave(node: MakeNode, clock: FakeClock) -> None:
    """A member whose workers have succeeded and that left after the exit barrier is not lost."""
    first, second = _pair(node, clock)
    second.run.set_phase(Phase.SUCCEEDED)
    second.shutdown()
    first.run.tick(look=True)
    assert () == first.run.lost


def test_what_was_lost_in_one_round_is_not_lost_in_the_next(node: MakeNode, clock: FakeClock) -> None:
    """A spare that has seen a loss in round 1 does not blame round 2 for it."""
    first, _ = _pair(node, clock)
    looks: list[int] = []

    def wait(seconds: float) -> None:
        clock.advance(1.0)
        looks.append(1)
        state = first.run.tick()
        if spare.run.lost:  # at this moment the members act, before the spare does
            first.run.report_lost(1, ("n2",))
            first.run.set_phase(Phase.LEFT)
            other.next_rendezvous()
        assert len(looks) < 30
        assert state.rounds < 2 or state.running is not None

    spare = node("n3", wait=wait)
    other = node("n4")
    spare.next_rendezvous()
    assert spare.run.state.running is not None


def test_everyone_in_leaves_out_the_dead(node: MakeNode, clock: FakeClock) -> None:
    """A barrier is not held up by a member whose lease has run out."""
    first, second = _pair(node, clock)
    first.run.set_phase(Phase.STOPPED)
    first.run.tick(look=True)
    assert not first.run.everyone_in(Phase.STOPPED)
    second.run.set_phase(Phase.STOPPED)
    first.run.tick(look=True)
    assert first.run.everyone_in(Phase.STOPPED)
    second.run.set_phase(Phase.RUNNING)
    for _ in range(5):
        clock.advance(1.0)
        first.run.tick(look=True)
    assert first.run.everyone_in(Phase.STOPPED)
