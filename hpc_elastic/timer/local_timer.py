"""Timers over a multiprocessing queue: for workers that this process has spawned itself.

A worker that is killed while it writes to the queue can leave the queue locked for the others; the
file based timers do not have that problem.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Mapping, Sequence
from queue import Empty, Full
from typing import Any, Protocol

from hpc_elastic.clock import Clock, SystemClock
from hpc_elastic.timer.api import RequestQueue, TimerClient, TimerRequest, TimerServer
from hpc_elastic.timer.reaping import ExpiredWorker, Reap, TimerTable, Workers
from hpc_elastic.timer.stacks import print_stacks_when_asked

__all__ = ["LocalTimerClient", "LocalTimerServer", "MultiprocessingRequestQueue"]

logger = logging.getLogger(__name__)
_NOBODY = -1


class MessageQueue(Protocol):
    """The part that is needed of a ``multiprocessing.Queue``."""

    def put(self, item: Any, /, block: bool = True, timeout: float | None = None) -> None:  # noqa: FBT001, FBT002
        """Append a message."""

    def get(self, block: bool = True, timeout: float | None = None) -> Any:  # noqa: FBT001, FBT002
        """Return the next message."""

    def qsize(self) -> int:
        """Return about how many messages there are."""


class LocalTimerClient(TimerClient):
    """Sets the timers of this process with a `LocalTimerServer` on the same machine."""

    def __init__(self, mp_queue: MessageQueue) -> None:
        super().__init__()
        self._mp_queue = mp_queue
        self._prepared_pid = 0

    def acquire(self, scope_id: str, expiration_time: float) -> None:
        """Set the timer of a scope to a wall time [s since the epoch]."""
        pid = os.getpid()
        if self._prepared_pid != pid:
            print_stacks_when_asked()
            self._prepared_pid = pid
        self._mp_queue.put(TimerRequest(pid, scope_id, expiration_time))

    def release(self, scope_id: str) -> None:
        """Take away the timer of a scope."""
        self._mp_queue.put(TimerRequest(os.getpid(), scope_id, -1))


class MultiprocessingRequestQueue(RequestQueue):
    """The requests in a ``multiprocessing.Queue``."""

    def __init__(self, mp_queue: MessageQueue) -> None:
        super().__init__()
        self._mp_queue = mp_queue

    def size(self) -> int:
        """Return how many requests are there now."""
        return self._mp_queue.qsize()

    def get(self, size: int, timeout: float) -> list[TimerRequest]:
        """Return at most `size` requests; waits until there are so many or `timeout` [s] is over."""
        clock = SystemClock()
        deadline = clock.monotonic() + timeout
        requests: list[TimerRequest] = []
        wait_s = timeout
        while len(requests) < size:
            try:
                requests.append(self._mp_queue.get(block=True, timeout=wait_s))
            except Empty:
                break
            wait_s = max(0.0, deadline - clock.monotonic())  # when time is over: the requests so far
        return requests


class LocalTimerServer(TimerServer):
    """Watches the timers of `LocalTimerClient`s; one server per machine.

    A worker whose timer expires prints its Python stacks into its stderr and gets SIGKILL.

    Args:
        mp_queue: the queue the clients write.
        max_interval: longest wait for a request [s]; an expiring timer ends the wait earlier.
        daemon: whether the watching thread lets the process end.
        reap: ends a worker instead of SIGKILL to its pid.
        clock: the clocks of this machine.
    """

    def __init__(
        self,
        mp_queue: MessageQueue,
        max_interval: float = 60,
        daemon: bool = True,  # noqa: FBT001, FBT002 - torch's signature
        *,
        reap: Reap | None = None,
        clock: Clock | None = None,
    ) -> None:
        used = clock or SystemClock()
        super().__init__(MultiprocessingRequestQueue(mp_queue), max_interval, daemon, clock=used)
        self._mp_queue = mp_queue
        self._table: TimerTable[TimerRequest] = TimerTable()
        self._timers = self._table.timers
        self._workers = Workers(reap, used)

    def register_timers(self, timer_requests: list[TimerRequest]) -> None:
        """Set and take away timers as requested."""
        for request in timer_requests:
            if request.expiration_time >= 0 and self._workers.is_new(request.worker_id):
                self._table.clear({request.worker_id})
            self._table.apply(request)

    def clear_timers(self, worker_ids: set[Any]) -> None:
        """Take away all timers of some workers."""
        self._table.clear(worker_ids)
        self._workers.forget_all_but(self._table.workers())

    def get_expired_timers(self, deadline: float) -> dict[Any, list[TimerRequest]]:
        """Return the timers that expire at `deadline` [s since the epoch] or before it, by worker."""
        return self._table.expired(deadline)

    def _wait_s(self) -> float:
        return min(self._max_interval, self._table.seconds_to_next(self._time.now()))

    def _prepare_reaping(self, expired: Mapping[Any, Sequence[TimerRequest]]) -> None:
        self._workers.print_stacks(expired)

    def _reap_worker(self, worker_id: Any) -> bool:
        scopes = self._table.expired_scopes(worker_id, self._time.now())
        return self._workers.end(ExpiredWorker(worker_id, signal.SIGKILL, scopes))

    def _wake(self) -> None:
        try:
            self._mp_queue.put(TimerRequest(_NOBODY, "", -1), block=False)  # takes no timer away
        except (Full, ValueError, OSError):
            pass  # full: it wakes by itself; closed: it has ended
