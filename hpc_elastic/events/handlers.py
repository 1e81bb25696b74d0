"""Where events go: logging handlers by destination, and one handler of event objects.

`configure` and `EventHandler` are spelled as in older documents of torchelastic.
"""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod

from hpc_elastic.events.api import Event, RdzvEvent
from hpc_elastic.line_file import LineFile

_SUFFIX = ".jsonl"

logger = logging.getLogger(__name__)

_log_handlers: dict[str, logging.Handler] = {
    "console": logging.StreamHandler(),
    "dynamic_rendezvous": logging.NullHandler(),
    "null": logging.NullHandler(),
}


def get_logging_handler(destination: str = "null") -> logging.Handler:
    """Return the handler that is registered for a destination.

    Raises:
        KeyError: there is none.
    """
    try:
        return _log_handlers[destination]
    except KeyError:
        known = ", ".join(sorted(_log_handlers))
        raise KeyError(
            f"no event handler is registered for {destination!r} (there are {known}); "
            "call hpc_elastic.events.register_logging_handler first"
        ) from None


def register_logging_handler(destination: str, handler: logging.Handler) -> None:
    """Have the events of a destination handled by `handler` from now on, in place of another one."""
    previous = _log_handlers.get(destination)
    if previous is not None:
        logging.getLogger(f"torchelastic-events-{destination}").removeHandler(previous)
    _log_handlers[destination] = handler


class EventHandler(ABC):
    """Takes events to where they belong, as objects."""

    @abstractmethod
    def record(self, event: Event) -> None:
        """Take an event; the first exception is logged, and none does not reach the code that recorded it."""

    def record_rdzv_event(self, event: RdzvEvent) -> None:  # noqa: B027 - most handlers need not care
        """Take an event of the rendezvous; ignored by default."""


class NullEventHandler(EventHandler):
    """Drops all events."""

    def record(self, event: Event) -> None:
        """Drop an event."""


class ConfiguredHandler:
    """The handler that `configure` has chosen, behind a wall: its first error is logged."""

    def __init__(self) -> None:
        self.handler: EventHandler = NullEventHandler()
        self._failed: EventHandler | None = None  # whose error has been logged

    @property
    def ignores_all(self) -> bool:
        """True when no handler is configured."""
        return isinstance(self.handler, NullEventHandler)

    def record(self, event: Event) -> None:
        """Hand over an event."""
        try:
            self.handler.record(event)
        except Exception as error:  # noqa: BLE001 - a handler is anybody's
            self._complain("record", event, error)

    def record_rdzv_event(self, event: RdzvEvent) -> None:
        """Hand over an event of the rendezvous."""
        try:
            self.handler.record_rdzv_event(event)
        except Exception as error:  # noqa: BLE001 - a handler is anybody's
            self._complain("record_rdzv_event", event, error)

    def _complain(self, method: str, event: Event | RdzvEvent, error: Exception) -> None:
        """Log the first exception of each handler."""
        if self._failed is not self.handler:
            self._failed = self.handler
            name = type(self.handler).__name__
            logger.error("%s.%s raised for %s", name, method, event, exc_info=error)


_configured = ConfiguredHandler()


def configure(handler: EventHandler) -> None:
    """Choose the handler that takes all events of this process, for any destination.

    Raises:
        TypeError: it is no `EventHandler`.
    """
    if not isinstance(handler, EventHandler):
        raise TypeError(f"events.configure wants an EventHandler, not {handler!r}")
    _configured.handler = handler


def configured_handler() -> ConfiguredHandler:
    """Return the handler that `configure` has chosen."""
    return _configured


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
