"""The stores of a round's process groups, and those that this process has made."""

from __future__ import annotations

import functools
import importlib
import os
import threading
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from hpc_elastic.errors import InputError
from hpc_elastic.frameworks.torch.meeting import Meeting, StoreWish
from hpc_elastic.ids import Env
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.store.kv.of_run import PrefixStore, from_env
from hpc_elastic.store.kv.store import seconds

_WHERE = "hpc_elastic.frameworks.torch"
_TIMEOUT = timedelta(minutes=30)  # as torch's own for a process group
_SHARED_TIMEOUT = timedelta(minutes=5)  # as torch's own for a store


class _Shared(PrefixStore):
    """Has every method that torch calls, under torch's name; torch does so from its own threads, too.

    It is to be kept as long as torch may use it: torch keeps only its own side of a store, which without this
    one says "Not implemented" to all it is asked.
    """

    def __init__(self, base: Any, prefix: str, store: Any) -> None:
        super().__init__(prefix, store)
        base.__init__(self)  # else torch's side of it does not exist

    def clone(self) -> Any:
        """Return this store: several threads may use it."""
        return self


@functools.cache
def _shared_class(base: type) -> type:
    words = {"__module__": __name__, "__doc__": _Shared.__doc__}
    asked_for = {"deleteKey": _Shared.delete_key, "getNumKeys": _Shared.num_keys}  # by torch's C++ code
    return type("SharedStore", (_Shared, base), {**words, **asked_for})


class _Place(NamedTuple):
    """A worker of a round."""

    root: str
    round_number: int
    rank: int
    world_size: int


class _Stores:
    """The stores of a round that this process has made; kept to the end of the process.

    Args:
        place: which worker this is.
    """

    def __init__(self, place: _Place) -> None:
        self._place = place
        self._lock = threading.Lock()
        self._base: Any = None
        self._uses = 0
        self._shared: list[Any] = []

    def by_tcp(self, environ: Mapping[str, str], wish: StoreWish, timeout_s: float) -> Any:
        """Return a part of its own of torch's store, once all ranks have come."""
        distributed = _distributed()
        _, round_number, rank, world_size = self._place
        with self._lock:
            kv = from_env(environ, timeout=timeout_s)
            meeting = Meeting(distributed, kv, rank, world_size, round_number, timeout_s)
            if self._base is None:
                self._base = meeting.base(environ, wish)
            self._base.set_timeout(timedelta(seconds=timeout_s))
            self._uses += 1
            made = distributed.PrefixStore(f"use{self._uses}", self._base)
            meeting.wait_for_all(made)
            return made

    def shared(self, environ: Mapping[str, str], timeout_s: float) -> Any:
        """Return a part of its own of the round's keys."""
        base = _distributed().Store
        with self._lock:
            kv = from_env(environ, timeout=timeout_s)
            self._shared.append(_shared_class(base)(base, f"torch/{len(self._shared) + 1}", kv))
            return self._shared[-1]


def store(
    environ: Mapping[str, str] | None = None,
    *,
    ports: int | Iterable[int] = 0,
    address: str | None = None,
    timeout: timedelta | float = _TIMEOUT,
) -> Any:
    """Return a ``torch.distributed.Store`` for this round's process group; all ranks call it equally often.

    Rank 0 serves it (torch's TCPStore) on a port that the kernel gives, and tells in the run directory
    where; the others try all addresses of its node until one answers. Comes back when all ranks have come.
    Each call gives an empty store; ports and address are those of the first call.

    Args:
        environ: the worker's environment; by default that of this process.
        ports: one that rank 0 may take, or several, tried in this order; 0 is any that is free.
        address: of rank 0's node, as a name, an IP address or a network interface; the others try it
            alone. By default MASTER_ADDR, the host name, and the addresses of all interfaces.
        timeout: how long to wait for all ranks, and how long reading waits later [timedelta, or s].

    Raises:
        InputError: this process is no worker of a run, there is no PyTorch, or a port or address is wrong.
        RunDirError: the run directory is gone, none, or belongs to another user.
        StoreTimeoutError: ranks have not come, or no address of rank 0 answers; says which and why.
        StoreError: the end of rank 0, or a port that cannot be had.
    """
    chosen: tuple[Any, ...] = (ports,) if isinstance(ports, int) else tuple(ports)
    if not chosen or any(not isinstance(port, int) or not 0 <= port < 1 << 16 for port in chosen):
        raise InputError(
            f"ports must be one or more numbers from 0 to 65535, not {ports!r}",
            where=f"{_WHERE}.store",
            fix="for example ports=range(29500, 29600), or leave it out: any port that is free",
        )
    environ = os.environ if environ is None else environ
    return _stores(_place(environ), os.getpid()).by_tcp(environ, StoreWish(chosen, address), seconds(timeout))


