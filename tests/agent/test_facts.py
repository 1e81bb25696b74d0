"""What an agent's decision rests on."""

from __future__ import annotations

from hpc_elastic.agent.budgets import Budgets
from hpc_elastic.agent.decision import Group
from hpc_elastic.agent.facts import gather
from hpc_elastic.rendezvous.journal import Cause, RoundEnded
from hpc_elastic.rendezvous.roster import Phase
from hpc_elastic.store.memory import MemoryStore
from hpc_elastic.testing.clock import FakeClock
from tests.rendezvous.one_node import MakeNode, node_maker, together


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
        facts = gather(run, 1, Group.STOPPED, budgets=Budgets(crash=0), waited=False)
        assert facts.vanished or not facts.everyone_stopped
        seen.add((facts.vanished, facts.everyone_stopped))
    assert {(False, False), (True, True)} <= seen
