"""The agent as a template: rendezvous, ranks, restarts and the exit barrier, over any rendezvous handler.

Names, hooks and their behaviour are those of ``torch.distributed.elastic.agent.server.api``. Derive from
`SimpleElasticAgent` and fill in how workers are started, stopped and looked at.
"""

from __future__ import annotations

import os
import signal
import traceback
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from hpc_elastic.agent.rank_assignment import RoleInstanceInfo as _RoleInstanceInfo
from hpc_elastic.agent.rank_assignment import exchange_ranks, identical_ranks
from hpc_elastic.agent.server.older_spellings import as_rendezvous_info, call_shutdown, timeout_of
from hpc_elastic.clock import Clock, SystemClock
from hpc_elastic.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousTimeoutError,
    StoreError,
    StoreTimeoutError,
)
from hpc_elastic.events import Event, EventSource, record
from hpc_elastic.ids import SHUTDOWN_S
from hpc_elastic.meet.interface import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo
from hpc_elastic.meet.interface import full_host_name as _get_fq_hostname
from hpc_elastic.metrics import prof, put_metric
from hpc_elastic.multiprocessing.pcontext import NoTrap
from hpc_elastic.multiprocessing.signals import SignalException, SignalTrap
from hpc_elastic.node.listeners.telemetry import (
    AgentEvents,
    Details,
    flakiness,
    run_metrics,
    state_metrics,
    worker_state,
)
from hpc_elastic.node.spec import (
    DEFAULT_ROLE,
    ElasticAgent,
    RunResult,
    SpecError,
    Worker,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from hpc_elastic.utils import get_socket_with_port as _get_socket_with_port
from hpc_elastic.utils import store as store_util
from hpc_elastic.utils.logging import get_logger

__all__ = [
    "_TERMINAL_STATE_SYNC_ID",
    "ElasticAgent",
    "RunResult",
    "SimpleElasticAgent",
    "Worker",
    "WorkerGroup",
    "WorkerSpec",
    "WorkerState",
    "_RoleInstanceInfo",
    "_get_fq_hostname",
    "_get_socket_with_port",
]

logger = log = get_logger(__name__)  # it had another name in earlier versions
NO_ANSWER = (RendezvousConnectionError, RendezvousTimeoutError, StoreError, ConnectionError, TimeoutError)

BARRIER_KEY = "torchelastic/agent/terminal_state"
_TERMINAL_STATE_SYNC_ID = BARRIER_KEY  # its name in torch
SLICE_S = 1.0  # longest part of a wait between two looks at the other nodes
FOREIGN_SLICE_S = 10.0  # the same with torch's stores, which warn at the end of each part
_IN_TIME = 0.9  # a store that gives up after less than this part of a wait has another trouble
_TOO_LATE = (TimeoutError, RuntimeError)  # torch's stores raise RuntimeErrors of several kinds


class RecordingAgent(ElasticAgent):
    """The state of an agent, and the events it makes of it.

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
        self._shutdown_timeout = timeout_of("shutdown_timeout", shutdown_timeout, SHUTDOWN_S, environ)
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


class SimpleElasticAgent(RecordingAgent):
    """Runs the workers of one `WorkerSpec`, over any `RendezvousHandler`; derive from it.

    Workers that fail are restarted, after a new rendezvous, while the spec's restarts last; a change of
    the membership restarts them, too, and does not count. Restarts are this agent's own count.

    Args:
        spec: description of the workers.
        exit_barrier_timeout: how long to wait for the other agents at the end [s]; None:
            TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT, or 300.
        shutdown_timeout: from the death signal to SIGKILL, however workers are ended [s]; None:
            TORCH_ELASTIC_SHUTDOWN_TIMEOUT, or 30.
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
        super().__init__(spec, exit_barrier_timeout, shutdown_timeout, clock=clock)
        self._trap: SignalTrap | NoTrap = NoTrap()
        self._round: RendezvousInfo | None = None
        self._membership = MembershipWatch()

    # filled in by a derived class

    @abstractmethod
    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        """Start `local_world_size` workers and return their ids by local rank."""

    @abstractmethod
    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        """End all workers, in any state; there may be none."""

    @abstractmethod
    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        """Look at the workers and return how they are, without waiting."""

    @abstractmethod
    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = SHUTDOWN_S) -> None:
        """Release all resources at the end of a run; ends workers that still run.

        Args:
            death_sig: sent to the workers first.
            timeout: from then to SIGKILL [s].
        """

    def _pause(self, seconds: float) -> None:
        """Wait until the next look at the workers is due [s]; may come back earlier."""
        with self._trap.open():
            self._clock.sleep(seconds)

    # the run

    @prof
    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Run the workers to their end, over all restarts; never leaves one behind.

        Returns:
            The workers' results or failures. The state is STOPPED if the rendezvous had no need of this
            node any more.

        Raises:
            SignalException: a death signal came; all workers have ended.
            RendezvousError: the nodes could not be brought together.
        """
        began = self._clock.monotonic()
        is_shut = False
        try:
            result = self._invoke_run(role)
            self._total_execution_time = int(self._clock.monotonic() - began)
            self._record_metrics(result)
            self._record_worker_events(result)
        except SignalException as error:
            logger.warning("Received %s death signal, shutting down workers", error.sigval)
            call_shutdown(self._shutdown, self._shutdown_timeout, error.sigval)
            is_shut = True
            raise
        except Exception as error:
            if not is_like(error, RendezvousGracefulExitError):
                raise
            logger.info("Rendezvous gracefully exited: %s", error)
            self._worker_group.state = WorkerState.STOPPED
            return RunResult(WorkerState.STOPPED)
        else:
            return result
        finally:
            if not is_shut:
                call_shutdown(self._shutdown, self._shutdown_timeout)
            self._total_execution_time = int(self._clock.monotonic() - began)

    def _invoke_run(self, role: str = DEFAULT_ROLE) -> RunResult:  # noqa: ARG002 - torch's signature
        """Rendezvous, start the workers and look at them until they have ended for good."""
        group = self._worker_group
        name = group.spec.get_entrypoint_name()
        logger.info("[%s] starting workers for entrypoint: %s", group.spec.role, name)
        self._initialize_workers(group)
        while True:
            if group.state is WorkerState.INIT:
                raise AssertionError("the workers have not been started")
            self._pause(group.spec.monitor_interval)
            result = self._monitor_workers(group)
            group.state = result.state
            self._put_metrics(state_metrics(group.spec.role, result.state, self._remaining_restarts))
            end = self._act_on(result)
            if end is not None:
                return end

    def _act_on(self, result: RunResult) -> RunResult | None:
        """Act on the state of the workers; a result ends the run."""
        role = self._worker_group.spec.role
        if result.state == WorkerState.SUCCEEDED:
            logger.info(
                "[%s] worker group successfully finished. Waiting %s seconds for other agents to finish.",
                *(role, self._exit_barrier_timeout),
            )
            return self._again(result) if self._exit_barrier() is True else result
        if result.state in {WorkerState.UNHEALTHY, WorkerState.FAILED}:
            return self._after_failure(result)
        if result.state != WorkerState.HEALTHY:
            raise RuntimeError(f"[{role}] Worker group in {result.state.name} state")
        self._heed_membership()
        return None

    def _again(self, result: RunResult) -> RunResult | None:
        """Restart workers that have succeeded, since those of other nodes start again."""
        role = self._worker_group.spec.role
        logger.info("[%s] Other nodes start again; will restart worker group", role)
        try:
            self._restart_workers(self._worker_group)
        except Exception as error:
            if not is_like(error, RendezvousClosedError, RendezvousTimeoutError):
                raise
            logger.info("[%s] no restart, the other nodes do without: %s", role, error)
            self._worker_group.state = result.state
            return result
        return None

    def _after_failure(self, result: RunResult) -> RunResult | None:
        group, left = self._worker_group, self._remaining_restarts
        if left > 0:
            logger.info(
                "[%s] Worker group %s. %s/%s attempts left; will restart worker group",
                *(group.spec.role, result.state.name, left, group.spec.max_restarts),
            )
            self._remaining_restarts -= 1
            try:
                self._restart_workers(group)
            except Exception as error:
                if not is_like(error, RendezvousClosedError):
                    raise
                logger.warning("[%s] no restart, the run is over: %s", group.spec.role, error)
                group.state = WorkerState.FAILED
                return _as_failed(result)
            return None
        self._stop_workers(group)
        group.state = WorkerState.FAILED
        self._exit_barrier()
        return _as_failed(result)

    def _heed_membership(self) -> None:
        """Restart healthy workers if the membership is to change; that does not count as a restart."""
        group = self._worker_group
        waiting = self._membership.nodes_waiting(self._handler)
        if waiting > 0:
            logger.info(
                "[%s] Detected %s new nodes from group_rank=%s; will restart worker group",
                *(group.spec.role, waiting, group.group_rank),
            )
            self._restart_workers(group)

    @property
    def _handler(self) -> RendezvousHandler:
        handler = self._worker_group.spec.rdzv_handler
        if handler is None:
            raise SpecError("no rdzv_handler: an agent needs one to run", where="WorkerSpec")
        return handler

    # starting

    @prof
    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        """Meet the other agents, assign ranks and bring the worker group up to date.

        A node that is lost meanwhile does not end the agent: they meet again.
        """
        spec = worker_group.spec
        info, workers = self._meet(spec)
        self._store, self._round = info.store, info
        worker_group.workers = workers
        worker_group.store = info.store
        worker_group.group_rank, worker_group.group_world_size = info.rank, info.world_size
        worker_group.master_addr = spec.master_addr or info.bootstrap_store_info.master_addr
        worker_group.master_port = spec.master_port or info.bootstrap_store_info.master_port
        facts = self._round_facts(worker_group)
        logger.info("[%s] Rendezvous complete for workers. Result:\n%s", spec.role, facts)

    def _meet(self, spec: WorkerSpec) -> tuple[RendezvousInfo, list[Worker]]:
        while True:
            with self.record_duration("RENDEZVOUS"), self._trap.open():
                info = as_rendezvous_info(self._handler.next_rendezvous(), spec.local_addr)
            try:
                with self.record_duration("ASSIGN_WORKER_RANKS"):
                    return info, self._assign_worker_ranks(info.store, info.rank, info.world_size, spec)
            except RoundOverError:
                logger.warning("[%s] The other nodes start again; another rendezvous", spec.role)

    @prof
    def _assign_worker_ranks(
        self, store: Any, group_rank: int, group_world_size: int, spec: WorkerSpec
    ) -> list[Worker]:
        """Return this agent's workers with their ranks.

        Agents may have different roles and sizes: each sets its own description, the one with group rank 0
        computes the ranks of all and sets them. All are alike if the environment says
        TORCH_ELASTIC_WORKER_IDENTICAL=1, and where the rendezvous has no store.
        """
        alike = os.environ.get("TORCH_ELASTIC_WORKER_IDENTICAL", "0") == "1"
        if alike or store is None:
            ranks = identical_ranks(group_rank, group_world_size, spec.local_world_size)
        else:
            watched = WatchedStore(store, self._look_at_round, self._clock)
            info = _RoleInstanceInfo(spec.role, group_rank, spec.local_world_size)
            with self._trap.open():
                ranks = exchange_ranks(watched, info, group_world_size)
        return [
            Worker(
                local_rank,
                ranks.base_rank + local_rank,
                ranks.role_base + local_rank,
                ranks.world_size,
                ranks.role_world_size,
            )
            for local_rank in range(spec.local_world_size)
        ]

    def _look_at_round(self) -> None:
        """Look whether the round still stands, between two parts of a wait.

        Raises:
            RoundOverError: it does not.
        """
        with self._trap.held():
            if self._membership.nodes_waiting(self._handler) > 0:
                raise RoundOverError

    @prof
    def _initialize_workers(self, worker_group: WorkerGroup) -> None:
        """Rendezvous and start new workers; those before have been stopped."""
        role = worker_group.spec.role
        logger.info("[%s] Rendezvous'ing worker group", role)
        self._rendezvous(worker_group)
        logger.info("[%s] Starting worker group", role)
        for local_rank, worker_id in self._start_workers(worker_group).items():
            worker = worker_group.workers[local_rank]
            worker.id = worker_id
            self._record(self._construct_event("START", EventSource.WORKER, worker))
        worker_group.state = WorkerState.HEALTHY

    @prof
    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        """Stop the workers, rendezvous, start new ones."""
        logger.info("[%s] Stopping worker group", worker_group.spec.role)
        self._stop_workers(worker_group)
        worker_group.state = WorkerState.STOPPED
        self._initialize_workers(worker_group)

    # ending

    def _exit_barrier(self) -> bool:
        """Wait until the other agents' workers have ended, too; at most the exit barrier's timeout.

        An error there is logged, and is not a failure of the run.

        Returns:
            Whether this node, whose workers have succeeded, is wanted in another round.
        """
        group, timeout = self._worker_group, self._exit_barrier_timeout
        logger.info(
            "Local worker group finished (%s). Waiting %s seconds for other agents to finish",
            *(group.state, timeout),
        )
        has_failed = group.state == WorkerState.FAILED
        began = self._clock.monotonic()
        self._in_exit_barrier = True
        try:
            how = self._barrier().wait(timeout)
        except SignalException as error:
            logger.warning("Got termination signal: %s", error.sigval)
            raise
        except RoundOverError:
            return not has_failed
        except Exception:
            elapsed = self._clock.monotonic() - began
            logger.exception("Error waiting on exit barrier. Elapsed: %s seconds", elapsed)
        else:
            logger.info("%s. Elapsed: %s seconds", how, self._clock.monotonic() - began)
        finally:
            self._in_exit_barrier = False
        return False

    def _barrier(self) -> ExitBarrier:
        met = round_of(self._round, self._store, self._worker_group)
        return ExitBarrier(self._handler, met, self._clock, self._trap)

    def _record_metrics(self, group_results: RunResult) -> None:
        """Publish how the run ended."""
        failed, role = group_results.is_failed(), self._worker_group.spec.role
        left, most = self._remaining_restarts, self._worker_group.spec.max_restarts
        self._record_flakiness_metric(failed)
        found = run_metrics(failed=failed, remaining_restarts=left, max_restarts=most)
        self._put_metrics({f"workers.{role}.{name}": found[name] for name in found if name != "flakiness"})

    def _record_flakiness_metric(self, is_failed: bool = False) -> None:  # noqa: FBT001, FBT002 - torch's
        """Publish how much of the restarts was used [%]."""
        left, most = self._remaining_restarts, self._worker_group.spec.max_restarts
        value = flakiness(failed=is_failed, remaining_restarts=left, max_restarts=most)
        put_metric(f"workers.{self._worker_group.spec.role}.flakiness", value)

    @staticmethod
    def _put_metrics(metrics: Mapping[str, int]) -> None:
        for name, value in metrics.items():
            put_metric(name, value)


def _as_failed(result: RunResult) -> RunResult:
    """Return the result of workers that are not started again, for any failure."""
    return RunResult(WorkerState.FAILED, result.return_values, result.failures)


class OthersGoneError(Exception):
    """No other agent is left."""


class RoundOverError(Exception):
    """Other nodes want another round, or have one."""


class WatchedStore:
    """A store whose waits are cut into short ones, between which the other nodes are looked at.

    Args:
        store: the store; everything but waiting is as it does it.
        look: looks at the other nodes; raises an exception to end the wait.
        clock: this node's clock.
    """

    def __init__(self, store: Any, look: Callable[[], None], clock: Clock) -> None:
        self._store = store
        self._look = look
        self._clock = clock
        self._slice_s = SLICE_S if getattr(store, "counts_writes", False) else FOREIGN_SLICE_S

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, key: str) -> bytes:
        """Return the value of a key; waits for it as long as the store's timeout."""
        self.wait([key])
        return bytes(self._store.get(key))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Return the values of keys; waits for all as long as the store's timeout."""
        self.wait(keys)
        return [bytes(value) for value in self._store.multi_get(list(keys))]

    def wait(self, keys: Sequence[str], timeout: timedelta | float | None = None) -> None:
        """Wait until all keys have a value."""
        self._in_slices(lambda part: self._store.wait(list(keys), part), keys, timeout)

    def wait_written(self, keys: Sequence[str], times: int, timeout: timedelta | float | None = None) -> None:
        """Wait until each key was written a number of times."""
        self._in_slices(lambda part: self._store.wait_written(list(keys), times, part), keys, timeout)

    def _in_slices(
        self,
        wait: Callable[[timedelta], object],
        keys: Sequence[str],
        timeout: timedelta | float | None,
    ) -> None:
        if timeout is None and not hasattr(self._store, "timeout"):
            return  # a simple store, which waits as it likes
        limit_s = _seconds(self._store.timeout if timeout is None else timeout)
        deadline = self._clock.monotonic() + limit_s
        while True:
            began = self._clock.monotonic()
            part_s = max(0.0, min(self._slice_s, deadline - began))
            try:
                wait(timedelta(seconds=part_s))
            except _TOO_LATE as error:
                if _can_only_read(error):
                    return
                now = self._clock.monotonic()
                if now - began < part_s * _IN_TIME:
                    raise
                self._look()
                if now >= deadline:
                    raise _late(error, keys, limit_s) from error
            else:
                return


