"""The nodes that failed, from the journal of a run. Pure.

The key of an event follows from the run and the number of the record, so that all readers of the
journal find the same events.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.record.array_task import start_of
from hpc_elastic.record.causes import CALLED_AWAY, FAILURES
from hpc_elastic.record.journal import (
    AfterDrain,
    Cause,
    Drained,
    DrillBegan,
    DrillCalledOff,
    Entry,
    Epoch,
    EpochStarted,
    FailedAlike,
    Member,
    NodeSlow,
    NodeTaken,
    NodeUnfit,
    Record,
    Requeued,
    Role,
    RoundEnded,
    RoundFormed,
    bad_node,
)
from hpc_elastic.record.same_failure import is_early, signature
from hpc_elastic.record.state import RunState, apply
from hpc_elastic.store.node_events import Fault, NodeEvent

CRASH_LOOP = 3  # failures in a row on one node of several, after which the node may be to blame


class Blamed(NamedTuple):
    """An event and the start of the run in which it happened."""

    epoch: Epoch
    event: NodeEvent
    record: int  # number of the one that tells of it


def node_faults(records: Iterable[Record], run_id: str) -> list[Blamed]:
    """Return the events on nodes in a run, oldest first.

    Events of a drill are left out, and nodes that a user had Slurm take.

    Args:
        records: the whole journal.
        run_id: the name of the run.
    """
    state, found = RunState(), []
    loop, hangs = _NO_LOOP, _Hangs()
    drilled: frozenset[str] = frozenset()
    records = list(records)
    entries = [one.entry for one in records]
    called_off = {one.id for one in entries if isinstance(one, DrillCalledOff)}
    common = {(one.epoch, one.number) for one in entries if isinstance(one, FailedAlike)}
    taken = {(one.entry.loss, one.entry.node) for one in records if isinstance(one.entry, NodeTaken)}
    together = lost_together(records)
    for record in records:
        after = apply(state, record.entry)
        if after != state:
            if not _is_drill(record, drilled):
                loop, hangs = _count(loop, state, record, common), _next_hang(hangs, state, record.entry)
            for host, fault, detail in _faults(state, record, loop, hangs):
                if host in drilled or _is_refuted(state, record, records):
                    continue
                if fault is Fault.NODE_LOSS and (
                    state.rounds in together
                    or (record.number, host) in taken
                    or _lives_on(host, state, record, records)
                ):
                    continue
                event = NodeEvent(host, fault, record.at, f"{run_id}-{record.number}", run_id, detail)
                found.append(Blamed(after.epoch, event, record.number))
            is_void = isinstance(record.entry, DrillBegan) and record.entry.id in called_off
            drilled = drilled if is_void else _drilled(drilled, record.entry)
        state = after
    return found


def _is_refuted(state: RunState, record: Record, records: Sequence[Record]) -> bool:
    """Tell whether failures that made a node leave have come on others after it: then it is the program.

    Args:
        state: the run before.
        record: an entry about a node.
        records: the whole journal.
    """
    entry = record.entry
    if not isinstance(entry, NodeUnfit) or not entry.by_failures or not state.repeated:
        return False
    was = signature(state.repeated[-1])
    later = (one.entry for one in records if one.number > record.number)
    ends = (one for one in later if isinstance(one, RoundEnded))
    return any(entry.node not in one.nodes and signature(one) == was for one in ends)


def _drilled(nodes: frozenset[str], entry: Entry) -> frozenset[str]:
    """Return the nodes that a drill was done to, until they are in a round again or the job starts anew."""
    if isinstance(entry, DrillBegan):
        return nodes | {entry.node}
    if isinstance(entry, RoundFormed):
        return nodes.difference(member.node for member in entry.members)
    is_new_start = isinstance(entry, EpochStarted) and entry.epoch.relaunch == 0
    return frozenset() if is_new_start else nodes


def _is_drill(record: Record, drilled: frozenset[str]) -> bool:
    """Tell whether a round was ended on purpose."""
    return isinstance(record.entry, RoundEnded) and not drilled.isdisjoint(record.entry.nodes)


class _Loop(NamedTuple):
    """Failures in a row on one node."""

    node: str
    length: int


_NO_LOOP = _Loop("", 0)


class _Hangs(NamedTuple):
    """Hangs in a row on the same nodes; the ranks keep their nodes, so that a rank may be the reason, too."""

    nodes: tuple[str, ...] = ()
    places: frozenset[tuple[int | None, int | None]] = frozenset()  # the odd rank of each, with its step
    is_node: bool = False  # whether the newest one points at the nodes more than at the program
    is_told: bool = False  # whether one did before, always with the same rank


def _next_hang(hangs: _Hangs, state: RunState, entry: Entry) -> _Hangs:
    """Return the knowledge after an entry.

    A program hangs by itself in the same rank at the same step; a node in any of its ranks, or any time.
    """
    if isinstance(entry, EpochStarted) and entry.epoch.submission > state.epoch.submission:
        return _Hangs()
    if not isinstance(entry, RoundEnded) or entry.cause is not Cause.HANG:
        return hangs._replace(is_node=False, is_told=hangs.is_told or hangs.is_node)
    failure = entry.failure or {}
    rank, step = failure.get("rank"), failure.get("step")
    if entry.nodes != hangs.nodes:
        return _Hangs(entry.nodes, frozenset({(rank, step)}))
    is_other_rank = all(rank != known for known, _ in hangs.places)
    is_other_step = all(step != known for _, known in hangs.places) and not hangs.is_told
    return hangs._replace(places=hangs.places | {(rank, step)}, is_node=is_other_rank or is_other_step)


def _count(loop: _Loop, state: RunState, record: Record, common: Collection[tuple[Epoch, int]]) -> _Loop:
    """Return the failures in a row after a record; a failure that occurs elsewhere, too, is no node's fault.

    Args:
        loop: those before.
        state: the run before.
        record: the record.
        common: rounds in which other nodes had the same failure.
    """
    entry = record.entry
    if isinstance(entry, EpochStarted) and entry.epoch.submission > state.epoch.submission:
        return _NO_LOOP
    if not isinstance(entry, RoundEnded) or entry.cause is not Cause.CRASH or state.round is None:
        return loop
    is_common = is_early(entry) or (state.epoch, entry.number) in common
    if len(state.round.members) == 1 or len(entry.nodes) != 1 or is_common:  # nothing to tell it from
        return _NO_LOOP
    (node,) = entry.nodes
    return _Loop(node, loop.length + 1 if node == loop.node else 1)


def lost_together(records: Iterable[Record]) -> frozenset[int]:
    """Return the rounds that lost more than half of their nodes at once: by a switch or the power, say."""
    members: dict[int, int] = {}
    lost: dict[int, set[str]] = {}
    for entry in (record.entry for record in records):
        if isinstance(entry, RoundFormed):
            members[entry.number] = len(entry.members)
            lost.setdefault(entry.number - 1, set()).update(entry.lost)
        elif isinstance(entry, RoundEnded) and entry.cause is Cause.NODE_LOSS:
            lost.setdefault(entry.number, set()).update(entry.nodes)
    return frozenset(
        number
        for number, nodes in lost.items()
        if len(nodes) > 1 and number in members and 2 * len(nodes) > members[number]
    )


def _lives_on(node: str, state: RunState, record: Record, records: Iterable[Record]) -> bool:
    """Tell whether only srun died on a node that seemed to be lost.

    Then the agent comes back in the same start of the job, or its batch script has still said something.
    """
    old = next((one for one in state.round.members if one.node == node), None) if state.round else None
    start = start_of(old.node_id) if old is not None else None
    if start is not None and record.role is Role.SCRIPT and record.by == start.task:
        return False  # the next start of the task has found the loss
    formed_in, since = False, state.rounds
    for one in records:
        entry = one.entry
        formed_in |= isinstance(entry, RoundFormed) and entry.number == since
        if not formed_in:
            continue
        if start is not None and one.role is Role.SCRIPT and one.by == start.task:
            return True
        if isinstance(entry, RoundFormed) and one.number >= record.number and old is not None:
            again = next((member for member in entry.members if member.node == node), None)
            if again is not None:
                return _is_same_start(old, state.epoch, again, entry.epoch)
    return False


def _is_same_start(old: Member, old_epoch: Epoch, new: Member, new_epoch: Epoch) -> bool:
    """Tell whether an agent was started by the same start of a batch script as an earlier one."""
    before, after = start_of(old.node_id), start_of(new.node_id)
    if before is None or after is None:
        return old_epoch.script == new_epoch.script and new_epoch.relaunch > old_epoch.relaunch
    return before[:2] == after[:2] and after.relaunch > before.relaunch


def _faults(state: RunState, record: Record, loop: _Loop, hangs: _Hangs) -> Iterator[tuple[str, Fault, str]]:
    entry = record.entry
    if isinstance(entry, NodeUnfit | NodeSlow):
        yield entry.node, *_by_its_record(entry)
    elif isinstance(entry, RoundFormed):
        for node in _not_called_away(state, entry.lost):
            if node not in state.lost:
                yield node, Fault.NODE_LOSS, f"vanished before round {entry.number}"
    elif isinstance(entry, RoundEnded):
        yield from _of_end(state, entry, loop, hangs)
    elif isinstance(entry, Drained | Requeued):
        yield from _of_start(state, entry)


def _of_start(state: RunState, entry: Drained | Requeued) -> Iterator[tuple[str, Fault, str]]:
    """Yield the faults by which a start of the job has ended."""
    if isinstance(entry, Requeued):
        for node in entry.nodes:
            if node not in state.lost or node in state.unfit:  # it was lost after that
                yield node, Fault.NODE_LOSS, ": ".join(filter(None, ("lost with its job", entry.detail)))
    elif entry.cause is Cause.JOIN_TIMEOUT:
        for node in absent_nodes(entry.missing, state.expected):
            yield node, Fault.ABSENT, "no agent came from it"


def _by_its_record(entry: NodeUnfit | NodeSlow) -> tuple[Fault, str]:
    if isinstance(entry, NodeUnfit):
        return Fault.UNFIT, entry.reason
    return Fault.SLOW, slow_text(entry)


def slow_text(entry: NodeSlow) -> str:
    """Return how much longer the steps of a slow node take."""
    own = "" if entry.before_s is None else f"; {entry.before_s:.3g} s there before"
    return f"a step of rank {entry.rank} takes {entry.step_s:.3g} s, on most nodes {entry.usual_s:.3g} s{own}"


def _not_called_away(state: RunState, nodes: Iterable[str]) -> list[str]:
    """Return the nodes that Slurm had not wanted back, or set down: it is no fault of theirs that they go."""
    drain = state.drain
    if drain is not None and drain.then is AfterDrain.LEAVE:  # the whole job was asked to go
        return []
    gone = {one.node for one in state.round.members if one.node_id in state.left} if state.round else set()
    asker = None
    if drain is not None and (drain.cause in CALLED_AWAY - FAILURES or state.explained is not None):
        asker = drain.node
    return [node for node in nodes if node != asker and node not in gone]


def absent_nodes(missing: Iterable[str], expected: Sequence[str]) -> list[str]:
    """Return the nodes that were waited for in vain, if most of the others came.

    Args:
        missing: the nodes that were waited for when a start of the job was left.
        expected: the nodes of that start.
    """
    absent = [node for node in missing if node in expected]
    return absent if len(absent) <= len(expected) // 2 else []


def _of_end(
    state: RunState, entry: RoundEnded, loop: _Loop, hangs: _Hangs
) -> Iterator[tuple[str, Fault, str]]:
    """Yield the faults of a round; if a worker has given up, the program itself has ended it."""
    if bad := bad_node(entry.word):
        yield bad.node, Fault.UNFIT, bad.reason
    elif entry.word is None:
        yield from _of_round(state, entry, loop, hangs)


def _of_round(
    state: RunState, entry: RoundEnded, loop: _Loop, hangs: _Hangs
) -> Iterator[tuple[str, Fault, str]]:
    members = len(state.round.members) if state.round is not None else 0
    failure = entry.failure or {}
    if entry.cause is Cause.NODE_LOSS:
        for node in _not_called_away(state, entry.nodes):
            yield node, Fault.NODE_LOSS, f"vanished in round {entry.number}"
    elif entry.cause is Cause.AGENT_ERROR and failure.get("exitcode") == ExitCode.WEDGED:
        for node in entry.nodes:
            yield node, Fault.WEDGE, str(failure.get("message") or "workers hang in the kernel")
    elif entry.cause is Cause.HANG and hangs.is_node and len(entry.nodes) <= members // 2:
        for node in entry.nodes:
            yield node, Fault.HANG, f"its workers hung in round {entry.number}, as before"
    elif entry.cause is Cause.CRASH and loop.length and loop.length % CRASH_LOOP == 0:
        yield loop.node, Fault.CRASH_LOOP, f"{loop.length} failures of workers in a row"
