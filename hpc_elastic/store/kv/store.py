"""A key-value store with the interface of ``torch.distributed.Store``, without a server.

`hpc_elastic.store.kv.versions` has the agreement of writers.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import QueueEmptyError, StoreError, StoreTimeoutError
from hpc_elastic.store.kv import versions as kv_format
from hpc_elastic.store.kv.versions import (
    Change,
    ChangeWish,
    KeyRecord,
    Listing,
    Versions,
    key_bytes,
    shown,
    value_bytes,
)
from hpc_elastic.store.lock import ContentionLock
from hpc_elastic.store.protocol import Store

_HEAD = b"queue 1\n"

logger = logging.getLogger(__name__)
_WARN_AFTER_S = 10.0  # a key that is waited for longer was perhaps never set
DEFAULT_TIMEOUT = timedelta(minutes=5)
_PAUSE_SHARE = 0.1  # a waiter pauses, while others write, for this share of the time waited ...
_PAUSE_PER_NAME_S = 0.0005  # ... and no longer than this for each name in the directory


class KeyValueStore:
    """Keys and values that all processes of a run share; see `hpc_elastic.store.open_store`.

    Keys are text or bytes of any length and content, values text or bytes of at most 16 MiB. All
    methods can be called from several threads. A `StoreError` from a writing method means that the
    write may or may not have taken place.

    Args:
        store: where everything is kept.
        directory: the directory in it that holds these keys and nothing else.
        timeout: how long reading waits for keys, and writing for its turn; seconds or a timedelta.
        lock_path: a file to lock under contention.
        place: names the directory in messages.
    """

    def __init__(
        self,
        store: Store,
        directory: str,
        *,
        timeout: timedelta | float = DEFAULT_TIMEOUT,
        lock_path: str | None = None,
        place: str | None = None,
    ) -> None:
        self._store = store
        self._directory = directory
        self._timeout_s = seconds(timeout)
        self._lock_path = lock_path
        self._place = place or directory
        self._clock = SystemClock()
        self._versions = Versions(store, directory, self._place)
        self._lock = ContentionLock(lock_path) if lock_path else None

    def __repr__(self) -> str:
        return f"KeyValueStore({self._place!r})"

    def clone(self) -> KeyValueStore:
        """Return another client of the same keys."""
        return KeyValueStore(
            self._store,
            self._directory,
            timeout=self._timeout_s,
            lock_path=self._lock_path,
            place=self._place,
        )

    @property
    def timeout(self) -> timedelta:
        """How long reading waits for keys that are not there."""
        return timedelta(seconds=self._timeout_s)

    def set_timeout(self, timeout: timedelta | float) -> None:
        """Set how long reading waits for keys that are not there."""
        self._timeout_s = seconds(timeout)

    @staticmethod
    def has_extended_api() -> bool:
        """Tell that `append`, `multi_get` and `multi_set` are there."""
        return True

    # Reading

    def get(self, key: str | bytes) -> bytes:
        """Return the value of a key; waits until it has one.

        Raises:
            StoreTimeoutError: it has none within the store's timeout.
            StoreError: the store could not be read.
        """
        (value,) = self.multi_get([key])
        return value

    def multi_get(self, keys: Sequence[str | bytes]) -> list[bytes]:
        """Return the values of keys; waits until all have one; see `get`."""
        wanted = _keys(keys)
        deadline = self._clock.monotonic() + self._timeout_s
        while True:
            listing = self._wait(wanted, deadline - self._clock.monotonic(), self._timeout_s)
            records = [self._versions.current(key, listing) for key in wanted]
            values = [record.value for record in records if not record.deleted]
            if len(values) == len(wanted):  # else one was deleted meanwhile
                return values

    def wait(self, keys: Sequence[str | bytes], timeout: timedelta | float | None = None) -> None:
        """Wait until all keys have a value.

        Args:
            keys: the keys.
            timeout: how long [timedelta, or s]; by default the store's timeout.

        Raises:
            StoreTimeoutError: not all have one in time; names those that have none.
        """
        timeout_s = self._timeout_s if timeout is None else seconds(timeout)
        self._wait(_keys(keys), timeout_s, timeout_s)

    def check(self, keys: Sequence[str | bytes]) -> bool:
        """Tell whether all keys have a value now."""
        listing = self._versions.look()
        return all(self._versions.is_there(key, listing) for key in _keys(keys))

    def num_keys(self) -> int:
        """Return how many keys have a value."""
        return len(self.list_keys())

    def list_keys(self) -> list[str]:
        """Return all keys that have a value, in no particular order."""
        listing = self._versions.look()
        found = (self._versions.key_of(encoded, listing) for encoded in listing.latest)
        return [
            kv_format.key_text(key)
            for key in found
            if key is not None and self._versions.is_there(key, listing)
        ]

    # Writing

    def set(self, key: str | bytes, value: str | bytes) -> None:
        """Give a key a value, in place of any other."""
        wish = ChangeWish(value_bytes(key_bytes(key), value))
        self._update(key, lambda _: wish)

    def multi_set(self, keys: Sequence[str | bytes], values: Sequence[str | bytes]) -> None:
        """Give each key its value, one after the other.

        Raises:
            ValueError: there are not as many keys as values; nothing was set.
        """
        if len(keys) != len(values):
            raise ValueError(f"multi_set needs one value per key, not {len(values)} for {len(keys)} keys")
        for key, value in zip(_keys(keys), values, strict=True):
            self.set(key, value)

    def add(self, key: str | bytes, value: int) -> int:
        """Add to a key's number, which is 0 if the key is absent; `get` returns it as decimal text.

        Returns:
            The sum.

        Raises:
            ValueError: the key's value is no whole number, or the sum has more than 64 bits.
        """
        if not isinstance(value, int):
            raise TypeError(f"only whole numbers can be added, not {type(value).__name__}: {value!r}")

        def more(before: bytes | None) -> ChangeWish:
            return ChangeWish(kv_format.added(key_bytes(key), before or b"0", value))

        return int(self._update(key, more).value)

    def append(self, key: str | bytes, value: str | bytes) -> None:
        """Add to the end of a key's value; an absent key gets the value."""
        end = value_bytes(key_bytes(key), value)
        self._update(key, lambda before: ChangeWish((before or b"") + end))

    def compare_set(self, key: str | bytes, expected_value: str | bytes, desired_value: str | bytes) -> bytes:
        """Set a key if it has the expected value; an empty one also fits a key that is absent.

        Returns:
            The key's value after that; `expected_value` if the key is absent and stays so.
        """
        expected = value_bytes(key_bytes(key), expected_value)
        wish = ChangeWish(value_bytes(key_bytes(key), desired_value))

        def choose(before: bytes | None) -> ChangeWish | None:
            return wish if before == expected or (before is None and not expected) else None

        record = self._update(key, choose)
        return expected if record.deleted else record.value

    def delete_key(self, key: str | bytes) -> bool:
        """Delete a key.

        Returns:
            Whether this call did it; False: it was absent.
        """
        if self._versions.current(key_bytes(key)).deleted:
            return False
        was_there: bool

        def end(before: bytes | None) -> ChangeWish | None:
            nonlocal was_there
            was_there = before is not None
            return ChangeWish(b"", deleted=True) if was_there else None

        # marked before the deletion, so that no reader takes it for a value unread
        self._store.mark(self._directory, kv_format.deleted_name(kv_format.encode_key(key_bytes(key))))
        self._update(key, end)
        return was_there

    # Several processes

    def queue_push(self, key: str | bytes, value: str | bytes) -> None:
        """Add to the end of a queue: a key of at most 16 MiB, there while the queue is not empty."""
        name, item = key_bytes(key), value_bytes(key_bytes(key), value)
        self._update(name, lambda before: ChangeWish(value_of([*items_of(name, before), item])))

    def queue_pop(self, key: str | bytes, block: bool = True) -> bytes:  # noqa: FBT001, FBT002 - torch's
        """Take the oldest value out of a queue; if there is none, wait for one or do not `block`.

        Raises:
            QueueEmptyError: there is none, and `block` is False.
            StoreTimeoutError: there is none within the store's timeout.
        """
        name, deadline = key_bytes(key), self._clock.monotonic() + self._timeout_s
        while True:
            if block:
                self._wait([name], deadline - self._clock.monotonic(), self._timeout_s)
            taken = self._take_first(name)
            if taken:
                return taken[0]
            if not block:
                raise QueueEmptyError(f"{self._place}: queue {kv_format.shown(name)} is empty")

    def _take_first(self, name: bytes) -> list[bytes]:
        first: list[bytes] = []

        def take(before: bytes | None) -> ChangeWish | None:
            items = items_of(name, before)
            first[:] = items[:1]
            if len(items) > 1:
                return ChangeWish(value_of(items[1:]))
            return ChangeWish(b"", deleted=True) if items else None

        self._store.mark(self._directory, kv_format.deleted_name(kv_format.encode_key(name)))  # as delete_key
        self._update(name, take)
        return first

    def queue_len(self, key: str | bytes) -> int:
        """Return how many values wait in a queue; 0 if there is none."""
        record = self._versions.current(key_bytes(key))
        return len(items_of(key_bytes(key), None if record.deleted else record.value))

    def barrier(self, key: str, world_size: int, timeout: timedelta | float | None = None) -> None:
        """Wait until `world_size` callers are here; a key may be used again once all have left it.

        Raises:
            StoreTimeoutError: not all came within the timeout, by default the store's.
            ValueError: `world_size` is less than 1.
        """
        if world_size < 1:
            raise ValueError(f"world_size must be at least 1, not {world_size}")
        arrived = self.add(f"{key}/num_members", 1)
        use = (arrived - 1) // world_size
        if arrived % world_size == 0:
            self.set(f"{key}/last_member/{use}", b"1")
        self.wait([f"{key}/last_member/{use}"], timeout)

    # Beyond torch's interface

    counts_writes = True  # the next three methods can be used

    def write(self, key: str | bytes, value: str | bytes) -> int:
        """Give a key a value; returns how often the key was written, this time included."""
        wish = ChangeWish(value_bytes(key_bytes(key), value))
        return self._update(key, lambda _: wish).version

    def written(self, keys: Sequence[str | bytes]) -> list[int]:
        """Return how often each key was written; costs one listing, opens nothing."""
        return self._versions.written(_keys(keys), self._versions.look())

    def wait_written(
        self, keys: Sequence[str | bytes], times: int, timeout: timedelta | float | None = None
    ) -> None:
        """Wait until each key was written a number of times; see `wait`."""
        timeout_s = self._timeout_s if timeout is None else seconds(timeout)
        names = _keys(keys)

        def rare(listing: Listing) -> list[bytes]:
            counts = self._versions.written(names, listing)
            return [name for name, count in zip(names, counts, strict=True) if count < times]

        self._wait_until_none(rare, timeout_s, timeout_s)

    # How it is done

    def _update(self, key: str | bytes, change: Change) -> KeyRecord:
        """Change a key; returns its record after that.

        After the first lost race a lock gives writers their turns, so that no writer has to lose for ever;
        it is waited for a bounded time, and no value is lost without it.
        """
        name = key_bytes(key)
        done = self._versions.attempt(name, change)
        if done is not None:
            return done
        deadline = self._clock.monotonic() + self._timeout_s
        with self._in_turn():
            while (done := self._versions.attempt(name, change)) is None:
                if self._clock.monotonic() >= deadline:
                    raise StoreTimeoutError(
                        f"{self._place}: not within {self._timeout_s:g} s: "
                        f"a turn to write key {kv_format.shown(name)}, which others keep changing"
                    )
        return done

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        if self._lock is None:
            yield
        else:
            with self._lock.held():
                yield

    def _wait(self, keys: list[bytes], left_s: float, timeout_s: float) -> Listing:
        """Return a listing in which all keys have a value."""

        def absent(listing: Listing) -> list[bytes]:
            return [key for key in keys if not self._versions.is_there(key, listing)]

        return self._wait_until_none(absent, left_s, timeout_s)

    def _wait_until_none(
        self, missing_in: Callable[[Listing], list[bytes]], left_s: float, timeout_s: float
    ) -> Listing:
        """Return a listing in which no key is missing.

        Keys that are waited for together come one by one, and each would wake all readers; so one that has
        waited long is woken less often, and no wait gets longer by more than a tenth.
        """
        started, has_warned = self._clock.monotonic(), False
        listing = self._versions.look()
        while missing := missing_in(listing):
            waited = self._clock.monotonic() - started
            if waited >= left_s:
                raise self._too_late(missing, timeout_s)
            if not has_warned and waited >= _WARN_AFTER_S:
                has_warned = True
                logger.warning(
                    "%s: waiting for %s since %.0f s, at most %g s; no process has set it yet",
                    self._place, kv_format.some_shown(missing), waited, timeout_s,
                )  # fmt: skip
            longest = left_s if has_warned else min(left_s, _WARN_AFTER_S)
            names = self._store.wait(self._directory, listing.names, longest - waited)
            listing = kv_format.parse_names(names)
            if missing_in(listing):
                waited = self._clock.monotonic() - started
                longest = min(_PAUSE_PER_NAME_S * len(names), max(0.0, left_s - waited))
                self._clock.sleep(min(_PAUSE_SHARE * waited, longest))
        return listing

    def _too_late(self, missing: list[bytes], timeout_s: float) -> StoreTimeoutError:
        return StoreTimeoutError(
            f"{self._place}: not within {timeout_s:g} s: {kv_format.some_shown(missing)}\n"
            "  fix: no process has set it: check whether the rank that should is alive and "
            "uses the same store and key, or give more time",
            missing=tuple(kv_format.key_text(key) for key in missing),
        )


def seconds(timeout: timedelta | float) -> float:
    """Return a timeout in seconds.

    Raises:
        ValueError: it is no number, or negative.
    """
    try:
        given: Any = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        found = math.nan if isinstance(given, str | bytes) else float(given)
    except (TypeError, ValueError):
        found = math.nan
    if not found >= 0:  # no number is not, either
        raise ValueError(f"timeout must be a timedelta or seconds, at least 0, not {timeout!r}")
    return found


def _keys(keys: Sequence[str | bytes]) -> list[bytes]:
    if isinstance(keys, str | bytes):
        raise TypeError(f"a list of keys is needed, not one key: {keys!r}")
    return [key_bytes(key) for key in keys]


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
