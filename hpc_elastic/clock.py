"""The only file that reads clocks.

Liveness and timeouts use the monotonic clock of this node; wall time is for people to read and
is never compared with a time that another node wrote.
"""

from __future__ import annotations

import time
from typing import Protocol

NO_TIME = "?"  # in place of a time that cannot be
_YEAR_10000_S = 253402300800 - 86400  # [s since the epoch], with any time zone


class Clock(Protocol):
    """The clocks, and the sleep, of loops."""

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

    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)

    def sleep(self, seconds: float) -> None:
        """Wait [s]."""
        time.sleep(seconds)


def clock_text(wall_s: float) -> str:
    """Return a wall time as local ``HH:MM:SS`` for a log line; ``?`` for one that no calendar has."""
    return _local_text("%H:%M:%S", wall_s)


def date_text(wall_s: float) -> str:
    """Return a wall time as local ``YYYY-MM-DD HH:MM:SS``; ``?`` for one that no calendar has."""
    return _local_text("%Y-%m-%d %H:%M:%S", wall_s)


def short_text(wall_s: float, step_s: float) -> str:
    """Return a wall time as short as marks of an axis that are so far apart [s] allow; local time."""
    day, minute = 86400, 60
    form = "%m-%d" if step_s >= day or _local_text("%H%M%S", wall_s) == "000000" else "%H:%M"
    return _local_text(form if step_s >= minute else "%H:%M:%S", wall_s)


def ahead_s(wall_s: float) -> int:
    """Return by how much local time is ahead of UTC at a wall time [s]; 0 for one that no calendar has."""
    return time.localtime(wall_s).tm_gmtoff if 0 <= wall_s < _YEAR_10000_S else 0


def zone_text(wall_s: float) -> str:
    """Return the zone of local time at a wall time: ``UTC+01:00``."""
    minutes = ahead_s(wall_s) // 60
    hours, rest = divmod(abs(minutes), 60)
    return f"UTC{'-' if minutes < 0 else '+'}{hours:02}:{rest:02}" if minutes else "UTC"


def wall_of(text: str) -> float | None:
    """Return the time that a text in local time names, ``2026-11-23T14:00:00`` [s since the epoch].

    None if it names none.
    """
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None


def _local_text(form: str, wall_s: float) -> str:
    if not 0 <= wall_s < _YEAR_10000_S:
        return NO_TIME
    return time.strftime(form, time.localtime(wall_s))
