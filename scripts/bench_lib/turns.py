"""Letting many nodes share one interpreter without making each other slow.

Each thread that waits for Python's own lock wakes up every few milliseconds to ask for it, and whoever
comes back from a file-system call queues behind all that reckon. With hundreds of nodes in a process
that is all that would be measured. So the nodes take turns: one reckons, any number sleep or wait for
the file system, and who comes back from there is next.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

_CALLS = ("fsync", "link", "listdir", "mkdir", "open", "read", "rename", "unlink")


class Turns:
    """The right to reckon; one thread of this process has it."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._next: deque[threading.Lock] = deque()
        self._is_taken = False
        self._local = threading.local()

    def take(self, *, first: bool = False) -> None:
        """Wait for the turn.

        Args:
            first: before all who wait already.
        """
        gate = threading.Lock()
        with self._mutex:
            if self._is_taken:
                gate.acquire()
                (self._next.appendleft if first else self._next.append)(gate)
            self._is_taken = True
        with gate:
            self._local.has_turn = True

    def give(self) -> None:
        """Hand the turn on."""
        self._local.has_turn = False
        with self._mutex:
            if self._next:
                self._next.popleft().release()
            else:
                self._is_taken = False

    def share_waiting(self) -> None:
        """Let others have the turn while its holder sleeps or waits for the file system.

        For good, in the whole process: functions of `os` and `time` are replaced.
        """
        for name in _CALLS:
            setattr(os, name, self._sharing(getattr(os, name), first=True))
        time.sleep = self._sharing(time.sleep, first=False)

    def _sharing(self, function: Callable[..., Any], *, first: bool) -> Callable[..., Any]:
        def shared(*args: Any, **kwargs: Any) -> Any:
            if not getattr(self._local, "has_turn", False):
                return function(*args, **kwargs)
            self.give()
            try:
                return function(*args, **kwargs)
            finally:
                self.take(first=first)

        return shared
