"""Events in files: one line of JSON per event, one file per process."""

from __future__ import annotations

import logging
import os

from hpc_elastic.events.api import Event, RdzvEvent
from hpc_elastic.events.handlers import EventHandler
from hpc_elastic.line_file import LineFile

_SUFFIX = ".jsonl"


class JsonLinesEventHandler(EventHandler):
    """Writes all events of this process, of any destination; for `events.configure`.

    Args:
        directory: gets ``events-<host>-<pid>.jsonl``; made if it is missing, its parent is not.
        stem: first part of the file name.
    """

    def __init__(self, directory: str | os.PathLike[str], stem: str = "events") -> None:
        self._file = LineFile(directory, stem, _SUFFIX)

    @property
    def path(self) -> str:
        """The file of this process."""
        return self._file.path

    def open(self) -> None:
        """Make the file now.

        Raises:
            OSError: it cannot be made.
        """
        self._file.open()

    def record(self, event: Event) -> None:
        """Write an event."""
        self._file.write_line(event.serialize())

    def record_rdzv_event(self, event: RdzvEvent) -> None:
        """Write an event of the rendezvous."""
        self._file.write_line(event.serialize())

    def close(self) -> None:
        """Close the file; a later event opens it again."""
        self._file.close()


class JsonLinesLogHandler(logging.Handler):
    """Writes the events of one destination; for `events.register_logging_handler`.

    Args:
        directory: gets ``events-<host>-<pid>.jsonl``; made if it is missing, its parent is not.
        stem: first part of the file name.
    """

    def __init__(self, directory: str | os.PathLike[str], stem: str = "events") -> None:
        super().__init__()
        self._has_told = False
        self._file = LineFile(directory, stem, _SUFFIX)

    @property
    def path(self) -> str:
        """The file of this process."""
        return self._file.path

    def emit(self, record: logging.LogRecord) -> None:
        """Write an event; the first error is handled as logging does (told on stderr)."""
        try:
            self._file.write_line(self.format(record).replace("\n", "\\n"))
        except Exception:  # noqa: BLE001 - as logging's own handlers do
            if not self._has_told:
                self._has_told = True
                self.handleError(record)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()
