"""The rendezvous of torch.distributed.elastic, many nodes in one process."""

from __future__ import annotations

import logging
from typing import Any


def make_rendezvous(store_type: str, endpoint: str, nodes: int, index: int) -> Any:
    """Return one node's rendezvous of torch's c10d backend.

    The connection to the store is made here, before time is taken.

    Args:
        store_type: ``tcp`` or ``file``.
        endpoint: ``host:port``, or the path of the file.
        nodes: how many nodes there are.
        index: the node's number; the first one is the host of a TCP store.
    """
    from torch.distributed.elastic.rendezvous import RendezvousParameters  # noqa: PLC0415 - if there is torch
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend  # noqa: PLC0415
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler  # noqa: PLC0415

    logging.disable(logging.WARNING)
    host = "true" if index == 0 else "false"
    wanted = RendezvousParameters(
        "c10d",
        endpoint,
        "bench",
        min_nodes=nodes,
        max_nodes=nodes,
        local_addr="127.0.0.1",
        store_type=store_type,
        is_host=host,
    )
    backend, store = create_backend(wanted)
    return create_handler(store, backend, wanted)
