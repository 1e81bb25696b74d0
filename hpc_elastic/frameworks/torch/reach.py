"""Reaching a store at one of several addresses, some of which lead nowhere."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable
from typing import Any

from hpc_elastic.clock import SystemClock
from hpc_elastic.frameworks.torch.addresses import Contact, machine

_CONNECT_S = 5.0
_STAGGER_S = 0.25  # so long an address has before the next is tried beside it
_PASS_S = 10.0  # after that an attempt is thought to hang, and goes on alone
_PAUSE_S = 0.5
_NO_ADDRESS = "rank 0 has found no address of its node but those for itself"


class Reach:
    """Attempts at all addresses of a store.

    Each is made in a thread of its own, since torch waits without end for an answer of a process that takes
    the connection and is no store.

    Args:
        contact: the address of the store.
        make: returns torch's client of the store at an address.
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
            socket.create_connection((address, self._contact.port), _CONNECT_S).close()
            found = self._make(address)
            if not found.check([self._contact.token]):
                found, said = None, "another store answers there"
        except (OSError, RuntimeError, UnicodeError) as error:
            found, said = None, str(error).partition("\n")[0]
        self._ended.put((address, found, said))
