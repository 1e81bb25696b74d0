"""The events and metrics of an agent, with the names of torch.distributed.elastic.

Only builds them: who records an event says where it goes, who puts a metric says when. Import it where
it is needed; an agent that nobody listens to does without.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from hpc_elastic.events.api import Event, EventMetadataValue, EventSource
from hpc_elastic.node.spec import RunResult, Worker, WorkerGroup, WorkerState

if TYPE_CHECKING:
    from hpc_elastic.multiprocessing.errors import ProcessFailure
    from hpc_elastic.timer import FileTimerRequest


class Details(NamedTuple):
    """What an event tells beside the state.

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
            source: who says so.
            details: what else there is to say.
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
            ValueError: a worker has neither a return value nor a failure, and nobody failed.
        """
        for worker in self._group.workers:
            failure = result.failures.get(worker.global_rank)
            state = worker_state(worker, result)
            yield self.status(state, EventSource.WORKER, failure_details(worker, failure))

    def watchdog(self, name: str, request: FileTimerRequest | None) -> Event:
        """Return the event of something the timer server has done.

        Args:
            name: what.
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
    """Return what an event tells of a worker that has ended."""
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
