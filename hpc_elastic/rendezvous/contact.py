"""The contact of a handler with the shared state: turns, retries, the last known value, heartbeats, events.

Events are for programs that have asked for them: such a program has imported `hpc_elastic.events`; without
that nothing is made or loaded here.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

from hpc_elastic.clock import Clock
from hpc_elastic.errors import (
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousTimeoutError,
    StoreError,
)
from hpc_elastic.meet.interface import RendezvousInfo
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.rendezvous.utils import PeriodicTimer

PASSING = (StoreError, RendezvousConnectionError, RendezvousTimeoutError)

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
    """One caller at a time uses a handler's state; a caller that waits lets the others in meanwhile."""

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
        """Give back the resources of the waits; no caller may wait any more."""
        close = getattr(self._sleeper, "close", None)
        if close is not None:
            close()

    @property
    def is_leaving(self) -> bool:
        """Whether waits end at once."""
        return self._leaving

    def insist(self) -> None:
        """Check that no caller has asked to leave.

        Raises:
            RendezvousGracefulExitError: one has.
        """
        if self._leaving:
            raise RendezvousGracefulExitError(
                "the rendezvous handler was shut down while it waited for others"
            )


class LastKnown(Generic[_T]):
    """A value of the shared state; the last one holds while the state cannot be read.

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
    """Take a step, again and again while the shared state cannot be reached; the turn is held.

    Raises:
        RendezvousConnectionError: it has not answered for a whole lease [s].
        RendezvousGracefulExitError: the handler was shut down meanwhile.
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


"""Errors after which trying again makes sense."""


