"""Several nodes of a rendezvous as threads of one process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import RendezvousError
from hpc_elastic.meet.interface import RendezvousHandler, RendezvousInfo


class Joining:
    """A node that waits for its round in a thread of its own.

    Args:
        handler: the node's handler.
    """

    def __init__(self, handler: RendezvousHandler) -> None:
        self.handler = handler
        self._info: RendezvousInfo | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._join, daemon=True)
        self._thread.start()

    def _join(self) -> None:
        try:
            self._info = self.handler.next_rendezvous()
        except BaseException as error:  # noqa: BLE001 - handed to the test
            self._error = error

    @property
    def is_waiting(self) -> bool:
        """Whether the node has neither a round nor an error yet."""
        return self._thread.is_alive()

    def result(self, timeout_s: float = 20.0) -> RendezvousInfo:
        """Return the node's place.

        Raises:
            AssertionError: it has none in time.
        """
        self._thread.join(timeout_s)
        if self._error is not None:
            raise self._error
        if self._info is None:
            raise AssertionError(f"no round within {timeout_s:g} s")
        return self._info


def join_all(handlers: Iterable[RendezvousHandler]) -> list[RendezvousInfo]:
    """Return the places of nodes that join at the same time."""
    return [node.result() for node in [Joining(handler) for handler in handlers]]


def agree(infos: list[RendezvousInfo]) -> bool:
    """Tell whether all nodes are in the same round: size, ranks and master fit together."""
    ranks = sorted(info.rank for info in infos)
    sizes, masters = {info.world_size for info in infos}, {repr(info.bootstrap_store_info) for info in infos}
    return ranks == list(range(len(infos))) and sizes == {len(infos)} and len(masters) == 1


class ShiftedClock(SystemClock):
    """The clocks of a node that is off.

    Args:
        offset_s: how far both clocks are ahead of this machine's [s].
    """

    def __init__(self, offset_s: float) -> None:
        self._offset_s = offset_s

    def monotonic(self) -> float:
        """Return the node's monotonic time [s]."""
        return super().monotonic() + self._offset_s

    def wall(self) -> float:
        """Return the node's wall time [s]."""
        return super().wall() + self._offset_s


class Gate:
    """Stands between a node and what it shares, and can be shut.

    Args:
        error: makes what is raised while it is shut.
    """

    def __init__(self, error: Callable[[], Exception]) -> None:
        self.is_shut = False
        self._error = error

    def pass_through(self) -> None:
        """Do nothing, or raise if the gate is shut."""
        if self.is_shut:
            raise self._error()


_Handler = TypeVar("_Handler", bound=RendezvousHandler)


class Agent(Generic[_Handler]):
    """A node that meets the others again whenever its handler says so, as an agent's monitor loop does.

    Args:
        handler: the node's handler.
    """

    def __init__(self, handler: _Handler) -> None:
        self.handler = handler
        self.info: RendezvousInfo | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with suppress(RendezvousError):
            while not self._stop.is_set():
                self.info = self.handler.next_rendezvous()
                while self.handler.num_nodes_waiting() == 0 and not self._stop.wait(0.01):
                    pass

    def abandon(self) -> None:
        """End the loop and leave the handler as it is."""
        self._stop.set()
        self._thread.join(120)

    def stop(self) -> None:
        """End the loop and leave the run."""
        self._stop.set()
        self.handler.shutdown()
        self._thread.join(120)


def are_in_one_round(agents: list[Agent[Any]]) -> bool:
    """Tell whether the agents make up a round by themselves."""
    infos = [agent.info for agent in agents]
    return None not in infos and agree([info for info in infos if info is not None])
