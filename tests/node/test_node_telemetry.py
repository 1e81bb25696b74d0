"""What an agent tells in metrics and events, and that whoever listens cannot hurt the run."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic import events, metrics
from hpc_elastic.multiprocessing.errors import ProcessFailure
from hpc_elastic.node.listeners.telemetry_hooks import ASSIGN_RANKS, RENDEZVOUS, RUN, START
from hpc_elastic.node.spec import WorkerState
from hpc_elastic.timer import FileTimerRequest
from hpc_elastic.worker.channel import Channel
from tests.docs.pages import DOCS, first_cells
from tests.node.telling import STATUS, Agent, Events, Metrics


def test_a_good_run(put: Metrics, recorded: Events) -> None:
    """Steps, states and the end of a run without restarts."""
    agent = Agent()
    with agent.telemetry.step(RUN):
        agent.become(WorkerState.INIT)
        agent.start()
        agent.become(WorkerState.SUCCEEDED)
        agent.end(WorkerState.SUCCEEDED, return_values={0: None, 1: None})
    expected = {
        "workers.trainer.init": 0,
        "workers.trainer.healthy": 0,
        "workers.trainer.succeeded": 1,
        "workers.trainer.remaining_restarts": 3,
        "SimpleElasticAgent._rendezvous.success": 1,
        "SimpleElasticAgent._rendezvous.duration.ms": 2000,
        "SimpleElasticAgent._assign_worker_ranks.success": 1,
        "SimpleElasticAgent._assign_worker_ranks.duration.ms": 0,
        "LocalElasticAgent._start_workers.success": 1,
        "LocalElasticAgent._start_workers.duration.ms": 1000,
        "SimpleElasticAgent._initialize_workers.success": 1,
        "SimpleElasticAgent._initialize_workers.duration.ms": 3000,
        "SimpleElasticAgent.run.success": 1,
        "SimpleElasticAgent.run.duration.ms": 3000,
        "workers.trainer.run_total": 1,
        "workers.trainer.run_success_with_retries": 0,
        "workers.trainer.run_success_no_retries": 1,
        "workers.trainer.run_failed_with_retries": 0,
        "workers.trainer.run_failed_no_retries": 0,
        "workers.trainer.flakiness": 0,
    }
    assert expected == put.last
    assert [
        ("AGENT", "RENDEZVOUS"),
        ("AGENT", "ASSIGN_WORKER_RANKS"),
        ("WORKER", "START"),
        ("WORKER", "START"),
        ("WORKER", "SUCCEEDED"),
        ("WORKER", "SUCCEEDED"),
        ("AGENT", "SUCCEEDED"),
    ] == recorded.names
    joined, last = recorded.recorded[0].metadata, recorded.recorded[-1].metadata
    assert ("the-run", "trainer", "shared_fs", 2000.0) == (
        joined["run_id"],
        joined["role"],
        joined["rdzv_backend"],
        joined["duration_ms"],
    )
    assert 3 == last["total_run_time"]


def test_a_restart(put: Metrics, recorded: Events) -> None:
    """Its price: from the first word to the workers until the next ones run."""
    agent = Agent()
    agent.start()
    agent.become(WorkerState.FAILED)
    agent.crashes = 1
    agent.stop()
    agent.become(WorkerState.STOPPED)
    agent.start()
    assert 4000 == put.last["LocalElasticAgent._stop_workers.duration.ms"]
    assert 7000 == put.last["SimpleElasticAgent._restart_workers.duration.ms"]
    assert 2 == put.last["workers.trainer.remaining_restarts"]
    assert 4 == recorded.names.count(("WORKER", "START"))
    assert 1 == recorded.recorded[-1].metadata["agent_restarts"]


@pytest.mark.parametrize(("crashes", "restarts"), [(0, 0), (3, 3), (4, 3)])
def test_restarts_are_those_that_were_done(recorded: Events, crashes: int, restarts: int) -> None:
    """As in torch: the last failure of a run that has used its budget starts nothing."""
    agent = Agent()
    agent.crashes = crashes
    agent.start()
    assert restarts == recorded.recorded[-1].metadata["agent_restarts"]


def test_a_failed_run(put: Metrics, recorded: Events) -> None:
    """Who failed, who was ended by the agent, and that the budget is used up."""
    agent = Agent()
    agent.start()
    agent.crashes = 4
    agent.end(WorkerState.FAILED, failures={1: ProcessFailure(1, 101, 7, "")})
    assert [("WORKER", "TERMINATED"), ("WORKER", "FAILED"), ("AGENT", "FAILED")] == recorded.names[-3:]
    failed, left = recorded.recorded[-2].metadata, recorded.recorded[-1].metadata
    assert (7, 101) == tuple(json.loads(str(failed["metadata"]))[key] for key in ("exit_code", "worker_pid"))
    assert "because" == left["raw_error"]
    assert (1, 100) == (
        put.last["workers.trainer.run_failed_with_retries"],
        put.last["workers.trainer.flakiness"],
    )


def test_a_run_that_is_handed_back_has_not_ended(put: Metrics, recorded: Events) -> None:
    """Workers and agent are TERMINATED; there is no verdict on the run."""
    agent = Agent()
    agent.start()
    agent.end(WorkerState.STOPPED)
    assert [("WORKER", "TERMINATED"), ("WORKER", "TERMINATED"), ("AGENT", "TERMINATED")] == recorded.names[
        -3:
    ]
    assert "workers.trainer.run_total" not in put.last


def test_a_node_that_the_last_round_did_without(recorded: Events) -> None:
    """The run has succeeded; its own workers were ended before."""
    agent = Agent()
    agent.start()
    agent.end(WorkerState.SUCCEEDED, return_values={})
    assert [("WORKER", "TERMINATED"), ("WORKER", "TERMINATED"), ("AGENT", "SUCCEEDED")] == recorded.names[-3:]
    assert [] == agent.said


def test_an_agent_that_never_had_workers(recorded: Events) -> None:
    """It tells of itself alone."""
    agent = Agent()
    agent.telemetry.initializing()
    agent.telemetry.not_initialized()
    agent.end(WorkerState.FAILED)
    assert [("AGENT", "FAILED")] == recorded.names


def test_a_step_that_raises(put: Metrics) -> None:
    """It counts as a failure, took its time, and the error goes on."""
    agent = Agent()
    with pytest.raises(OSError, match="full"), agent.telemetry.step(START):
        raise OSError("full")
    expected = [
        ("LocalElasticAgent._start_workers.failure", 1),
        ("LocalElasticAgent._start_workers.duration.ms", 0),
    ]
    assert expected == put.put


def test_the_watchdog(recorded: Events) -> None:
    """Its events have torch's names and details."""
    agent = Agent()
    agent.telemetry.watchdog("watchdog started", None)
    agent.telemetry.watchdog("timer expired", FileTimerRequest(101, "step", 4.5, 9))
    assert ["watchdog started", "timer expired"] == [event.name for event in recorded.recorded]
    details = json.loads(str(recorded.recorded[1].metadata["metadata"]))
    assert ("101", "step", "9") == (details["worker_pid"], details["scope_id"], details["signal"])


