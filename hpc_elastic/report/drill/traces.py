"""Which records of a run are the doing of a drill: those about what it struck. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hpc_elastic.record.journal import (
    Cause,
    Drained,
    DrainExplained,
    DrainRequested,
    EpochStarted,
    NodeLeft,
    Record,
    Requeued,
    RoundEnded,
    RoundFormed,
    RunEnded,
)

_KILLED = (-9, 137)  # how a worker ends that is killed; 137 if a shell tells of it


class Blow(NamedTuple):
    """What a drill has done, and to whom.

    Attributes:
        causes: what the run may take it for.
        node: that it was done to.
        node_id: of the agent there.
        rank: the worker that it was done to; None: to the agent, or to all of them.
        round: the round whose processes were struck.
        at: when [s since the epoch], by the clock of the node or of the login node.
        last: number of the last record before it.
        step: the last step that was completed then, if workers tell.
        is_whole: whether it was done to all nodes of the job.
        id: what the records call it.
    """

    causes: frozenset[Cause]
    node: str
    node_id: str
    rank: int | None
    round: int
    at: float
    last: int
    step: int | None = None
    is_whole: bool = False
    id: str = ""

    @property
    def kills_agent(self) -> bool:
        """Whether the agent of the node is gone."""
        return Cause.NODE_LOSS in self.causes


def is_trace(entry: object, blow: Blow, rest: Sequence[Record]) -> bool:
    """Tell whether a record is the first that tells of a drill.

    Args:
        entry: of the record.
        blow: the drill.
        rest: the records from this one on.
    """
    if isinstance(entry, RoundEnded):
        return entry.number >= blow.round and _is_end(entry, blow, rest)
    if isinstance(entry, DrainRequested | NodeLeft):
        joins_again = blow.kills_agent and entry.cause is Cause.MEMBERSHIP and entry.node == blow.node
        return joins_again or (entry.cause in blow.causes and (blow.is_whole or entry.node == blow.node))
    if isinstance(entry, Drained | Requeued):
        return entry.cause in blow.causes
    if isinstance(entry, RoundFormed):
        ids = [member.node_id for member in entry.members]
        return blow.kills_agent and entry.number > blow.round and blow.node_id not in ids
    # without an agent srun may end, and the job is started again
    return isinstance(entry, EpochStarted) and (blow.kills_agent or Cause.REQUEUE in blow.causes)


def _is_end(entry: RoundEnded, blow: Blow, rest: Sequence[Record]) -> bool:
    if (
        blow.kills_agent and entry.cause is Cause.CRASH
    ):  # workers of the others fail first, for want of a peer
        formed = next((one.entry for one in rest if isinstance(one.entry, RoundFormed)), None)
        return formed is not None and blow.node in formed.lost
    if entry.cause not in blow.causes:
        return False
    if blow.rank is None:
        return blow.is_whole or blow.node in entry.nodes
    failure = entry.failure or {}
    if entry.number != blow.round:
        return False
    if entry.cause is Cause.CRASH:
        return failure.get("rank") == blow.rank and failure.get("exitcode") in _KILLED
    return blow.node in entry.nodes or failure.get("rank") == blow.rank


def is_undecided(entry: object, blow: Blow) -> bool:
    """Tell whether only the next round will show what a record is about, as long as none tells of the drill.

    When an agent is killed, workers of the others may fail before anybody misses it.
    """
    return blow.kills_agent and isinstance(entry, RoundEnded) and entry.cause is Cause.CRASH


def is_trace_after(entry: object, notice: object, blow: Blow) -> bool:
    """Tell whether a record follows from a drill that was noticed, by what it says of its cause.

    Args:
        entry: of the record.
        notice: the entry that was the first to tell of the drill.
        blow: the drill.
    """
    if isinstance(entry, EpochStarted | RoundFormed | RunEnded):
        return True
    cause = getattr(entry, "cause", None)
    node = getattr(entry, "node", blow.node)
    if isinstance(entry, NodeLeft | DrainRequested) and not blow.is_whole and node != blow.node:
        return False
    if isinstance(entry, DrainExplained) and cause is not Cause.LAUNCH_FAILURE:
        return cause in blow.causes
    return cause in blow.causes or cause is getattr(notice, "cause", None)


def is_stop_of_task(entry: object, blow: Blow) -> bool:
    """Tell whether a record says that all workers have stopped of the one task that a signal has asked for.

    Its agent leaves when they have, or ends the round if those of the others have stopped by then.
    """
    if blow.is_whole or blow.rank is not None or blow.kills_agent:
        return False
    if isinstance(entry, NodeLeft):
        return entry.node_id == blow.node_id
    if not isinstance(entry, RoundEnded) or entry.number != blow.round:
        return False
    return entry.cause in blow.causes and entry.nodes == (blow.node,)
