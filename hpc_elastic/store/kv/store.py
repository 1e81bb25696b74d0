"""Key-value stores with the interface of ``torch.distributed.Store``, without a server; those of a run.

A part of a store may have keys of its own. `hpc_elastic.store.kv.versions` has the agreement of writers.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import InputError, QueueEmptyError, RunDirError, StoreError, StoreTimeoutError
from hpc_elastic.ids import Env
from hpc_elastic.paths import OF_ROUND, RunPaths, round_scope
from hpc_elastic.store.kv import versions as kv_format
from hpc_elastic.store.kv.versions import (
    Change,
    ChangeWish,
    KeyRecord,
    Listing,
    Versions,
    encode_key,
    key_bytes,
    key_text,
    shown,
    value_bytes,
)
from hpc_elastic.store.lock import ContentionLock
from hpc_elastic.store.protocol import Store
from hpc_elastic.store.shared_dir import SharedDirStore
from hpc_elastic.store.trust import require_own

_HEAD = b"queue 1\n"

logger = logging.getLogger(__name__)
_WARN_AFTER_S = 10.0  # a key that is waited for longer was perhaps never set
DEFAULT_TIMEOUT = timedelta(minutes=5)
_PAUSE_SHARE = 0.1  # a waiter pauses, while others write, for this share of the time waited ...
_PAUSE_PER_NAME_S = 0.0005  # ... and no longer than this for each name in the directory
_LOCK = ".lock"  # a name that no listing shows


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


def open_store(
    root: str | os.PathLike[str],
    scope: str,
    *,
    timeout: timedelta | float = DEFAULT_TIMEOUT,
    lock: bool = True,
) -> KeyValueStore:
    """Return the key-value store of one purpose in a run directory; makes its directory.

    Args:
        root: the run directory, which all processes see.
        scope: the purpose; keys of different scopes have nothing to do with each other.
        timeout: how long reading waits for keys [timedelta, or s].
        lock: let writers of the same key queue for a file lock when they get in each other's way.

    Raises:
        InputError: the scope is empty, or kept for the workers of a round.
        RunDirError: the run directory is gone or not this user's alone.
        StoreError: the directory cannot be made.
    """
    if not scope:
        raise InputError("a key-value store needs a scope, not ''", fix="name the purpose of its keys")
    number = scope.removeprefix(OF_ROUND)
    if number != scope and number.isdecimal():
        raise InputError(
            f"the scope {scope!r} is that of a round's workers, and goes with the round",
            where="open_store",
            fix="take another name; workers get theirs by hpc_elastic.store.from_env()",
        )
    return open_scope(root, scope, timeout=timeout, lock=lock)


def open_scope(
    root: str | os.PathLike[str],
    scope: str,
    *,
    timeout: timedelta | float = DEFAULT_TIMEOUT,
    lock: bool = True,
) -> KeyValueStore:
    """Return the key-value store of any scope; as `open_store` else."""
    paths = RunPaths(root)
    place = os.path.join(paths.kv, encode_key(key_bytes(scope)))
    directory = os.path.relpath(place, paths.root)
    _check_owner(paths.root)
    if os.path.islink(paths.kv):
        raise RunDirError("it is a link", where=paths.kv, fix="remove it; it must be a directory of the run")
    store = SharedDirStore(paths.root)
    try:
        store.make_directory(directory)
    except OSError as error:
        raise StoreError(f"{place}: {error.strerror}", errno=error.errno) from error
    lock_path = os.path.join(place, _LOCK) if lock else None
    return KeyValueStore(store, directory, timeout=timeout, lock_path=lock_path, place=place)


def from_env(
    environ: Mapping[str, str] | None = None, *, timeout: timedelta | float = DEFAULT_TIMEOUT
) -> KeyValueStore:
    """Return the key-value store of a worker's round: empty at its start, shared by all its workers.

    Args:
        environ: the worker's environment; by default that of this process.
        timeout: how long reading waits for keys [timedelta, or s].

    Raises:
        InputError: this process is no worker of a run.
        RunDirError: the run directory is gone, none, or belongs to another user.
    """
    if environ is None:
        from os import environ as own  # noqa: PLC0415, TID251 - here a process learns its place

        environ = own
    root = environ.get(Env.RUN_DIR)
    round_number = environ.get(Env.ROUND, "")
    if not root or not round_number.isdecimal():
        wrong = Env.ROUND if root else Env.RUN_DIR
        found = f"{environ[wrong]!r}" if environ.get(wrong) else "not set"
        raise InputError(
            f"this process is no worker of a run: {wrong} is {found}",
            where="hpc_elastic.store.from_env",
            fix="start it by hpc-elastic submit or run, or give a directory: "
            "hpc_elastic.store.open_store(directory, scope)",
        )
    _check_owner(root)
    if not os.path.isdir(RunPaths(root).journal):
        raise RunDirError(
            f"{Env.RUN_DIR} is {root}, which is no run directory: it has no journal",
            where="hpc_elastic.store.from_env",
            fix="leave the variable to the agent; in another directory: "
            "hpc_elastic.store.open_store(directory, scope)",
        )
    return open_scope(root, round_scope(int(round_number)), timeout=timeout)


def _check_owner(root: str) -> None:
    try:
        require_own(root, f"run directory {root}")
    except FileNotFoundError:
        raise RunDirError(
            "there is no such directory",
            where=f"run directory {root}",
            fix="it must exist on every node for as long as the run lives",
        ) from None
    except OSError as error:
        raise StoreError(f"{RunPaths(root).kv}: {error.strerror}", errno=error.errno) from error


class PrefixStore:
    """A store whose keys are those of another one that begin with ``<prefix>/``.

    Args:
        prefix: the text in front of every key.
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
