"""Tells what the agent does in metrics and events, with torch's names; where somebody listens.

Whoever listens cannot hurt the run: what a handler raises is said once and the run goes on. Metrics
that torch puts at every look at the workers, ten times a second, are put when they change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from hpc_elastic import events, metrics
from hpc_elastic.node.listeners.telemetry import AgentEvents, Details, run_metrics, state_metrics
from hpc_elastic.node.listeners.telemetry_hooks import AgentStep, MeasuredStep, Surroundings, Telemetry
from hpc_elastic.node.outcome import Outcome
from hpc_elastic.node.spec import WorkerGroup, WorkerState

if TYPE_CHECKING:
    from hpc_elastic.timer import FileTimerRequest

GROUP = "torchelastic"
INITIALIZE = "SimpleElasticAgent._initialize_workers"
RESTART = "SimpleElasticAgent._restart_workers"
STOP = "LocalElasticAgent._stop_workers"
_ENDED = (WorkerState.SUCCEEDED, WorkerState.FAILED)


class NodeTelemetry(Telemetry):
    """Puts the metrics and records the events of one agent.

    Args:
        group: the agent's workers; looked at whenever something is told.
        crashes: returns how many rounds of the run have ended by a worker's failure.
        around: the agent.
        handlers: what is to be closed with the agent.
    """

    def __init__(
        self,
        group: WorkerGroup,
        crashes: Callable[[], int],
        around: Surroundings,
        handlers: Sequence[object] = (),
    ) -> None:
        self._group = group
        self._crashes = crashes
        self._around = around
        self._handlers = handlers
        self._now = around.clock.monotonic
        self._began_at = self._now()
        self._took_s = 0  # the whole run, once it is over
        self._events = AgentEvents(
            group, self._restarts, lambda: self._took_s, run_id=around.run_id, backend=around.backend
        )
        self._joining_at: float | None = None
        self._stopping_at: float | None = None  # when the workers were told to end that are not gone yet
        self._restarting_at: float | None = None
        self._state: WorkerState | None = None
        self._complained: set[str] = set()

    # what the agent tells

    @contextmanager
    def step(self, step: AgentStep) -> Iterator[MeasuredStep]:
        """Measure a block."""
        began, result, measured = self._now(), "failure", MeasuredStep()
        try:
            yield measured
            result = "failure" if measured.has_failed else "success"
        finally:
            took_ms = (self._now() - began) * 1000
            if step.event:
                self._record(lambda: self._events.status(step.event, details=Details(duration_ms=took_ms)))
            self._measured(step.key, result, took_ms)
            self._flush()

    def initializing(self) -> None:
        """Workers are wanted: the agent goes to the rendezvous."""
        self._joining_at = self._now()

    def initialized(self) -> None:
        """The workers run."""
        for worker in self._group.workers:
            self._status("START", Details(worker, worker_pid=worker.id))
        self._has_initialized("success")

    def not_initialized(self) -> None:
        """The workers could not be started, or there was no round to start them for."""
        self._has_initialized("failure")

    def _has_initialized(self, result: str) -> None:
        now = self._now()
        for key, began in ((INITIALIZE, self._joining_at), (RESTART, self._restarting_at)):
            if began is not None:
                self._measured(key, result, (now - began) * 1000)
        self._joining_at = self._restarting_at = None
        self._flush()

    def stopping(self) -> None:
        """The workers are told to end; may be called again."""
        if self._stopping_at is None:
            self._stopping_at = self._restarting_at = self._now()

    def stopped(self) -> None:
        """The workers are gone."""
        if self._stopping_at is not None:
            self._measured(STOP, "success", (self._now() - self._stopping_at) * 1000)
        self._stopping_at = None
        self._flush()

    def state_changed(self) -> None:
        """The state of the worker group is another one."""
        role, before, state = self._group.spec.role, self._state, self._group.state
        if state is before:
            return
        self._state = state
        if before is not None:
            self._put(f"workers.{role}.{before.name.lower()}", 0)
        for name, value in state_metrics(role, state, self._remaining()).items():
            self._put(name, value)
        self._flush()

    def watchdog(self, name: str, request: FileTimerRequest | None) -> None:
        """The watchdog has done something."""
        self._record(lambda: self._events.watchdog(name, request))

    def ended(self, outcome: Outcome) -> None:
        """The agent leaves."""
        self._took_s = int(self._now() - self._began_at)
        result, role = outcome.result, self._group.spec.role
        if result.state in _ENDED:
            failed = result.state is WorkerState.FAILED
            used = {"remaining_restarts": self._remaining(), "max_restarts": self._around.max_restarts}
            for name, value in run_metrics(failed=failed, **used).items():
                self._put(f"workers.{role}.{name}", value)
        if self._group.group_rank is not None:  # it had workers
            self._workers_ended(outcome)
        state = result.state.value if result.state in _ENDED else "TERMINATED"
        error = outcome.reason if result.state is WorkerState.FAILED else None
        self._record(lambda: self._events.status(state, details=Details(raw_error=error)))

    def _workers_ended(self, outcome: Outcome) -> None:
        result = outcome.result
        if result.is_failed() or result.return_values:  # else those of other nodes have succeeded
            built = self._safely("events", lambda: list(self._events.workers_ended(result)))
            for event in built or ():
                self._record(partial(_same, event))
            return
        for worker in self._group.workers:
            self._status("TERMINATED", Details(worker))

    def close(self) -> None:
        """Nothing more will be told."""
        self._flush()
        for handler in self._handlers:
            close = getattr(handler, "close", None)
            if close is not None:
                self._safely(type(handler).__name__, close)

    # how it is told

    def _restarts(self) -> int:
        """Return how often the workers were started again; the failure that no budget covers is none."""
        return min(self._crashes(), self._around.max_restarts)

    def _remaining(self) -> int:
        return max(0, self._around.max_restarts - self._crashes())

    def _status(self, state: str, details: Details) -> None:
        self._record(lambda: self._events.status(state, events.EventSource.WORKER, details))

    def _record(self, event: Callable[[], events.Event]) -> None:
        self._safely("events", lambda: events.record(event(), self._around.destination))

    def _measured(self, key: str, result: str, took_ms: float) -> None:
        self._put(f"{key}.{result}", 1)
        self._put(f"{key}.duration.ms", int(took_ms))

    def _put(self, name: str, value: int) -> None:
        self._safely("metrics", lambda: metrics.put_metric(name, value, GROUP))

    def _flush(self) -> None:
        """Have a handler that collects show what it has: the next metric may be hours away."""
        flush = getattr(metrics.getStream(GROUP).handler, "flush", None)
        if flush is not None:
            self._safely("metrics", flush)

    def _safely(self, what: str, act: Callable[[], Any]) -> Any:
        """Do what a handler takes part in; say once what it raises."""
        try:
            return act()
        except Exception as error:  # noqa: BLE001 - a handler is anybody's
            if what not in self._complained:
                self._complained.add(what)
                words = f"the agent's {what} are not all told: {type(error).__name__}: {error}"
                with suppress(Exception):
                    self._around.say(words)
        return None


def _same(event: events.Event) -> events.Event:
    return event
