"""The stores of a round's process groups, and those that this process has made."""

from __future__ import annotations

import functools
import importlib
import ipaddress
import json
import logging
import os
import queue
import re
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any

from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import DamagedError, InputError, StoreError, StoreTimeoutError
from hpc_elastic.ids import Env
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.store.kv.store import KeyValueStore, PrefixStore, from_env, seconds
from hpc_elastic.store.kv.util import synchronize
from hpc_elastic.typed_json import read

logger = logging.getLogger(__name__)
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
    """The stores of a round that this process has made; kept to the end of the process."""

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


_KEY = "torch/address"
_SHOWN = 16
_BACKLOG = 4096  # as many as the kernel allows; all ranks come at once
_CONNECT_S = 10.0  # torch's least time for connecting, however little time is left
_ATTEMPT_S = 5.0  # for a connection
_STAGGER_S = 0.25  # so long an address has before the next is tried beside it
_PASS_S = 10.0  # after that an attempt is thought to hang, and goes on alone
_PAUSE_S = 0.5
_NO_ADDRESS = "rank 0 has found no address of its node but those for itself"
_WARN_AFTER_S = 20.0  # an address that does not answer by then is not slow, but wrong


class Reach:
    """Attempts at all addresses of a store.

    Each is made in a thread of its own, since torch waits without end for an answer of a process that takes
    the connection and is no store.
    """

    def __init__(self, contact: Contact, make: Callable[[str], Any]) -> None:
        self._contact = contact
        self._make = make
        self._addresses = contact.to_try(machine())
        self._ended: queue.SimpleQueue[tuple[str, Any, str]] = queue.SimpleQueue()
        self._trying: set[str] = set()
        self._said: dict[str, str] = {}

    def said(self) -> str:
        """Return the result for each address, a line for each."""
        hangs = "the connection is not accepted by the store, or there is no answer"
        lines = [f"  {address}: {self._said.get(address, hangs)}" for address in self._addresses]
        return "\n".join(lines or [f"  {_NO_ADDRESS}"])

    def until(self, timeout_s: float) -> Any | None:
        """Return the store, or None if no address leads to it in time [s]."""
        clock = SystemClock()
        deadline = clock.monotonic() + timeout_s
        while True:
            found = self._once(deadline)
            left_s = deadline - clock.monotonic()
            if found is not None or left_s <= 0:
                return found
            clock.sleep(min(_PAUSE_S, left_s))

    def _once(self, deadline: float) -> Any | None:
        """Try each address that is not being tried; return the first store that answers."""
        for address in self._addresses:
            if address not in self._trying:
                self._trying.add(address)
                threading.Thread(target=self._attempt, args=(address,), daemon=True).start()
                if found := self._next(_STAGGER_S):
                    return found
        clock = SystemClock()
        end = min(deadline, clock.monotonic() + _PASS_S)
        while self._trying and (left_s := end - clock.monotonic()) > 0:
            if found := self._next(left_s):
                return found
        return None

    def _next(self, timeout_s: float) -> Any | None:
        """Wait for the end of an attempt; return the store if it was a good one."""
        try:
            address, found, said = self._ended.get(timeout=timeout_s)
        except queue.Empty:
            return None
        self._trying.discard(address)
        self._said[address] = said
        return found

    def _attempt(self, address: str) -> None:
        found, said = None, ""
        try:
            # torch prints several lines for each address that does not answer
            socket.create_connection((address, self._contact.port), _ATTEMPT_S).close()
            found = self._make(address)
            if not found.check([self._contact.token]):
                found, said = None, "another store answers there"
        except (OSError, RuntimeError, UnicodeError) as error:
            found, said = None, str(error).partition("\n")[0]
        self._ended.put((address, found, said))


class StoreWish(NamedTuple):
    """Where rank 0 is to listen."""

    ports: tuple[int, ...]
    address: str | None


