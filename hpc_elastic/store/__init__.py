"""A shared directory as a store: exclusive numbered records, one-writer files, facts in names.

For training code and for tools this package offers a key-value store with the interface of
``torch.distributed.Store`` that needs no server: `from_env`, `open_store`, `PrefixStore`, and those of
``torch.distributed.elastic.utils.store``: `barrier`, `synchronize`, `get_all`, `store_timeout`.
Each is loaded when it is first used.
"""

from hpc_elastic.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hpc_elastic.errors import QueueEmptyError, StoreError, StoreTimeoutError
    from hpc_elastic.errors import StoreError as DistError
    from hpc_elastic.errors import StoreTimeoutError as DistStoreError
    from hpc_elastic.store.kv.store import KeyValueStore, PrefixStore, from_env, open_store
    from hpc_elastic.store.kv.util import barrier, get_all, store_timeout, synchronize

__all__ = [
    "DistError",
    "DistStoreError",
    "KeyValueStore",
    "PrefixStore",
    "QueueEmptyError",
    "StoreError",
    "StoreTimeoutError",
    "barrier",
    "from_env",
    "get_all",
    "open_store",
    "store_timeout",
    "synchronize",
]

_HOMES = {
    "DistError": ".errors:StoreError",
    "DistStoreError": ".errors:StoreTimeoutError",
    "KeyValueStore": "kv.store",
    "PrefixStore": "kv.store",
    "QueueEmptyError": ".errors",
    "StoreError": ".errors",
    "StoreTimeoutError": ".errors",
    "barrier": "kv.util",
    "from_env": "kv.store",
    "get_all": "kv.util",
    "open_store": "kv.store",
    "store_timeout": "kv.util",
    "synchronize": "kv.util",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
