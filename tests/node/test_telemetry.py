"""Events and metrics of an agent, by torch's names."""

from __future__ import annotations

import json
import os

import pytest

from hpc_elastic.agent import RunResult, Worker, WorkerGroup, WorkerState
from hpc_elastic.events import EventSource
from hpc_elastic.multiprocessing import ProcessFailure
from hpc_elastic.node.listeners.telemetry import (
    AgentEvents,
    Details,
    flakiness,
    run_metrics,
    state_metrics,
)
from hpc_elastic.timer import FileTimerRequest
from tests.agent.elastic_fakes import FakeHandler, spec_of


def events_of() -> tuple[AgentEvents, WorkerGroup]:
    """Return the events of an agent that is in a round."""
    group = WorkerGroup(spec_of(FakeHandler()))
    group.group_rank, group.group_world_size = 1, 2
    group.workers = [Worker(0, 2, 2, 4, 4), Worker(1, 3, 3, 4, 4)]
    group.workers[1].id = 4711
    return AgentEvents(group, restarts=lambda: 2, run_time=lambda: 60), group


def test_an_agents_event() -> None:
    """It has torch's fields; nothing of a worker."""
    events, _ = events_of()
    event = events.status("RENDEZVOUS", details=Details(duration_ms=1.5))
    assert ("torchelastic.worker.status.RENDEZVOUS", EventSource.AGENT) == (event.name, event.source)
    more = json.loads(str(event.metadata.pop("metadata")))
    assert {"group_world_size": 2, "entry_point": "prog"} == more
    assert {
        "run_id": "run-1",
        "global_rank": None,
        "group_rank": 1,
        "worker_id": None,
        "role": "trainer",
        "hostname": os.uname().nodename,
        "state": "RENDEZVOUS",
        "total_run_time": 60,
        "rdzv_backend": "fake",
        "raw_error": None,
        "agent_restarts": 2,
        "duration_ms": 1.5,
    } == event.metadata


def test_a_workers_event_has_plain_values() -> None:
    """What torch wraps into lists of one element is a number."""
    events, group = events_of()
    event = events.status("START", EventSource.WORKER, Details(group.workers[1]))
    assert ("4711", 3) == (event.metadata["worker_id"], event.metadata["global_rank"])
    more = json.loads(str(event.metadata["metadata"]))
    assert (1, 3, 4, None) == (
        *(more["local_rank"], more["role_rank"]),
        *(more["role_world_size"], more["exit_code"]),
    )


def test_how_workers_ended() -> None:
    """Who failed by itself has FAILED, who was ended for it was TERMINATED."""
    events, _ = events_of()
    failure = ProcessFailure(1, 4711, -9, "")
    found = list(events.workers_ended(RunResult(WorkerState.FAILED, failures={3: failure})))
    assert ["TERMINATED", "FAILED"] == [event.metadata["state"] for event in found]
    more = json.loads(str(found[1].metadata["metadata"]))
    assert (-9, 4711) == (more["exit_code"], more["worker_pid"])
    assert "SIGKILL" in str(failure.message)
    good = list(events.workers_ended(RunResult(WorkerState.SUCCEEDED, {2: None, 3: None})))
    assert ["SUCCEEDED"] * 2 == [event.metadata["state"] for event in good]
    with pytest.raises(ValueError, match="Unknown worker: 3"):
        list(events.workers_ended(RunResult(WorkerState.SUCCEEDED, {2: None})))


def test_what_the_watchdog_has_done() -> None:
    """Its events are the agent's, and tell of the timer."""
    events, _ = events_of()
    event = events.watchdog("kill worker process", FileTimerRequest(4711, "scope", 12.0, 9))
    assert ("kill worker process", "RUNNING") == (event.name, event.metadata["state"])
    assert {
        "watchdog_event": "kill worker process",
        "worker_pid": "4711",
        "scope_id": "scope",
        "expiration_time": "12.0",
        "signal": "9",
    } == json.loads(str(event.metadata["metadata"]))
    more = json.loads(str(events.watchdog("watchdog started", None).metadata["metadata"]))
    assert {"watchdog_event": "watchdog started"} == more


@pytest.mark.parametrize(
    ("failed", "left", "most", "expected"),
    [(False, 1, 1, 0), (False, 3, 10, 63), (False, 0, 0, 0), (False, 0, 3, 75), (True, 3, 3, 100)],
)
def test_flakiness(failed: bool, left: int, most: int, expected: int) -> None:
    """The share of restarts used; all of it if the run failed."""
    assert expected == flakiness(failed=failed, remaining_restarts=left, max_restarts=most)


@pytest.mark.parametrize(
    ("failed", "left", "one"),
    [
        (False, 3, "run_success_no_retries"),
        (False, 2, "run_success_with_retries"),
        (True, 3, "run_failed_no_retries"),
        (True, 0, "run_failed_with_retries"),
    ],
)
def test_how_a_run_ended(failed: bool, left: int, one: str) -> None:
    """Just one of four is 1."""
    found = run_metrics(failed=failed, remaining_restarts=left, max_restarts=3)
    ends = {name for name in found if name.startswith(("run_success", "run_failed"))}
    assert ({one}, 4, 1) == ({name for name in ends if found[name]}, len(ends), found["run_total"])


def test_each_look_is_counted() -> None:
    """By role and state."""
    expected = {"workers.r.remaining_restarts": 2, "workers.r.healthy": 1}
    assert expected == state_metrics("r", WorkerState.HEALTHY, 2)
