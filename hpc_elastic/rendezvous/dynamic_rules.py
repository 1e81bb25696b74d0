"""The state that the nodes of a dynamic rendezvous share, its JSON form, and a node's next action. Pure.

An operation looks at the state and chooses an action; `apply` returns the state after it. Times are
arguments: monotonic times of this node, never of another. The state has no time in it: a node shows that it
lives by advancing its own counter, and the others look whether it changes by their own clocks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum, auto

from hpc_elastic.errors import DamagedError, RendezvousStateError
from hpc_elastic.meet.member_names import natural
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.record.journal import Port
from hpc_elastic.typed_json import Count, Prose, decode, parse_object

ROLLBACK_S = 5.0  # after the deadline a node takes itself out of the state for so long
_DUE = 0.75  # of an interval: a timer that wakes a little early still beats
FORMAT = "hpc_elastic.dynamic_rendezvous"
VERSION = 1


class NodeAction(Enum):
    """One step of a node."""

    KEEP_ALIVE = auto()
    ADD_TO_PARTICIPANTS = auto()
    ADD_TO_WAIT_LIST = auto()
    ADD_TO_REDUNDANCY_LIST = auto()
    REMOVE_FROM_PARTICIPANTS = auto()
    REMOVE_FROM_WAIT_LIST = auto()
    REMOVE_FROM_REDUNDANCY_LIST = auto()
    MARK_RENDEZVOUS_COMPLETE = auto()
    MARK_RENDEZVOUS_CLOSED = auto()
    SYNC = auto()
    ERROR_CLOSED = auto()
    ERROR_TIMEOUT = auto()
    FINISH = auto()


class TimeLimits(NamedTuple):
    """Sizes and times of a rendezvous; times in seconds."""

    min_nodes: int
    max_nodes: int
    last_call: float  # how long enough nodes wait for more
    interval: float  # between two signs of life
    lease: float  # a node whose counter stands still for so long is dead


class Quorum(NamedTuple):
    """Since when this node sees enough participants in a round."""

    round: int
    since: float


class StateView(NamedTuple):
    """Everything a node knows when it chooses."""

    state: DynamicState
    me: NodeDesc
    limits: TimeLimits
    now: float
    beat_at: float  # when this node's counter was advanced last
    quorum: Quorum | None = None
    port: int = 0  # the facts of this node as a participant
    leaving: bool = False  # it goes for good, not to join again


Operation = Callable[[StateView, float], NodeAction]


def join(view: StateView, deadline: float) -> NodeAction:  # noqa: C901, PLR0911 - one case after the other
    """Choose the next step of a node that wants to be in a round."""
    state, me = view.state, view.me
    if state.closed:
        return NodeAction.ERROR_CLOSED
    if me in state.redundancy_list:  # stands by without a deadline
        if state.is_full_of >= view.limits.max_nodes:
            return _beat_or_wait(view)
        return NodeAction.REMOVE_FROM_REDUNDANCY_LIST
    if state.complete and me in state.participants:
        return NodeAction.FINISH
    if view.now > deadline:
        return _give_up(view, deadline)
    if state.complete:
        return _beside(view)
    if me not in state.participants:
        return NodeAction.ADD_TO_PARTICIPANTS
    if is_last_call_over(view):
        return NodeAction.MARK_RENDEZVOUS_COMPLETE
    return _beat_or_wait(view)


def _beside(view: StateView) -> NodeAction:
    """Choose the action of a node while a round runs without it."""
    state = view.state
    if view.me in state.wait_list:
        return _beat_or_wait(view)
    if state.is_full_of < view.limits.max_nodes:
        return NodeAction.ADD_TO_WAIT_LIST
    return NodeAction.ADD_TO_REDUNDANCY_LIST


def _give_up(view: StateView, deadline: float) -> NodeAction:
    """Take this node out of the state while there is time for that; then the deadline has passed."""
    if view.now <= deadline + ROLLBACK_S:
        if view.me in view.state.participants:
            return NodeAction.REMOVE_FROM_PARTICIPANTS
        if view.me in view.state.wait_list:
            return NodeAction.REMOVE_FROM_WAIT_LIST
    return NodeAction.ERROR_TIMEOUT


def _beat_or_wait(view: StateView) -> NodeAction:
    return NodeAction.KEEP_ALIVE if is_beat_due(view) else NodeAction.SYNC


def exit_round(view: StateView, deadline: float) -> NodeAction:
    """Choose the next step of a node that gives up its place in the round."""
    if view.me not in view.state.participants:
        return NodeAction.FINISH
    return NodeAction.ERROR_TIMEOUT if view.now > deadline else NodeAction.REMOVE_FROM_PARTICIPANTS


def leave(view: StateView, deadline: float) -> NodeAction:
    """Choose the next step of a node that goes for good."""
    state, me = view.state, view.me
    if state.closed or me not in {*state.participants, *state.wait_list, *state.redundancy_list}:
        return NodeAction.FINISH
    if view.now > deadline:
        return NodeAction.ERROR_TIMEOUT
    if me in state.participants:
        return NodeAction.REMOVE_FROM_PARTICIPANTS
    return (
        NodeAction.REMOVE_FROM_WAIT_LIST if me in state.wait_list else NodeAction.REMOVE_FROM_REDUNDANCY_LIST
    )


def close(view: StateView, deadline: float) -> NodeAction:
    """Choose the next step of a node that closes the rendezvous for everybody."""
    if view.state.closed:
        return NodeAction.FINISH
    return NodeAction.ERROR_TIMEOUT if view.now > deadline else NodeAction.MARK_RENDEZVOUS_CLOSED


def keep_alive(view: StateView, deadline: float) -> NodeAction:
    """Choose whether to advance the own counter; a node that others have given up does not."""
    if not is_beat_due(view):
        return NodeAction.FINISH
    return NodeAction.ERROR_TIMEOUT if view.now > deadline else NodeAction.KEEP_ALIVE


def is_beat_due(view: StateView) -> bool:
    """Tell whether this node is in the state and its counter should advance."""
    return view.me in view.state.beats and view.now - view.beat_at >= _DUE * view.limits.interval


def is_last_call_over(view: StateView) -> bool:
    """Tell whether enough participants have waited long enough for more."""
    quorum = view.quorum
    enough = view.limits.min_nodes <= len(view.state.participants) <= view.limits.max_nodes
    if quorum is None or quorum.round != view.state.round or not enough:
        return False
    return view.now - quorum.since >= view.limits.last_call


def quorum_of(state: DynamicState, limits: TimeLimits, known: Quorum | None, now: float) -> Quorum | None:
    """Return since when there are enough participants, None if there are not."""
    if state.complete or len(state.participants) < limits.min_nodes:
        return None
    return known if known is not None and known.round == state.round else Quorum(state.round, now)


# the changes of an action


def apply(action: NodeAction, view: StateView) -> DynamicState:
    """Return the state after an action of this node."""
    return _APPLY[action](view)


def _keep_alive(view: StateView) -> DynamicState:
    count = view.state.beats.get(view.me, 0) + 1
    return view.state._replace(beats={**view.state.beats, view.me: count})


def _add_to_participants(view: StateView) -> DynamicState:
    state = _keep_alive(view)
    participants = {**state.participants, view.me: NodePlace(-1, view.port)}
    state = state._replace(participants=participants, wait_list=state.wait_list - {view.me})
    if len(participants) == view.limits.max_nodes:
        return _mark_complete(view._replace(state=state))
    return state


def _add_to_wait_list(view: StateView) -> DynamicState:
    state = _keep_alive(view)
    return state._replace(
        wait_list=state.wait_list | {view.me}, redundancy_list=state.redundancy_list - {view.me}
    )


def _add_to_redundancy_list(view: StateView) -> DynamicState:
    state = _keep_alive(view)
    return state._replace(redundancy_list=state.redundancy_list | {view.me})


def _remove(view: StateView) -> DynamicState:
    return without(view.state, {view.me}, went=view.leaving)


def _mark_complete(view: StateView) -> DynamicState:
    state = view.state
    ordered = rank_order(state.participants)
    places = {node: state.participants[node]._replace(rank=rank) for rank, node in enumerate(ordered)}
    first = ordered[0]
    return state._replace(
        complete=True,
        participants=places,
        members=tuple(ordered),
        left=frozenset(),
        master_addr=first.addr,
        master_port=places[first].port,
    )


def _mark_closed(view: StateView) -> DynamicState:
    return view.state._replace(closed=True, closed_by=repr(view.me))


_APPLY: dict[NodeAction, Callable[[StateView], DynamicState]] = {
    NodeAction.KEEP_ALIVE: _keep_alive,
    NodeAction.ADD_TO_PARTICIPANTS: _add_to_participants,
    NodeAction.ADD_TO_WAIT_LIST: _add_to_wait_list,
    NodeAction.ADD_TO_REDUNDANCY_LIST: _add_to_redundancy_list,
    NodeAction.REMOVE_FROM_PARTICIPANTS: _remove,
    NodeAction.REMOVE_FROM_WAIT_LIST: _remove,
    NodeAction.REMOVE_FROM_REDUNDANCY_LIST: _remove,
    NodeAction.MARK_RENDEZVOUS_COMPLETE: _mark_complete,
    NodeAction.MARK_RENDEZVOUS_CLOSED: _mark_closed,
}


def without(state: DynamicState, gone: Collection[NodeDesc], *, went: bool = False) -> DynamicState:
    """Return the state without some nodes.

    A complete round without participants is over: the next one begins.

    Args:
        state: the state.
        gone: the nodes.
        went: they left on purpose; the round is not short of them.
    """
    left = state.left.union(set(gone) & set(state.members)) if went and state.complete else state.left
    participants = {node: place for node, place in state.participants.items() if node not in gone}
    over = state.complete and not participants
    return state._replace(
        participants=participants,
        wait_list=state.wait_list.difference(gone),
        redundancy_list=state.redundancy_list.difference(gone),
        beats={node: count for node, count in state.beats.items() if node not in gone},
        left=left,
        complete=state.complete and not over,
        round=state.round + over,
    )


# the nodes that live


class Pulse(NamedTuple):
    """A node's counter as one observer has seen it."""

    beats: int
    changed_at: float  # observer's monotonic time [s]


