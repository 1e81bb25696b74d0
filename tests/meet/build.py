"""Short ways to write down records, states and rosters."""

from __future__ import annotations

from collections.abc import Iterable

from hpc_elastic.meet.member_names import MemberName, Phase, Roster, Seen
from hpc_elastic.meet.rules import Joining, MeetingSettings
from hpc_elastic.record.journal import (
    AfterDrain,
    Cause,
    Decision,
    DrainRequested,
    Entry,
    Epoch,
    EpochStarted,
    Member,
    Record,
    RoundEnded,
    RoundFormed,
    RunEnded,
)
from hpc_elastic.record.state import RunState, fold

E0 = Epoch(0, 0, 0, 0)
REQUEUED = Epoch(0, 0, 1, 0)
RELAUNCHED = Epoch(0, 0, 0, 1)
RESUBMITTED = Epoch(1, 0, 0, 0)
NODES = ("n1", "n2", "n3")


def node_id(node: str) -> str:
    """Return the id of the agent on a node."""
    return f"{node}.1"


def member(node: str, slots: int = 1, role: str = "default_role") -> Member:
    """Return a node's place in a round."""
    return Member(node_id(node), node, slots, role)


def start(epoch: Epoch = E0, expected: tuple[str, ...] = NODES) -> EpochStarted:
    """Return the start of an epoch."""
    return EpochStarted(epoch, "17", expected)


def formed(number: int, nodes: Iterable[str] = NODES, epoch: Epoch = E0) -> RoundFormed:
    """Return a round with one worker on each node."""
    members = tuple(member(node) for node in nodes)
    return RoundFormed(number, epoch, members, "addr", 20_000, None)


def crash(number: int) -> RoundEnded:
    """Return the end of a round by a worker's failure."""
    return RoundEnded(number, Cause.CRASH, ("n1",), {"message": "boom"})


def loss(number: int, *nodes: str) -> RoundEnded:
    """Return the end of a round by the loss of nodes."""
    return RoundEnded(number, Cause.NODE_LOSS, nodes, None)


def drain(then: AfterDrain = AfterDrain.LEAVE, cause: Cause = Cause.PREEMPTION) -> DrainRequested:
    """Return a request to stop."""
    return DrainRequested(cause, "n1", then, "")


def ending(decision: Decision = Decision.DONE) -> RunEnded:
    """Return the end of the run."""
    return RunEnded(decision, 0, "", None)


def after(*entries: Entry, state: RunState | None = None) -> RunState:
    """Return the state after some entries."""
    first = state or RunState()
    return fold(first, [Record(first.last + i, 0.0, "", entry) for i, entry in enumerate(entries, 1)])


def seen(
    node: str, phase: Phase = Phase.JOINING, round_number: int = 1, at: float = 0.0, epoch: Epoch = E0
) -> Seen:
    """Return a member as it was last seen to change at a time [s]."""
    return Seen(MemberName(node_id(node), epoch, phase, round_number, 0), at)


def roster(*entries: Seen) -> Roster:
    """Return a roster."""
    return {entry.name.node_id: entry for entry in entries}


def joining(
    state: RunState, members: Roster, me: str = "n1", settings: MeetingSettings | None = None
) -> Joining:
    """Return what a joining node knows; by default two to three nodes are wanted."""
    wanted = settings or MeetingSettings(min_nodes=2, max_nodes=3)
    return Joining(state, members, node_id(me), E0, wanted)
