"""A thread that follows logs, more often while there is much to copy."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

from hpc_elastic.processes.sinks import wait_writable
from hpc_elastic.processes.tail import Tail, blocked_fds, pump_all

_LEAST_S: Final = 0.01
_MOST_S: Final = 0.1


class PumpThread:
    """Follows logs until it is stopped.

    Args:
        tails: the logs.
        most_s: the longest pause between two calls [s].
    """

    def __init__(self, tails: Sequence[Tail], most_s: float = _MOST_S) -> None:
        self._tails = tails
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
            copied = self._copy()
            pause_s = _LEAST_S if copied else min(pause_s * 1.3, self._most_s)

    def _copy(self) -> bool:
        """Copy until nothing new is there; return whether there was so much that it took several turns."""
        turns = 0
        while not self._stopped.is_set() and (pump_all(self._tails) or self._wait_writable()):
            turns += 1
        return turns > 0

    def _wait_writable(self) -> bool:
        return wait_writable(blocked_fds(self._tails), self._most_s)
