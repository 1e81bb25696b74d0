"""Bringing the nodes of a run together: state and rules (pure), and their executor.

The names of torch.distributed.elastic.rendezvous are here, too; each is loaded when it is used, so
that an agent pays for none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_elastic.lazy_names import lazy_names

if TYPE_CHECKING:
    from hpc_elastic.errors import RendezvousClosedError as RendezvousClosedError
    from hpc_elastic.errors import RendezvousConnectionError as RendezvousConnectionError
    from hpc_elastic.errors import RendezvousError as RendezvousError
    from hpc_elastic.errors import RendezvousGracefulExitError as RendezvousGracefulExitError
    from hpc_elastic.errors import RendezvousStateError as RendezvousStateError
    from hpc_elastic.errors import RendezvousTimeoutError as RendezvousTimeoutError
    from hpc_elastic.meet.interface import RendezvousHandler as RendezvousHandler
    from hpc_elastic.meet.interface import RendezvousInfo as RendezvousInfo
    from hpc_elastic.meet.interface import RendezvousStoreInfo as RendezvousStoreInfo
    from hpc_elastic.rendezvous.parameters import RendezvousParameters as RendezvousParameters
    from hpc_elastic.rendezvous.registry import RendezvousHandlerCreator as RendezvousHandlerCreator
    from hpc_elastic.rendezvous.registry import RendezvousHandlerRegistry as RendezvousHandlerRegistry
    from hpc_elastic.rendezvous.registry import get_rendezvous_handler as get_rendezvous_handler
    from hpc_elastic.rendezvous.registry import rendezvous_handler_registry as rendezvous_handler_registry

__all__ = [
    "RendezvousClosedError",
    "RendezvousConnectionError",
    "RendezvousError",
    "RendezvousGracefulExitError",
    "RendezvousHandler",
    "RendezvousHandlerCreator",
    "RendezvousHandlerRegistry",
    "RendezvousInfo",
    "RendezvousParameters",
    "RendezvousStateError",
    "RendezvousStoreInfo",
    "RendezvousTimeoutError",
    "get_rendezvous_handler",
    "rendezvous_handler_registry",
]

_HOMES = {**dict.fromkeys(__all__, "api"), "_register_out_of_tree_handlers": "registry"}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