def _can_only_read(error: Exception) -> bool:
    """Tell whether a store can wait by reading alone, as one derived from torch's that fills in no more."""
    return isinstance(error, NotImplementedError) or "pure virtual function" in str(error)


def _seconds(timeout: timedelta | float) -> float:
    return timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)


def _late(error: Exception, keys: Sequence[str], limit_s: float) -> Exception:
    """Return an error that tells the whole time waited, where it is ours."""
    if not isinstance(error, StoreError):
        return error
    missing = error.missing if isinstance(error, StoreTimeoutError) else ()
    names = ", ".join(missing or keys)
    return StoreTimeoutError(f"not within {limit_s:g} s: key {names}", missing=missing)


def look_at_others(handler: Any) -> None:
    """Look whether waiting for other agents still makes sense.

    A handler that has `others_at_work` (the names of the other nodes of the round that are there and
    not done) has more facts than others, which know only of waiting nodes: a node starts again, or is
    new, and the agents whose workers run will start again with it.

    Raises:
        OthersGoneError: no other agent is left.
        RoundOverError: other nodes want another round, or have one.
    """
    others_at_work = getattr(handler, "others_at_work", None)
    if others_at_work is not None and not others_at_work():
        raise OthersGoneError
    if handler.num_nodes_waiting() > 0:
        raise RoundOverError


