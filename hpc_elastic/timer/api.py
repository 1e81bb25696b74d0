"""The common part of all kinds of timers, with the names of torch.distributed.elastic.timer.

An expiration time is a wall time in seconds since the epoch, as in torch, and is only ever compared
on the machine it was made on. A server compares it on a steady scale (see `steady_time`).
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpc_elastic.clock import Clock, SystemClock

_NOISE_S = 0.05  # two clocks are not read at the same instant; a smaller step is not worth correcting

__all__ = ["RequestQueue", "TimerClient", "TimerRequest", "TimerServer", "configure", "expires"]

logger = logging.getLogger(__name__)
_JOIN_S = 2.0  # how long stop() waits at least for a thread that is in the middle of reaping


class TimerRequest:
    """A client's request to set a timer, or to take it away.

    Args:
        worker_id: names the worker; client and server agree on its type.
        scope_id: names the timer among those of the worker.
        expiration_time: wall time [s since the epoch]; negative takes the timer away.
    """

    __slots__ = ["expiration_time", "scope_id", "worker_id"]

    def __init__(self, worker_id: Any, scope_id: str, expiration_time: float) -> None:
        self.worker_id = worker_id
        self.scope_id = scope_id
        self.expiration_time = expiration_time

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.worker_id!r}, {self.scope_id!r}, {self.expiration_time!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TimerRequest):
            return False
        mine = (self.worker_id, self.scope_id, self.expiration_time)
        return mine == (other.worker_id, other.scope_id, other.expiration_time)

    __hash__ = None  # type: ignore[assignment]  # its fields can change


class TimerClient(ABC):
    """The worker's end: tells a server which timers to watch."""

    @abstractmethod
    def acquire(self, scope_id: str, expiration_time: float) -> None:
        """Set the timer of a scope of this worker.

        Args:
            scope_id: names the timer.
            expiration_time: wall time [s since the epoch].
        """

    @abstractmethod
    def release(self, scope_id: str) -> None:
        """Take away the timer of a scope of this worker."""


class RequestQueue(ABC):
    """Where a server finds the requests of its clients."""

    @abstractmethod
    def size(self) -> int:
        """Return how many requests `get` could return now, at least."""

    @abstractmethod
    def get(self, size: int, timeout: float) -> list[TimerRequest]:
        """Return at most `size` requests, waiting for them no longer than `timeout` [s]."""


class TimerServer(ABC):
    """Watches timers in a thread and reaps the workers whose timers expire.

    Args:
        request_queue: where requests come from.
        max_interval: longest wait for a request [s].
        daemon: whether the thread lets the process end.
        clock: the clocks of this machine.
    """

    def __init__(
        self,
        request_queue: RequestQueue,
        max_interval: float,
        daemon: bool = True,  # noqa: FBT001, FBT002 - torch's signature
        *,
        clock: Clock | None = None,
    ) -> None:
        super().__init__()
        self._request_queue = request_queue
        self._max_interval = max_interval
        self._daemon = daemon
        self._time = SteadyTime(clock or SystemClock())
        self._watchdog_thread: threading.Thread | None = None
        self._stop_signaled = False

    @abstractmethod
    def register_timers(self, timer_requests: list[TimerRequest]) -> None:
        """Set and take away timers as requested; a negative expiration time takes one away."""

    @abstractmethod
    def clear_timers(self, worker_ids: set[Any]) -> None:
        """Take away all timers of some workers."""

    @abstractmethod
    def get_expired_timers(self, deadline: float) -> Mapping[Any, Sequence[TimerRequest]]:
        """Return the timers that expire at `deadline` [s since the epoch] or before it, by worker."""

    @abstractmethod
    def _reap_worker(self, worker_id: Any) -> bool:
        """Kill a worker; False to try again later. An exception counts as done."""

    def _reap_worker_no_throw(self, worker_id: Any) -> bool:
        try:
            return self._reap_worker(worker_id)
        except Exception:
            logger.exception("_reap_worker raised for worker=[%s]; taken as reaped", worker_id)
            return True

    def _wait_s(self) -> float:
        """Return how long to wait for requests now [s]; at most `max_interval`."""
        return self._max_interval

    def _prepare_reaping(self, expired: Mapping[Any, Sequence[TimerRequest]]) -> None:  # noqa: B027 - a hook
        """Prepare the end of all workers before the first one is reaped."""

    def _wake(self) -> None:  # noqa: B027 - a hook
        """Make a waiting `RequestQueue.get` return, if there is a way."""

    def _watchdog_loop(self) -> None:
        while not self._stop_signaled:
            try:
                self._run_watchdog()
            except Exception:
                logger.exception("Error running watchdog")

    def _run_watchdog(self) -> None:
        batch_size = max(1, self._request_queue.size())
        requests = self._request_queue.get(batch_size, self._wait_s())
        for request in requests:
            if request.expiration_time >= 0:
                request.expiration_time = self._time.of_wall(request.expiration_time)
        self.register_timers(requests)
        expired = self.get_expired_timers(self._time.now())
        if expired:
            self._prepare_reaping(expired)
        reaped = {worker_id for worker_id, timers in expired.items() if self._reap(worker_id, timers)}
        self.clear_timers(reaped)

    def _reap(self, worker_id: Any, timers: Sequence[TimerRequest]) -> bool:
        scopes = self._get_scopes(timers)
        logger.warning("Reaping worker_id=[%s]. Expired timers: %s", worker_id, scopes)
        if self._reap_worker_no_throw(worker_id):
            logger.info("Successfully reaped worker=[%s]", worker_id)
            return True
        logger.error("Error reaping worker=[%s]. Will retry on next watchdog.", worker_id)
        return False

    def _get_scopes(self, timer_requests: Sequence[TimerRequest]) -> list[str]:
        return [request.scope_id for request in timer_requests]

    def start(self) -> None:
        """Start watching, in a thread of its own."""
        logger.info(
            "Starting %s... max_interval=%s, daemon=%s",
            type(self).__name__,
            self._max_interval,
            self._daemon,
        )
        self._watchdog_thread = threading.Thread(target=self._watchdog_loop, daemon=self._daemon)
        self._watchdog_thread.start()

    def stop(self) -> None:
        """Stop watching; armed timers are forgotten with the server."""
        logger.info("Stopping %s", type(self).__name__)
        self._stop_signaled = True
        if self._watchdog_thread:
            self._wake()
            self._watchdog_thread.join(max(self._max_interval, _JOIN_S))
            self._watchdog_thread = None


