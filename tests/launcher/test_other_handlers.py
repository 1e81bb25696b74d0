"""Launches over handlers that know nothing of runs: given ranks, or a user's own."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
from pathlib import Path

import pytest

from hpc_elastic import events
from hpc_elastic.errors import RendezvousClosedError
from hpc_elastic.launcher import elastic_launch
from hpc_elastic.meet.interface import RendezvousInfo
from hpc_elastic.multiprocessing import SignalException
from hpc_elastic.multiprocessing.errors import ChildFailedError
from hpc_elastic.processes.linux import adopts_orphans
from hpc_elastic.rendezvous import registry
from hpc_elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
from tests.launcher.jobs import config, fail_on, rank_plus, started, variables, wait_forever
from tests.launcher.test_process_state import state, without_listing
from tests.node.agents import wait_for


class Handler(StaticTCPRendezvous):
    """A rendezvous of one node that counts who leaves it.

    Args:
        error: what it raises instead of forming a round.
        grudge: what it raises when it is left.
    """

    def __init__(self, error: Exception | None = None, grudge: Exception | None = None) -> None:
        super().__init__("127.0.0.1", 1234, 0, 1, "toy")
        self.left = 0
        self._error = error
        self._grudge = grudge

    def next_rendezvous(self) -> RendezvousInfo:
        """Return the only place, or raise."""
        if self._error is not None:
            raise self._error
        return super().next_rendezvous()

    def shutdown(self) -> bool:
        """Count, and perhaps raise."""
        self.left += 1
        if self._grudge is not None:
            raise self._grudge
        return True


def used(monkeypatch: pytest.MonkeyPatch, handler: Handler) -> Handler:
    """Have launches use a handler."""
    monkeypatch.setattr(registry, "get_rendezvous_handler", lambda _params: handler)
    return handler


def test_values_come_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The rendezvous is left, once."""
    handler = used(monkeypatch, Handler())
    assert {0: 5, 1: 6} == elastic_launch(config(tmp_path), rank_plus)(5)
    assert 1 == handler.left


def test_a_failure_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also if the rendezvous cannot be left: that hides nothing."""
    handler = used(monkeypatch, Handler(grudge=RuntimeError("the store is gone")))
    with pytest.raises(ChildFailedError, match=r"(?s)fail_on FAILED.*ValueError: no luck") as caught:
        elastic_launch(config(tmp_path), fail_on)(1, "no luck")
    assert ([1], 1) == (list(caught.value.failures), handler.left)


def test_values_outlive_a_rendezvous_that_cannot_be_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged."""
    used(monkeypatch, Handler(grudge=RuntimeError("the store is gone")))
    assert {0: 5} == elastic_launch(config(tmp_path, 1), rank_plus)(5)
    assert "the rendezvous could not be shut down" in caplog.text


def test_an_error_of_the_rendezvous_is_handed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is left all the same."""
    handler = used(monkeypatch, Handler(RendezvousClosedError("closed by a")))
    with pytest.raises(RendezvousClosedError, match="closed by a"):
        elastic_launch(config(tmp_path), rank_plus)(5)
    assert 1 == handler.left


def test_a_signal_leaves_the_rendezvous_open(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The other nodes go on."""
    handler = used(monkeypatch, Handler())

    def send() -> None:
        wait_for(lambda: started(tmp_path, 2), "two workers")
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=send)
    thread.start()
    with pytest.raises(SignalException) as caught:
        elastic_launch(config(tmp_path), wait_forever)(str(tmp_path))
    thread.join()
    assert (signal.SIGTERM, 0) == (caught.value.sigval, handler.left)


class Kept(logging.Handler):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self.lines.append(record.getMessage())


@pytest.mark.parametrize("is_own", [True, False])
def test_the_end_of_the_agent_is_an_event(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_own: bool
) -> None:
    """It goes where the configuration says; so it does over a shared directory."""
    kept = Kept()
    events.register_logging_handler("kept", kept)
    if is_own:
        used(monkeypatch, Handler())
    elastic_launch(config(tmp_path / "run", 1, event_log_handler="kept"), rank_plus)(5)
    found = [events.Event.deserialize(line) for line in kept.lines]
    ends = [event.name for event in found if event.source is events.EventSource.AGENT]
    assert "torchelastic.worker.status.SUCCEEDED" == ends[-1]


def test_given_ranks_need_no_rendezvous(tmp_path: Path) -> None:
    """The endpoint is where the workers meet."""
    given = config("127.0.0.1:29123", rdzv_backend="static", rdzv_configs={"rank": 0})
    values = elastic_launch(given, variables)("MASTER_ADDR", "MASTER_PORT", "RANK")
    assert {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29123", "RANK": "1"} == values[1]


def test_nothing_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In the process that launches."""
    used(monkeypatch, Handler())
    elastic_launch(config(tmp_path), rank_plus)(5)
    gc.collect()
    before = without_listing(state())
    elastic_launch(config(tmp_path), rank_plus)(5)
    with pytest.raises(ChildFailedError):
        elastic_launch(config(tmp_path), fail_on)(1, "no luck")
    gc.collect()
    assert before == without_listing(state())
    assert not adopts_orphans()