class Meeting:
    """One call of one rank.

    Args:
        timeout_s: how long all of it may take [s].
    """

    def __init__(
        self,
        distributed: Any,
        kv: KeyValueStore,
        rank: int,
        world_size: int,
        round_number: int,
        timeout_s: float,
    ) -> None:
        self._distributed = distributed
        self._kv = kv
        self._rank = rank
        self._world_size = world_size
        self._round = round_number
        self._timeout_s = timeout_s
        self._deadline = SystemClock().monotonic() + timeout_s

    def _left_s(self) -> float:
        return max(0.0, self._deadline - SystemClock().monotonic())

    def base(self, environ: Mapping[str, str], wish: StoreWish) -> Any:
        """Return the store of all ranks, served here if this is rank 0.

        Raises:
            HpcElasticError: as `hpc_elastic.frameworks.torch.store`.
        """
        return self._serve(environ, wish) if self._rank == 0 else self._reach(self._told())

    def _serve(self, environ: Mapping[str, str], wish: StoreWish) -> Any:
        """Open the store and tell where it is, unless another process of rank 0 has done so."""
        here = listening_address(environ, wish.address)
        where = (here,) if here else addresses(environ, wish.address)  # at others other users may listen
        made = self._listening(wish.ports, here)
        token = f"hpc_elastic/{os.urandom(8).hex()}"
        made.set(token, "")
        host = os.uname().nodename
        is_one = wish.address is not None or bool(here)
        own = Contact(made.port, token, machine(), host, where, is_one)
        told = decoded(self._kv.compare_set(_KEY, "", encoded(own)))
        if told != own:
            return self._reach(told)
        logger.info("serving the store of round %d on port %d of %s", self._round, own.port, ", ".join(where))
        return made

    def _listening(self, ports: tuple[int, ...], address: str) -> Any:
        """Return a store on the first port that can be had, at one address or at all.

        Raises:
            StoreError: none can.
        """
        error: Exception | None = None
        for port in ports:
            try:
                return self._served(address, port)
            except (RuntimeError, OSError) as refused:
                error = refused
        raise StoreError(
            f"rank 0 cannot listen on {_ports_text(ports)} of {os.uname().nodename}: {_first_line(error)}\n"
            "  fix: leave out `ports`, or give others"
        ) from error

    def _served(self, address: str, port: int) -> Any:
        if not address:
            return self._tcp_store(LOOPBACK[0], port, is_master=True)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.create_server((address, port), family=family, backlog=_BACKLOG) as server:
            number = server.getsockname()[1]
            made = self._tcp_store(address, number, is_master=True, master_listen_fd=server.fileno())
            server.detach()  # it is torch's now
        return made

    def _tcp_store(self, host: str, port: int, *, is_master: bool, **more: Any) -> Any:
        return self._distributed.TCPStore(
            host,
            port,
            is_master=is_master,
            timeout=timedelta(seconds=max(self._timeout_s, _CONNECT_S)),
            wait_for_workers=False,
            **more,
        )

    def _told(self) -> Contact:
        """Return where rank 0's store is.

        Raises:
            StoreTimeoutError: rank 0 has not told.
        """
        try:
            self._kv.wait([_KEY], self._left_s())
        except StoreTimeoutError as error:
            raise self._missed([0]) from error
        return decoded(self._kv.get(_KEY))

    def _reach(self, contact: Contact) -> Any:
        """Return rank 0's store at the address that answers.

        Raises:
            StoreTimeoutError: none does.
        """
        reach = Reach(contact, lambda host: self._tcp_store(host, contact.port, is_master=False))
        found = reach.until(min(_WARN_AFTER_S, self._left_s()))
        where = f"the store of rank 0 on {contact.host} in round {self._round}"
        if found is None and self._left_s() > 0:
            logger.warning(
                "rank %d on %s cannot reach %s, and tries on for %.0f s: port %d of\n%s",
                *(self._rank, os.uname().nodename, where, self._left_s(), contact.port, reach.said()),
            )
            found = reach.until(self._left_s())
        if found is not None:
            return found
        raise StoreTimeoutError(
            f"rank {self._rank} on {os.uname().nodename} cannot reach {where}, "
            f"not within {self._timeout_s:g} s: port {contact.port} of\n{reach.said()}\n"
            '  fix: name an address or interface that the nodes share: address="ib0"; where a firewall '
            "lets through some ports, ports=range(29500, 29600)",
            missing=("0",),
        )

    def wait_for_all(self, store: Any) -> None:
        """Come back when all ranks have come to this use of the store.

        Raises:
            StoreTimeoutError: some have not; names them.
            StoreError: rank 0 has ended.
        """
        try:
            synchronize(store, b"", self._rank, self._world_size, "hpc_elastic", self._left_s())
        except StoreTimeoutError as error:
            raise self._missed([int(rank) for rank in error.missing]) from error
        except self._distributed.DistStoreError as error:
            raise self._missed([]) from error
        except RuntimeError as error:
            if self._rank == 0:
                raise
            raise StoreError(
                f"rank {self._rank} has lost the store of rank 0 in round {self._round}; has it ended? "
                f"{_first_line(error)}\n  fix: look at its output: hpc-elastic logs RUN --rank 0"
            ) from error

    def _missed(self, ranks: list[int]) -> StoreTimeoutError:
        names = ", ".join(str(rank) for rank in ranks[:_SHOWN]) + (", ..." if len(ranks) > _SHOWN else "")
        who = f"rank{'s' * (len(ranks) > 1)} {names}" if ranks else "other ranks"
        return StoreTimeoutError(
            f"rank {self._rank} waits in store() for {who} of {self._world_size} in round {self._round}: "
            f"not there within {self._timeout_s:g} s\n"
            f"  fix: look at their output: hpc-elastic logs RUN --rank {ranks[0] if ranks else 0}; "
            "all ranks call store() equally often",
            missing=tuple(str(rank) for rank in ranks),
        )