def observe(
    pulses: Mapping[NodeDesc, Pulse], beats: Mapping[NodeDesc, int], now: float
) -> dict[NodeDesc, Pulse]:
    """Return this observer's knowledge of the nodes after reading the state."""
    return {
        node: pulses[node] if node in pulses and pulses[node].beats == count else Pulse(count, now)
        for node, count in beats.items()
    }


def start_anew(pulses: Mapping[NodeDesc, Pulse], now: float) -> dict[NodeDesc, Pulse]:
    """Return the pulses as if all nodes had just beaten: this observer could not look."""
    return {node: pulse._replace(changed_at=now) for node, pulse in pulses.items()}


def dead(pulses: Mapping[NodeDesc, Pulse], me: NodeDesc, now: float, lease: float) -> frozenset[NodeDesc]:
    """Return the nodes whose counters have stood still for the lease [s]; never the observer itself."""
    return frozenset(node for node, pulse in pulses.items() if node != me and now - pulse.changed_at >= lease)


# the facts from the handler


def nodes_waiting(state: DynamicState, me: NodeDesc, joined: int | None) -> int:
    """Return how many nodes wait for the next round.

    Args:
        state: the state.
        me: this node.
        joined: the round that this node is in; None if it is in none.

    Returns:
        The length of the wait list. If no node waits but the round of this node is over, or members of
        it have vanished, or it was given up itself: 1, since the nodes have to meet again.
    """
    if state.closed:
        return 0
    if state.wait_list or joined is None:
        return len(state.wait_list)
    in_it = state.complete and state.round == joined and me in state.participants
    return int(not in_it or bool(state.lost))


