"""The rendezvous as the agent sees it; names and meaning as in torch.distributed.elastic.rendezvous."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from hpc_elastic.rendezvous.journal import RoundFormed


class RendezvousStoreInfo(NamedTuple):
    """Where the workers' own process group meets."""

    master_addr: str
    master_port: int


class RendezvousInfo(NamedTuple):
    """What a node gets from a rendezvous.

    Args:
        store: key-value store shared by the members of this round.
        rank: this node's place in the round (group rank).
        world_size: number of nodes in the round.
        bootstrap_store_info: address and port for the workers' process group.
        round: the record of the round, where the handler keeps one.
    """

    store: Any
    rank: int
    world_size: int
    bootstrap_store_info: RendezvousStoreInfo
    round: RoundFormed | None = None


class RendezvousHandler(ABC):
    """Brings the nodes of a run together, again and again."""

    @abstractmethod
    def get_backend(self) -> str:
        """Return the name of the rendezvous backend."""

    @property
    def use_agent_store(self) -> bool:
        """Whether workers may use the agent's store for their process group."""
        return False

    @abstractmethod
    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for the next round and return this node's place in it.

        Raises:
            RendezvousClosedError: the run has ended.
            RendezvousTimeoutError: too few nodes appeared in time.
            RendezvousGracefulExitError: this node is to leave without failure.
        """

    @abstractmethod
    def is_closed(self) -> bool:
        """Tell whether the run has ended, so that nobody can join it any more."""

    @abstractmethod
    def set_closed(self) -> None:
        """Close the run for everybody."""

    @abstractmethod
    def num_nodes_waiting(self) -> int:
        """Return how many nodes wait to be part of the next round."""

    @abstractmethod
    def get_run_id(self) -> str:
        """Return the id of the run."""

    @abstractmethod
    def shutdown(self) -> bool:
        """Leave; return whether that worked. The run goes on for the others."""
