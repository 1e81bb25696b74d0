"""The steps of a rendezvous as `hpc_elastic.events.RdzvEvent`s, for programs that have asked for them.

Such a program has imported `hpc_elastic.events`; without that nothing is made or loaded here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

from hpc_elastic.meet.interface import RendezvousInfo
from hpc_elastic.named_tuple import NamedTuple

_T = TypeVar("_T")


class Who(NamedTuple):
    """The node that tells."""

    name: str  # for people
    hostname: str
    pid: int
    local_id: int | None = None


class Trail:
    """Records the steps of one handler.

    Args:
        place: file and class that events are named for, for example ``dynamic_rendezvous.py:Handler``.
        run_id: the id of the run.
        who: the node.
    """

    def __init__(self, place: str, run_id: str, who: Who) -> None:
        self._place = place
        self.run_id = run_id
        self.who = who

    def tell(
        self, what: str, message: str, state: str = "RUNNING", *, rank: int | None = None, place: str = ""
    ) -> None:
        """Record an event, if a program has asked for events.

        Args:
            what: the method.
            message: for people.
            state: name of a `NodeState`; FAILED adds the traceback of the exception being handled.
            rank: rank of the node, if it has one.
            place: file and class, if they are others.
        """
        events: Any = sys.modules.get("hpc_elastic.events")
        if events is None or not events.wants_rdzv_events():
            return
        events.record_rdzv_event(
            events.RdzvEvent(
                name=f"{place or self._place}.{what}",
                run_id=self.run_id,
                message=message,
                hostname=self.who.hostname,
                pid=self.who.pid,
                node_state=events.NodeState[state],
                rank=rank,
                local_id=self.who.local_id,
                error_trace=_traceback() if state == "FAILED" else "",
            )
        )

    def watched(self, what: str, call: Callable[[], _T]) -> _T:
        """Do something; an error of it is recorded and goes on."""
        try:
            return call()
        except Exception as error:
            self.tell(what, f"{type(error).__name__}: {error}", "FAILED")
            raise

    def joined(
        self, join: Callable[[], RendezvousInfo], round_of: Callable[[RendezvousInfo], int | None]
    ) -> RendezvousInfo:
        """Join a round, and record the attempt and its result."""
        what, run = "next_rendezvous", self.run_id
        self.tell(
            what, f"The node '{self.who.name}' attempts to join the next round of the rendezvous '{run}'."
        )
        info = self.watched(what, join)
        message = (
            f"The node '{self.who.name}' has joined round {round_of(info)} of the rendezvous '{run}' "
            f"as rank {info.rank} in a world of size {info.world_size}."
        )
        self.tell(what, message, rank=info.rank)
        return info

    def closed(self) -> None:
        """Record that this node has closed the rendezvous."""
        message = f"The node '{self.who.name}' has closed the rendezvous '{self.run_id}'."
        self.tell("_close", message, "SUCCEEDED")

    def left(self, error: Exception | None = None) -> None:
        """Record that this node has left, or could not tell the others."""
        if error is None:
            message = f"The node '{self.who.name}' has left the rendezvous '{self.run_id}'."
            self.tell("shutdown", message, "SUCCEEDED")
        else:
            kind = type(error).__name__
            message = (
                f"The node '{self.who.name}' has failed to shutdown the rendezvous '{self.run_id}' "
                f"due to an error of type {kind}."
            )
            self.tell("shutdown", message, "FAILED")

    def beaten(self, beat: Callable[[], None]) -> None:
        """Give a sign of life, and record whether that worked."""
        node, run = self.who.name, self.run_id
        try:
            beat()
        except Exception as error:
            kind = type(error).__name__
            message = (
                f"The node '{node}' has failed to send a keep-alive heartbeat to the rendezvous '{run}' "
                f"due to an error of type {kind}."
            )
            self.tell("_keep_alive", message, "FAILED")
            raise
        self.tell(
            "_keep_alive", f"The node '{node}' has sent a keep-alive heartbeat to the rendezvous '{run}'."
        )


def _traceback() -> str:
    import traceback  # noqa: PLC0415 - only failures need it

    return traceback.format_exc()