def _ports_text(ports: tuple[int, ...]) -> str:
    if ports == (0,):
        return "any port"
    return f"port {ports[0]}" if len(ports) == 1 else f"any of {len(ports)} ports, {ports[0]} to {ports[-1]},"


def _first_line(error: Exception | None) -> str:
    return str(error).partition("\n")[0]


LOOPBACK = ("127.0.0.1", "::1")
_PINNED = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")  # interfaces that the user chose for the data
# of containers and virtual machines: the same addresses on many nodes, and reached from none
_INNER = re.compile(r"docker|br-|virbr|veth|cni|flannel|cali|lxc|lxd|podman|tun|tap|kube")


class Contact(NamedTuple):
    """The address of the store, as rank 0 publishes it."""

    port: int
    token: str  # a key of the store, by which it is known from others that might answer
    machine: str
    host: str
    addresses: tuple[str, ...]
    only: bool  # the user named the address: no other is tried

    def to_try(self, machine: str) -> tuple[str, ...]:
        """Return the addresses for a process on a machine, the likely ones first."""
        near = LOOPBACK if machine == self.machine and not self.only else ()
        return tuple(dict.fromkeys((*near, *self.addresses)))


def encoded(contact: Contact) -> str:
    """Return a contact as text."""
    return json.dumps(contact._asdict())


def decoded(data: bytes) -> Contact:
    """Return the contact in a text.

    Raises:
        StoreError: there is none in it.
    """
    try:
        return read(Contact, data)
    except DamagedError:
        raise StoreError(f"rank 0 has not told where its store is, but {data[:80]!r}") from None


