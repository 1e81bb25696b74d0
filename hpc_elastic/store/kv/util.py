"""Barriers and exchanges of workers through a key-value store, as in torch.distributed.elastic.utils.store.

They work with `KeyValueStore`, `PrefixStore` and torch's own stores. Other than torch's they may use a
key prefix more than once, as long as no use of it ended with an error and every rank uses it equally often.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol

from hpc_elastic import typed_json
from hpc_elastic.errors import DamagedError, StoreError, StoreTimeoutError
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.typed_json import Count

_SHOWN_RANKS = 16
_PART = 8 * 2**20  # bytes of combined data in one value
_VALUE = b"1"
# torch's stores raise RuntimeErrors of several kinds when time is over; ours tell it from other errors
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
        ValueError: there is no such rank.
    """
    _check(world_size, rank)
    values = store.multi_get([f"{prefix}{other}" for other in range(world_size)])
    _let_all_finish(store, rank, f"{prefix}/finished", world_size, store.timeout)
    return [bytes(value) for value in values]


def _let_all_finish(store: AnyStore, rank: int, prefix: str, world_size: int, timeout: timedelta) -> None:
    """Have rank 0 wait for the others if the store ends with it."""
    if getattr(store, "counts_writes", False):
        return
    store.set(f"{prefix}/{rank}", _VALUE)
    if rank == 0:
        store.wait([f"{prefix}/{other}" for other in range(world_size)], timeout)


def synchronize(
    store: AnyStore, data: bytes, rank: int, world_size: int, key_prefix: str, timeout: float = 300
) -> list[bytes]:
    """Give every rank the data of all ranks.

    Rank 0 reads the values of the others and publishes them as one value, so that N ranks cost about 3 N
    readings and not N².

    Args:
        store: the store.
        data: this rank's contribution.
        rank: this rank.
        world_size: how many ranks there are.
        key_prefix: names this exchange.
        timeout: how long to wait [s].

    Returns:
        The data of all ranks, by rank.

    Raises:
        StoreTimeoutError: not all ranks came; names those that are missing.
        ValueError: there is no such rank.
    """
    _check(world_size, rank)
    use = _Use(store, "synchronize", rank, world_size, key_prefix, timeout)
    use.come(data)
    with use.ranks_named():
        if rank == 0:
            use.wait()
            everything = use.read()
            _publish(store, use.key("all"), everything)
        else:
            use.wait("all")
            everything = _read_published(store, use.key("all"))
        use.finish()
    return everything


def _check(world_size: int, rank: int | None) -> None:
    """Refuse ranks that would wait for others that cannot come.

    Raises:
        ValueError: naming the value.
    """
    if world_size < 1:
        raise ValueError(f"world_size must be at least 1, not {world_size}")
    if rank is not None and rank not in range(world_size):
        raise ValueError(f"rank must be from 0 to {world_size - 1} (world_size {world_size}), not {rank}")


