"""The rendezvous as the agent sees it; names and meaning as in torch.distributed.elastic.rendezvous."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from hpc_elastic.data_fields import DataClass, DataFields
from hpc_elastic.record.journal import RoundFormed

# Ports below the range from which the kernel takes outgoing ones, so that no other process's connection
# takes the port between its choice and the moment rank 0 listens on it.
_PORTS = range(20_000, 32_000)


class RendezvousStoreInfo(DataClass):
    """Where the workers' own process group meets.

    Args:
        master_addr: address of the node that it meets on.
        master_port: port there.
    """

    MASTER_ADDR_KEY: ClassVar[str] = "MASTER_ADDR"
    MASTER_PORT_KEY: ClassVar[str] = "MASTER_PORT"
    __dataclass_fields__: ClassVar[dict[str, Any]] = DataFields(  # type: ignore[assignment]
        "master_addr", "master_port"
    )

    def __init__(self, master_addr: str, master_port: int) -> None:
        self.master_addr = master_addr
        self.master_port = master_port

    @staticmethod
    def build(
        rank: int, store: Any, local_addr: str | None = None, server_port: int | None = None
    ) -> RendezvousStoreInfo:
        """Agree on an address and a port through a key-value store; rank 0 decides.

        Args:
            rank: this node's place in the round.
            store: any store with `set(key, bytes)` and a `get(key)` that waits for the key. A store
                serves once: take a prefix of its own for each round.
            local_addr: address of this node; its full host name if not given.
            server_port: the port to use; one that is free on this node if not given.
        """
        if rank == 0:
            store.set(RendezvousStoreInfo.MASTER_ADDR_KEY, (local_addr or full_host_name()).encode())
            store.set(RendezvousStoreInfo.MASTER_PORT_KEY, str(server_port or _free_port()).encode())
        addr = store.get(RendezvousStoreInfo.MASTER_ADDR_KEY).decode()
        return RendezvousStoreInfo(addr, int(store.get(RendezvousStoreInfo.MASTER_PORT_KEY).decode()))


def full_host_name() -> str:
    """Return this machine's name as other machines know it."""
    import socket  # noqa: PLC0415 - 5 ms

    return socket.getfqdn()


class RendezvousInfo:
    """The result of a rendezvous for one node.

    Args:
        store: key-value store shared by the members of this round; None if the handler has none.
        rank: this node's place in the round (group rank).
        world_size: number of nodes in the round.
        bootstrap_store_info: address and port for the workers' process group.
        round: the record of the round, where the handler keeps one.
        open_store: makes the store when it is first asked for, in place of `store`.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        world_size: int,
        bootstrap_store_info: RendezvousStoreInfo,
        round: RoundFormed | None = None,  # noqa: A002 - named like its attribute
        *,
        open_store: Callable[[], Any] | None = None,
    ) -> None:
        self._store = store
        self._open_store = open_store
        self._rank = rank
        self._world_size = world_size
        self._bootstrap_store_info = bootstrap_store_info
        self._round = round

    def __repr__(self) -> str:
        where = f"{self._bootstrap_store_info.master_addr}:{self._bootstrap_store_info.master_port}"
        return f"RendezvousInfo(rank={self._rank}, world_size={self._world_size}, master={where!r})"

    @property
    def store(self) -> Any:
        """The key-value store of this round."""
        if self._store is None and self._open_store is not None:
            self._store = self._open_store()
        return self._store

    @property
    def rank(self) -> int:
        """This node's place in the round."""
        return self._rank

    @property
    def world_size(self) -> int:
        """The number of nodes in the round."""
        return self._world_size

    @property
    def bootstrap_store_info(self) -> RendezvousStoreInfo:
        """Where the workers' process group meets."""
        return self._bootstrap_store_info

    @property
    def round(self) -> RoundFormed | None:
        """The record of the round, where the handler keeps one."""
        return self._round


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
            RendezvousConnectionError: the shared state could not be reached.
            RendezvousStateError: the shared state is damaged.
            RendezvousTimeoutError: too few nodes appeared in time.
            RendezvousGracefulExitError: this node is to leave without failure.
        """

    @abstractmethod
    def is_closed(self) -> bool:
        """Tell whether the run has ended, so that no node can join it any more."""

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


def _free_port() -> int:

    return free_port()


def free_port() -> int:
    """Return a TCP port that no process on this machine listens on now."""
    import socket  # noqa: PLC0415 - 5 ms

    for _ in range(100):
        port = _PORTS[int.from_bytes(os.urandom(4), "little") % len(_PORTS)]
        with socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET) as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    return 29500
