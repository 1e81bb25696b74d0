"""One node's view of a dynamic rendezvous, with time that passes by hand."""

from __future__ import annotations

import pytest

from hpc_elastic.errors import RendezvousTimeoutError
from hpc_elastic.rendezvous import dynamic_rules
from hpc_elastic.rendezvous.contact import ContactTurn
from hpc_elastic.rendezvous.dynamic_executor import Executor, StateHolder, Token
from hpc_elastic.rendezvous.dynamic_rules import NodeAction, NodeDesc
from hpc_elastic.testing.clock import FakeClock
from tests.rendezvous.dynamic_build import LIMITS, N1, N2, N3
from tests.rendezvous.memory_backend import MemoryRendezvousBackend


class _Node:
    """A node whose steps and time the test decides."""

    def __init__(self, backend: MemoryRendezvousBackend, me: NodeDesc, offset_s: float = 0.0) -> None:
        self.clock = FakeClock(10_000.0 + offset_s)
        self.holder = StateHolder(backend, me, LIMITS, self.clock)

    def step(self, operation: dynamic_rules.Operation) -> NodeAction:
        """Look, and take one action."""
        self.holder.read()
        view = self.holder.view()
        action = operation(view, dynamic_rules.ROLLBACK_S * 1e6)
        if action in dynamic_rules._APPLY:
            assert self.holder.write(dynamic_rules.apply(action, view))
        return action

    @property
    def members(self) -> list[NodeDesc]:
        """The participants that this node takes for alive."""
        self.holder.read()
        return list(self.holder.state.participants)


def _three(offset_s: float = 0.0) -> list[_Node]:
    backend = MemoryRendezvousBackend()
    nodes = [_Node(backend, N1), _Node(backend, N2, offset_s), _Node(backend, N3)]
    for node in nodes:
        assert NodeAction.ADD_TO_PARTICIPANTS is node.step(dynamic_rules.join)
    assert [NodeAction.FINISH] * 3 == [node.step(dynamic_rules.join) for node in nodes]
    return nodes


def _pass(nodes: list[_Node], seconds: float) -> None:
    for node in nodes:
        node.clock.advance(seconds)


@pytest.mark.parametrize("offset_s", [-3600.0, 0.0, 3600.0])
def test_clocks_are_not_compared(offset_s: float) -> None:
    """Nodes that beat stay, however far apart their clocks are; one that does not is given up in time."""
    nodes = _three(offset_s)
    for _ in range(50):
        _pass(nodes, LIMITS.interval)
        assert [NodeAction.KEEP_ALIVE] * 3 == [node.step(dynamic_rules.keep_alive) for node in nodes]
        assert [[N1, N2, N3]] * 3 == [node.members for node in nodes]
    last_beat = nodes[0].clock.monotonic()
    while len(nodes[0].members) == 3:
        _pass(nodes, LIMITS.interval)
        for node in (nodes[0], nodes[2]):
            node.step(dynamic_rules.keep_alive)
    assert LIMITS.lease <= nodes[0].clock.monotonic() - last_beat <= LIMITS.lease + LIMITS.interval
    assert (N2,) == nodes[2].holder.read().lost


def test_who_was_blind_gives_nobody_up() -> None:
    """A node that was stopped for long sees the others anew instead of passing verdicts."""
    nodes = _three()
    _pass(nodes, 100 * LIMITS.lease)
    assert [N1, N2, N3] == nodes[0].members
    for _ in range(3):
        _pass(nodes, LIMITS.interval)
        nodes[0].step(dynamic_rules.keep_alive)
    assert [N1] == nodes[0].members


def test_who_was_given_up_does_not_beat() -> None:
    """A node that the others have taken out does not put itself back behind their backs."""
    nodes = _three()
    assert nodes[0].holder.write(dynamic_rules.without(nodes[0].holder.read(), {N2}))
    _pass(nodes, LIMITS.interval)
    assert NodeAction.FINISH is nodes[1].step(dynamic_rules.keep_alive)
    assert 1 == dynamic_rules.nodes_waiting(nodes[1].holder.read(), N2, 0)


def test_the_first_to_write_wins() -> None:
    """A node that was overtaken takes the others' state and chooses again."""
    nodes = _three()
    nodes[1].holder.read()
    states = [dynamic_rules.apply(NodeAction.KEEP_ALIVE, node.holder.view()) for node in nodes[:2]]
    assert nodes[0].holder.write(states[0])
    assert not nodes[1].holder.write(states[1])
    assert states[0] == nodes[1].holder.state
    assert NodeAction.FINISH is nodes[1].step(dynamic_rules.join)


class _ForgetfulBackend(MemoryRendezvousBackend):
    """A backend whose state vanishes."""

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Have no state."""
        self._number = 0
        return super().set_state(state, token)


def test_a_state_that_vanished_is_an_empty_one() -> None:
    """After the loss of its state a rendezvous begins anew."""
    node = _Node(_ForgetfulBackend(), N1)
    assert node.holder.write(dynamic_rules.apply(NodeAction.ADD_TO_PARTICIPANTS, node.holder.view()))
    assert not node.holder.write(dynamic_rules.apply(NodeAction.KEEP_ALIVE, node.holder.view()))
    assert {} == node.holder.state.participants
    assert node.holder.write(dynamic_rules.apply(NodeAction.ADD_TO_PARTICIPANTS, node.holder.view()))


class _BusyBackend(MemoryRendezvousBackend):
    """A backend on which others are always faster."""

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Have no state, whatever is given."""
        return None if state or token else super().set_state(state, token)


class _ClockSleeper:
    """Waits by moving the clock."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self._clock.advance(seconds + 0.01)

    def wake(self) -> None:
        """Do nothing."""


def test_nobody_tries_for_ever() -> None:
    """A node that never gets its state through gives up after the deadline and the rollback."""
    node = _Node(_BusyBackend(), N1)
    turn = ContactTurn(node.clock, _ClockSleeper(node.clock))
    began = node.clock.monotonic()
    with turn.taken(), pytest.raises(RendezvousTimeoutError, match="within 60 s: 1 of 2 nodes are there"):
        Executor("r", node.holder, turn).run(dynamic_rules.join, 60.0)
    assert 60.0 <= node.clock.monotonic() - began <= 60.0 + dynamic_rules.ROLLBACK_S + 1
