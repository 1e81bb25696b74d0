"""How torch's programs see an agent over a shared run: the state of its workers, and its result."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hpc_elastic import metrics
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.meet.rules import MeetingSettings
from hpc_elastic.multiprocessing.logs import DefaultLogsSpecs
from hpc_elastic.node.outcome import Outcome
from hpc_elastic.node.setup.agent_setup import AgentTimes, SignalMeanings
from hpc_elastic.node.spec import RunResult, WorkerGroup, WorkerState
from hpc_elastic.node.workers.local_group import Command
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.run_directory import prepare_run_dir
from hpc_elastic.settings.of_commands import AgentSettings
from hpc_elastic.start.agent import open_agent
from hpc_elastic.start.meeting import LaunchOptions, OpenAgent
from tests.node.stuck import STUCK

INIT, HEALTHY, UNHEALTHY = WorkerState.INIT, WorkerState.HEALTHY, WorkerState.UNHEALTHY
STOPPED, SUCCEEDED, FAILED = WorkerState.STOPPED, WorkerState.SUCCEEDED, WorkerState.FAILED

FAILS = """
import os, sys, time
if os.environ["RANK"] == "1" and int(os.environ["HPC_ELASTIC_ROUND"]) <= int(sys.argv[1]):
    sys.exit(7)
elif int(os.environ["HPC_ELASTIC_ROUND"]) <= int(sys.argv[1]):
    time.sleep(600)
"""


class States(metrics.MetricHandler):
    """Keeps the states that the workers go through."""

    def __init__(self) -> None:
        self.seen: list[WorkerState] = []

    def emit(self, metric_data: metrics.MetricData) -> None:
        """Take a value; 1 says that a state is the present one."""
        name = metric_data.name.rpartition(".")[2].upper()
        if (
            metric_data.value == 1
            and metric_data.name.startswith("workers.")
            and name in WorkerState.__members__
        ):
            self.seen.append(WorkerState[name])


@pytest.fixture
def states(own_handlers: None) -> States:
    """Whoever is told of the states."""
    handler = States()
    metrics.configure(handler)
    return handler


class Ended(NamedTuple):
    """What an agent has come to."""

    outcome: Outcome
    group: WorkerGroup


@contextmanager
def opened(
    root: Path, source: str, *args: str, max_restarts: int = 0, times: AgentTimes | None = None
) -> Iterator[OpenAgent]:
    """Give an agent of two workers in this process."""
    script = root.with_suffix(".py")
    script.write_text(source)
    paths = RunPaths(root)
    prepare_run_dir(paths)
    options = LaunchOptions(
        paths,
        "run",
        MeetingSettings(heartbeat_interval=0.1, lease=5.0),
        slots=2,
        command=Command(
            "default_role",
            (sys.executable, str(script), *args),
            DefaultLogsSpecs(paths.logs, is_of_run=True),
            "",
        ),
        title="train.py",
        settings=AgentSettings(max_restarts=max_restarts),
        times=times or AgentTimes(),
        signals=SignalMeanings((), (), ()),
        node="n1",
        addr="127.0.0.1",
    )
    with open_agent(options, None, owns_process=False) as agent:
        yield agent


def run(root: Path, source: str, *args: str, **more: Any) -> Ended:
    """Run an agent of two workers to its end."""
    with opened(root, source, *args, **more) as agent:
        return Ended(agent.agent.run_to_end(), agent.agent.get_worker_group())


def test_success(tmp_path: Path, states: States) -> None:
    """Each rank has a result; commands return nothing."""
    ended = run(tmp_path / "run", "")
    assert [INIT, HEALTHY, SUCCEEDED] == states.seen
    assert RunResult(SUCCEEDED, {0: None, 1: None}, {}) == ended.outcome.result
    assert SUCCEEDED is ended.group.state
    assert (0, 1, 2) == (
        ended.group.group_rank,
        ended.group.group_world_size,
        ended.group.workers[1].world_size,
    )


def test_a_restart(tmp_path: Path, states: States) -> None:
    """Failed workers are stopped before the next ones start."""
    ended = run(tmp_path / "run", FAILS, "1", max_restarts=1)
    assert [INIT, HEALTHY, FAILED, STOPPED, HEALTHY, SUCCEEDED] == states.seen
    assert not ended.outcome.result.is_failed()


def test_failure(tmp_path: Path, states: States) -> None:
    """The failure stands under its global rank; the worker that the agent ended is no failure."""
    ended = run(tmp_path / "run", FAILS, "9", max_restarts=1)
    assert [INIT, HEALTHY, FAILED, STOPPED, HEALTHY, FAILED, STOPPED, FAILED] == states.seen
    result = ended.outcome.result
    assert result.is_failed()
    assert {1: 7} == {rank: failure.exitcode for rank, failure in result.failures.items()}
    assert FAILED is ended.group.state


def test_a_wedge(tmp_path: Path, states: States, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that hang in the kernel are UNHEALTHY, and then the run has FAILED."""
    monkeypatch.setenv("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", "0.3")
    ended = run(tmp_path / "run", STUCK, max_restarts=3)
    assert [INIT, HEALTHY, UNHEALTHY, STOPPED, FAILED] == states.seen
    assert ended.outcome.result.is_failed()
    assert ExitCode.WEDGED == ended.outcome.exit_code
    failures = ended.outcome.result.failures  # of those that had hung for so long when the first had
    assert set() < set(failures) <= {0, 1}
    assert all(failure.pid == ended.group.workers[rank].id for rank, failure in failures.items())


def test_workers_that_cannot_be_started(tmp_path: Path, states: States) -> None:
    """No worker ever ran, and the run has failed."""
    with opened(tmp_path / "run", "") as agent:
        parts = agent.agent._parts
        command = parts.command._replace(argv=("/no/such/program",))
        agent.agent._workers._parts = parts._replace(command=command)
        outcome = agent.agent.run_to_end()
    assert outcome.result.is_failed()
    assert [INIT, FAILED] == states.seen


def test_a_run_that_is_handed_back(tmp_path: Path, states: States) -> None:
    """Workers that were asked to leave are STOPPED: the run has neither succeeded nor failed."""
    with opened(tmp_path / "run", "import time; time.sleep(600)") as agent:
        agent.loop.signals.append(15)
        outcome = agent.agent.run_to_end()
        assert STOPPED is agent.agent.get_worker_group().state
    assert STOPPED is outcome.result.state
    assert [INIT, STOPPED] == states.seen
