"""A queue as the value of one key: what `KeyValueStore.queue_push` and `queue_pop` make of it. Pure.

A line ``queue 1`` and then each item, the oldest first, behind a line with its length.
"""

from __future__ import annotations

from collections.abc import Sequence

from hpc_elastic.errors import StoreError
from hpc_elastic.store.kv.records import shown

_HEAD = b"queue 1\n"


def items_of(key: bytes, value: bytes | None) -> list[bytes]:
    """Return the items of a queue, the oldest first; an absent key is an empty one.

    Raises:
        StoreError: the key has a value that is no queue.
    """
    if value is None:
        return []
    items, at = [], len(_HEAD)
    try:
        if not value.startswith(_HEAD):
            raise ValueError  # noqa: TRY301 - as damage further on
        while at < len(value):
            start = value.index(b"\n", at) + 1
            at = start + int(value[at : start - 1])
            if at > len(value):
                raise ValueError  # noqa: TRY301 - as above
            items.append(value[start:at])
    except ValueError:
        raise StoreError(f"key {shown(key)} has a value that is no queue: {value[:80]!r}") from None
    return items


def value_of(items: Sequence[bytes]) -> bytes:
    """Return the value of a queue's key."""
    return _HEAD + b"".join(b"%d\n%b" % (len(item), item) for item in items)
