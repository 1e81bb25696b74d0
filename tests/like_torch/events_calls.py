"""Calls to a package `events`; each function returns what came of them."""

from __future__ import annotations

import io
import json
import logging
import os
import re
from typing import Any

from tests.like_torch.outcomes import error_type, signatures


def call_signatures(events: Any) -> Any:
    """Names and defaults of all parameters."""
    return signatures(
        events,
        [
            *("Event", "RdzvEvent", "record", "record_rdzv_event", "construct_and_record_rdzv_event"),
            *("get_logging_handler", "handlers.get_logging_handler", "Event.deserialize"),
            *("RdzvEvent.deserialize",),
        ],
    )


def call_enums(events: Any) -> Any:
    """The members, as strings."""
    both = (events.EventSource, events.NodeState)
    return [[[one.name, one.value, str(one), one == one.name] for one in kind] for kind in both]


def call_json(events: Any) -> Any:
    """The JSON of events, there and back."""
    event = events.Event("n", events.EventSource.AGENT, 5, {"a": 1, "b": None, "c": 1.5, "d": "ä", "e": True})
    rdzv = events.RdzvEvent("n", "id", "m", "host", 1, events.NodeState.FAILED, rank=3)
    return [
        [
            one.serialize(),
            str(one),
            repr(one),
            kind.deserialize(str(one)) == one,
            kind.deserialize(one) is one,
        ]
        for kind, one in ((events.Event, event), (events.RdzvEvent, rdzv))
    ]


def call_bad_json(events: Any) -> Any:
    """The errors of what is no event."""
    bad = [
        '{"name": "n", "source": "NOBODY"}',
        '{"name": "n"}',
        '{"name": "n", "source": "AGENT", "x": 1}',
        "{",
    ]
    return [error_type(lambda text=text: events.Event.deserialize(text)) for text in bad]


def call_recorded(events: Any) -> Any:
    """The line on the console, and the logger it comes from."""
    printed = io.StringIO()
    events.get_logging_handler("console").setStream(printed)
    event = events.Event("n", events.EventSource.WORKER, timestamp=7)
    events.record(event, destination="console")
    events.record(event)
    logger = logging.getLogger("torchelastic-events-console")
    return [printed.getvalue(), logger.level, logger.propagate, len(logger.handlers)]


def call_handlers(events: Any) -> Any:
    """The handlers by destination."""
    kinds = [
        type(events.get_logging_handler(name)).__name__ for name in ("console", "null", "dynamic_rendezvous")
    ]
    event = events.Event("n", events.EventSource.WORKER)
    unknown = [
        error_type(lambda: events.get_logging_handler("x")),
        error_type(lambda: events.record(event, "x")),
    ]
    return [kinds, unknown, type(events.get_logging_handler()).__name__]


def _without_numbers(text: str) -> str:
    return re.sub(r"\d+(\.\d+)?", "N", text)


class _Keep(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        fields = json.loads(record.getMessage())
        fields["hostname"] = bool(fields["hostname"])
        fields["pid"] = fields["pid"] == os.getpid() or fields["pid"]
        fields["error_trace"] = _without_numbers(fields["error_trace"])
        self.lines.append(fields)


def call_of_the_rendezvous(events: Any) -> Any:
    """What is recorded of the rendezvous, once somebody wants it."""
    events.construct_and_record_rdzv_event("id", "nobody listens", events.NodeState.INIT)
    kept = _Keep()
    logging.getLogger("torchelastic-events-dynamic_rendezvous").handlers.clear()
    events.handlers._log_handlers["dynamic_rendezvous"] = kept
    events._events_loggers = {}
    events.construct_and_record_rdzv_event("id", "a", events.NodeState.RUNNING, rank=0, master_endpoint="m:1")
    try:
        raise ValueError("why")  # noqa: TRY301 - a traceback is wanted
    except ValueError:
        events.construct_and_record_rdzv_event("id", "b", events.NodeState.FAILED, "own", pid=5, local_id=2)
    events.record_rdzv_event(events.RdzvEvent("n", "id", "m", "h", 1, events.NodeState.SUCCEEDED))
    return kept.lines
