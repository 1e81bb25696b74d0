"""A rendezvous backend in memory."""

from __future__ import annotations

import threading

from hpc_elastic.rendezvous.dynamic_executor import RendezvousBackend, Token


class MemoryRendezvousBackend(RendezvousBackend):
    """A backend for the threads of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._number = 0
        self._state = b""

    @property
    def name(self) -> str:
        """The name of the backend."""
        return "memory"

    def get_state(self) -> tuple[bytes, Token] | None:
        """Return the state and its token, or None; see `RendezvousBackend.get_state`."""
        with self._lock:
            return (self._state, self._number) if self._number else None

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Replace the state; see `RendezvousBackend.set_state`."""
        with self._lock:
            fits = token == self._number if token is not None else self._number == 0
            if fits and not isinstance(token, bool):
                self._number += 1
                self._state = state
                return state, self._number, True
            return (self._state, self._number, False) if self._number else None