def machine() -> str:
    """Return a name that is the same for processes that share a loopback interface, and for no others."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()}/{os.stat('/proc/self/ns/net').st_ino:x}"
    except OSError:
        return os.uname().nodename


def addresses(environ: Mapping[str, str], address: str | None) -> tuple[str, ...]:
    """Return names and addresses by which other nodes may reach this one; of one that a user named, its own.

    Raises:
        InputError: an interface of that name has no address.
    """
    interfaces = dict(_interfaces())
    if address is not None:
        return _chosen(interfaces, address)
    names = (environ.get("MASTER_ADDR", ""), os.uname().nodename)
    ordered = _ordered(interfaces, _pinned(environ))
    return tuple(dict.fromkeys((*filter(_is_for_others, names), *ordered)))


def _pinned(environ: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(environ[name] for name in _PINNED if environ.get(name))


def _chosen(interfaces: Mapping[str, tuple[str, ...]], address: str) -> tuple[str, ...]:
    found = interfaces.get(address, (address,) if _resolves(address) else ())
    if not found:
        names = ", ".join(sorted(name for name, those in interfaces.items() if those)) or "none"
        raise InputError(
            f"address must be a host name, an IP address or a network interface with one, not {address!r}",
            where=f"hpc_elastic.frameworks.torch.store on {os.uname().nodename}",
            fix=f"interfaces with addresses here are: {names}",
        )
    return found


def listening_address(environ: Mapping[str, str], address: str | None) -> str:
    """Return the one address of this node at which rank 0 is to listen; empty for all, if none is sure.

    Where all ranks are on this node it is the loopback interface. Else it is that of the job: the choice
    of the user, an interface of NCCL or gloo, or the address of MASTER_ADDR or the host name.
    """
    if address is None and environ.get("LOCAL_WORLD_SIZE", "") == environ.get("WORLD_SIZE"):
        return LOOPBACK[0]
    interfaces = dict(_interfaces())
    own = {one for those in interfaces.values() for one in those}
    if address is not None:
        wished = _chosen(interfaces, address)
        own.update(LOOPBACK)
    else:
        names = (environ.get("MASTER_ADDR", ""), os.uname().nodename)
        wished = (*_ordered(interfaces, _pinned(environ), only=True), *names)
    return next((one for name in wished for one in _numbers(name) if one in own), "")


def _numbers(name: str) -> list[str]:
    """Return the addresses of a host as this node sees it, IPv4 first; none if there is no such host."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM) if name else []
    except (OSError, UnicodeError):
        return []
    found.sort(key=lambda one: one[0] != socket.AF_INET)
    return [str(one[4][0]) for one in found]


def _resolves(address: str) -> bool:
    """Tell whether a host has a name or address, as this node sees it."""
    return bool(_numbers(address))


def _interfaces() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the interfaces that are up, with their addresses, IPv4 first."""
    import psutil  # noqa: PLC0415 - 20 ms

    states = psutil.net_if_stats()
    for name, entries in psutil.net_if_addrs().items():
        if name in states and not states[name].isup:
            continue
        of_family = {
            family: [entry.address for entry in entries if entry.family == family]
            for family in (socket.AF_INET, socket.AF_INET6)
        }
        yield name, tuple(filter(_is_for_others, [one for those in of_family.values() for one in those]))


def _is_for_others(address: str) -> bool:
    """Tell whether an address or a name can mean this node on another one."""
    if not address or address == "localhost":
        return False
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return "%" not in address  # a name; or an address that holds on one link
    return not (ip.is_loopback or ip.is_link_local or ip.is_unspecified)


def _ordered(
    interfaces: Mapping[str, tuple[str, ...]], pinned: Iterable[str], *, only: bool = False
) -> list[str]:
    """Return all addresses: of the interfaces that the user chose (`pinned`), of others unless `only`, and of
    inner networks.
    """
    chosen = tuple(
        name.removeprefix("=") for text in pinned if not text.startswith("^") for name in text.split(",")
    )

    def place(name: str) -> int:
        if chosen and name.startswith(chosen):
            return 0
        return 2 if _INNER.match(name) else 1

    names = [name for name in sorted(interfaces, key=place) if not only or place(name) == 0]
    return [address for name in names for address in interfaces[name]]
