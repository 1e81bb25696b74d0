"""The timers that a server watches."""

from __future__ import annotations

import math
from typing import Any, Generic, TypeVar

from hpc_elastic.timer.api import TimerRequest

Request = TypeVar("Request", bound=TimerRequest)
RETRY_S = 1.0  # until a worker that could not be reaped is tried again


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
