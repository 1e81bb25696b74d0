"""Who listens to an agent, as a user says it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hpc_elastic import metrics
from hpc_elastic.errors import InputError
from hpc_elastic.ids import Env
from hpc_elastic.node.listeners.listeners import telemetry_maker
from hpc_elastic.node.listeners.telemetry import NodeTelemetry
from hpc_elastic.node.listeners.telemetry_hooks import Telemetry, tell_nobody
from hpc_elastic.node.spec import WorkerState
from hpc_elastic.start.agent import telemetry_for
from tests.node.telling import STATUS, Agent, Metrics

pytestmark = pytest.mark.usefixtures("own_handlers")


def test_nobody_listens() -> None:
    """Then nothing is told, and nothing more is imported."""
    assert tell_nobody is telemetry_maker(Agent().around)
    assert Telemetry is type(Agent().telemetry)


@pytest.mark.parametrize("destination", ["console", "null"])
def test_a_destination_of_events(destination: str) -> None:
    """``console`` is somebody, ``null`` is nobody."""
    assert (destination == "console") == isinstance(Agent(destination=destination).telemetry, NodeTelemetry)


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        (Env.METRICS, "prometheus:/var/lib/x.txt", ".prom"),
        (Env.METRICS, "prometheus-http:many", "'many' is no port"),
        (Env.METRICS, "jsonl:", "the directory is missing"),
        (Env.METRICS, "nowhere", "no kind of handler"),
        (Env.METRICS, "no_such_module_here:handler", "no_such_module_here"),
        (Env.METRICS, "os:no_such_name", "no_such_name"),
        (Env.METRICS, "os:getcwd", "MetricHandler"),
        (Env.EVENTS, "csv:/tmp", "csv"),
        (Env.EVENTS, "os:getcwd", "EventHandler"),
    ],
)
def test_places_that_cannot_be_used(variable: str, value: str, words: str) -> None:
    """One error that names the variable, its value and what is wrong."""
    with pytest.raises(InputError, match=r"cannot be used") as raised:
        Agent({variable: value})
    assert f"{variable}={value}" in str(raised.value)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    "place", [(Env.METRICS, "jsonl"), (Env.METRICS, "csv"), (Env.EVENTS, "jsonl")], ids=":".join
)
def test_a_directory_that_cannot_be_used(place: tuple[str, str], tmp_path: Path) -> None:
    """It is known before anything starts; the error names variable, place and fix."""
    (tmp_path / "file").write_text("")
    variable, kind = place
    for directory, why in (("no/such", "No such file or directory"), ("file", "Not a directory")):
        value = f"{kind}:{tmp_path}/{directory}"
        with pytest.raises(InputError, match="cannot be used on") as raised:
            Agent({variable: value})
        text = str(raised.value)
        assert f"{variable}={value}" in text
        assert f": {tmp_path}/{directory}" in text
        assert why in text
        assert "fix: name a place that this user can write to" in text
    assert ["file"] == [path.name for path in tmp_path.iterdir()]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="it stands for a full disk")
def test_a_handler_that_fails_later_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the agent's log, without a traceback for each event; the run goes on."""
    agent = Agent({Env.EVENTS: f"jsonl:{tmp_path}"})
    (file,) = tmp_path.iterdir()
    full = os.open("/dev/full", os.O_WRONLY)
    (fd,) = [int(name) for name in os.listdir("/proc/self/fd") if _leads_to(name, file)]
    os.dup2(full, fd)
    os.close(full)
    agent.start()
    agent.end(WorkerState.SUCCEEDED)
    assert 1 == len(agent.said)
    assert "the agent's events are not all told: OSError" in agent.said[0]
    assert "" == capsys.readouterr().err


def _leads_to(fd: str, file: Path) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}") == str(file)
    except FileNotFoundError:  # that of the listing itself
        return False


def test_a_logging_handler_that_fails_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that treats its errors as logging's own do; afterwards it does so again."""
    source = """
import logging
class Broken(logging.Handler):
    def emit(self, record):
        try:
            raise RuntimeError("no room")
        except Exception:
            self.handleError(record)
broken = Broken()
def mine():
    return broken
"""
    (tmp_path / "of_a_site.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    agent = Agent({Env.EVENTS: "of_a_site:mine"})
    agent.start()
    agent.end(WorkerState.SUCCEEDED)
    assert ["the agent's events are not all told: RuntimeError: no room"] == agent.said
    assert "" == capsys.readouterr().err
    import of_a_site  # type: ignore[import-not-found]  # noqa: PLC0415 - just written

    assert "handleError" not in vars(of_a_site.broken)


def test_a_destination_that_nobody_has_registered() -> None:
    """The error names those that there are."""
    with pytest.raises(InputError, match=r"'elsewhere' .*console") as raised:
        Agent(destination="elsewhere")
    assert Env.EVENTS in str(raised.value)


def test_places_are_filled_in(tmp_path: Path) -> None:
    """Run, node and process in a path; the run's own handlers are closed with it."""
    place = f"jsonl:{tmp_path}/{{run_id}}.{{node}}"
    agent = Agent({Env.METRICS: place, Env.EVENTS: place})
    agent.start()
    agent.end(WorkerState.SUCCEEDED, return_values={0: None, 1: None})
    found = {path.name.partition("-")[0]: path for path in (tmp_path / "the-run.n1").iterdir()}
    assert {"metrics", "events"} == set(found)
    values = {
        line["name"]: line["value"] for line in map(json.loads, found["metrics"].read_text().splitlines())
    }
    assert 1 == values["workers.trainer.run_success_no_retries"]
    assert f"{STATUS}SUCCEEDED" == json.loads(found["events"].read_text().splitlines()[-1])["name"]


def test_python_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that it returns is taken; if it returns none it has done what it wants."""
    source = """
from hpc_elastic import events, metrics
class Mine(metrics.MetricHandler):
    def emit(self, data):
        pass
class Logged(events.logging.Handler):
    lines = []
    def emit(self, record):
        self.lines.append(record.getMessage())
def configure_all():
    metrics.configure(Mine(), "torchelastic")
"""
    (tmp_path / "of_the_site.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    agent = Agent({Env.METRICS: "of_the_site:configure_all", Env.EVENTS: "of_the_site:Logged"})
    agent.start()
    import of_the_site  # type: ignore[import-not-found]  # noqa: PLC0415 - just written

    assert isinstance(metrics.getStream("torchelastic").handler, of_the_site.Mine)
    assert f"{STATUS}RENDEZVOUS" == json.loads(of_the_site.Logged.lines[0])["name"]


def test_handlers_of_this_process_are_found(put: Metrics) -> None:
    """A launcher in Python configures its handlers itself; the environment need not name any."""
    assert isinstance(telemetry_for(Agent().around)(Agent().group, lambda: 0), NodeTelemetry)