def test_what_is_put_is_shown_at_once(put: Metrics) -> None:
    """The next metric of a healthy run may be hours away, so a handler that collects is flushed."""
    agent = Agent()
    agent.start()
    assert put.flushed > 0
    before = put.flushed
    agent.become(WorkerState.FAILED)
    assert put.flushed > before
    known = len(put.put)
    agent.become(WorkerState.FAILED)
    assert known == len(put.put)


class Broken(metrics.MetricHandler):
    """Raises."""

    def emit(self, metric_data: metrics.MetricData) -> None:
        """Raise."""
        raise RuntimeError(f"no {metric_data.name}")


class BrokenLog(logging.Handler):
    """Raises."""

    def handle(self, record: logging.LogRecord) -> Any:  # noqa: ARG002
        """Raise."""
        raise RuntimeError("no events")


def test_handlers_that_raise_cost_one_line_each(own_handlers: None) -> None:
    """The run goes on, and what they raise first is said."""
    metrics.configure(Broken())
    events.register_logging_handler("broken", BrokenLog())
    agent = Agent(destination="broken")
    agent.start()
    agent.stop()
    agent.end(WorkerState.SUCCEEDED, return_values={0: None, 1: None})
    assert [
        "the agent's events are not all told: RuntimeError: no events",
        "the agent's metrics are not all told: RuntimeError: no SimpleElasticAgent._rendezvous.success",
    ] == sorted(agent.said)


def _documented() -> tuple[set[str], set[str]]:
    """Return the metrics and events of the page, a key of a step as its three metrics."""
    cells = first_cells(DOCS / "metrics-and-events.md")
    names = {word.strip("` ") for cell in cells for word in cell.split(",")}
    keys = {name for name in names if name.partition(".")[0] in {"SimpleElasticAgent", "LocalElasticAgent"}}
    plain = {name.replace("<role>", "trainer") for name in names if name.startswith("workers.")}
    measured = {f"{key}.{last}" for key in keys for last in ("success", "failure", "duration.ms")}
    told = {name for name in names if name.startswith(STATUS) or " " in name}
    return plain | measured, told


def tell_steps(agent: Agent, directory: Path, *steps: tuple[int, int]) -> None:
    """Have the agent look at two workers a minute after each step of theirs."""
    agent.group.group_rank = 1  # the first node tells of the run, too
    channels = [Channel.create(str(directory / f"channel{rank}")) for rank in range(2)]
    for both in steps:
        agent.clock.advance(60)
        for channel, step in zip(channels, both, strict=True):
            channel.tick(step)
        agent.telemetry.steps(channels, agent.clock.monotonic())


def test_the_step_of_the_slowest_worker(put: Metrics, tmp_path: Path) -> None:
    """Its rate is that since the last look."""
    agent = Agent()
    tell_steps(agent, tmp_path, (10, 12), (130, 133))
    assert 130 == put.last["workers.trainer.step"]
    assert 2 == put.last["workers.trainer.steps_per_s"]


def test_the_page_names_what_the_agent_tells(put: Metrics, recorded: Events, tmp_path: Path) -> None:
    """Every metric and event of an agent is on the page of their names, and nothing else is."""
    agent = Agent()
    tell_steps(agent, tmp_path, (1, 1), (2, 2))
    for step in (RUN, RENDEZVOUS, ASSIGN_RANKS, START):
        with pytest.raises(OSError, match="x"), agent.telemetry.step(step):
            raise OSError("x")
    with agent.telemetry.step(RUN):
        for state in set(WorkerState) - {WorkerState.UNKNOWN}:
            agent.become(state)
        agent.start()
        agent.stop()
        agent.telemetry.initializing()
        agent.telemetry.not_initialized()
        agent.start()
        agent.stop()
        agent.start()
        for name in ("watchdog started", "timer expired", "kill worker process", "watchdog stopped"):
            agent.telemetry.watchdog(name, None)
        agent.end(WorkerState.SUCCEEDED, return_values={0: None, 1: None})
        agent.end(WorkerState.FAILED)
    known_metrics, known_events = _documented()
    never = {"LocalElasticAgent._stop_workers.failure"}  # ending workers does not fail, it takes longer
    assert known_metrics - never == {name for name, _ in put.put}
    assert known_events == {event.name for event in recorded.recorded}
