"""The names of torch.distributed.elastic.rendezvous.static_tcp_rendezvous."""

from __future__ import annotations

from hpc_elastic.rendezvous.static import StaticRendezvous as StaticTCPRendezvous
from hpc_elastic.rendezvous.static import create_rdzv_handler

__all__ = ["StaticTCPRendezvous", "create_rdzv_handler"]
