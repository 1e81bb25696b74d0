"""What one client of the key-value store remembers of it."""

from __future__ import annotations

import os
import threading

from hpc_elastic.store.kv.records import Record

_LARGEST = 1 << 16  # values of more bytes are read again


class Known:
    """The newest version of each key that this client has seen, so that it never sees an older one."""

    def __init__(self) -> None:
        self._newest: dict[str, tuple[int, Record | None]] = {}
        self._lock = threading.Lock()

    def version(self, encoded: str) -> int:
        """Return a key's newest version that was seen, 0 if none was."""
        return self._newest.get(encoded, (0, None))[0]

    def record(self, encoded: str, version: int) -> Record | None:
        """Return the record of a version if it is remembered."""
        known, record = self._newest.get(encoded, (0, None))
        return record if known == version else None

    def remember(self, encoded: str, record: Record) -> None:
        """Keep a version in mind unless a newer one is known."""
        with self._lock:
            if record.version >= self.version(encoded):
                self._newest[encoded] = (record.version, record if len(record.value) <= _LARGEST else None)

    def saw(self, encoded: str, version: int) -> None:
        """Keep in mind that there is a version, of whatever content."""
        with self._lock:
            if version > self.version(encoded):
                self._newest[encoded] = (version, None)


class WriterName(threading.local):
    """A name for this thread of this process, which nobody else has; a forked child gets a new one."""

    _process = 0
    _name = ""

    def current(self) -> str:
        """Return the name."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._name = os.urandom(6).hex()
        return self._name
