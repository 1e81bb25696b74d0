"""What stands in the shared directory of a simulated run."""

from __future__ import annotations


class Content:
    """Logs and directories; as `hpc_elastic.store.memory.MemoryStore`, for one thread and quicker."""

    def __init__(self) -> None:
        self.logs: dict[str, list[bytes]] = {}
        self.directories: dict[str, dict[str, bytes]] = {}

    def append(self, log: str, number: int, value: bytes) -> bool:
        """Create record `number` exclusively; see `Store.append`."""
        records = self.logs.setdefault(log, [])
        if number != len(records) + 1:
            return False
        records.append(value)
        return True

    def read_after(self, log: str, number: int) -> list[tuple[int, bytes]]:
        """Return the records that follow `number`."""
        records = self.logs.get(log)
        if records is None or len(records) <= number:
            return []
        return list(enumerate(records[number:], number + 1))

    def put(self, directory: str, name: str, value: bytes) -> None:
        """Write a one-writer file."""
        self.directories.setdefault(directory, {})[name] = value

    def get(self, directory: str, name: str) -> bytes | None:
        """Return a file's value, or None."""
        return self.directories.get(directory, {}).get(name)

    def create(self, directory: str, name: str, value: bytes) -> bool:
        """Create a file exclusively; see `Store.create`."""
        files = self.directories.setdefault(directory, {})
        if name in files:
            return False
        files[name] = value
        return True

    def list(self, directory: str) -> list[str]:
        """Return the names in a directory, sorted."""
        return sorted(self.directories.get(directory, ()))

    def mark(self, directory: str, name: str, *, instead_of: str | None = None) -> None:
        """Tell a fact by a name."""
        files = self.directories.setdefault(directory, {})
        if instead_of is not None:
            files.pop(instead_of, None)
        files[name] = b""

    def unmark(self, directory: str, name: str) -> None:
        """Take a name away."""
        self.directories.get(directory, {}).pop(name, None)

    # snapshots

    def copy(self) -> Content:
        """Return one that changes by itself."""
        other = Content()
        other.logs = {log: list(records) for log, records in self.logs.items()}
        other.directories = {directory: dict(files) for directory, files in self.directories.items()}
        return other

    def key(self) -> tuple[object, ...]:
        """Return what tells two contents apart."""
        logs = tuple((log, tuple(records)) for log, records in sorted(self.logs.items()))
        places = sorted(self.directories.items())
        return logs, tuple((place, frozenset(files.items())) for place, files in places)
