"""What the journal of a run tells of nodes that failed. Pure.

The key of an event follows from the run and the number of the record, so that everybody who reads the
journal tells of the same events.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from hpc_elastic.ids import ExitCode
from hpc_elastic.rendezvous.journal import (
    Cause,
    Drained,
    Entry,
    Epoch,
    EpochStarted,
    NodeUnfit,
    Note,
    Record,
    RoundEnded,
    RoundFormed,
)
from hpc_elastic.rendezvous.state import RunState, apply
from hpc_elastic.store.node_events import Fault, NodeEvent

MISSING = re.compile(r"missing: ([^;]+)")  # as `waiting_text.too_few_text` writes it
_CALLED_AWAY = (Cause.PREEMPTION, Cause.TIME_LIMIT, Cause.CANCEL, Cause.REQUEUE)
CRASH_LOOP = 3  # failures in a row on one node of several, after which the node may be to blame


class Blamed(NamedTuple):
    """An event and the start of the run in which it happened."""

    epoch: Epoch
    event: NodeEvent


def node_faults(records: Iterable[Record], run_id: str) -> list[Blamed]:
    """Return what happened on nodes in a run, oldest first; what its user did in a drill is left out.

    Args:
        records: the whole journal.
        run_id: the name of the run.
    """
    state, found = RunState(), []
    loop = _Loop("", 0)
    drilled: frozenset[str] = frozenset()
    records = list(records)
    called_off = {one.entry.calls_off for one in records if isinstance(one.entry, Note)}
    for record in records:
        after = apply(state, record.entry)
        if after != state:
            loop = loop if _is_drill(record, drilled) else _count(loop, state, record)
            faults = [fault for fault in _faults(state, record, loop) if fault[0] not in drilled]
            is_void = isinstance(record.entry, Note) and record.number in called_off
            drilled = drilled if is_void else _drilled(drilled, record.entry)
            for host, fault, detail in faults:
                event = NodeEvent(host, fault, record.at, f"{run_id}-{record.number}", run_id, detail)
                found.append(Blamed(after.epoch, event))
        state = after
    return found


def _drilled(nodes: frozenset[str], entry: Entry) -> frozenset[str]:
    """Return the nodes that a drill was done to, until they are in a round again or the job starts anew."""
    if isinstance(entry, Note) and entry.node:
        return nodes | {entry.node}
    if isinstance(entry, RoundFormed):
        return nodes.difference(member.node for member in entry.members)
    is_new_start = isinstance(entry, EpochStarted) and entry.epoch.relaunch == 0
    return frozenset() if is_new_start else nodes


def _is_drill(record: Record, drilled: frozenset[str]) -> bool:
    """Tell whether a round ended for what was done on purpose."""
    return isinstance(record.entry, RoundEnded) and not drilled.isdisjoint(record.entry.nodes)


class _Loop(NamedTuple):
    """Failures in a row on one node."""

    node: str
    length: int


def _count(loop: _Loop, state: RunState, record: Record) -> _Loop:
    entry = record.entry
    if not isinstance(entry, RoundEnded) or entry.cause is not Cause.CRASH or state.round is None:
        return loop
    if len(state.round.members) == 1 or len(entry.nodes) != 1:  # nothing to tell it from
        return _Loop("", 0)
    node = entry.nodes[0]
    return _Loop(node, loop.length + 1 if node == loop.node else 1)


def _faults(state: RunState, record: Record, loop: _Loop) -> Iterator[tuple[str, Fault, str]]:
    entry = record.entry
    if isinstance(entry, NodeUnfit):
        yield entry.node, Fault.UNFIT, entry.reason
    elif isinstance(entry, RoundFormed):
        for node in _not_called_away(state, entry.lost):
            if node not in state.lost:
                yield node, Fault.NODE_LOSS, f"vanished before round {entry.number}"
    elif isinstance(entry, RoundEnded):
        yield from _of_round(state, entry, loop)
    elif isinstance(entry, Drained) and entry.cause is Cause.JOIN_TIMEOUT:
        for node in absent_nodes(entry.detail, state.expected):
            yield node, Fault.ABSENT, "no agent came from it within the join timeout"


def _not_called_away(state: RunState, nodes: Iterable[str]) -> list[str]:
    """Return the nodes that Slurm had not wanted back, or set down: it is no fault of theirs that they go."""
    drain = state.drain
    is_told = drain is not None and (drain.cause in _CALLED_AWAY or state.explained is not None)
    asker = drain.node if drain is not None and is_told else None
    return [node for node in nodes if node != asker]


def absent_nodes(detail: str, expected: Sequence[str]) -> list[str]:
    """Return the nodes that were waited for in vain, if most of the others came.

    Args:
        detail: why a start of the job was left, as the agents tell it.
        expected: the nodes of that start.
    """
    found = MISSING.search(detail)
    named = found[1].split(", ") if found else []
    absent = [node for node in named if node in expected]
    return absent if len(absent) <= len(expected) // 2 else []


def _of_round(state: RunState, entry: RoundEnded, loop: _Loop) -> Iterator[tuple[str, Fault, str]]:
    members = len(state.round.members) if state.round is not None else 0
    if entry.cause is Cause.NODE_LOSS:
        for node in _not_called_away(state, entry.nodes):
            yield node, Fault.NODE_LOSS, f"vanished in round {entry.number}"
    elif entry.cause is Cause.AGENT_ERROR and (entry.failure or {}).get("exitcode") == ExitCode.WEDGED:
        for node in entry.nodes:
            yield node, Fault.WEDGE, str((entry.failure or {}).get("message") or "workers hang in the kernel")
    elif entry.cause is Cause.HANG and 0 < len(entry.nodes) <= members // 2:
        for node in entry.nodes:
            yield node, Fault.HANG, f"its workers hung in round {entry.number}"
    elif entry.cause is Cause.CRASH and loop.length and loop.length % CRASH_LOOP == 0:
        yield loop.node, Fault.CRASH_LOOP, f"{loop.length} failures of workers in a row"