class NodeDesc(NamedTuple):
    """One handler of one process on one node."""

    addr: Prose
    pid: int
    local_id: int  # counts the handlers of a process
    nonce: Prose = ""  # tells apart containers in which names and process ids repeat

    def __repr__(self) -> str:
        return f"{self.addr}_{self.pid}_{self.local_id}"


class NodePlace(NamedTuple):
    """The facts of a participant."""

    rank: int  # -1 until the round is complete
    port: int  # free on this node when it joined; the workers' port if it gets rank 0


class DynamicState(NamedTuple):
    """The state that all nodes agree on."""

    round: int = 0
    complete: bool = False
    closed: bool = False
    closed_by: str = ""  # for people
    participants: Mapping[NodeDesc, NodePlace] = {}
    wait_list: frozenset[NodeDesc] = frozenset()
    redundancy_list: frozenset[NodeDesc] = frozenset()
    beats: Mapping[NodeDesc, int] = {}
    members: tuple[NodeDesc, ...] = ()  # of the newest complete round, by rank
    left: frozenset[NodeDesc] = frozenset()  # members of it that have left on purpose
    master_addr: str = ""  # where the workers of that round meet
    master_port: int = 0

    @property
    def lost(self) -> tuple[NodeDesc, ...]:
        """Members of the running round that have vanished."""
        if not self.complete:
            return ()
        here = self.left | self.wait_list | self.redundancy_list | self.participants.keys()
        return tuple(node for node in self.members if node not in here)

    @property
    def is_full_of(self) -> int:
        """How many places of the round are taken, those of nodes that left on purpose included."""
        return len(self.participants) + (len(self.left) if self.complete else 0)


