"""Where a dynamic rendezvous keeps its state: the interface for backends, and one in memory."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Any

Token = Any
"""Names one state of a backend; opaque to everybody else."""


class RendezvousBackend(ABC):
    """Holds the state of a rendezvous, which is replaced by compare-and-set; as in torch."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the backend."""

    @abstractmethod
    def get_state(self) -> tuple[bytes, Token] | None:
        """Return the state and its token, or None if there is none.

        Raises:
            RendezvousConnectionError: the backend could not be reached.
            RendezvousStateError: the state is damaged.
        """

    @abstractmethod
    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Replace the state if it is still the one that the token names.

        Args:
            state: the new state.
            token: names the state to be replaced; None: there is none yet.

        Returns:
            The state after the call, its token, and whether it is the new one; None if there was no
            state although the token names one.

        Raises:
            RendezvousConnectionError: the backend could not be reached.
            RendezvousStateError: the state is damaged.
        """


class MemoryRendezvousBackend(RendezvousBackend):
    """A backend for the threads of one process, for tests."""

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
