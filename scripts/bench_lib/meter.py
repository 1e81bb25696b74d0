"""Counting what a store does: its own operations, and the file-system calls below them."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any

_O_PRIVATE = os.O_CREAT | os.O_EXCL  # how a writer's private file is made: it is also written and synced
_CALLS = {
    "open": 1,
    "os.link": 1,
    "os.listdir": 1,
    "os.mkdir": 1,
    "os.remove": 1,
    "os.rename": 1,
    "os.rmdir": 1,
    "os.scandir": 1,
}


class Meter:
    """Counts the file-system calls of this process below a directory, and can make each one slow.

    Python tells an audit hook of every call that names a file, just before it is made, so the code
    that is measured needs no change. What needs no name follows from how files are used: a private
    file that is created is also written and synced (three calls), a directory that is opened is
    synced (open and sync count as one). Reading and closing are not counted.

    A hook cannot be taken away again: one meter per process.

    Args:
        root: calls below this directory count.
        delay_s: how long each call takes longer than it does [s].
        key: tells who makes the call; the thread if not given.
    """

    def __init__(
        self, root: str, delay_s: float = 0.0, key: Callable[[], Hashable] = threading.get_ident
    ) -> None:
        self._root = root
        self._delay_s = delay_s
        self._key = key
        self._counts: dict[Hashable, Counter[str]] = {}
        self.is_on = False

    def install(self) -> None:
        """Count from now on."""
        self.is_on = True
        sys.addaudithook(self._hear)

    def calls(self, key: Hashable) -> Counter[str]:
        """Return how often each call was made by one of those who make calls."""
        return self._counts.setdefault(key, Counter())

    def clear(self) -> None:
        """Forget what was counted."""
        self._counts.clear()

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if event not in _CALLS or not self.is_on or not _is_below(args[0], self._root):
            return
        counts = self.calls(self._key())
        calls = _CALLS[event]
        counts[event.removeprefix("os.")] += 1
        if event == "open" and isinstance(args[2], int) and args[2] & _O_PRIVATE == _O_PRIVATE:
            counts["write"] += 1
            counts["fsync"] += 1
            calls += 2
        if self._delay_s:
            time.sleep(self._delay_s * calls)


def _is_below(path: object, root: str) -> bool:
    return isinstance(path, str) and path.startswith(root)


class CountingStore:
    """A store whose operations are counted.

    Args:
        store: does the work.
    """

    def __init__(self, store: Any) -> None:
        self._store = store
        self.operations: Counter[str] = Counter()
        self.names_listed = 0

    def __getattr__(self, operation: str) -> Any:
        work = getattr(self._store, operation)

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.operations[operation] += 1
            result = work(*args, **kwargs)
            if operation in ("list", "wait"):
                self.names_listed += len(result)
            return result

        return counted

    def clear(self) -> None:
        """Forget what was counted."""
        self.operations.clear()
        self.names_listed = 0
