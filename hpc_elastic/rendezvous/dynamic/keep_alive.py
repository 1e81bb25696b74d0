"""Signs of life while the caller is busy: a thread that never stops beating in silence."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from hpc_elastic.clock import Clock
from hpc_elastic.errors import (
    RendezvousConnectionError,
    RendezvousError,
    RendezvousTimeoutError,
    StoreError,
)
from hpc_elastic.rendezvous.dynamic.periodic_timer import PeriodicTimer

PASSING = (StoreError, RendezvousConnectionError, RendezvousTimeoutError)
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
