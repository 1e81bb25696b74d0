"""Dynamic rendezvous of nodes that crash, pause and come late, in any order of reads and writes."""

from __future__ import annotations

import random

import pytest

from hpc_elastic.rendezvous import dynamic_rules
from hpc_elastic.rendezvous.dynamic_executor import StateHolder
from hpc_elastic.rendezvous.dynamic_rules import DynamicState, NodeAction, TimeLimits
from hpc_elastic.testing.clock import FakeClock
from tests.rendezvous.dynamic_build import FOREVER, node
from tests.rendezvous.memory_backend import MemoryRendezvousBackend

LIMITS = TimeLimits(min_nodes=2, max_nodes=4, last_call=10.0, interval=5.0, lease=20.0)


class _SimNode:
    """A node that takes its steps one by one: it looks, and later writes what it then chose.

    Args:
        backend: shared by all nodes.
        name: the node's name.
        clock: its clock.
    """

    def __init__(self, backend: MemoryRendezvousBackend, name: str, clock: FakeClock) -> None:
        self.holder = StateHolder(backend, node(name), LIMITS, clock)
        self.places: dict[int, tuple[int, int, str]] = {}  # round: rank, size, master
        self.joined: int | None = None
        self.operation: dynamic_rules.Operation = dynamic_rules.join
        self.paused_until = 0.0
        self._chosen: DynamicState | None = None

    def step(self) -> None:
        """Write what was chosen at the last step, or look and choose."""
        if self._chosen is not None:
            self.holder.write(self._chosen)
            self._chosen = None
            return
        state = self.holder.read()
        if self.joined is not None and dynamic_rules.nodes_waiting(state, self.holder.me, self.joined):
            self.joined = None
            self.operation = dynamic_rules.exit_round
        view = self.holder.view(port=1)
        action = self.operation(view, FOREVER)
        if action in dynamic_rules._APPLY:
            self._chosen = dynamic_rules.apply(action, view)
        elif action is NodeAction.FINISH:
            self._finish(state)

    def _finish(self, state: DynamicState) -> None:
        if self.operation is dynamic_rules.exit_round:
            self.operation = dynamic_rules.join
        elif self.operation is dynamic_rules.join:
            self.operation = dynamic_rules.keep_alive
            self.joined = state.round
            rank = state.participants[self.holder.me].rank
            self.places[state.round] = rank, len(state.members), state.master_addr


def _check(nodes: list[_SimNode]) -> None:
    """Check that all who were in a round agree about it."""
    for number in {number for one in nodes for number in one.places}:
        places = [one.places[number] for one in nodes if number in one.places]
        ranks = [rank for rank, _, _ in places]
        sizes = {size for _, size, _ in places}
        assert len(set(ranks)) == len(ranks)
        assert len(sizes) == 1 == len({master for _, _, master in places})
        (size,) = sizes
        assert LIMITS.min_nodes <= size <= LIMITS.max_nodes
        assert max(ranks) < size


def _fault(draw: random.Random, clock: FakeClock, alive: list[_SimNode]) -> None:
    """Have a node crash or pause, now and then."""
    what = draw.random()
    if what < 0.002 and len(alive) > LIMITS.min_nodes:
        alive.remove(draw.choice(alive))
    elif what < 0.01:
        draw.choice(alive).paused_until = clock.monotonic() + draw.uniform(1, 60)


@pytest.mark.parametrize("seed", range(20))
def test_everybody_agrees_and_the_living_meet(seed: int) -> None:
    """Whatever happens, a round is the same for all its members; when nothing more happens, all meet."""
    draw = random.Random(seed)
    clock, backend = FakeClock(), MemoryRendezvousBackend()
    nodes = [_SimNode(backend, f"n{number}", clock) for number in range(draw.randint(2, 4))]
    alive = list(nodes)
    for _ in range(2000):
        clock.advance(draw.uniform(0, 0.5))
        if draw.random() < 0.001 and len(alive) < LIMITS.max_nodes:
            nodes.append(_SimNode(backend, f"n{len(nodes)}", clock))
            alive.append(nodes[-1])
        _fault(draw, clock, alive)
        one = draw.choice(alive)
        if clock.monotonic() >= one.paused_until:
            one.step()
        _check(nodes)
    for _ in range(2000):
        clock.advance(0.1)
        draw.choice(alive).step()
    _check(nodes)
    rounds = {one.joined for one in alive}
    assert len(rounds) == 1
    assert None not in rounds
    assert {len(alive)} == {one.places[one.joined][1] for one in alive if one.joined is not None}
