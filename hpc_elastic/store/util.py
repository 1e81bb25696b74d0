"""What workers do together through a key-value store; the functions of torch.distributed.elastic.utils.store.

They work with `KeyValueStore`, `PrefixStore` and torch's own stores. Other than torch's they may use a
key prefix more than once, as long as no use of it ended with an error and every rank uses it equally often.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

from hpc_elastic.errors import StoreError, StoreTimeoutError

_SHOWN_RANKS = 16
_PART = 8 * 2**20  # bytes of combined data in one value
_VALUE = b"1"
# torch's stores raise RuntimeErrors of several kinds when time is over
_TOO_LATE = (StoreTimeoutError, RuntimeError)


class AnyStore(Protocol):
    """The part of torch's store interface that is used here."""

    @property
    def timeout(self) -> timedelta: ...  # noqa: D102 - as in torch

    def set_timeout(self, timeout: timedelta, /) -> None: ...  # noqa: D102 - as in torch

    def set(self, key: str, value: Any, /) -> None: ...  # noqa: D102 - as in torch

    def get(self, key: str, /) -> bytes: ...  # noqa: D102 - as in torch

    def add(self, key: str, value: int, /) -> int: ...  # noqa: D102 - as in torch

    def check(self, keys: list[str], /) -> bool: ...  # noqa: D102 - as in torch

    def wait(self, keys: list[str], timeout: timedelta, /) -> None: ...  # noqa: D102 - as in torch

    def list_keys(self) -> list[str]: ...  # noqa: D102 - as in torch

    def multi_get(self, keys: list[str], /) -> list[bytes]: ...  # noqa: D102 - as in torch


@contextmanager
def store_timeout(store: AnyStore, timeout: float) -> Iterator[None]:
    """Give a store another timeout for a while; the old one comes back also after an error.

    Args:
        store: the store.
        timeout: its timeout meanwhile [s].
    """
    before = store.timeout
    store.set_timeout(timedelta(seconds=timeout))
    try:
        yield
    finally:
        store.set_timeout(before)


def get_all(store: AnyStore, rank: int, prefix: str, world_size: int) -> list[bytes]:
    """Return the values of the keys ``<prefix>0`` to ``<prefix><world_size - 1>``; waits for them.

    If the store lives in rank 0's process, rank 0 comes back last.

    Raises:
        StoreTimeoutError: a key did not come; torch's stores raise their own error.
    """
    values = store.multi_get([f"{prefix}{other}" for other in range(world_size)])
    _let_all_finish(store, rank, f"{prefix}/finished", world_size, store.timeout)
    return [bytes(value) for value in values]


def _let_all_finish(store: AnyStore, rank: int, prefix: str, world_size: int, timeout: timedelta) -> None:
    """Have rank 0 wait for the others if the store ends with it."""
    if getattr(store, "has_no_host", False):
        return
    store.set(f"{prefix}/{rank}", _VALUE)
    if rank == 0:
        store.wait([f"{prefix}/{other}" for other in range(world_size)], timeout)


def synchronize(
    store: AnyStore, data: bytes, rank: int, world_size: int, key_prefix: str, timeout: float = 300
) -> list[bytes]:
    """Give every rank the data of all ranks.

    Rank 0 reads what the others have set and publishes it as one value, so that N ranks cost about 3 N
    readings and not N².

    Args:
        store: the store.
        data: what this rank contributes.
        rank: this rank.
        world_size: how many ranks there are.
        key_prefix: names this exchange.
        timeout: how long to wait [s].

    Returns:
        The data of all ranks, by rank.

    Raises:
        StoreTimeoutError: not all ranks came; names those that are missing.
    """
    use = _next_use(store, rank, key_prefix)
    keys = [f"{use}/{other}" for other in range(world_size)]
    limit = timedelta(seconds=timeout)
    store.set(keys[rank], data)
    with _ranks_named(store, _Step("synchronize", rank, key_prefix, timeout), keys):
        if rank == 0:
            store.wait(keys, limit)
            everything = [bytes(value) for value in store.multi_get(keys)]
            _publish(store, f"{use}/all", everything)
        else:
            store.wait([f"{use}/all"], limit)
            everything = _read_published(store, f"{use}/all")
        _let_all_finish(store, rank, f"{use}/finished", world_size, limit)
    return everything


def _next_use(store: AnyStore, rank: int, key_prefix: str) -> str:
    """Return the prefix of a rank's next use of a key prefix. The rank alone counts, so it is cheap."""
    return f"{key_prefix}/{store.add(f'{key_prefix}/uses/{rank}', 1)}"


