"""The classes of events, with the names of torch.distributed.elastic.events.

The JSON form is the fields in their order; it does not change within a major version, and readers
have to bear fields they do not know.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

__all__ = ["Event", "EventMetadataValue", "EventSource", "NodeState", "RdzvEvent"]

EventMetadataValue = str | int | float | bool | None


class EventSource(str, Enum):
    """The recorder of an event."""

    AGENT = "AGENT"
    WORKER = "WORKER"


@dataclass
class _Line:
    """An event as one line of JSON."""

    def __str__(self) -> str:
        return self.serialize()

    def serialize(self) -> str:
        """Return the event as one line of JSON."""
        return json.dumps(asdict(self))


@dataclass
class Event(_Line):
    """Something that happened.

    Args:
        name: the kind of event.
        source: the recorder.
        timestamp: wall time [ms since the epoch]; 0 is filled in when the event is recorded.
        metadata: further facts.
    """

    name: str
    source: EventSource
    timestamp: int = 0
    metadata: dict[str, EventMetadataValue] = field(default_factory=dict)

    @staticmethod
    def deserialize(data: str | Event) -> Event:
        """Return the event in a line of JSON; an event is returned as it is.

        Raises:
            ValueError: not JSON.
            KeyError: an unknown or no source.
            TypeError: neither a string nor an event, or missing and unknown fields.
        """
        if isinstance(data, Event):
            return data
        fields = _fields(data)
        fields["source"] = EventSource[fields["source"]]
        return Event(**fields)


class NodeState(str, Enum):
    """States of a node in the rendezvous."""

    INIT = "INIT"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


@dataclass
class RdzvEvent(_Line):
    """Something that happened in the rendezvous.

    Args:
        name: the present action.
        run_id: the run.
        message: the event in words, for people.
        hostname: the node.
        pid: the process on the node.
        node_state: state of the node.
        master_endpoint: where the rendezvous is, if that is known.
        rank: rank of the node, if it has one.
        local_id: number of the node within its rendezvous backend.
        error_trace: traceback, of an error.
    """

    name: str
    run_id: str
    message: str
    hostname: str
    pid: int
    node_state: NodeState
    master_endpoint: str = ""
    rank: int | None = None
    local_id: int | None = None
    error_trace: str = ""

    @staticmethod
    def deserialize(data: str | RdzvEvent) -> RdzvEvent:
        """Return the event in a line of JSON; an event is returned as it is.

        Raises:
            ValueError: not JSON.
            KeyError: an unknown or no state.
            TypeError: neither a string nor an event, or missing and unknown fields.
        """
        if isinstance(data, RdzvEvent):
            return data
        fields = _fields(data)
        fields["node_state"] = NodeState[fields["node_state"]]
        return RdzvEvent(**fields)


def _fields(data: object) -> dict[str, Any]:
    if not isinstance(data, str):
        raise TypeError(f"an event or its JSON was expected, not {data!r}")
    fields = json.loads(data)
    if not isinstance(fields, dict):
        raise TypeError(f"JSON of an event was expected, not {data!r}")
    return fields
