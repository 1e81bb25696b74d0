"""The events that an agent records of its run."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hpc_elastic.agent.server.older_spellings import timeout_of
from hpc_elastic.clock import Clock, SystemClock
from hpc_elastic.events import Event, EventSource, record
from hpc_elastic.node.listeners.telemetry import AgentEvents, Details, worker_state
from hpc_elastic.node.spec import DEFAULT_ROLE, ElasticAgent, RunResult, Worker, WorkerGroup, WorkerSpec


class RecordingAgent(ElasticAgent):
    """The state of an agent, and the events it makes of it.

    Args:
        spec: description of the workers.
        exit_barrier_timeout: see `SimpleElasticAgent`.
        shutdown_timeout: see there.
        clock: this node's clock.

    Raises:
        InputError: a timeout cannot be used.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        exit_barrier_timeout: float | None = None,
        shutdown_timeout: float | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        environ = os.environ
        self._worker_group = WorkerGroup(spec)
        self._remaining_restarts: int = spec.max_restarts
        self._store: Any = None
        self._exit_barrier_timeout = timeout_of("exit_barrier_timeout", exit_barrier_timeout, 300, environ)
        self._shutdown_timeout = timeout_of("shutdown_timeout", shutdown_timeout, 30, environ)
        self._total_execution_time = 0
        self._in_exit_barrier = False
        self._clock = clock or SystemClock()

    @property
    def _events(self) -> AgentEvents:
        """Builds events of the present worker group: a derived class may have put in another one."""
        return AgentEvents(
            self._worker_group,
            restarts=lambda: self._worker_group.spec.max_restarts - self._remaining_restarts,
            run_time=lambda: self._total_execution_time,
        )

    def get_worker_group(self, role: str = DEFAULT_ROLE) -> WorkerGroup:  # noqa: ARG002 - torch's signature
        """Return the worker group; do not change it."""
        return self._worker_group

    def get_event_failed(self) -> Event:
        """Return the event of an agent that ends with the exception being handled."""
        return self._construct_event("FAILED", EventSource.AGENT, raw_error=traceback.format_exc())

    def get_event_succeeded(self) -> Event:
        """Return the event of an agent that ends well."""
        return self._construct_event("SUCCEEDED", EventSource.AGENT)

    @contextmanager
    def record_duration(self, state: str) -> Iterator[None]:
        """Record how long a block takes, as the agent's event of a state; also when it raises."""
        began = self._clock.monotonic()
        try:
            yield
        finally:
            took_ms = (self._clock.monotonic() - began) * 1000
            self._record(self._construct_event(state, EventSource.AGENT, duration_ms=took_ms))

    def _record(self, event: Event) -> None:
        record(event, self._worker_group.spec.event_log_handler)

    def _record_worker_events(self, result: RunResult) -> None:
        """Record how each worker ended."""
        for event in self._events.workers_ended(result):
            self._record(event)

    def _get_worker_state(self, worker: Worker, result: RunResult) -> str:
        return worker_state(worker, result)

    def _construct_event(  # noqa: PLR0913 - torch's signature
        self,
        state: str,
        source: EventSource,
        worker: Worker | None = None,
        raw_error: str | None = None,
        duration_ms: float | None = None,
        exit_code: int | None = None,
        worker_pid: int | None = None,
    ) -> Event:
        """Return the event ``torchelastic.worker.status.<state>`` of the agent, or of a worker."""
        details = Details(worker, raw_error, duration_ms, exit_code, worker_pid)
        return self._events.status(state, source, details)

    def _round_facts(self, group: WorkerGroup) -> str:
        """Return the facts of a round for people, one per line."""
        facts = {
            "restart_count": group.spec.max_restarts - self._remaining_restarts,
            "master_addr": group.master_addr,
            "master_port": group.master_port,
            "group_rank": group.group_rank,
            "group_world_size": group.group_world_size,
            "local_ranks": [worker.local_rank for worker in group.workers],
            "role_ranks": [worker.role_rank for worker in group.workers],
            "global_ranks": [worker.global_rank for worker in group.workers],
            "role_world_sizes": [worker.role_world_size for worker in group.workers],
            "global_world_sizes": [worker.world_size for worker in group.workers],
            "event_log_handler": group.spec.event_log_handler,
        }
        return "".join(f"  {name}={value}\n" for name, value in facts.items())
