"""Ends a call that takes too long, and keeps its input from getting lost if even that does not work."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

LIMIT_S = 5.0
_STUCK_S = 60.0  # then not even the alarm was heard: the interpreter itself hangs
_FRAMES = 900  # about what a command has, below the frames of this program


class HangError(BaseException):
    """A call took too long; nothing that is tested catches it."""


class Watchdog:
    """Watches calls in the main thread.

    Args:
        limit_s: how long a call may take on an idle machine [s]; a busy one has longer.
    """

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._stderr = os.dup(2)  # the real one, whatever a call does with it

    def call(self, function: Callable[[], None]) -> None:
        """Make a call.

        Raises:
            HangError: it took too long, twice.
        """
        try:
            self._once(function, self._limit_s)
        except HangError:  # or the machine has not let us run
            used, began = time.process_time(), time.monotonic()
            wait_s = self._limit_s * _load()
            self._once(function, wait_s)
            took_s = max(time.process_time() - used, (time.monotonic() - began) / _load())
            if took_s > self._limit_s:
                raise HangError(f"it took {took_s:.1f} s") from None

    def _once(self, function: Callable[[], None], limit_s: float) -> None:
        def ring(_number: int, _frame: FrameType | None) -> NoReturn:
            raise HangError(f"it had not ended after {limit_s:.0f} s")

        before = signal.signal(signal.SIGALRM, ring)
        faulthandler.dump_traceback_later(limit_s + _STUCK_S, exit=True, file=self._stderr)
        depth = sys.getrecursionlimit()
        sys.setrecursionlimit(_depth() + _FRAMES)
        timer = signal.setitimer(signal.ITIMER_REAL, limit_s)
        try:
            function()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            sys.setrecursionlimit(depth)
            faulthandler.cancel_dump_traceback_later()
            signal.signal(signal.SIGALRM, before)
            signal.setitimer(signal.ITIMER_REAL, *timer)  # of who calls us


def _load() -> float:
    """Return how much longer than on an idle machine something may take here."""
    return max(1.0, 1.5 * os.getloadavg()[0] / len(os.sched_getaffinity(0)))


def _depth() -> int:
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - the only way to count frames
    count = 0
    while frame is not None:
        frame, count = frame.f_back, count + 1
    return count
