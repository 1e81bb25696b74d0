"""Who listens to an agent, as a user says it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpc_elastic import metrics
from hpc_elastic.agent.beside import Telemetry, telemetry_for, tell_nobody
from hpc_elastic.agent.listeners import telemetry_maker
from hpc_elastic.agent.node_telemetry import NodeTelemetry
from hpc_elastic.agent.spec import WorkerState
from hpc_elastic.errors import InputError
from hpc_elastic.ids import Env
from tests.agent.telling import STATUS, Agent, Metrics

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