def rank_order(nodes: Iterable[NodeDesc]) -> list[NodeDesc]:
    """Return nodes in the order of their ranks: ``node2`` before ``node10``."""
    return sorted(nodes, key=lambda node: (natural(node.addr), node))


def names(nodes: Iterable[NodeDesc]) -> str:
    """Return the addresses of nodes for an error's text."""
    return ", ".join(dict.fromkeys(node.addr for node in rank_order(nodes))) or "none"


class _StateForm(NamedTuple):
    """The format of a state, in the form of every version."""

    format: str
    version: int


class _StateFields(NamedTuple):
    """The JSON form of a state; nodes are given by their index in `nodes`."""

    round: Count
    complete: bool
    closed: bool
    closed_by: Prose
    master: tuple[Prose, Port]
    nodes: tuple[NodeDesc, ...]
    participants: tuple[tuple[Count, int, Port], ...]
    wait_list: tuple[Count, ...]
    redundancy_list: tuple[Count, ...]
    beats: tuple[tuple[Count, int], ...]
    members: tuple[Count, ...]
    left: tuple[Count, ...]


def encode(state: DynamicState) -> bytes:
    """Return the JSON form of a state."""
    groups = (state.participants, state.wait_list, state.redundancy_list, state.beats, state.left)
    nodes = rank_order({node for group in groups for node in group}.union(state.members))
    number = {node: index for index, node in enumerate(nodes)}
    data = {
        "format": FORMAT,
        "version": VERSION,
        "round": state.round,
        "complete": state.complete,
        "closed": state.closed,
        "closed_by": state.closed_by,
        "master": (state.master_addr, state.master_port),
        "nodes": nodes,
        "participants": sorted((number[node], *place) for node, place in state.participants.items()),
        "wait_list": sorted(number[node] for node in state.wait_list),
        "redundancy_list": sorted(number[node] for node in state.redundancy_list),
        "beats": sorted((number[node], count) for node, count in state.beats.items()),
        "members": [number[node] for node in state.members],
        "left": sorted(number[node] for node in state.left),
    }
    return json.dumps(data, separators=(",", ":")).encode()


def parse(data: bytes, backend: str) -> DynamicState:
    """Return the state in `data`.

    Args:
        data: the value of the backend.
        backend: its name, for the error.

    Raises:
        RendezvousStateError: it is damaged, or not written by this version.
    """
    try:
        fields = parse_object(data)
        form = decode(_StateForm, fields)
        if form != (FORMAT, VERSION):
            found = f"{form.format} {form.version}"
            raise RendezvousStateError(
                f"The rendezvous state in the backend '{backend}' is of the format {found}; "
                f"this version reads {FORMAT} {VERSION}. Use another run id."
            )
        return _from_fields(decode(_StateFields, fields))
    except (DamagedError, IndexError) as error:
        raise RendezvousStateError(
            f"The rendezvous state in the backend '{backend}' is corrupt: {error}"
        ) from error


def _from_fields(fields: _StateFields) -> DynamicState:
    nodes = fields.nodes
    return DynamicState(
        round=fields.round,
        complete=fields.complete,
        closed=fields.closed,
        closed_by=fields.closed_by,
        master_addr=fields.master[0],
        master_port=fields.master[1],
        participants={nodes[at]: NodePlace(rank, port) for at, rank, port in fields.participants},
        wait_list=frozenset(nodes[at] for at in fields.wait_list),
        redundancy_list=frozenset(nodes[at] for at in fields.redundancy_list),
        beats={nodes[at]: count for at, count in fields.beats},
        members=tuple(nodes[at] for at in fields.members),
        left=frozenset(nodes[at] for at in fields.left),
    )
