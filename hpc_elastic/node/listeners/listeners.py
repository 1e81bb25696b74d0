"""The listeners to the agent's metrics and events, which a user of `hpc-elastic run` names in variables.

``HPC_ELASTIC_METRICS`` and ``HPC_ELASTIC_EVENTS`` each name one place::

    console                      lines on stdout (metrics), stderr (events)
    jsonl:DIRECTORY              JSON lines, one file per agent
    csv:DIRECTORY                metrics only
    prometheus:FILE.prom         metrics only: a file for node_exporter's textfile collector
    prometheus-http:PORT         metrics only: served at this machine's own address
    PACKAGE.MODULE:NAME          Python of the user's: called without arguments, returns a handler,
                                 or None if it has configured its own

``{run_id}``, ``{run_dir}``, ``{node}`` and ``{pid}`` are filled in.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from typing import Any, Protocol, TypeVar

from hpc_elastic import events, metrics
from hpc_elastic.errors import InputError
from hpc_elastic.events.handlers import configured_handler
from hpc_elastic.ids import Env
from hpc_elastic.isolated.search_path import users_modules
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.node.listeners.telemetry import GROUP, NodeTelemetry
from hpc_elastic.node.listeners.telemetry_hooks import Surroundings, Telemetry, TelemetryMaker, tell_nobody
from hpc_elastic.node.spec import WorkerGroup

CONSOLE = "console"
_PASSING = (errno.EIO, errno.ESTALE, errno.ENOSPC, errno.EDQUOT, errno.EAGAIN, errno.ETIMEDOUT)


class LinesHandler(Protocol):
    """A handler with a file."""

    def open(self) -> None:
        """Make the file."""


H = TypeVar("H", bound=LinesHandler)


class ToldListener(NamedTuple):
    """The facts about the agent beside the metrics and events themselves.

    Args:
        places: the values of the names in braces.
        labels: on every metric for Prometheus.
    """

    places: Mapping[str, str]
    labels: Mapping[str, str]


def telemetry_maker(around: Surroundings, *, initialize: bool = False) -> TelemetryMaker:
    """Configure the listeners of the environment; return the maker of the agent's telemetry.

    Args:
        around: the agent.
        initialize: whether this process is the agent's, so that no program has called a site's
            `initialize_metrics` before.

    Raises:
        InputError: a place or the destination of events is not known or cannot be used.
    """
    told, handlers = _told(around), list[Any]()
    if initialize:
        metrics.initialize_metrics()
    try:
        handlers += _configured(Env.METRICS, around.environ, told, _METRICS, _take_metrics)
        take_events = partial(_take_events, say=around.say)
        handlers += _configured(Env.EVENTS, around.environ, told, _EVENTS, take_events)
        listens = is_anybody_listening(around.settings.event_log_handler)
    except InputError:
        for handler in handlers:
            getattr(handler, "close", _nothing)()
        raise
    if not listens:
        return tell_nobody

    def make(group: WorkerGroup, crashes: Callable[[], int]) -> Telemetry:
        return NodeTelemetry(group, crashes, around, handlers)

    return make


class UnknownHandlerError(InputError, KeyError):
    """No handler of events goes by this name; torch raises a KeyError."""


def is_anybody_listening(destination: str) -> bool:
    """Tell whether any handler takes the agent's metrics or events.

    Raises:
        UnknownHandlerError: no handler is registered for the destination.
    """
    try:
        logs = events.get_logging_handler(destination)
    except KeyError as error:
        raise UnknownHandlerError(
            str(error.args[0]),
            where="event_log_handler",
            fix=f"register it in the module that {Env.EVENTS} names, or use 'console'",
        ) from None
    listens = not isinstance(metrics.getStream(GROUP).handler, metrics.NullMetricHandler)
    return listens or not isinstance(logs, logging.NullHandler) or not configured_handler().ignores_all


def _told(facts: Surroundings) -> ToldListener:
    labels = {"run_id": facts.run_id, "node": facts.node}
    return ToldListener({**labels, "run_dir": facts.run_dir, "pid": str(os.getpid())}, labels)


def _configured(
    name: str,
    environ: Mapping[str, str],
    told: ToldListener,
    kinds: Mapping[str, Callable[[str, ToldListener], Any]],
    take: Callable[[Any], Taken],
) -> list[Any]:
    """Make the handler that a variable asks for, and have it take everything; return the things to close."""
    text = environ.get(name, "").strip()
    if not text:
        return []
    kind, _, rest = text.partition(":")
    for word, value in told.places.items():
        rest = rest.replace(f"{{{word}}}", value)
    with _refusing(name, text, kinds):
        handler = kinds[kind](rest, told) if kind in kinds else _own(kind, rest)
        return [] if handler is None else [take(handler), handler]


def check_asked(environ: Mapping[str, str]) -> None:
    """Refuse listeners of the environment that cannot be made, before anything is made for the run.

    Raises:
        InputError: a handler is not known, or its place cannot be written to.
    """
    for name, kinds in ((Env.METRICS, _METRICS), (Env.EVENTS, _EVENTS)):
        text = environ.get(name, "").strip()
        kind, _, rest = text.partition(":")
        with _refusing(name, text, kinds):
            if kind in _DIRECTORIES and "{" not in _directory(rest):
                _check_parent(rest)
            elif kind == "prometheus-http":
                _port(rest)
            elif text and kind not in kinds:
                _own_maker(kind, rest)


def _check_parent(directory: str) -> None:
    """Raise OSError unless a directory is there or can be made."""
    place = directory if os.path.isdir(directory) else os.path.dirname(os.path.abspath(directory))
    os.stat(place)
    if not os.access(place, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), place)


@contextmanager
def _refusing(name: str, text: str, kinds: Mapping[str, object]) -> Iterator[None]:
    """Name the variable whose listener cannot be made, and the possible ones."""
    try:
        yield
    except OSError as error:
        words = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
        raise InputError(
            f"{name}={text} cannot be used on {os.uname().nodename}: {words}",
            where="environment",
            fix="name a place that this user can write to on every node; the directory is made if it is "
            "missing, its parent is not",
        ) from error
    except (InputError, ImportError, AttributeError, TypeError, ValueError) as error:
        raise InputError(
            f"{name}={text} cannot be used: {error}",
            where="environment",
            fix=f"one of {', '.join(kinds)}, with the part after the colon, or MODULE:NAME of your own",
        ) from error


def _own(module: str, name: str) -> Any:
    """Return the result of the user's own Python."""
    return _own_maker(module, name)()


