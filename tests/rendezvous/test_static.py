"""The static rendezvous."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.meet.interface import RendezvousStoreInfo
from hpc_elastic.rendezvous import RendezvousParameters
from hpc_elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous, create_rdzv_handler


def params(endpoint: str = "host:29500", nodes: int = 2, **config: Any) -> RendezvousParameters:
    """Return parameters of a static rendezvous."""
    return RendezvousParameters("static", endpoint, "r", nodes, nodes, **config)


def test_everything_is_known_beforehand() -> None:
    """Rank, size and address are those that were given, again and again; nobody is waited for."""
    handler = create_rdzv_handler(params(rank="1"))
    assert isinstance(handler, StaticTCPRendezvous)
    for _ in range(2):
        info = handler.next_rendezvous()
        where = RendezvousStoreInfo("host", 29500)
        assert (1, 2, where) == (info.rank, info.world_size, info.bootstrap_store_info)
        assert info.store is None
    assert ("static", "r", False, 0) == (
        handler.get_backend(), handler.get_run_id(), handler.use_agent_store, handler.num_nodes_waiting()
    )  # fmt: skip
    handler.set_closed()
    assert not handler.is_closed()
    assert handler.shutdown()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (params(), "^rank is absent in RendezvousParameters.Try add --node-rank to the cmd request$"),
        (params(" ", rank=0), "^endpoint is absent in RendezvousParametersTry add --master-port and"),
        (params("host", rank=0), "^Port is absent in endpoint: host. Try launching with --master-port$"),
        (
            params(rank=2),
            "^The rank 2 of a static rendezvous must be at least 0",
        ),
        (params(rank=-1), "^The rank -1 of a static rendezvous"),
    ],
)
def test_what_is_missing_is_told(given: RendezvousParameters, text: str) -> None:
    """Rank, endpoint and port are needed."""
    with pytest.raises(ValueError, match=text):
        create_rdzv_handler(given)


def test_nodes_share_a_store_in_a_directory(tmp_path: Path) -> None:
    """With a shared directory the nodes have a store; a store object is passed on."""
    tmp_path.chmod(0o700)
    first, second = (
        create_rdzv_handler(params(rank=rank, run_dir=str(tmp_path))).next_rendezvous() for rank in (0, 1)
    )
    first.store.set("key", b"value")
    assert b"value" == second.store.get("key")
    store = object()
    assert store is create_rdzv_handler(params(rank=0, store=store)).next_rendezvous().store


def test_a_node_alone_has_a_store() -> None:
    """Nobody else has to see what one node says to itself; each round begins anew."""
    handler = create_rdzv_handler(params(nodes=1, rank=0))
    info = handler.next_rendezvous()
    info.store.set("key", "value")
    assert b"value" == info.store.get("key")
    assert not handler.next_rendezvous().store.check(["key"])