def round_of(met: RendezvousInfo | None, store: Any, group: WorkerGroup) -> RendezvousInfo:
    """Return the round that an agent is in.

    Args:
        met: the result of the rendezvous; None where a derived class meets the others by itself.
        store: the agent's store.
        group: its worker group.

    Raises:
        RuntimeError: it is in none.
    """
    if met is not None and met.store is store:
        return met
    if group.group_rank is None or group.group_world_size is None:
        raise RuntimeError("there was no rendezvous")
    where = RendezvousStoreInfo(group.master_addr or "", group.master_port or 0)
    return RendezvousInfo(store, group.group_rank, group.group_world_size, where)


class ExitBarrier:
    """Where the agents of a round wait for each other's workers to end."""

    def __init__(
        self,
        handler: RendezvousHandler,
        round_info: RendezvousInfo,
        clock: Clock,
        trap: SignalTrap | NoTrap,
    ) -> None:
        self._handler = handler
        self._info = round_info
        self._clock = clock
        self._trap = trap

    def wait(self, timeout: float) -> str:
        """Wait until the other agents are here, too; return in words how that ended.

        Args:
            timeout: how long [s].

        Raises:
            RoundOverError: the other nodes start again.
            StoreTimeoutError: not all came; names those that are missing.
        """
        info = self._info
        if info.store is None:
            return "Not waiting for other agents: the rendezvous has no store"

        try:
            with self._trap.open():
                store_util.barrier(
                    store=WatchedStore(info.store, self._look, self._clock),
                    world_size=info.world_size,
                    key_prefix=BARRIER_KEY,
                    barrier_timeout=timeout,
                    rank=info.rank,
                    rank_tracing_decoder=self._name,
                )
        except OthersGoneError:
            return "Not waiting any more: no other agent is left"
        return "Done waiting for other agents"

    def _look(self) -> None:
        with self._trap.held():
            try:
                look_at_others(self._handler)
            except Exception as error:
                if not is_like(error, *NO_ANSWER):
                    raise  # a store may answer later; the barrier's time is bounded

    def _name(self, rank: int) -> str:
        """Return the name of an agent for people."""
        formed = getattr(self._info, "round", None)
        return str(rank) if formed is None else f"{rank} ({formed.members[rank].node})"


