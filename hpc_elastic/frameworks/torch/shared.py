"""A ``torch.distributed.Store`` over our key-value store in the run directory."""

from __future__ import annotations

import functools
from typing import Any

from hpc_elastic.store.kv.of_run import PrefixStore


class _Shared(PrefixStore):
    """Has every method that torch calls, under torch's name; torch does so from its own threads, too.

    Args:
        base: ``torch.distributed.Store``.
        prefix: the beginning of each key.
        store: where they are kept.
    """

    def __init__(self, base: Any, prefix: str, store: Any) -> None:
        super().__init__(prefix, store)
        base.__init__(self)  # else torch's side of it does not exist

    def clone(self) -> Any:
        """Return this store: several threads may use it."""
        return self


@functools.cache
def _class(base: type) -> type:
    words = {"__module__": __name__, "__doc__": _Shared.__doc__}
    asked_for = {"deleteKey": _Shared.delete_key, "getNumKeys": _Shared.num_keys}  # by torch's C++ code
    return type("SharedStore", (_Shared, base), {**words, **asked_for})


def shared_store(base: type, prefix: str, store: Any) -> Any:
    """Return a store to be kept as long as torch may use it.

    Torch keeps only its own side of a store, which without ours says "Not implemented" to all it is asked.

    Args:
        base: ``torch.distributed.Store``.
        prefix: the beginning of each key.
        store: where they are kept.
    """
    return _class(base)(base, prefix, store)
