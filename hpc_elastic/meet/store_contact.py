"""How a handler gets along with what the nodes share when that does not answer for a while."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from hpc_elastic.clock import Clock
from hpc_elastic.errors import RendezvousConnectionError, RendezvousGracefulExitError, StoreError

_T = TypeVar("_T")
NO_ANSWER = (StoreError, RendezvousConnectionError)


class Sleeper(Protocol):
    """Waits so that it can be woken, for good."""

    def sleep(self, seconds: float) -> None:
        """Wait so long [s], less if woken or if something happened."""
        ...

    def wake(self) -> None:
        """End all waits, now and later."""
        ...


class EventSleeper:
    """A sleeper that nothing but `wake` ends early."""

    def __init__(self) -> None:
        self._woken = threading.Event()

    def sleep(self, seconds: float) -> None:
        """Wait so long [s], or until woken."""
        self._woken.wait(seconds)

    def wake(self) -> None:
        """End all waits."""
        self._woken.set()


class ContactTurn:
    """One caller at a time uses a handler's state; whoever waits lets the others in meanwhile.

    Args:
        clock: this node's clock.
        sleeper: what waits.
    """

    def __init__(self, clock: Clock, sleeper: Sleeper | None = None) -> None:
        self.clock = clock
        self._sleeper = sleeper or EventSleeper()
        self._taken = threading.Lock()
        self._leaving = False

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Hold the turn."""
        with self._taken:
            yield

    @contextmanager
    def tried(self, seconds: float) -> Iterator[bool]:
        """Hold the turn if it can be had within so many seconds; yields whether it is held."""
        held = self._taken.acquire(timeout=min(seconds, threading.TIMEOUT_MAX))
        try:
            yield held
        finally:
            if held:
                self._taken.release()

    def wait(self, seconds: float) -> None:
        """Give the turn away for so many seconds, less if something happens; the turn must be held."""
        self._taken.release()
        try:
            self._sleeper.sleep(seconds)
        finally:
            self._taken.acquire()

    def leave(self) -> None:
        """Have waits end at once, for good."""
        self._leaving = True
        self._sleeper.wake()

    def release(self) -> None:
        """Give back what the waits need; nobody may wait any more."""
        close = getattr(self._sleeper, "close", None)
        if close is not None:
            close()

    @property
    def is_leaving(self) -> bool:
        """Whether waits end at once."""
        return self._leaving

    def insist(self) -> None:
        """Check that nobody has asked to leave.

        Raises:
            RendezvousGracefulExitError: somebody has.
        """
        if self._leaving:
            raise RendezvousGracefulExitError(
                "the rendezvous handler was shut down while it waited for others"
            )


class LastKnown(Generic[_T]):
    """A value that is read from what the nodes share; the last one holds while that does not answer.

    Args:
        read: reads the value; called with the turn held.
        first: the value before the first answer.
        turn: held while reading.
        fresh_s: a value is not read again for so long [s].
        lease: for so long the last value holds [s].
    """

    def __init__(
        self, read: Callable[[], _T], first: _T, turn: ContactTurn, *, fresh_s: float, lease: float
    ) -> None:
        self._read = read
        self._value = first
        self._turn = turn
        self._fresh_s = fresh_s
        self._lease = lease
        self._read_at = float("-inf")
        self._failing_since: float | None = None

    def forget(self) -> None:
        """Read at the next call, however fresh the value is."""
        self._read_at = float("-inf")

    def get(self) -> _T:
        """Return the value.

        Raises:
            RendezvousConnectionError: it could not be read for a whole lease.
        """
        if self._turn.clock.monotonic() - self._read_at < self._fresh_s:
            return self._value
        with self._turn.tried(self._lease / 4) as held:
            if not held:  # a step that hangs in the file system has the turn
                return self._not_read(RendezvousConnectionError("another call does not come back"))
            try:
                value = self._read()
            except NO_ANSWER as error:
                return self._not_read(error)
            self._value = value
            self._read_at = self._turn.clock.monotonic()
            self._failing_since = None
            return value

    def _not_read(self, error: Exception) -> _T:
        now = self._turn.clock.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since >= self._lease:
            if isinstance(error, RendezvousConnectionError):
                raise error
            raise RendezvousConnectionError(str(error)) from error
        return self._value


def until_lease(step: Callable[[], _T], turn: ContactTurn, lease: float, pause_s: float) -> _T:
    """Take a step, again and again while what the nodes share does not answer; the turn is held.

    Raises:
        RendezvousConnectionError: it has not answered for a whole lease [s].
        RendezvousGracefulExitError: somebody shut the handler down meanwhile.
    """
    since = turn.clock.monotonic()
    while True:
        try:
            return step()
        except NO_ANSWER as error:
            if turn.clock.monotonic() - since >= lease:
                if isinstance(error, RendezvousConnectionError):
                    raise
                raise RendezvousConnectionError(str(error)) from error
            turn.insist()
            turn.wait(pause_s)