class KeepAlive:
    """Beats once per interval between two rounds, and tells if that has not worked for a lease.

    Args:
        beat: gives one sign of life; a bound method, whose object is not kept alive by the thread.
        interval: time between two signs [s].
        lease: silence after which the others give this node up [s].
        clock: this node's clock.
        where: the target of the heartbeats, for an error's text.
    """

    def __init__(
        self, beat: Callable[[], object], interval: float, lease: float, clock: Clock, where: str
    ) -> None:
        self._beat: weakref.ref[Callable[[], object]] = weakref.WeakMethod(beat)
        self._interval = interval
        self._lease = lease
        self._clock = clock
        self._where = where
        self._timer: PeriodicTimer | None = None
        self._beaten_at = clock.monotonic()
        self._failure: Exception | None = None

    @property
    def is_running(self) -> bool:
        """Whether the thread is to beat."""
        return self._timer is not None

    def start(self) -> None:
        """Beat from now on; this counts as a sign of life given."""
        self.stop()
        self._beaten_at = self._clock.monotonic()
        self._failure = None
        self._timer = PeriodicTimer(self._interval, _beat_if_there, weakref.ref(self))
        self._timer.set_name("RendezvousKeepAlive")
        self._timer.start()

    def stop(self) -> None:
        """Beat no more; a beat that hangs in the file system is waited for one lease at most."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel(self._lease)

    def beat(self) -> None:
        """Give one sign of life; a failure is kept for `check`."""
        give = self._beat()
        if give is None:  # the handler is gone, and its thread goes with it
            if self._timer is not None:
                self._timer.cancel(0.0)
            return
        try:
            give()
        except Exception as error:  # noqa: BLE001 - told at the next call of the handler
            self._failure = error
        else:
            self._beaten_at = self._clock.monotonic()
            self._failure = None

    def check(self) -> None:
        """Tell of signs of life that were not given.

        Raises:
            RendezvousConnectionError: none was given for a lease, or the thread is gone.
            RendezvousError: the shared state is damaged.
        """
        if self._timer is None:
            return
        failure = self._failure
        if isinstance(failure, RendezvousError) and not isinstance(failure, PASSING):
            raise failure
        silence = self._clock.monotonic() - self._beaten_at
        if failure is not None and (silence >= self._lease or not isinstance(failure, PASSING)):
            raise RendezvousConnectionError(
                f"no heartbeat has reached {self._where} for {silence:.1f} s (the lease is "
                f"{self._lease:g} s), so the others may have given this node up; last error: {failure}"
            ) from failure
        if not self._timer.is_alive():
            raise RendezvousConnectionError(
                f"this process does not send heartbeats to {self._where}: it was forked from the one that "
                "joined the rendezvous, or is ending"
            )


def _beat_if_there(keep_alive: weakref.ref[Any]) -> None:
    alive = keep_alive()
    if alive is not None:
        alive.beat()


class Who(NamedTuple):
    """The node that tells."""

    name: str  # for people
    hostname: str
    pid: int
    local_id: int | None = None


class Trail:
    """Records the steps of one handler.

    Args:
        place: file and class that events are named for, for example ``dynamic_rendezvous.py:Handler``.
        run_id: the id of the run.
        who: the node.
    """

    def __init__(self, place: str, run_id: str, who: Who) -> None:
        self._place = place
        self.run_id = run_id
        self.who = who

    def tell(
        self, what: str, message: str, state: str = "RUNNING", *, rank: int | None = None, place: str = ""
    ) -> None:
        """Record an event, if a program has asked for events.

        Args:
            what: the method.
            message: for people.
            state: name of a `NodeState`; FAILED adds the traceback of the exception being handled.
            rank: rank of the node, if it has one.
            place: file and class, if they are others.
        """
        events: Any = sys.modules.get("hpc_elastic.events")
        if events is None or not events.wants_rdzv_events():
            return
        events.record_rdzv_event(
            events.RdzvEvent(
                name=f"{place or self._place}.{what}",
                run_id=self.run_id,
                message=message,
                hostname=self.who.hostname,
                pid=self.who.pid,
                node_state=events.NodeState[state],
                rank=rank,
                local_id=self.who.local_id,
                error_trace=_traceback() if state == "FAILED" else "",
            )
        )

    def watched(self, what: str, call: Callable[[], _T]) -> _T:
        """Do something; an error of it is recorded and goes on."""
        try:
            return call()
        except Exception as error:
            self.tell(what, f"{type(error).__name__}: {error}", "FAILED")
            raise

    def joined(
        self, join: Callable[[], RendezvousInfo], round_of: Callable[[RendezvousInfo], int | None]
    ) -> RendezvousInfo:
        """Join a round, and record the attempt and its result."""
        what, run = "next_rendezvous", self.run_id
        self.tell(
            what, f"The node '{self.who.name}' attempts to join the next round of the rendezvous '{run}'."
        )
        info = self.watched(what, join)
        message = (
            f"The node '{self.who.name}' has joined round {round_of(info)} of the rendezvous '{run}' "
            f"as rank {info.rank} in a world of size {info.world_size}."
        )
        self.tell(what, message, rank=info.rank)
        return info

    def closed(self) -> None:
        """Record that this node has closed the rendezvous."""
        message = f"The node '{self.who.name}' has closed the rendezvous '{self.run_id}'."
        self.tell("_close", message, "SUCCEEDED")

    def left(self, error: Exception | None = None) -> None:
        """Record that this node has left, or could not tell the others."""
        if error is None:
            message = f"The node '{self.who.name}' has left the rendezvous '{self.run_id}'."
            self.tell("shutdown", message, "SUCCEEDED")
        else:
            kind = type(error).__name__
            message = (
                f"The node '{self.who.name}' has failed to shutdown the rendezvous '{self.run_id}' "
                f"due to an error of type {kind}."
            )
            self.tell("shutdown", message, "FAILED")

    def beaten(self, beat: Callable[[], None]) -> None:
        """Give a sign of life, and record whether that worked."""
        node, run = self.who.name, self.run_id
        try:
            beat()
        except Exception as error:
            kind = type(error).__name__
            message = (
                f"The node '{node}' has failed to send a keep-alive heartbeat to the rendezvous '{run}' "
                f"due to an error of type {kind}."
            )
            self.tell("_keep_alive", message, "FAILED")
            raise
        self.tell(
            "_keep_alive", f"The node '{node}' has sent a keep-alive heartbeat to the rendezvous '{run}'."
        )


def _traceback() -> str:
    import traceback  # noqa: PLC0415 - only failures need it

    return traceback.format_exc()
