"""The steps of a node of a dynamic rendezvous as events, in torch's words."""

from __future__ import annotations

from hpc_elastic.meet.rendezvous_events import Trail
from hpc_elastic.rendezvous.dynamic.rules import NodeAction
from hpc_elastic.rendezvous.dynamic.state import DynamicState

_EXECUTOR = "dynamic_rendezvous.py:_DistributedRendezvousOpExecutor"  # so are torch's events named
# what torch calls the place where a node takes a step, and what it says of it
_WHOLE = (  # what torch says of these is a sentence of its own
    NodeAction.KEEP_ALIVE,
    NodeAction.MARK_RENDEZVOUS_COMPLETE,
    NodeAction.MARK_RENDEZVOUS_CLOSED,
)
_STEPS = {
    NodeAction.KEEP_ALIVE: (
        "keep_alive",
        "The node '{node}' updated its keep-alive heartbeat time for the rendezvous '{run}'. Pending sync.",
    ),
    NodeAction.ADD_TO_PARTICIPANTS: (
        "add_to_participants",
        "added itself to the participants of round {round}",
    ),
    NodeAction.ADD_TO_WAIT_LIST: ("add_to_wait_list", "added itself to the wait list of round {next}"),
    NodeAction.ADD_TO_REDUNDANCY_LIST: (
        "add_to_redundancy_list",
        "added itself to the redundancy list of round {next}",
    ),
    NodeAction.REMOVE_FROM_PARTICIPANTS: (
        "remove_from_participants",
        "removed itself from the participants of round {round}",
    ),
    NodeAction.REMOVE_FROM_WAIT_LIST: (
        "remove_from_wait_list",
        "removed itself from the wait list of round {next}",
    ),
    NodeAction.REMOVE_FROM_REDUNDANCY_LIST: (
        "remove_from_redundancy_list",
        "removed itself from the redundant list of round {next}",
    ),
    NodeAction.MARK_RENDEZVOUS_COMPLETE: (
        "mark_rendezvous_complete",
        "The node '{node}' marked round {round} of the rendezvous '{run}' as complete. Pending sync.",
    ),
    NodeAction.MARK_RENDEZVOUS_CLOSED: (
        "mark_rendezvous_closed",
        "The node '{node}' marked the rendezvous '{run}' as closed. Pending sync.",
    ),
}
_BEATS = (NodeAction.ADD_TO_PARTICIPANTS, NodeAction.ADD_TO_WAIT_LIST, NodeAction.ADD_TO_REDUNDANCY_LIST)
_ENDS = (NodeAction.MARK_RENDEZVOUS_COMPLETE, NodeAction.MARK_RENDEZVOUS_CLOSED)


def record_step(trail: Trail, action: NodeAction, before: DynamicState, after: DynamicState) -> None:
    """Record a step by which a node changes the shared state, and its details.

    Args:
        trail: of the node.
        action: the step.
        before: the state that it changes.
        after: the state that it makes of it.
    """
    _record(trail, action, before.round)
    if action in _BEATS:
        _record(trail, NodeAction.KEEP_ALIVE, before.round)
    if action is NodeAction.ADD_TO_PARTICIPANTS and after.complete:
        _record(trail, NodeAction.MARK_RENDEZVOUS_COMPLETE, before.round)


def _record(trail: Trail, action: NodeAction, number: int) -> None:
    what, text = _STEPS[action]
    frame = "{}" if action in _WHOLE else "The node '{{node}}' {} of the rendezvous '{{run}}'. Pending sync."
    message = frame.format(text).format(node=trail.who.name, run=trail.run_id, round=number, next=number + 1)
    state = "SUCCEEDED" if action in _ENDS else "RUNNING"
    trail.tell(f"_{what}", message, state, place=_EXECUTOR)


def record_sync(trail: Trail, *, has_set: bool) -> None:
    """Record whether a change of a node came through."""
    done = "has successfully synced its local changes with other nodes"
    stale = "has a stale state and failed to sync its local changes with other nodes"
    message = f"The node '{trail.who.name}' {done if has_set else stale} in the rendezvous '{trail.run_id}'."
    trail.tell("run", message, place=_EXECUTOR)
