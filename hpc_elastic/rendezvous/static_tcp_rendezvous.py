"""The static rendezvous: ranks and the master's address are given, and no node waits for another."""

from __future__ import annotations

from typing import Any

from hpc_elastic.meet.interface import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo
from hpc_elastic.rendezvous.parameters import RendezvousParameters
from hpc_elastic.rendezvous.utils import parse_rendezvous_endpoint
from hpc_elastic.store.kv import open_round_store

__all__ = ["StaticTCPRendezvous", "create_rdzv_handler"]

DEFAULT_TIMEOUT_S = 600


class StaticTCPRendezvous(RendezvousHandler):
    """A round whose members are known beforehand, as by torchrun's ``--node-rank``.

    Torch starts a TCP store on the master's port and shares it with the workers. Here no server is
    run: the workers' process group opens the port itself (`use_agent_store` is False), and the nodes
    share a key-value store in a directory if one is configured.

    Args:
        master_addr: address of the node with rank 0.
        master_port: port of the workers' process group there.
        rank: this node's rank.
        world_size: number of nodes.
        run_id: the id of the run.
        timeout: how long a read from the store waits for its key [s].
        store: key-value store shared by the nodes, or None; a node alone has one in memory then.
    """

    def __init__(  # noqa: PLR0913 - torch's signature and the store
        self,
        master_addr: str,
        master_port: int,
        rank: int,
        world_size: int,
        run_id: str,
        timeout: float = DEFAULT_TIMEOUT_S,
        store: Any = None,
    ) -> None:
        self.master_addr = master_addr
        self.master_port = master_port
        self.rank = rank
        self.world_size = world_size
        self.run_id = run_id
        self.timeout = timeout
        self._store = store

    def get_backend(self) -> str:
        """Return the name of the rendezvous backend."""
        return "static"

    def next_rendezvous(self) -> RendezvousInfo:
        """Return this node's place at once."""
        where = RendezvousStoreInfo(self.master_addr, self.master_port)
        alone = _store_in_memory if self.world_size == 1 else None
        return RendezvousInfo(self._store, self.rank, self.world_size, where, open_store=alone)

    def is_closed(self) -> bool:
        """Return False: a rendezvous of known nodes cannot be closed."""
        return False

    def set_closed(self) -> None:
        """Do nothing."""

    def num_nodes_waiting(self) -> int:
        """Return 0: no node can join."""
        return 0

    def get_run_id(self) -> str:
        """Return the id of the run."""
        return self.run_id

    def shutdown(self) -> bool:
        """Do nothing."""
        return True


def create_rdzv_handler(params: RendezvousParameters) -> StaticTCPRendezvous:
    """Return a static rendezvous.

    The endpoint is the master's ``host:port``. Options: ``rank`` (required), ``timeout`` [s], and, for
    a store, ``store`` (any key-value store object) or ``run_dir`` (a directory that all nodes see).

    Raises:
        ValueError: the rank, the endpoint or its port is missing.
    """
    if params.get("rank") is None:
        raise ValueError("rank is absent in RendezvousParameters.Try add --node-rank to the cmd request")
    endpoint = params.endpoint.strip()
    if not endpoint:
        raise ValueError(
            "endpoint is absent in RendezvousParameters"
            "Try add --master-port and --master-addr to the cmd request"
        )
    addr, port = parse_rendezvous_endpoint(endpoint, -1)
    if port == -1:
        raise ValueError(f"Port is absent in endpoint: {endpoint}. Try launching with --master-port")
    rank = params.get_as_int("rank") or 0
    if not 0 <= rank < params.max_nodes:
        raise ValueError(
            f"The rank {rank} of a static rendezvous must be at least 0 and below the number of nodes "
            f"({params.max_nodes})."
        )
    timeout = params.get_as_int("timeout", DEFAULT_TIMEOUT_S) or DEFAULT_TIMEOUT_S
    store = _store(params, timeout)
    return StaticTCPRendezvous(addr, port, rank, params.max_nodes, params.run_id, timeout, store)


def _store(params: RendezvousParameters, timeout: float) -> Any:
    if params.get("store") is not None or not params.get("run_dir"):
        return params.get("store")

    return open_round_store(params.get("run_dir"), f"static-{params.run_id}", timeout)


def _store_in_memory() -> Any:
    from hpc_elastic.store.kv.store import KeyValueStore  # noqa: PLC0415 - only if it is asked for
    from hpc_elastic.store.memory import MemoryStore  # noqa: PLC0415 - as above

    return KeyValueStore(MemoryStore(), "kv")
