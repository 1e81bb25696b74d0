"""The names of torch.distributed.elastic.rendezvous.dynamic_rendezvous."""

from __future__ import annotations

from typing import Any

from hpc_elastic.errors import (
    RendezvousClosedError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from hpc_elastic.meet.interface import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo
from hpc_elastic.rendezvous.backend import RendezvousBackend, Token
from hpc_elastic.rendezvous.dynamic.handler import DynamicRendezvousHandler
from hpc_elastic.rendezvous.dynamic.settings import (
    RendezvousSettings,
    RendezvousTimeout,
    timeout_from,
)
from hpc_elastic.rendezvous.parameters import RendezvousParameters, seconds_of
from hpc_elastic.rendezvous.utils import _delay, _PeriodicTimer

__all__ = [
    "DynamicRendezvousHandler",
    "RendezvousBackend",
    "RendezvousClosedError",
    "RendezvousError",
    "RendezvousGracefulExitError",
    "RendezvousHandler",
    "RendezvousInfo",
    "RendezvousSettings",
    "RendezvousStateError",
    "RendezvousStoreInfo",
    "RendezvousTimeout",
    "RendezvousTimeoutError",
    "Token",
    "_PeriodicTimer",
    "_delay",
    "create_handler",
]


def create_handler(
    store: Any, backend: RendezvousBackend, params: RendezvousParameters
) -> DynamicRendezvousHandler:
    """Return a handler over a backend.

    Options [s]: ``join_timeout`` (600), ``last_call_timeout`` (30), ``close_timeout`` (30),
    ``heartbeat_timeout`` or ``heartbeat`` (5), ``keep_alive_interval`` (5); and
    ``keep_alive_max_attempt`` (3).

    Args:
        store: key-value store for the members of a round, or None.
        backend: where the state is kept.
        params: sizes and options.

    Raises:
        ValueError: an option is no number, or makes no sense.
    """
    attempts = params.get_as_int("keep_alive_max_attempt", 3)
    return DynamicRendezvousHandler.from_backend(
        params.run_id,
        store,
        backend,
        params.min_nodes,
        params.max_nodes,
        params.local_addr,
        timeout_from(params),
        keep_alive_interval=seconds_of(params, "keep_alive_interval", 5) or 0.0,
        keep_alive_max_attempt=3 if attempts is None else attempts,
    )
