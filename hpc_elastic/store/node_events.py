"""Things that happened on nodes and are remembered. Pure."""

from __future__ import annotations

from enum import Enum

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.typed_json import Prose


class Fault(str, Enum):
    """An event on a node."""

    UNFIT = "unfit"  # its probe failed
    NODE_LOSS = "node_loss"  # its agent vanished
    ABSENT = "absent"  # no agent came from it
    WEDGE = "wedge"  # workers hang in the kernel (state D)
    HANG = "hang"  # its workers were the odd ones out in a hang
    CRASH_LOOP = "crash_loop"  # workers failed there again and again
    SLOW = "slow"  # its workers took far longer for a step than those of other nodes
    SUSPECTED = "suspected"  # by the user
    FORGIVEN = "forgiven"  # by the user: events before it do not count


class NodeEvent(NamedTuple):
    """Something that happened on a node."""

    host: str
    fault: Fault
    at: float  # wall time of the writer [s since the epoch]
    key: str  # tells the event from others of its host, kind and second
    run: str = ""  # run id
    detail: Prose = ""  # for people