_timer_client: TimerClient | None = None


def configure(timer_client: TimerClient) -> None:
    """Choose the client that `expires` uses in this process."""
    global _timer_client  # noqa: PLW0603 - the switch that users of torch know
    _timer_client = timer_client
    logger.info("Timer client configured to: %s", type(timer_client).__name__)


def _place_in_user_code() -> str:
    """Return ``file#line`` of the with-statement (or of the call, for a decorated function)."""
    frame = sys._getframe(1)  # noqa: SLF001 - inspect.stack() reads source files on every call
    while frame.f_back is not None and frame.f_code.co_filename in {__file__, contextlib.__file__}:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}#{frame.f_lineno}"


@contextlib.contextmanager
def expires(after: float, scope: str | None = None, client: TimerClient | None = None) -> Iterator[None]:
    """Allow a block `after` seconds; a worker that is still in it then is up for reaping.

    Use as a context manager or as a decorator. Blocks may be nested; each needs a scope of its own
    (the default names file and line), as entering a scope again sets its one timer anew and leaving
    it takes the timer away. When and how the worker is reaped is up to the server.

    Args:
        after: time from now [s].
        scope: names the timer; by default file and line of the with-statement.
        client: tells the server; by default the configured one.

    Raises:
        RuntimeError: there is no client.
    """
    used = client or _timer_client
    if used is None:
        raise RuntimeError("Configure timer client before using countdown timers.")
    name = scope if scope is not None else _place_in_user_code()
    used.acquire(name, SystemClock().wall() + after)
    try:
        yield
    finally:
        used.release(name)


class SteadyTime:
    """Wall time as it was when this object was made, carried on by the monotonic clock.

    Clients tell absolute wall times (the field ``expiration_time`` of torch's requests). A server
    translates them when they arrive and then compares them with its own steady time, so that
    setting the wall clock neither kills a healthy worker nor spares a stuck one. Only a step
    between a client's look at the clock and the arrival of its request, milliseconds later,
    goes unnoticed.

    Args:
        clock: the clocks of this machine.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset_s = clock.wall() - clock.monotonic()

    def now(self) -> float:
        """Return the steady time [s since the epoch]; the wall time until the clock is set."""
        return self._clock.monotonic() + self._offset_s

    def of_wall(self, wall_s: float) -> float:
        """Return the steady time at which the wall clock, as it goes now, will show `wall_s`."""
        step_s = self.now() - self._clock.wall()
        return wall_s + step_s if abs(step_s) > _NOISE_S else wall_s
