"""The key-value stores in a run directory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta

from hpc_elastic.errors import InputError, RunDirError, StoreError
from hpc_elastic.ids import Env
from hpc_elastic.paths import OF_ROUND, RunPaths, round_scope
from hpc_elastic.store.kv.records import encode_key, key_bytes
from hpc_elastic.store.kv.store import DEFAULT_TIMEOUT, KeyValueStore
from hpc_elastic.store.ownership import require_own
from hpc_elastic.store.shared_dir import SharedDirStore

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
        RunDirError: the run directory is gone, none, or belongs to somebody else.
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
