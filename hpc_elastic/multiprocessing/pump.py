"""A thread that does something again and again, more often while there is much to do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

_LEAST_S: Final = 0.01
_MOST_S: Final = 0.1


class PumpThread:
    """Calls `pump` until it is stopped.

    Args:
        pump: returns whether it could go on at once.
        most_s: the longest pause between two calls [s].
    """

    def __init__(self, pump: Callable[[], bool], most_s: float = _MOST_S) -> None:
        self._pump = pump
        self._most_s = most_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hpc-elastic logs", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Return when the last call has ended; a second call is harmless."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        pause_s = _LEAST_S
        while not self._stopped.wait(min(pause_s, self._most_s)):
            pause_s = _LEAST_S if self._pump() else pause_s * 1.3
            pause_s = min(pause_s, self._most_s)
