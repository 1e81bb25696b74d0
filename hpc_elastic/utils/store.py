"""The names of torch.distributed.elastic.utils.store; see `hpc_elastic.store.kv.util`."""

from __future__ import annotations

from hpc_elastic.errors import StoreTimeoutError as DistStoreError
from hpc_elastic.store.kv.util import barrier, get_all, store_timeout, synchronize

__all__ = ["DistStoreError", "barrier", "get_all", "store_timeout", "synchronize"]
