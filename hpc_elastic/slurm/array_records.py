"""What the journal of a run in array mode tells of its tasks, and what their batch scripts write. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from hpc_elastic.rendezvous.array_task import HELD, TaskStart, start_of
from hpc_elastic.rendezvous.journal import Cause, Epoch, NodeLeft, Record, RoundFormed

_SCRIPT, _GIVEN_UP = "batch", "given-up"  # what the ids in the records of a batch script begin with


def goodbye_of(records: Iterable[Record], start: TaskStart) -> NodeLeft | None:
    """Return what the agent of one start of a task has recorded on leaving, None if nothing."""
    for record in reversed(list(records)):
        entry = record.entry
        if isinstance(entry, NodeLeft) and _is_agents(entry) and start_of(entry.node_id) == start:
            return entry
    return None


def note(start: TaskStart, epoch: Epoch, node: str, reason: str, *, is_given_up: bool) -> NodeLeft:
    """Return the record of a batch script that a start of its task brought nothing, or was the last one."""
    writer = _GIVEN_UP if is_given_up else _SCRIPT
    return NodeLeft(epoch, f"{writer}{start.tag}", node or start.task, Cause.LAUNCH_FAILURE, reason)


def held_note(start: TaskStart, epoch: Epoch, node: str, reason: str) -> NodeLeft:
    """Return the record that a task waits until its user releases it; its next start goes on with the run."""
    return NodeLeft(epoch, f"{HELD}{start.tag}", node or start.task, Cause.REQUEUE, f"held: {reason}")


def given_up(records: Iterable[Record]) -> frozenset[str]:
    """Return the names of the tasks that were given up and have been in no round since."""
    found: set[str] = set()
    for record in records:
        entry = record.entry
        if isinstance(entry, NodeLeft) and entry.node_id.startswith(_GIVEN_UP):
            found.update(start.task for start in (start_of(entry.node_id),) if start)
        elif isinstance(entry, RoundFormed):
            starts = (start_of(member.node_id) for member in entry.members)
            found.difference_update(start.task for start in starts if start)
    return frozenset(found)


def _is_agents(entry: NodeLeft) -> bool:
    """Tell whether an agent has left, not its batch script."""
    return not entry.node_id.startswith((f"{_SCRIPT}@", f"{_GIVEN_UP}@", f"{HELD}@"))


def starts_in_vain(records: Iterable[Record], start: TaskStart) -> int:
    """Return how many of the newest starts of a task, up to this one, were in no round and did not leave."""
    useful: set[int] = set()
    for record in records:
        entry = record.entry
        ids = [member.node_id for member in entry.members] if isinstance(entry, RoundFormed) else []
        ids += [entry.node_id] if isinstance(entry, NodeLeft) and _is_agents(entry) else []
        useful.update(one.restart for one in map(start_of, ids) if one and one.task == start.task)
    last = max((restart for restart in useful if restart <= start.restart), default=-1)
    return start.restart - last
