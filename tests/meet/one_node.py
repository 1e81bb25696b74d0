"""The rendezvous of a node, over a store in memory and with a clock that stands still."""

from __future__ import annotations

from collections.abc import Callable

from hpc_elastic.meet.membership import Membership, NodeFacts
from hpc_elastic.meet.rules import MeetingSettings
from hpc_elastic.meet.shared_fs import SharedFsRendezvous, Waiting
from hpc_elastic.meet.shared_run import RunDeps, RunFacts, SharedRun
from hpc_elastic.record.journal import Epoch, MarkedCheckpoint
from hpc_elastic.record.run_log import RunLog
from hpc_elastic.store.memory import MemoryStore
from hpc_elastic.store.protocol import Store
from hpc_elastic.testing.clock import FakeClock
from tests.meet.build import E0, member

SETTINGS = MeetingSettings(min_nodes=1, max_nodes=3, join_timeout=60.0, last_call_timeout=5.0)
MakeNode = Callable[..., SharedFsRendezvous]


def node_maker(memory_store: MemoryStore, clock: FakeClock) -> MakeNode:
    """Return a function that makes the rendezvous of a node."""

    def make(  # noqa: PLR0913 - a test names what it needs
        name: str = "n1",
        *,
        epoch: Epoch = E0,
        expected: tuple[str, ...] = (),
        batch_host: str = "",
        settings: MeetingSettings = SETTINGS,
        store: Store = memory_store,
        wait: Callable[[float], None] = clock.advance,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> SharedFsRendezvous:
        facts = NodeFacts(member(name), f"host-{name}", f"{name}.cluster")
        membership = Membership(store, clock, facts, epoch, settings)
        deps = RunDeps(
            clock, lambda: MarkedCheckpoint(120, "/c"), open_store=lambda number: f"store of {number}"
        )
        told = RunFacts("run-1", "17", expected, batch_host)
        run = SharedRun(RunLog(store, clock, name), membership, told, settings, deps)
        return SharedFsRendezvous(run, Waiting(wait, lambda: 20_000, interrupted))

    return make


def alone(node: MakeNode, name: str = "n1", epoch: Epoch = E0) -> SharedFsRendezvous:
    """Return the rendezvous of a node that runs a round by itself."""
    handler = node(name, epoch=epoch, expected=(name,))
    handler.next_rendezvous()
    return handler


def together(node: MakeNode, clock: FakeClock) -> tuple[SharedFsRendezvous, SharedFsRendezvous]:
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
