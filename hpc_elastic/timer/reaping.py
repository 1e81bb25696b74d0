"""The timers of a server, and the end of the workers whose timers expired."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from hpc_elastic.clock import Clock
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.timer.api import TimerRequest
from hpc_elastic.timer.stacks import ask_for_stacks

Request = TypeVar("Request", bound=TimerRequest)
RETRY_S = 1.0  # until a worker that could not be reaped is tried again

logger = logging.getLogger(__name__)


class ExpiredWorker(NamedTuple):
    """A worker that overstayed."""

    worker_pid: int
    signal: int
    """The signal to end it with; positive."""
    scopes: tuple[str, ...]
    """The timers that expired, oldest expiration first."""


Reap = Callable[[ExpiredWorker], bool]
"""Ends a worker on a server's behalf, e.g. with everything it started; False to be asked again."""


def start_time(pid: Any) -> int | None:
    """Return when a process started, in the kernel's ticks since boot; None when there is none.

    A pid together with its start time names one process for good.
    """
    if not isinstance(pid, int) or pid <= 0:
        return None
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b") ")[2].split()[19])
    except OSError:
        return None


class Workers:
    """The processes that set timers, each known by pid and start time.

    Args:
        reap: ends a worker instead of a plain signal to its pid.
        clock: the clocks of this machine.
    """

    def __init__(self, reap: Reap | None, clock: Clock) -> None:
        self._reap = reap
        self._clock = clock
        self._started: dict[Any, int | None] = {}

    def is_new(self, pid: Any) -> bool:
        """Note which process has this pid; True if it was another one or none before."""
        started = start_time(pid)
        known = pid in self._started and self._started[pid] == started
        self._started[pid] = started
        return not known

    def forget_all_but(self, pids: Iterable[Any]) -> None:
        """Forget the processes that have no timers any more."""
        kept = set(pids)
        for pid in [pid for pid in self._started if pid not in kept]:
            del self._started[pid]

    def is_there(self, pid: int) -> bool:
        """Return whether the process that set a timer still exists; its pid alone may be another's."""
        started = start_time(pid)
        return started is not None and started == self._started.get(pid, started)

    def print_stacks(self, pids: Iterable[Any]) -> None:
        """Have workers print their Python stacks into their stderr before they are ended."""
        asked = ask_for_stacks([pid for pid in pids if self.is_there(pid)], self._clock)
        if asked:
            logger.warning("Python stacks of pids %s are in their stderr", asked)

    def end(self, worker: ExpiredWorker) -> bool:
        """End a worker; a worker that is gone needs no end.

        Returns:
            False if it could not be done and should be tried again.
        """
        if not self.is_there(worker.worker_pid):
            logger.info("Process with pid=%s does not exist. Skipping", worker.worker_pid)
            return True
        if self._reap is not None:
            try:
                return self._reap(worker)
            except Exception:
                logger.exception("reap(%s) raised; the pid alone is signalled", worker)
        return _signal(worker.worker_pid, worker.signal)


def _signal(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return True
    except (OSError, ValueError, OverflowError):
        logger.exception("Error terminating pid=%s", pid)
        return False
    return True


class TimerTable(Generic[Request]):
    """At most one timer per worker and scope; a second request for a scope sets it anew."""

    def __init__(self) -> None:
        self.timers: dict[tuple[Any, str], Request] = {}

    def apply(self, request: Request) -> None:
        """Set a timer, or take it away when the expiration time is negative."""
        key = (request.worker_id, request.scope_id)
        if request.expiration_time < 0:
            self.timers.pop(key, None)
        else:
            self.timers[key] = request

    def workers(self) -> set[Any]:
        """Return the ids of all workers that have a timer."""
        return {worker_id for worker_id, _ in self.timers}

    def clear(self, worker_ids: set[Any]) -> None:
        """Take away all timers of some workers."""
        for key in [key for key in self.timers if key[0] in worker_ids]:
            del self.timers[key]

    def expired(self, deadline: float) -> dict[Any, list[Request]]:
        """Return the timers that expire at `deadline` or before it, by worker."""
        found: dict[Any, list[Request]] = {}
        for request in self.timers.values():
            if request.expiration_time <= deadline:
                found.setdefault(request.worker_id, []).append(request)
        return found

    def expired_scopes(self, worker_id: Any, deadline: float) -> tuple[str, ...]:
        """Return the names of a worker's expired timers, the longest expired first."""
        timers = self.expired(deadline).get(worker_id, [])
        return tuple(timer.scope_id for timer in sorted(timers, key=lambda timer: timer.expiration_time))

    def seconds_to_next(self, now: float) -> float:
        """Return how long nothing is to be done [s]; infinite without timers.

        A timer that has expired and is still here belongs to a worker that could not be reaped.
        """
        times = (request.expiration_time for request in self.timers.values())
        return min((time - now if time > now else RETRY_S for time in times), default=math.inf)
