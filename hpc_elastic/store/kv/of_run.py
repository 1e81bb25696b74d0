"""The key-value stores in a run directory, and parts of a store with keys of their own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from hpc_elastic.errors import InputError, RunDirError, StoreError
from hpc_elastic.ids import Env
from hpc_elastic.paths import OF_ROUND, RunPaths, round_scope
from hpc_elastic.store.kv.store import DEFAULT_TIMEOUT, KeyValueStore
from hpc_elastic.store.kv.versions import encode_key, key_bytes, key_text
from hpc_elastic.store.shared_dir import SharedDirStore
from hpc_elastic.store.trust import require_own

_LOCK = ".lock"  # a name that no listing shows


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
