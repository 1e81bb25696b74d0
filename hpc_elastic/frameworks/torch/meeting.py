"""How the ranks of a round share a TCPStore of torch's, also if some of its addresses lead nowhere."""

from __future__ import annotations

import logging
import os
import queue
import socket
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import StoreError, StoreTimeoutError
from hpc_elastic.frameworks.torch.addresses import (
    LOOPBACK,
    Contact,
    addresses,
    decoded,
    encoded,
    listening_address,
    machine,
)
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.store.kv.store import KeyValueStore
from hpc_elastic.store.kv.util import synchronize

logger = logging.getLogger(__name__)
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