def _publish(store: AnyStore, key: str, values: Sequence[bytes]) -> None:
    """Set a key to several values; what does not fit goes into further keys, which are set before it."""
    payload = b"".join(values)
    parts = [payload[at : at + _PART] for at in range(0, len(payload), _PART)] or [b""]
    for number, part in enumerate(parts[1:], 1):
        store.set(f"{key}/{number}", part)
    header = {"format": 1, "lengths": [len(value) for value in values], "parts": len(parts)}
    store.set(key, json.dumps(header).encode() + b"\n" + parts[0])


def _read_published(store: AnyStore, key: str) -> list[bytes]:
    head, _, payload = bytes(store.get(key)).partition(b"\n")
    try:
        header = json.loads(head)
        lengths, parts = [int(length) for length in header["lengths"]], int(header["parts"])
    except (ValueError, KeyError, TypeError):
        raise StoreError(f"key {key!r} does not hold what rank 0 publishes: {head[:80]!r}") from None
    if parts > 1:
        payload += b"".join(store.multi_get([f"{key}/{number}" for number in range(1, parts)]))
    values, at = [], 0
    for length in lengths:
        values.append(payload[at : at + length])
        at += length
    return values


def barrier(  # noqa: PLR0913 - torch's signature
    store: AnyStore,
    world_size: int,
    key_prefix: str,
    barrier_timeout: float = 300,
    rank: int | None = None,
    rank_tracing_decoder: Callable[[int], str] | None = None,
    trace_timeout: float = 10,  # noqa: ARG001 - torch's signature
) -> None:
    """Wait until all ranks are here.

    Args:
        store: the store.
        world_size: how many ranks there are.
        key_prefix: names this barrier.
        barrier_timeout: how long to wait [s].
        rank: this rank; give it. Without it all ranks count up one key, which is slower, allows one use
            of the prefix, and a timeout cannot name who is missing. All ranks give theirs, or none.
        rank_tracing_decoder: returns what a rank is called in the error, for example its host.
        trace_timeout: without effect; missing ranks are known at once.

    Raises:
        StoreTimeoutError: not all ranks came; names those that are missing. Without `rank` torch's
            stores raise their own error.
        ValueError: a decoder was given without a rank.
    """
    limit = timedelta(seconds=barrier_timeout)
    if rank is None:
        if rank_tracing_decoder is not None:
            raise ValueError("rank_tracing_decoder names missing ranks, which takes `rank`, too")
        if store.add(f"{key_prefix}/num_members", 1) >= world_size:
            store.set(f"{key_prefix}/last_member", _VALUE)
        store.wait([f"{key_prefix}/last_member"], limit)
        return
    use = _next_use(store, rank, key_prefix)
    keys = [f"{use}/{other}" for other in range(world_size)]
    store.set(keys[rank], _VALUE)
    step = _Step("barrier", rank, key_prefix, barrier_timeout)
    with _ranks_named(store, step, keys, rank_tracing_decoder or str):
        store.wait(keys, limit)
        _let_all_finish(store, rank, f"{use}/finished", world_size, limit)


def _missing_ranks(store: AnyStore, keys: Sequence[str]) -> list[int]:
    if getattr(store, "has_no_host", False):
        there = set(store.list_keys())
        return [rank for rank, key in enumerate(keys) if key not in there]
    return [rank for rank, key in enumerate(keys) if not store.check([key])]


class _Step(NamedTuple):
    """One use of a key prefix by one rank."""

    what: str
    rank: int
    key_prefix: str
    timeout: float


@contextmanager
def _ranks_named(
    store: AnyStore, step: _Step, keys: Sequence[str], name: Callable[[int], str] = str
) -> Iterator[None]:
    """Turn a timeout into an error that names the ranks whose keys are missing."""
    try:
        yield
    except _TOO_LATE as error:
        missing = tuple(name(rank) for rank in _missing_ranks(store, keys))
        if not missing:
            raise
        more = ", …" if len(missing) > _SHOWN_RANKS else ""
        raise StoreTimeoutError(
            f"Timed out waiting on {step.what} on rank {step.rank}, for key prefix: {step.key_prefix} "
            f"(world_size={len(keys)}, missing_ranks=[{', '.join(missing[:_SHOWN_RANKS])}{more}], "
            f"timeout={step.timeout})",
            missing=missing,
        ) from error
