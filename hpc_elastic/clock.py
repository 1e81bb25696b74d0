"""The only file that reads clocks.

Liveness and timeouts use the monotonic clock of this node; wall time is for people to read and
is never compared with a time that another node wrote.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the loops need to know of time."""

    def monotonic(self) -> float:
        """Return this node's monotonic time [s]."""
        ...

    def wall(self) -> float:
        """Return the wall time [s since the epoch], for display only."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait [s]."""
        ...


class SystemClock:
    """The clocks of the operating system."""

    def monotonic(self) -> float:
        """Return this node's monotonic time [s]."""
        return time.monotonic()

    def wall(self) -> float:
        """Return the wall time [s since the epoch], for display only."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Wait [s]."""
        time.sleep(seconds)


def clock_text(wall_s: float) -> str:
    """Return a wall time as local ``HH:MM:SS`` for a log line."""
    return time.strftime("%H:%M:%S", time.localtime(wall_s))


def date_text(wall_s: float) -> str:
    """Return a wall time as local ``YYYY-MM-DD HH:MM:SS``."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall_s))