def _own_maker(module: str, name: str) -> Callable[[], Any]:
    if not name or not all(part.isidentifier() for part in module.split(".")):
        raise ValueError(f"{module!r} is no kind of handler, and not MODULE:NAME either")
    with users_modules(os.environ):  # noqa: TID251 - this process's own Python
        maker: Callable[[], Any] = getattr(import_module(module), name)
    return maker


def _directory(rest: str) -> str:
    if not rest:
        raise ValueError("the directory is missing")
    return rest


def _opened(handler: H) -> H:
    """Return a handler whose place can be used; a disk that is full now may have room later.

    Raises:
        OSError: the place is none.
    """
    try:
        handler.open()
    except OSError as error:
        if error.errno not in _PASSING:
            raise
    return handler


def _port(rest: str) -> int:
    try:
        return int(rest)
    except ValueError:
        raise ValueError(f"{rest!r} is no port") from None


_METRICS: Mapping[str, Callable[[str, ToldListener], Any]] = {
    CONSOLE: lambda _rest, _told: metrics.ConsoleMetricHandler(),
    "jsonl": lambda rest, _told: _opened(metrics.JsonLinesMetricHandler(_directory(rest))),
    "csv": lambda rest, _told: _opened(metrics.CsvMetricHandler(_directory(rest))),
    "prometheus": lambda rest, told: metrics.PrometheusTextfileHandler(rest, labels=told.labels),
    "prometheus-http": lambda rest, told: metrics.PrometheusHttpHandler(_port(rest), labels=told.labels),
}
_EVENTS: Mapping[str, Callable[[str, ToldListener], Any]] = {
    CONSOLE: lambda _rest, _told: logging.StreamHandler(),
    "jsonl": lambda rest, _told: _opened(events.JsonLinesEventHandler(_directory(rest))),
}


_DIRECTORIES = ("jsonl", "csv")  # kinds that write into a directory


class Taken:
    """The configuration of an agent for the whole process; until it is closed."""

    def __init__(self, give_back: Callable[[], None]) -> None:
        self._give_back = give_back

    def close(self) -> None:
        """Give it back."""
        self._give_back()


def _take_metrics(handler: Any) -> Taken:
    def now() -> metrics.MetricHandler:
        return metrics.getStream("").handler  # of all groups that have none of their own

    before = now()
    metrics.configure(handler)
    return Taken(lambda: metrics.configure(before) if now() is handler else None)


class LoggedEvents(events.EventHandler):
    """Hands events to a handler of `logging`, as a line of JSON each."""

    def __init__(self, handler: logging.Handler) -> None:
        self._handler = handler
        handler.handleError = _raise_again  # type: ignore[method-assign, assignment]  # else a traceback per event

    def close(self) -> None:
        """Let the handler treat errors as it did before."""
        vars(self._handler).pop("handleError", None)

    def record(self, event: events.Event) -> None:
        """Hand over an event; raises the handler's errors."""
        line = event.serialize()
        self._handler.handle(logging.LogRecord("torchelastic-events", logging.INFO, "", 0, line, (), None))


def _raise_again(_record: logging.LogRecord) -> None:
    error = sys.exc_info()[1]
    if error is not None:
        raise error


class SaidOnce(events.EventHandler):
    """Stands before a handler of events: the first thing that it raises is said, and the run goes on."""

    def __init__(self, handler: events.EventHandler, say: Callable[[str], None]) -> None:
        self._handler = handler
        self._say = say
        self._has_said = False

    def record(self, event: events.Event) -> None:
        """Hand over an event."""
        self._hand_over(self._handler.record, event)

    def record_rdzv_event(self, event: events.RdzvEvent) -> None:
        """Hand over an event of the rendezvous."""
        self._hand_over(self._handler.record_rdzv_event, event)

    def _hand_over(self, take: Callable[[Any], None], event: object) -> None:
        try:
            take(event)
        except Exception as error:  # noqa: BLE001 - a handler is anybody's
            if not self._has_said:
                self._has_said = True
                with suppress(Exception):
                    self._say(f"the agent's events are not all told: {type(error).__name__}: {error}")


def _take_events(handler: Any, say: Callable[[str], None]) -> Taken:
    before = configured_handler().handler
    logged = LoggedEvents(handler) if isinstance(handler, logging.Handler) else None
    taken = logged or handler
    if isinstance(taken, events.EventHandler) and not isinstance(taken, events.NullEventHandler):
        taken = SaidOnce(taken, say)
    events.configure(taken)

    def give_back() -> None:
        if configured_handler().handler is taken:
            events.configure(before)
        if logged is not None:
            logged.close()

    return Taken(give_back)


def _nothing() -> None:
    """Do nothing."""
