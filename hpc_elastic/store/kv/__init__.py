"""The key-value store with the interface of ``torch.distributed.Store``, without a server.

The functions here load it when they are called: an agent needs it only if a program asks for it.
"""

from __future__ import annotations

from typing import Any


def open_round_store(root: str, scope: str, timeout: float | None = None) -> Any:
    """Return a key-value store in a run directory.

    Args:
        root: the run directory.
        scope: the purpose of the store; stores with different scopes share nothing.
        timeout: how long a read waits for its key [s]; the store's own default if not given.
    """
    from hpc_elastic.store.kv.store import open_scope  # noqa: PLC0415 - the agent does without

    return open_scope(root, scope) if timeout is None else open_scope(root, scope, timeout=timeout)


def with_prefix(prefix: str, store: Any) -> Any:
    """Return a part of a store in which all keys begin with a prefix."""
    from hpc_elastic.store.kv.store import PrefixStore  # noqa: PLC0415 - the agent does without

    return PrefixStore(prefix, store)
