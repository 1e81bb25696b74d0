"""Short ways to write down states of a dynamic rendezvous."""

from __future__ import annotations

from hpc_elastic.rendezvous.dynamic_rules import (
    DynamicState,
    NodeDesc,
    NodePlace,
    Quorum,
    StateView,
    TimeLimits,
)

LIMITS = TimeLimits(min_nodes=2, max_nodes=3, last_call=30.0, interval=5.0, lease=15.0)
FOREVER = 1e9


def node(name: str) -> NodeDesc:
    """Return a node."""
    return NodeDesc(name, 1, 0)


N1, N2, N3, N4, N10 = (node(name) for name in ("n1", "n2", "n3", "n4", "n10"))


def gathering(*nodes: NodeDesc, number: int = 0) -> DynamicState:
    """Return a round that is not complete yet."""
    places = {one: NodePlace(-1, 20_000 + place) for place, one in enumerate(nodes)}
    return DynamicState(round=number, participants=places, beats=dict.fromkeys(nodes, 1))


def running(*nodes: NodeDesc, number: int = 0) -> DynamicState:
    """Return a complete round."""
    places = {one: NodePlace(rank, 20_000 + rank) for rank, one in enumerate(nodes)}
    return DynamicState(
        round=number,
        complete=True,
        participants=places,
        beats=dict.fromkeys(nodes, 1),
        members=nodes,
        master_addr=nodes[0].addr,
        master_port=20_000,
    )


def beside(
    state: DynamicState, *, waiting: tuple[NodeDesc, ...] = (), spare: tuple[NodeDesc, ...] = ()
) -> DynamicState:
    """Return the state with nodes that wait or stand by."""
    return state._replace(
        wait_list=frozenset(waiting),
        redundancy_list=frozenset(spare),
        beats={**state.beats, **dict.fromkeys((*waiting, *spare), 1)},
    )


def view(
    state: DynamicState,
    me: NodeDesc = N1,
    *,
    now: float = 0.0,
    limits: TimeLimits = LIMITS,
    quorum_since: float | None = None,
    leaving: bool = False,
) -> StateView:
    """Return what a node knows; it has just beaten."""
    quorum = None if quorum_since is None else Quorum(state.round, quorum_since)
    return StateView(state, me, limits, now, now, quorum, 25_000, leaving)
