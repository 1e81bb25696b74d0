"""The names of torch.distributed.elastic.utils.distributed: free ports, and torch's store by TCP."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from hpc_elastic.errors import InputError
from hpc_elastic.utils.api import get_socket_with_port

__all__ = ["create_c10d_store", "get_free_port", "get_socket_with_port"]

_TEN_MINUTES_S = 600


def get_free_port() -> int:
    """Return a port of localhost that is free now; nothing keeps it from others afterwards."""
    with closing(get_socket_with_port()) as listener:
        return int(listener.getsockname()[1])


def create_c10d_store(  # noqa: PLR0913 - torch's signature
    is_server: bool,  # noqa: FBT001 - as above
    server_addr: str,
    server_port: int = -1,
    world_size: int = 1,
    timeout: float = _TEN_MINUTES_S,
    wait_for_workers: bool = True,  # noqa: FBT001, FBT002 - as above
    retries: int = 3,
    use_libuv: bool | None = None,  # noqa: FBT001 - as above
) -> Any:
    """Return a ``torch.distributed.TCPStore``, made by torch; nothing here needs one.

    A store that needs no server, and no torch, is `hpc_elastic.store.open_store`.

    Args:
        is_server: whether this process holds the keys; they are gone when it ends.
        server_addr: the host that does.
        server_port: its port; -1 for a free one, with `world_size` 1.
        world_size: how many processes use the store.
        timeout: how long reading waits for keys [s].
        wait_for_workers: wait until all processes are there.
        retries: how often another free port is tried.
        use_libuv: without effect in torch, too.

    Raises:
        InputError: torch is not installed.
    """
    try:
        from torch.distributed.elastic.utils import distributed  # noqa: PLC0415 - torch is the user's
    except ImportError as error:
        raise InputError(
            "a store by TCP is torch's, and torch cannot be imported",
            where="create_c10d_store",
            fix="use hpc_elastic.store.open_store(directory, scope), which needs no server, or install torch",
        ) from error
    return distributed.create_c10d_store(
        is_server, server_addr, server_port, world_size, timeout, wait_for_workers, retries, use_libuv
    )