"""Errors after which asking again makes sense."""


def is_like(error: Exception, *kinds: type[Exception]) -> bool:
    """Tell whether an error is of one of these kinds, or of one of torch's that has the same name."""
    names = {kind.__name__ for kind in kinds}
    return any(base.__name__ in names for base in type(error).__mro__)


class MembershipWatch:
    """Asks a handler how many nodes wait; healthy workers go on while it does not answer."""

    def __init__(self) -> None:
        self._is_out_of_touch = False

    @property
    def is_out_of_touch(self) -> bool:
        """Whether the handler did not answer the last time it was asked."""
        return self._is_out_of_touch

    def nodes_waiting(self, handler: RendezvousHandler) -> int:
        """Return how many nodes wait; 0 while it is unknown, which is logged once.

        Raises:
            RendezvousClosedError: a node has ended the run for all nodes.
            RendezvousError: the shared state is damaged.
        """
        try:
            waiting = handler.num_nodes_waiting()
            _refuse_ended(handler)
        except Exception as error:
            if not is_like(error, *NO_ANSWER):
                raise
            if not self._is_out_of_touch:
                logger.warning("The rendezvous does not answer, the workers go on: %s", error)
            self._is_out_of_touch = True
            return 0
        if self._is_out_of_touch:
            logger.warning("The rendezvous answers again")
        self._is_out_of_touch = False
        return waiting


def _refuse_ended(handler: RendezvousHandler) -> None:
    """Refuse to go on in a run that has been ended on purpose.

    Other handlers than ours are closed by every node that leaves, so that means nothing for those that work.
    """
    if hasattr(handler, "others_at_work") and handler.is_closed():
        raise RendezvousClosedError(
            f"the run '{handler.get_run_id()}' was closed while its workers ran; they are ended"
        )