def shared_store(
    environ: Mapping[str, str] | None = None, *, timeout: timedelta | float = _SHARED_TIMEOUT
) -> Any:
    """Return a ``torch.distributed.Store`` whose keys are files of the run directory: no server, no port.

    For gloo with few ranks, and for torch's functions that take a store; not for NCCL, whose threads ask
    their store every second. Each call gives an empty store, the same for all ranks that have called as
    often.

    Args:
        environ: the worker's environment; by default that of this process.
        timeout: how long reading waits for keys [timedelta, or s].

    Raises:
        InputError: this process is no worker of a run, or there is no PyTorch.
        RunDirError: the run directory is gone, none, or belongs to another user.
    """
    environ = os.environ if environ is None else environ
    return _stores(_place(environ), os.getpid()).shared(environ, seconds(timeout))


def bootstrap(environ: Mapping[str, str] | None = None, **options: Any) -> dict[str, Any]:
    """Return `store`, `rank` and `world_size` for ``init_process_group``.

    Without an agent it is empty, so that torch uses its own defaults.

    Args:
        environ: the worker's environment; by default that of this process.
        options: as for `store`.

    Raises:
        HpcElasticError: as by `store`.
    """
    environ = os.environ if environ is None else environ
    if not environ.get(Env.RUN_DIR) and not environ.get(Env.ROUND):
        return {}
    place = _place(environ)
    return {"store": store(environ, **options), "rank": place.rank, "world_size": place.world_size}


@functools.cache
def _stores(place: _Place, process: int) -> _Stores:  # noqa: ARG001 - a fork has no use for its connections
    """Return the stores of a worker in a process."""
    return _Stores(place)


def _place(environ: Mapping[str, str]) -> _Place:
    """Return which worker has this environment.

    Raises:
        InputError: none has.
    """
    numbers = {name: environ.get(name, "") for name in (Env.ROUND, "RANK", "WORLD_SIZE")}
    wrong = [name for name, text in numbers.items() if not text.isdecimal()]
    wrong = wrong if environ.get(Env.RUN_DIR) else [Env.RUN_DIR, *wrong]
    if wrong:
        found = repr(environ[wrong[0]]) if environ.get(wrong[0]) else "not set"
        raise InputError(
            f"this process is no worker of a run: {wrong[0]} is {found}",
            where=_WHERE,
            fix="start it by hpc-elastic submit or run; a script that also runs without them calls "
            "init_process_group(**bootstrap())",
        )
    round_number, rank, world_size = (int(text) for text in numbers.values())
    if rank >= world_size:
        raise InputError(
            f"RANK is {rank}, and WORLD_SIZE {world_size}", where=_WHERE, fix="leave them to the agent"
        )
    return _Place(os.path.abspath(environ[Env.RUN_DIR]), round_number, rank, world_size)


def _distributed() -> Any:
    """Return ``torch.distributed``.

    Raises:
        InputError: there is none.
    """
    try:
        distributed = importlib.import_module("torch.distributed")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise InputError("PyTorch is not installed", where=_WHERE, fix="pip install torch") from None
    if not distributed.is_available():
        raise InputError(
            "this PyTorch was built without torch.distributed", where=_WHERE, fix="install another build"
        )
    return distributed
