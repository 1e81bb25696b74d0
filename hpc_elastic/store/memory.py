"""The store in memory, for simulations: the same contract as the shared directory."""

from __future__ import annotations


class MemoryStore:
    """A `Store` that several simulated nodes share within one process."""

    def __init__(self) -> None:
        self._logs: dict[str, list[bytes]] = {}
        self._files: dict[tuple[str, str], bytes] = {}

    def append(self, log: str, number: int, value: bytes) -> bool:
        """Create record `number` exclusively; see `Store.append`."""
        records = self._logs.setdefault(log, [])
        if number != len(records) + 1:
            return False
        records.append(value)
        return True

    def read_after(self, log: str, number: int) -> list[tuple[int, bytes]]:
        """Return the records that follow `number`."""
        return list(enumerate(self._logs.get(log, ())[number:], number + 1))

    def put(self, directory: str, name: str, value: bytes) -> None:
        """Write a one-writer file."""
        self._files[directory, name] = value

    def get(self, directory: str, name: str) -> bytes | None:
        """Return a file's value, or None."""
        return self._files.get((directory, name))

    def list(self, directory: str) -> list[str]:
        """Return the names in a directory, sorted."""
        return sorted(name for place, name in self._files if place == directory)

    def mark(self, directory: str, name: str, *, instead_of: str | None = None) -> None:
        """Tell a fact by a name."""
        if instead_of is not None:
            self.unmark(directory, instead_of)
        self._files[directory, name] = b""

    def unmark(self, directory: str, name: str) -> None:
        """Take a name away."""
        self._files.pop((directory, name), None)
