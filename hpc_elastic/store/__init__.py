"""A shared directory as a store: exclusive numbered records, one-writer files, facts in names.

For training code and for tools this package offers a key-value store with the interface of
``torch.distributed.Store`` that needs no server: `from_env`, `open_store`, `PrefixStore`, and what
``torch.distributed.elastic.utils.store`` has: `barrier`, `synchronize`, `get_all`, `store_timeout`.
Each is loaded when it is first used.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hpc_elastic.errors import QueueEmptyError, StoreError, StoreTimeoutError
    from hpc_elastic.errors import StoreError as DistError
    from hpc_elastic.errors import StoreTimeoutError as DistStoreError
    from hpc_elastic.store.kv import KeyValueStore
    from hpc_elastic.store.of_run import from_env, open_store
    from hpc_elastic.store.prefix import PrefixStore
    from hpc_elastic.store.util import barrier, get_all, store_timeout, synchronize

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

_PLACES = {
    "DistError": "hpc_elastic.errors:StoreError",
    "DistStoreError": "hpc_elastic.errors:StoreTimeoutError",
    "KeyValueStore": "hpc_elastic.store.kv:KeyValueStore",
    "PrefixStore": "hpc_elastic.store.prefix:PrefixStore",
    "QueueEmptyError": "hpc_elastic.errors:QueueEmptyError",
    "StoreError": "hpc_elastic.errors:StoreError",
    "StoreTimeoutError": "hpc_elastic.errors:StoreTimeoutError",
    "barrier": "hpc_elastic.store.util:barrier",
    "from_env": "hpc_elastic.store.of_run:from_env",
    "get_all": "hpc_elastic.store.util:get_all",
    "open_store": "hpc_elastic.store.of_run:open_store",
    "store_timeout": "hpc_elastic.store.util:store_timeout",
    "synchronize": "hpc_elastic.store.util:synchronize",
}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - not on the agent's path

    module, _, attribute = _PLACES[name].partition(":")
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted((*globals(), *__all__))
