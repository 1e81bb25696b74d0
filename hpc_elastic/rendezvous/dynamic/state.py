"""The state that the nodes of a dynamic rendezvous share, and its JSON form. Pure.

No time stands in it: a node shows that it lives by advancing its own counter, and the others look
whether it changes by their own clocks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from hpc_elastic.errors import DamagedError, RendezvousStateError
from hpc_elastic.meet.member_names import natural
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.record.journal import Port
from hpc_elastic.typed_json import Count, Prose, decode, parse_object

FORMAT = "hpc_elastic.dynamic_rendezvous"
VERSION = 1


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
