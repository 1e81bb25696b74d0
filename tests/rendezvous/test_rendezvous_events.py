"""What a rendezvous tells those who want to know."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_elastic import events
from hpc_elastic.errors import RendezvousClosedError
from hpc_elastic.rendezvous import RendezvousHandler, RendezvousParameters, get_rendezvous_handler
from hpc_elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler
from tests.rendezvous.memory_backend import MemoryRendezvousBackend
from tests.rendezvous.nodes import join_all


class _Keep(events.EventHandler):
    """Keeps the events of the rendezvous."""

    def __init__(self) -> None:
        self.seen: list[events.RdzvEvent] = []

    def record(self, event: events.Event) -> None:
        """Ignore other events."""

    def record_rdzv_event(self, event: events.RdzvEvent) -> None:
        """Keep an event."""
        self.seen.append(event)


@pytest.fixture
def kept() -> Iterator[_Keep]:
    """Return a handler that gets all events during the test."""
    keep = _Keep()
    events.configure(keep)
    yield keep
    events.configure(events.NullEventHandler())


def _what(keep: _Keep) -> list[tuple[str, str]]:
    return [(event.name.rpartition(".")[2], event.node_state.value) for event in keep.seen]


def test_a_node_tells_its_steps(kept: _Keep) -> None:
    """Attempt, steps, success with the rank, and the end; each says who and in which run."""
    handler = DynamicRendezvousHandler.from_backend("r", None, MemoryRendezvousBackend(), 1, 1, "n1")
    handler.next_rendezvous()
    handler.set_closed()
    with pytest.raises(RendezvousClosedError):
        handler.next_rendezvous()
    expected = [
        *[("next_rendezvous", "RUNNING"), ("_add_to_participants", "RUNNING"), ("_keep_alive", "RUNNING")],
        *[("_mark_rendezvous_complete", "SUCCEEDED"), ("run", "RUNNING"), ("next_rendezvous", "RUNNING")],
        *[("_mark_rendezvous_closed", "SUCCEEDED"), ("run", "RUNNING"), ("_close", "SUCCEEDED")],
        *[("next_rendezvous", "RUNNING"), ("_remove_from_participants", "RUNNING"), ("run", "RUNNING")],
        ("next_rendezvous", "FAILED"),
    ]
    assert expected == _what(kept)
    assert {("r", "n1", os.getpid())} == {(one.run_id, one.hostname, one.pid) for one in kept.seen}
    joined, failed = kept.seen[5], kept.seen[-1]
    assert (0, "as rank 0 in a world of size 1.") == (joined.rank, joined.message[-31:])
    assert "RendezvousClosedError: The rendezvous 'r' is closed" in failed.message
    assert "RendezvousClosedError" in failed.error_trace


def test_the_shared_directory_tells_the_same(kept: _Keep, tmp_path: Path) -> None:
    """The handler that stands for torch's tells when it joins, closes and leaves, too."""
    params = RendezvousParameters("c10d", str(tmp_path / "run"), "r", 2, 2)
    handlers: list[RendezvousHandler] = [get_rendezvous_handler(params) for _ in range(2)]
    join_all(handlers)
    handlers[0].set_closed()
    with pytest.raises(RendezvousClosedError):
        handlers[0].next_rendezvous()
    assert all(handler.shutdown() for handler in handlers)
    found = [one for one in _what(kept) if one[0] != "_keep_alive"]
    assert 5 == found.count(("next_rendezvous", "RUNNING"))
    assert 1 == found.count(("next_rendezvous", "FAILED")) == found.count(("_close", "SUCCEEDED"))
    assert 2 == found.count(("shutdown", "SUCCEEDED"))
    assert {0, 1, None} == {one.rank for one in kept.seen}
    assert any("has joined round 1 of the rendezvous 'r' as rank 1" in one.message for one in kept.seen)


def test_who_asks_for_nothing_pays_nothing() -> None:
    """Without events of the rendezvous the module is not even loaded."""
    code = (
        "import sys; from tests.rendezvous.memory_backend import MemoryRendezvousBackend as B\n"
        "from hpc_elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler as H\n"
        "handler = H.from_backend('r', None, B(), 1, 1, 'n'); handler.next_rendezvous(); handler.shutdown()\n"
        "print('hpc_elastic.events' in sys.modules)"
    )
    words, here = [sys.executable, "-c", code], Path(__file__).parents[2]
    done = subprocess.run(words, check=True, capture_output=True, text=True, cwd=here)
    assert "False\n" == done.stdout


LIKE_TORCH = """
import json, logging, sys
from importlib import import_module
parent = sys.argv[1]
events = import_module(f"{parent}.events")
dynamic = import_module(f"{parent}.rendezvous.dynamic_rendezvous")
c10d = import_module(f"{parent}.rendezvous.c10d_rendezvous_backend")
HashStore = import_module("torch.distributed").HashStore

class Keep(logging.Handler):
    lines = []
    def emit(self, record):
        self.lines.append(json.loads(record.getMessage()))

events.handlers._log_handlers["dynamic_rendezvous"] = Keep()
store = HashStore()
backend = c10d.C10dRendezvousBackend(store, "r")
handler = dynamic.DynamicRendezvousHandler.from_backend("r", store, backend, 1, 1, "127.0.0.1")
handler.next_rendezvous()
handler._known.forget() if parent == "hpc_elastic" else None
handler.set_closed()
try:
    handler.next_rendezvous()
except Exception:
    pass
print(json.dumps(Keep.lines))
"""


def _lines(parent: str) -> list[dict[str, object]]:
    environ = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", LIKE_TORCH, parent], capture_output=True, text=True, check=True, env=environ
    )
    lines: list[dict[str, object]] = json.loads(done.stdout.splitlines()[-1])
    for line in lines:
        line["message"] = re.sub(r"_\d+_\d+'", "'", str(line["message"])).partition(":")[0]
        line["pid"] = bool(line["pid"])
        line["error_trace"] = bool(line["error_trace"])
    return lines


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_events_are_torchs() -> None:
    """The same calls record the same events, from the first attempt to a rendezvous that is closed."""
    assert _lines("torch.distributed.elastic") == _lines("hpc_elastic")


def test_nobody_is_disturbed_by_a_handler_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    """An error of who listens is logged; the nodes meet."""

    class _Fails(_Keep):
        def record_rdzv_event(self, event: events.RdzvEvent) -> None:
            """Fail."""
            raise ValueError(event.name)

    events.configure(_Fails())
    try:
        handler = DynamicRendezvousHandler.from_backend("r", None, MemoryRendezvousBackend(), 1, 1, "n1")
        with caplog.at_level(logging.ERROR):
            assert 0 == handler.next_rendezvous().rank
        handler.shutdown()
    finally:
        events.configure(events.NullEventHandler())
    assert "record_rdzv_event raised" in caplog.text
