"""Recording events: as lines at a destination, and as objects for the configured handler."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic import events
from hpc_elastic.clock import SystemClock
from hpc_elastic.events import Event, EventHandler, EventSource, NodeState, RdzvEvent, handlers

EVENT = Event("saved", EventSource.WORKER, 5, {"step": 3})
RDZV = RdzvEvent("join", "run", "joined", "node1", 7, NodeState.RUNNING)


class Kept(EventHandler):
    """A handler that keeps what it gets."""

    def __init__(self) -> None:
        self.events: list[Event | RdzvEvent] = []

    def record(self, event: Event) -> None:
        """Keep it."""
        self.events.append(event)

    def record_rdzv_event(self, event: RdzvEvent) -> None:
        """Keep it."""
        self.events.append(event)


@pytest.fixture(autouse=True)
def _nothing_changed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(handlers, "_log_handlers", dict(handlers._log_handlers))
    yield
    events.configure(events.NullEventHandler())
    for name in ("mine", "dynamic_rendezvous"):
        logging.getLogger(f"torchelastic-events-{name}").handlers.clear()


@pytest.fixture
def kept() -> Kept:
    """Return the configured handler."""
    handler = Kept()
    events.configure(handler)
    return handler


def test_an_event_reaches_the_configured_handler(kept: Kept) -> None:
    """The handler gets events as objects, whatever their destination."""
    events.record(EVENT)
    events.record(EVENT, destination="dynamic_rendezvous")
    events.record_rdzv_event(RDZV)
    assert [EVENT, EVENT, RDZV] == kept.events


def test_an_event_reaches_its_destination(tmp_path: Path) -> None:
    """A registered handler gets the events of its destination as JSON, and no others."""
    handler = events.JsonLinesLogHandler(tmp_path)
    events.register_logging_handler("mine", handler)
    events.record(EVENT, "mine")
    events.record(Event("other", EventSource.AGENT))
    handler.close()
    (line,) = Path(handler.path).read_text().splitlines()
    assert EVENT == Event.deserialize(line)


def test_a_handler_is_registered_in_place_of_another(tmp_path: Path) -> None:
    """A destination has one handler: the last one."""
    files = [events.JsonLinesLogHandler(tmp_path, stem) for stem in ("first", "second")]
    for handler in files:
        events.register_logging_handler("mine", handler)
        events.record(EVENT, "mine")
        handler.close()
    assert [1, 1] == [len(Path(handler.path).read_text().splitlines()) for handler in files]


def test_an_unknown_destination_is_named() -> None:
    """The error says which destinations there are."""
    with pytest.raises(
        KeyError, match=r"'nowhere'.*console,.* dynamic_rendezvous,.* null.*register_logging_handler"
    ):
        events.record(EVENT, "nowhere")


def test_a_recorded_event_has_a_time(kept: Kept) -> None:
    """An event without a timestamp gets that of now [ms]; the caller's object stays as it is."""
    event = Event("saved", EventSource.WORKER)
    before = int(SystemClock().wall() * 1000)
    events.record(event)
    (recorded,) = kept.events
    assert isinstance(recorded, Event)
    assert before <= recorded.timestamp <= SystemClock().wall() * 1000
    assert 0 == event.timestamp


def test_a_broken_handler_ends_no_training(caplog: pytest.LogCaptureFixture) -> None:
    """What the configured handler raises is logged, once for each handler."""

    class Broken(EventHandler):
        def record(self, event: Event) -> None:
            raise RuntimeError(event.name)

    for times in (1, 2):
        events.configure(Broken())
        events.record(EVENT)
        events.record(EVENT)
        events.record_rdzv_event(RDZV)
        assert times == caplog.text.count("Broken.record raised")


def test_what_is_no_handler_is_refused() -> None:
    """A handler has to be an EventHandler."""
    with pytest.raises(TypeError, match="wants an EventHandler"):
        events.configure(print)  # type: ignore[arg-type]


def _join(state: NodeState) -> None:
    events.construct_and_record_rdzv_event("run", "joining", state)


def test_an_event_of_the_rendezvous_names_its_place(kept: Kept) -> None:
    """File and function of the caller, host and process are filled in."""
    _join(NodeState.RUNNING)
    (event,) = kept.events
    assert isinstance(event, RdzvEvent)
    assert (os.uname().nodename, os.getpid(), "") == (event.hostname, event.pid, event.error_trace)
    assert f"{os.path.basename(__file__)}:_join" == event.name


def test_a_failure_brings_its_traceback(kept: Kept) -> None:
    """An event of a failed node has the traceback of the exception being handled."""
    try:
        int("why")
    except ValueError:
        _join(NodeState.FAILED)
    (event,) = kept.events
    assert isinstance(event, RdzvEvent)
    assert event.error_trace.endswith("base 10: 'why'\n")


@pytest.mark.parametrize("data", [3, None, "[1]"])
def test_what_is_no_event_is_refused(data: Any) -> None:
    """Neither text nor event, or JSON of something else, is a TypeError."""
    for kind in (Event, RdzvEvent):
        with pytest.raises(TypeError, match="was expected, not"):
            kind.deserialize(data)


def test_the_json_form_is_stable() -> None:
    """Programs that read events can rely on names and order of the fields."""
    assert '{"name": "saved", "source": "WORKER", "timestamp": 5, "metadata": {"step": 3}}' == str(EVENT)
    assert [
        *("name", "run_id", "message", "hostname", "pid", "node_state"),
        *("master_endpoint", "rank", "local_id", "error_trace"),
    ] == list(json.loads(str(RDZV)))


def test_events_in_a_file(tmp_path: Path) -> None:
    """All events of a process go to a file of its own, one line each."""
    handler = events.JsonLinesEventHandler(tmp_path / "events")
    events.configure(handler)
    events.record(Event("two\nlines", EventSource.WORKER, 1))
    events.record_rdzv_event(RDZV)
    handler.close()
    first, second = Path(handler.path).read_text().splitlines()
    assert ("two\nlines", RDZV) == (Event.deserialize(first).name, RdzvEvent.deserialize(second))


def test_an_event_that_cannot_be_written_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A logging handler tells once on stderr, as logging does, and the program goes on."""
    events.register_logging_handler("mine", events.JsonLinesLogHandler(tmp_path / "missing" / "too"))
    for _ in range(3):
        events.record(EVENT, "mine")
    assert 1 == capsys.readouterr().err.count("\nFileNotFoundError")
