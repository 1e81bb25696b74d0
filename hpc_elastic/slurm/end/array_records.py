"""What the journal of a run in array mode tells of its tasks, and what their batch scripts write. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from hpc_elastic.record.array_task import TaskStart, start_of
from hpc_elastic.record.journal import Epoch, NodeLeft, Record, RoundFormed, StopKind, TaskStopped


def goodbye_of(records: Iterable[Record], start: TaskStart) -> NodeLeft | None:
    """Return what the agent of one start of a task has recorded on leaving, None if nothing."""
    for record in reversed(list(records)):
        entry = record.entry
        if isinstance(entry, NodeLeft) and start_of(entry.node_id) == start:
            return entry
    return None


def stopped(start: TaskStart, epoch: Epoch, how: StopKind, node: str, detail: str) -> TaskStopped:
    """Return the record of a batch script that it has ended a start of its task."""
    return TaskStopped(epoch, how, start.task, start.restart, node, detail)


def given_up(records: Iterable[Record]) -> frozenset[str]:
    """Return the names of the tasks that were given up and have been in no round since."""
    found: set[str] = set()
    for record in records:
        entry = record.entry
        if isinstance(entry, TaskStopped) and entry.how is StopKind.GIVEN_UP:
            found.add(entry.task)
        elif isinstance(entry, RoundFormed):
            starts = (start_of(member.node_id) for member in entry.members)
            found.difference_update(start.task for start in starts if start)
    return frozenset(found)


def starts_in_vain(records: Iterable[Record], start: TaskStart) -> int:
    """Return how many of the newest starts of a task, up to this one, were in no round and did not leave."""
    useful: set[int] = set()
    for record in records:
        entry = record.entry
        ids = [member.node_id for member in entry.members] if isinstance(entry, RoundFormed) else []
        ids += [entry.node_id] if isinstance(entry, NodeLeft) else []
        useful.update(one.restart for one in map(start_of, ids) if one and one.task == start.task)
    last = max((restart for restart in useful if restart <= start.restart), default=-1)
    return start.restart - last
