"""The store in memory, for simulations and tests: the same contract as the shared directory."""

from __future__ import annotations

import threading
from collections.abc import Sequence


class MemoryStore:
    """A `Store` that several simulated nodes, or threads, share within one process."""

    def __init__(self) -> None:
        self._logs: dict[str, list[bytes]] = {}
        self._files: dict[tuple[str, str], bytes] = {}
        self._changed = threading.Condition()

    def append(self, log: str, number: int, value: bytes) -> bool:
        """Create record `number` exclusively; see `Store.append`."""
        with self._changed:
            records = self._logs.setdefault(log, [])
            if number != len(records) + 1:
                return False
            records.append(value)
            return True

    def read_after(self, log: str, number: int) -> list[tuple[int, bytes]]:
        """Return the records that follow `number`."""
        with self._changed:
            return list(enumerate(self._logs.get(log, ())[number:], number + 1))

    def put(self, directory: str, name: str, value: bytes) -> None:
        """Write a one-writer file."""
        with self._changed:
            self._files[directory, name] = value
            self._changed.notify_all()

    def get(self, directory: str, name: str) -> bytes | None:
        """Return a file's value, or None."""
        with self._changed:
            return self._files.get((directory, name))

    def create(self, directory: str, name: str, value: bytes) -> bool:
        """Create a file exclusively; see `Store.create`."""
        with self._changed:
            if (directory, name) in self._files:
                return False
            self._files[directory, name] = value
            self._changed.notify_all()
            return True

    def wait(self, directory: str, known: Sequence[str], timeout: float) -> list[str]:
        """Wait for other names; see `Store.wait`."""
        known = list(known)
        longest = min(timeout, threading.TIMEOUT_MAX)
        with self._changed:
            self._changed.wait_for(lambda: self.list(directory) != known, longest)
            return self.list(directory)

    def list(self, directory: str) -> list[str]:
        """Return the names in a directory, sorted."""
        with self._changed:
            return sorted(name for place, name in self._files if place == directory)

    def mark(self, directory: str, name: str, *, instead_of: str | None = None) -> None:
        """Tell a fact by a name."""
        with self._changed:
            if instead_of is not None:
                self.unmark(directory, instead_of)
            self._files[directory, name] = b""
            self._changed.notify_all()

    def unmark(self, directory: str, name: str) -> None:
        """Take a name away."""
        with self._changed:
            self._files.pop((directory, name), None)
            self._changed.notify_all()