class _Use:
    """One use of a key prefix by one rank.

    Our stores tell how often a key was written, and a rank writes its key once per use; so keys are used
    again, and waiting for a use is waiting for that many writes. With torch's stores each use has keys of
    its own, and a rank counts its uses.

    Args:
        store: the store.
        what: the function, for messages.
        rank: this rank.
        world_size: how many ranks there are.
        key_prefix: the prefix.
        timeout: how long to wait [s].
    """

    def __init__(
        self, store: Any, what: str, rank: int, world_size: int, key_prefix: str, timeout: float
    ) -> None:
        self._store = store
        self._what = what
        self._rank = rank
        self._ranks = [str(other) for other in range(world_size)]
        self._prefix = key_prefix
        self._timeout = timeout
        self._counted = bool(getattr(store, "counts_writes", False))
        self._number = 0

    def key(self, name: str) -> str:
        """Return the key of something that belongs to this use."""
        return f"{self._prefix}/{name}" if self._counted else f"{self._prefix}/{self._number}/{name}"

    def come(self, data: bytes) -> None:
        """Tell the others that this rank is here, with its data."""
        if self._counted:
            self._number = self._store.write(self.key(str(self._rank)), data)
        else:
            self._number = self._store.add(f"{self._prefix}/uses/{self._rank}", 1)
            self._store.set(self.key(str(self._rank)), data)

    def wait(self, *names: str) -> None:
        """Wait for the marks of this use, by default for all ranks."""
        keys = [self.key(name) for name in names or self._ranks]
        limit = timedelta(seconds=self._timeout)
        if self._counted:
            self._store.wait_written(keys, self._number, limit)
        else:
            self._store.wait(keys, limit)

    def read(self) -> list[bytes]:
        """Return the data of all ranks; they have come."""
        return [bytes(value) for value in self._store.multi_get([self.key(rank) for rank in self._ranks])]

    def finish(self) -> None:
        """Have rank 0 wait for the others if the store may end with it."""
        limit = timedelta(seconds=self._timeout)
        _let_all_finish(self._store, self._rank, self.key("finished"), len(self._ranks), limit)

    @contextmanager
    def ranks_named(self, name: Callable[[int], str] = str) -> Iterator[None]:
        """Turn a timeout into an error that names the ranks that have not come."""
        try:
            yield
        except _TOO_LATE as error:
            if isinstance(error, StoreError) and not isinstance(error, StoreTimeoutError):
                raise
            missing = tuple(name(rank) for rank in self._missing())
            if not missing:
                raise
            more = ", …" if len(missing) > _SHOWN_RANKS else ""
            raise StoreTimeoutError(
                f"Timed out waiting on {self._what} on rank {self._rank}, for key prefix: {self._prefix} "
                f"(world_size={len(self._ranks)}, missing_ranks=[{', '.join(missing[:_SHOWN_RANKS])}{more}], "
                f"timeout={self._timeout})",
                missing=missing,
            ) from error

    def _missing(self) -> list[int]:
        keys = [self.key(rank) for rank in self._ranks]
        if self._counted:
            return [rank for rank, count in enumerate(self._store.written(keys)) if count < self._number]
        return [rank for rank, key in enumerate(keys) if not self._store.check([key])]


def _publish(store: AnyStore, key: str, values: Sequence[bytes]) -> None:
    """Set a key to several values; the rest goes into further keys, which are set before it."""
    payload = b"".join(values)
    parts = [payload[at : at + _PART] for at in range(0, len(payload), _PART)] or [b""]
    for number, part in enumerate(parts[1:], 1):
        store.set(f"{key}/{number}", part)
    header = {"format": 1, "lengths": [len(value) for value in values], "parts": len(parts)}
    store.set(key, json.dumps(header).encode() + b"\n" + parts[0])


class _Published(NamedTuple):
    """The first line of rank 0's value."""

    lengths: tuple[Count, ...]
    parts: Count


def _read_published(store: AnyStore, key: str) -> list[bytes]:
    head, _, payload = bytes(store.get(key)).partition(b"\n")
    try:
        lengths, parts = typed_json.read(_Published, head)
    except DamagedError:
        lengths, parts = (), 0
    if parts != max(-(-sum(lengths) // _PART), 1):
        raise StoreError(f"key {key!r} does not hold the value that rank 0 publishes: {head[:80]!r}")
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
            of the prefix, and a timeout cannot name the missing ranks. All ranks give theirs, or none.
        rank_tracing_decoder: returns a rank's name in the error, for example its host.
        trace_timeout: without effect; missing ranks are known at once.

    Raises:
        StoreTimeoutError: not all ranks came; names those that are missing. Without `rank` torch's
            stores raise their own error.
        ValueError: there is no such rank, or a decoder was given without a rank.
    """
    _check(world_size, rank)
    if rank is None:
        if rank_tracing_decoder is not None:
            raise ValueError("rank_tracing_decoder names missing ranks, which takes `rank`, too")
        if store.add(f"{key_prefix}/num_members", 1) >= world_size:
            store.set(f"{key_prefix}/last_member", _VALUE)
        store.wait([f"{key_prefix}/last_member"], timedelta(seconds=barrier_timeout))
        return
    use = _Use(store, "barrier", rank, world_size, key_prefix, barrier_timeout)
    use.come(_VALUE)
    with use.ranks_named(rank_tracing_decoder or str):
        use.wait()
        use.finish()
