"""A part of a key-value store that has keys of its own."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from hpc_elastic.store.kv.records import key_bytes, key_text


class PrefixStore:
    """A store whose keys are those of another one that begin with ``<prefix>/``.

    Args:
        prefix: what is put in front of every key.
        store: the other store: a `KeyValueStore`, a `PrefixStore` or one of torch's.
    """

    def __init__(self, prefix: str, store: Any) -> None:
        self._prefix = prefix
        self._store = store

    def __repr__(self) -> str:
        return f"PrefixStore({self._prefix!r}, {self._store!r})"

    @property
    def underlying_store(self) -> Any:
        """The store that holds the keys."""
        return self._store

    @property
    def counts_writes(self) -> bool:
        """Whether `write`, `written` and `wait_written` can be used; not with torch's stores."""
        return bool(getattr(self._store, "counts_writes", False))

    @property
    def timeout(self) -> timedelta:
        """The other store's timeout."""
        timeout: timedelta = self._store.timeout
        return timeout

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the other store's timeout."""
        self._store.set_timeout(timeout)

    def has_extended_api(self) -> bool:
        """Tell whether the other store has `append`, `multi_get` and `multi_set`."""
        return bool(self._store.has_extended_api())

    def clone(self) -> PrefixStore:
        """Return another client of the same keys."""
        return PrefixStore(self._prefix, self._store.clone())

    def _key(self, key: str | bytes) -> str:
        return f"{self._prefix}/{key_text(key_bytes(key))}"

    def _keys(self, keys: Sequence[str | bytes]) -> list[str]:
        if isinstance(keys, str | bytes):
            raise TypeError(f"a list of keys is needed, not one key: {keys!r}")
        return [self._key(key) for key in keys]

    def get(self, key: str | bytes) -> bytes:
        """Return the value of a key; see `KeyValueStore.get`."""
        return bytes(self._store.get(self._key(key)))

    def multi_get(self, keys: Sequence[str | bytes]) -> list[bytes]:
        """Return the values of keys; see `KeyValueStore.multi_get`."""
        return list(self._store.multi_get(self._keys(keys)))

    def wait(self, keys: Sequence[str | bytes], timeout: timedelta | float | None = None) -> None:
        """Wait until all keys have a value; see `KeyValueStore.wait`."""
        if timeout is None:
            self._store.wait(self._keys(keys))
        else:
            self._store.wait(self._keys(keys), timeout)

    def check(self, keys: Sequence[str | bytes]) -> bool:
        """Tell whether all keys have a value now."""
        return bool(self._store.check(self._keys(keys)))

    def num_keys(self) -> int:
        """Return how many keys the other store has, as torch's prefix store does."""
        return int(self._store.num_keys())

    def list_keys(self) -> list[str]:
        """Return the keys of this store, without the prefix."""
        start = f"{self._prefix}/"
        return [key[len(start) :] for key in self._store.list_keys() if key.startswith(start)]

    def set(self, key: str | bytes, value: str | bytes) -> None:
        """Give a key a value."""
        self._store.set(self._key(key), value)

    def multi_set(self, keys: Sequence[str | bytes], values: Sequence[str | bytes]) -> None:
        """Give each key its value; see `KeyValueStore.multi_set`."""
        self._store.multi_set(self._keys(keys), values)

    def add(self, key: str | bytes, value: int) -> int:
        """Add to a key's number; see `KeyValueStore.add`."""
        return int(self._store.add(self._key(key), value))

    def append(self, key: str | bytes, value: str | bytes) -> None:
        """Add to the end of a key's value."""
        self._store.append(self._key(key), value)

    def compare_set(self, key: str | bytes, expected_value: str | bytes, desired_value: str | bytes) -> bytes:
        """Set a key if it has the expected value; see `KeyValueStore.compare_set`."""
        return bytes(self._store.compare_set(self._key(key), expected_value, desired_value))

    def delete_key(self, key: str | bytes) -> bool:
        """Delete a key; tells whether it was there."""
        return bool(self._store.delete_key(self._key(key)))

    def queue_push(self, key: str | bytes, value: str | bytes) -> None:
        """Add to the end of a queue."""
        self._store.queue_push(self._key(key), value)

    def queue_pop(self, key: str | bytes, block: bool = True) -> bytes:  # noqa: FBT001, FBT002 - torch's
        """Take the oldest value out of a queue; see `KeyValueStore.queue_pop`."""
        return bytes(self._store.queue_pop(self._key(key), block))

    def queue_len(self, key: str | bytes) -> int:
        """Return how many values wait in a queue."""
        return int(self._store.queue_len(self._key(key)))

    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        """Wait until `world_size` callers are here; see `KeyValueStore.barrier`."""
        self._store.barrier(self._key(key), world_size, timeout)

    def write(self, key: str | bytes, value: str | bytes) -> int:
        """Give a key a value; see `KeyValueStore.write`."""
        return int(self._store.write(self._key(key), value))

    def written(self, keys: Sequence[str | bytes]) -> list[int]:
        """Return how often each key was written."""
        return list(self._store.written(self._keys(keys)))

    def wait_written(
        self, keys: Sequence[str | bytes], times: int, timeout: timedelta | float | None = None
    ) -> None:
        """Wait until each key was written a number of times; see `KeyValueStore.wait_written`."""
        self._store.wait_written(self._keys(keys), times, timeout)
