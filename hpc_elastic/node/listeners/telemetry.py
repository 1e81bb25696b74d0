"""The events and metrics of an agent, with the names of torch.distributed.elastic.

Only builds them: the recorder of an event chooses its destination, that of a metric its time. Import it where
it is needed; an agent without listeners does without.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from hpc_elastic import events, metrics
from hpc_elastic.events.api import Event, EventMetadataValue, EventSource
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.node.listeners.telemetry_hooks import AgentStep, MeasuredStep, Surroundings, Telemetry
from hpc_elastic.node.outcome import Outcome
from hpc_elastic.node.spec import RunResult, Worker, WorkerGroup, WorkerState
from hpc_elastic.paths import RunPaths

if TYPE_CHECKING:
    from hpc_elastic.account.gpus import GpuSample
    from hpc_elastic.multiprocessing.errors import ProcessFailure
    from hpc_elastic.node.listeners.run_goodput import GoodputWatch, RunGoodput
    from hpc_elastic.timer import FileTimerRequest
    from hpc_elastic.worker.channel import Channel


GROUP = "torchelastic"
INITIALIZE = "SimpleElasticAgent._initialize_workers"
RESTART = "SimpleElasticAgent._restart_workers"
STOP = "LocalElasticAgent._stop_workers"
_STEPS_S = 30.0  # between two metrics of steps, so that a file of them stays small
_ENDED = (WorkerState.SUCCEEDED, WorkerState.FAILED)


class Details(NamedTuple):
    """The content of an event beside the state.

    Args:
        worker: whom it is about; None for the agent itself.
        raw_error: a traceback, or the worker's error file as JSON.
        duration_ms: how long it took [ms].
        exit_code: of the worker.
        worker_pid: of the worker.
    """

    worker: Worker | None = None
    raw_error: str | None = None
    duration_ms: float | None = None
    exit_code: int | None = None
    worker_pid: int | None = None


class AgentEvents:
    """Builds the events of one agent.

    Args:
        group: the agent's workers; looked at for each event.
        restarts: returns how often the agent has restarted its workers after a failure.
        run_time: returns how long the run has taken, once it is over [s].
        run_id: of the run; by default the rendezvous handler of the group's spec is asked.
        backend: of the rendezvous; by default the same.
    """

    def __init__(
        self,
        group: WorkerGroup,
        restarts: Callable[[], int],
        run_time: Callable[[], int],
        *,
        run_id: str | None = None,
        backend: str | None = None,
    ) -> None:
        self._group = group
        self._restarts = restarts
        self._run_time = run_time
        self._run_id = run_id
        self._backend = backend

    def status(
        self, state: str, source: EventSource = EventSource.AGENT, details: Details | None = None
    ) -> Event:
        """Return ``torchelastic.worker.status.<state>``, of the agent or of a worker.

        Args:
            state: START, RENDEZVOUS, ASSIGN_WORKER_RANKS, SUCCEEDED, FAILED or TERMINATED.
            source: the source.
            details: further details.
        """
        details = details or Details()
        more = {
            "group_world_size": self._group.group_world_size,
            "entry_point": self._group.spec.get_entrypoint_name(),
        }
        worker = details.worker
        if worker is not None:
            more |= {
                "local_rank": worker.local_rank,
                "role_rank": worker.role_rank,
                "role_world_size": worker.role_world_size,
                "exit_code": details.exit_code,
                "worker_pid": details.worker_pid,
            }
        metadata = self._metadata(state, more)
        metadata["global_rank"] = None if worker is None else worker.global_rank
        metadata["worker_id"] = None if worker is None else str(worker.id)
        metadata["raw_error"] = details.raw_error
        metadata["duration_ms"] = details.duration_ms
        return Event(f"torchelastic.worker.status.{state}", source, metadata=metadata)

    def workers_ended(self, result: RunResult) -> Iterator[Event]:
        """Return one event for each worker: SUCCEEDED, FAILED or, ended by the agent, TERMINATED.

        Raises:
            ValueError: a worker has neither a return value nor a failure, and none failed.
        """
        for worker in self._group.workers:
            failure = result.failures.get(worker.global_rank)
            state = worker_state(worker, result)
            yield self.status(state, EventSource.WORKER, failure_details(worker, failure))

    def watchdog(self, name: str, request: FileTimerRequest | None) -> Event:
        """Return the event of something the timer server has done.

        Args:
            name: of the event.
            request: the timer it is about, if it is about one.
        """
        more: dict[str, object] = {"watchdog_event": name}
        if request is not None:
            more |= {
                "worker_pid": str(request.worker_pid),
                "scope_id": request.scope_id,
                "expiration_time": str(request.expiration_time),
                "signal": str(request.signal),
            }
        return Event(name, EventSource.AGENT, metadata=self._metadata("RUNNING", more))

    def _metadata(self, state: str, more: Mapping[str, object]) -> dict[str, EventMetadataValue]:
        spec, handler = self._group.spec, self._group.spec.rdzv_handler
        return {
            "run_id": self._run_id or (handler.get_run_id() if handler else ""),
            "global_rank": None,
            "group_rank": self._group.group_rank,
            "worker_id": None,
            "role": spec.role,
            "hostname": os.uname().nodename,  # as this host knows itself: asks no name server
            "state": state,
            "total_run_time": self._run_time(),
            "rdzv_backend": self._backend or (handler.get_backend() if handler else ""),
            "raw_error": None,
            "metadata": json.dumps(more),
            "agent_restarts": self._restarts(),
        }


def failure_details(worker: Worker, failure: ProcessFailure | None) -> Details:
    """Return the content of an event about a worker that has ended."""
    if failure is None:
        return Details(worker)
    raw_error = json.dumps(failure.error_file_data)
    return Details(worker, raw_error, None, failure.exitcode, failure.pid)


def worker_state(worker: Worker, result: RunResult) -> str:
    """Return how one worker ended: the state of the group, or TERMINATED for those that the agent ended.

    Raises:
        ValueError: the result does not know the worker.
    """
    failed = worker.global_rank in result.failures
    if result.state in {WorkerState.UNHEALTHY, WorkerState.FAILED} and not failed:
        return "TERMINATED"
    if failed or worker.global_rank in result.return_values:
        return result.state.value
    raise ValueError(f"Unknown worker: {worker.global_rank}")


def state_metrics(role: str, state: WorkerState, remaining_restarts: int) -> dict[str, int]:
    """Return the metrics of one look at the workers, by name."""
    return {
        f"workers.{role}.remaining_restarts": remaining_restarts,
        f"workers.{role}.{state.name.lower()}": 1,
    }


def flakiness(*, failed: bool, remaining_restarts: int, max_restarts: int) -> int:
    """Return how much of the restart budget a run has used [%]; all of it if it failed."""
    if failed:
        return 100
    return int(100.0 - 100.0 * (remaining_restarts + 1) / (max_restarts + 1))


def run_metrics(*, failed: bool, remaining_restarts: int, max_restarts: int) -> dict[str, int]:
    """Return the metrics of a run that has ended; each name follows ``workers.<role>.``."""
    retried = remaining_restarts != max_restarts
    used = flakiness(failed=failed, remaining_restarts=remaining_restarts, max_restarts=max_restarts)
    return {
        "flakiness": used,
        "run_total": 1,
        "run_success_with_retries": int(not failed and retried),
        "run_success_no_retries": int(not failed and not retried),
        "run_failed_with_retries": int(failed and retried),
        "run_failed_no_retries": int(failed and not retried),
    }


class NodeTelemetry(Telemetry):
    """Puts the metrics and records the events of one agent.

    Args:
        group: the agent's workers; looked at for each event.
        crashes: returns how many rounds of the run have ended by a worker's failure.
        around: the agent.
        handlers: the things to close with the agent.
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
        self._stopping_at: float | None = None  # when workers that are not gone yet were asked to end
        self._restarting_at: float | None = None
        self._state: WorkerState | None = None
        self._complained: set[str] = set()
        self._channels: Sequence[Channel] = ()  # of the workers that run
        self._steps_due = -math.inf  # monotonic time of the next metrics of steps [s]
        self._stepped: tuple[float, int] | None = (
            None  # when they were put last in this round [s], and the step
        )
        self._has_stepped = False
        self._goodput: GoodputWatch | None = None

    # the reports of the agent

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
        """The workers get the signal to end; may be called again."""
        if self._stopping_at is None:
            self._stopping_at = self._restarting_at = self._now()

    def stopped(self) -> None:
        """The workers are gone."""
        if self._stopping_at is not None:
            self._measured(STOP, "success", (self._now() - self._stopping_at) * 1000)
        self._stopping_at = None
        self._tell_steps(self._now())
        self._channels, self._stepped, self._steps_due = (), None, -math.inf
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

    def steps(self, channels: Sequence[Channel], now: float) -> None:
        """Look at the steps of the workers (monotonic time [s])."""
        self._channels = channels
        if now >= self._steps_due and self._tell_steps(now):
            self._steps_due = now + _STEPS_S
        if self._has_stepped and self._group.group_rank == 0:
            self._goodput = self._goodput or _goodput_watch(self._around)
            self._tell_goodput(self._goodput.look(now))

    def _tell_steps(self, now: float) -> bool:
        """Put the step of the slowest rank, and the rate since the last time; tell whether there is one."""
        known = [channel.last_step for channel in self._channels]
        told = [step for step in known if step is not None]
        if not told or len(told) < len(known):
            return False
        step, before = min(told), self._stepped
        self._has_stepped, self._stepped = True, (now, step)
        self._put(f"workers.{self._group.spec.role}.step", step)
        if before is not None and before[0] < now and before[1] <= step:  # else another round has begun
            rate = (step - before[1]) / (now - before[0])
            self._put(f"workers.{self._group.spec.role}.steps_per_s", rate)
        self._flush()
        return True

    def _tell_goodput(self, found: RunGoodput | None) -> None:
        if found is not None:
            self._put("run.goodput_on_nodes", found.share)
            self._put("run.lost_steps", found.lost_steps)
            self._flush()

    def gpus(self, samples: Sequence[GpuSample]) -> None:
        """The GPUs of this node have been sampled."""
        for one in samples:
            for name, value in (("busy", one.busy), ("memory", one.memory), ("memory_limit", one.limit)):
                if value is not None:
                    self._put(f"gpu.{one.number}.{name}", value)
        self._flush()

    def watchdog(self, name: str, request: FileTimerRequest | None) -> None:
        """The watchdog has done something."""
        self._record(lambda: self._events.watchdog(name, request))

    def ended(self, outcome: Outcome) -> None:
        """The agent leaves."""
        self._took_s = int(self._now() - self._began_at)
        if self._goodput is not None:
            self._tell_goodput(self._goodput.last())
        result, role = outcome.result, self._group.spec.role
        if result.state in _ENDED:
            failed = result.state is WorkerState.FAILED
            used = {
                "remaining_restarts": self._remaining(),
                "max_restarts": self._around.settings.max_restarts,
            }
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
        """The end of all reports."""
        self._flush()
        for handler in self._handlers:
            close = getattr(handler, "close", None)
            if close is not None:
                self._safely(type(handler).__name__, close)

    # their form

    def _restarts(self) -> int:
        """Return how often the workers were started again; the failure that no budget covers is none."""
        return min(self._crashes(), self._around.settings.max_restarts)

    def _remaining(self) -> int:
        return max(0, self._around.settings.max_restarts - self._crashes())

    def _status(self, state: str, details: Details) -> None:
        self._record(lambda: self._events.status(state, events.EventSource.WORKER, details))

    def _record(self, event: Callable[[], events.Event]) -> None:
        self._safely("events", lambda: events.record(event(), self._around.settings.event_log_handler))

    def _measured(self, key: str, result: str, took_ms: float) -> None:
        self._put(f"{key}.{result}", 1)
        self._put(f"{key}.duration.ms", int(took_ms))

    def _put(self, name: str, value: float) -> None:
        self._safely("metrics", lambda: metrics.put_metric(name, value, GROUP))

    def _flush(self) -> None:
        """Have a handler that collects show its values: the next metric may be hours away."""
        flush = getattr(metrics.getStream(GROUP).handler, "flush", None)
        if flush is not None:
            self._safely("metrics", flush)

    def _safely(self, what: str, act: Callable[[], Any]) -> Any:
        """Act with a handler; report its error once."""
        try:
            return act()
        except Exception as error:  # noqa: BLE001 - a handler is anybody's
            if what not in self._complained:
                self._complained.add(what)
                words = f"the agent's {what} are not all told: {type(error).__name__}: {error}"
                with suppress(Exception):
                    self._around.say(words)
        return None


def _goodput_watch(around: Surroundings) -> GoodputWatch:
    from hpc_elastic.node.listeners.run_goodput import GoodputWatch  # noqa: PLC0415 - if workers tell steps

    return GoodputWatch(RunPaths(around.run_dir), around.clock)


def _same(event: events.Event) -> events.Event:
    return event
