"""An agent that tells what it does, and whoever listens; without any process."""

from __future__ import annotations

from typing import Any

from hpc_elastic import events, metrics
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.node.listeners.listeners import telemetry_maker
from hpc_elastic.node.listeners.telemetry_hooks import ASSIGN_RANKS, RENDEZVOUS, START, Surroundings
from hpc_elastic.node.loop import EventLoop
from hpc_elastic.node.outcome import Outcome
from hpc_elastic.node.spec import RunResult, WorkerGroup, WorkerSpec, WorkerState
from hpc_elastic.settings.of_commands import AgentSettings
from hpc_elastic.testing.clock import FakeClock

STATUS = "torchelastic.worker.status."


class Metrics(metrics.MetricHandler):
    """Keeps what is put."""

    def __init__(self) -> None:
        self.put: list[tuple[str, Any]] = []
        self.flushed = 0

    def emit(self, metric_data: metrics.MetricData) -> None:
        """Take a value."""
        assert "torchelastic" == metric_data.group_name
        self.put.append((metric_data.name, metric_data.value))

    def flush(self) -> None:
        """Count."""
        self.flushed += 1

    @property
    def last(self) -> dict[str, Any]:
        """The last value of each metric."""
        return dict(self.put)


class Events(events.EventHandler):
    """Keeps what is recorded."""

    def __init__(self) -> None:
        self.recorded: list[events.Event] = []

    def record(self, event: events.Event) -> None:
        """Take an event."""
        self.recorded.append(event)

    @property
    def names(self) -> list[tuple[str, str]]:
        """The names of the events, with their source."""
        return [(event.source.value, event.name.removeprefix(STATUS)) for event in self.recorded]


class Agent:
    """An agent of two workers that tells what it does.

    Args:
        environ: names who listens.
        destination: of events.
    """

    def __init__(self, environ: dict[str, str] | None = None, destination: str = "null") -> None:
        self.clock = FakeClock()
        self.said: list[str] = []
        self.crashes = 0
        self.group = WorkerGroup(WorkerSpec("trainer", 2, None, entrypoint="train.py", max_restarts=3))
        self.loop = EventLoop(self.clock)
        settings = AgentSettings(max_restarts=3, event_log_handler=destination)
        self.around = Surroundings(
            *(environ or {}, "the-run", "/run/dir", "n1", settings, "/scratch", self.loop),
            self.clock,
            self.said.append,
        )
        self.telemetry = telemetry_maker(self.around)(self.group, lambda: self.crashes)
        self.loop.close()

    def become(self, state: WorkerState) -> None:
        """Change the state of the workers."""
        self.group.state = state
        self.telemetry.state_changed()

    def start(self) -> None:
        """Join a round and start the workers."""
        told = self.telemetry
        told.initializing()
        with told.step(RENDEZVOUS):
            self.clock.advance(2)
        with told.step(ASSIGN_RANKS):
            self.group.group_rank, self.group.group_world_size = 0, 1
            for worker in self.group.workers:
                worker.id, worker.global_rank = 100 + worker.local_rank, worker.local_rank
        with told.step(START):
            self.clock.advance(1)
        self.become(WorkerState.HEALTHY)
        told.initialized()

    def stop(self) -> None:
        """End the workers."""
        self.telemetry.stopping()
        self.clock.advance(4)
        self.telemetry.stopping()
        self.telemetry.stopped()

    def end(self, state: WorkerState, **result: Any) -> None:
        """Leave."""
        self.group.state = state
        code = ExitCode.FAILED if state is WorkerState.FAILED else ExitCode.OK
        self.telemetry.ended(Outcome(code, "because", None, RunResult(state, **result)))
        self.telemetry.close()
