"""The agent whose workers are processes of this machine: functions or programs.

Names and behaviour are those of ``torch.distributed.elastic.agent.server.local_elastic_agent``.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hpc_elastic.agent.server.api import SimpleElasticAgent
from hpc_elastic.agent.server.older_spellings import call_shutdown, logs_specs_of, start_method_of
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.metrics import prof
from hpc_elastic.multiprocessing import LogsSpecs, PContext, ProcessFailure, RunProcsResult, start_processes
from hpc_elastic.multiprocessing.errors.failure import explain
from hpc_elastic.multiprocessing.group import ProcessGroup
from hpc_elastic.multiprocessing.logs import log_line_prefix
from hpc_elastic.multiprocessing.pcontext import ON_ITS_OWN, NoTrap, StartSettings
from hpc_elastic.multiprocessing.signals import SignalTrap
from hpc_elastic.node.listeners.health_check import HealthCheckServer, health_check_from_env
from hpc_elastic.node.listeners.watchdog import Watchdog, without_dead_pipe
from hpc_elastic.node.spec import DEFAULT_ROLE, RunResult, Worker, WorkerGroup, WorkerSpec, WorkerState
from hpc_elastic.node.workers.stuck_in_kernel import UninterruptibleWatch, state_timeout, stuck_words
from hpc_elastic.node.workers.worker_env import DEVICES_ENV, substitute_texts, visible_devices
from hpc_elastic.processes.guard import Guard
from hpc_elastic.utils.logging import get_logger

if TYPE_CHECKING:
    from hpc_elastic.timer import FileTimerRequest


_ASYNC_ERRORS = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_THREADS = "OMP_NUM_THREADS"

__all__ = [
    "TORCHELASTIC_ENABLE_FILE_TIMER",
    "TORCHELASTIC_HEALTH_CHECK_PORT",
    "TORCHELASTIC_TIMER_FILE",
    "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT",
    "LocalElasticAgent",
]

TORCHELASTIC_ENABLE_FILE_TIMER = "TORCHELASTIC_ENABLE_FILE_TIMER"
TORCHELASTIC_HEALTH_CHECK_PORT = "TORCHELASTIC_HEALTH_CHECK_PORT"
TORCHELASTIC_TIMER_FILE = "TORCHELASTIC_TIMER_FILE"
TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"
_SHORTEST_PAUSE_S = 0.005  # between two looks at workers, however much happens

logger = get_logger(__name__)


class LocalElasticAgent(SimpleElasticAgent):
    """Runs the workers of one `WorkerSpec` as processes of this machine.

    It looks at them as soon as one ends, and every `monitor_interval` otherwise. Death signals
    (SIGTERM, SIGINT, SIGHUP, SIGQUIT, or those in TORCHELASTIC_SIGNALS_TO_HANDLE) are honoured from the
    beginning of `run` if that runs in the main thread: the workers get the signal, and SIGKILL after
    the shutdown timeout, or when a second one comes.

    Args:
        spec: description of the workers.
        logs_specs: where logs go; None: error files in a new temporary directory. A start method is
            taken for one: ``LocalElasticAgent(spec, "spawn")`` is the older spelling.
        start_method: of functions: ``spawn``, ``fork`` or ``forkserver``.
        exit_barrier_timeout: see `SimpleElasticAgent`.
        log_line_prefix_template: header of each teed line; may use ``${role_name}``,
            ``${rank}``, ``${local_rank}`` and ``${node}``.
        shutdown_timeout: see `SimpleElasticAgent`.
        health_check_server: a server that has been started; it is stopped at the end of `run`. None:
            one that listens at TORCHELASTIC_HEALTH_CHECK_PORT if that is set.
        uninterruptible_state_timeout: how long a worker may wait in the kernel before its group counts
            as failed for good [s]; None: TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT, 0: for ever.
        log_dir: where log directories are made; older spelling.

    Raises:
        InputError: a value cannot be used.
    """

    def __init__(  # noqa: PLR0913 - torch's signature
        self,
        spec: WorkerSpec,
        logs_specs: LogsSpecs | str | None = None,
        start_method: str = "spawn",
        exit_barrier_timeout: float | None = None,
        log_line_prefix_template: str | None = None,
        shutdown_timeout: float | None = None,
        health_check_server: HealthCheckServer | None = None,
        uninterruptible_state_timeout: float | None = None,
        *,
        log_dir: str | None = None,
    ) -> None:
        super().__init__(spec, exit_barrier_timeout, shutdown_timeout)
        if isinstance(logs_specs, str):
            start_method = start_method_of(logs_specs)
            logs_specs = None
        environ = os.environ
        self._start_method = start_method
        self._logs_specs = logs_specs_of(
            logs_specs, log_dir, getattr(spec, "redirects", None), getattr(spec, "tee", None)
        )
        self._log_line_prefix_template = log_line_prefix_template
        self._rdzv_handler = spec.rdzv_handler
        self._pcontext: PContext | None = None
        self._worker_watchdog: Watchdog | None = None
        self._health_check_server = health_check_server
        self._guard: Guard | None = None
        self._goes_on = False  # workers are stopped to be started again
        self._uninterruptible_state_timeout = state_timeout(environ, uninterruptible_state_timeout)
        self._stuck = UninterruptibleWatch(self._uninterruptible_state_timeout, self._clock.monotonic)

    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Run the workers to their end, over all restarts; see `SimpleElasticAgent.run`."""
        with self._guarded(), self._signals_taken():
            self._setup_healthcheck()
            return super().run(role)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """End the children of workers with this process, even if it is killed.

        Forks, so this is done without in a process that has threads; the workers themselves end in any case.
        """
        self._guard = Guard.start() if threading.active_count() == 1 else None
        try:
            yield
        finally:
            if self._guard is not None:
                self._guard.stop()
                self._guard = None

    @contextmanager
    def _signals_taken(self) -> Iterator[None]:
        """Turn death signals into `SignalException`, at places where nothing is half done."""
        trap = SignalTrap()
        trap.install()
        self._trap = trap
        try:
            with trap.held():
                yield
        finally:
            self._trap = NoTrap()
            trap.uninstall()

    def _pause(self, seconds: float) -> None:
        """Wait until the next look is due [s], a worker ends or a death signal comes."""
        group = self._pcontext
        fds = group.exit_fds() if isinstance(group, ProcessGroup) else []
        with self._trap.open() as woken:
            if _poll([*fds, woken], seconds) and fds:
                _poll([woken], _SHORTEST_PAUSE_S)

    # the processes beside the workers

    def _setup_local_watchdog(self, envs: dict[int, dict[str, str]]) -> None:
        """Start to watch the workers' timers if the environment asks for it, and tell the workers where."""
        if self._worker_watchdog is None:
            run_id = self._handler.get_run_id()
            self._worker_watchdog = Watchdog.from_env(os.environ, run_id, self._log_watchdog_event)
        if self._worker_watchdog is not None:
            try:
                self._worker_watchdog.start()
            except OSError as error:
                logger.warning("The workers' timers are not watched: %s", error)
            for env in envs.values():
                env.update(self._worker_watchdog.worker_env())

    def _setup_healthcheck(self) -> None:
        """Listen for questions whether the agent is alive, if the environment asks for it."""
        if self._health_check_server is None:
            server = health_check_from_env(os.environ, self._get_alive_time)
            if server is not None:
                server.start()
                self._health_check_server = server

    def _get_alive_time(self) -> int:
        """Return when the agent last showed progress [s since the epoch]."""
        progress = None if self._worker_watchdog is None else self._worker_watchdog.last_progress_time()
        return int(self._clock.wall()) if self._in_exit_barrier or progress is None else progress

    def _log_watchdog_event(self, name: str, request: FileTimerRequest | None) -> None:
        self._record(self._events.watchdog(name, request))

    # the hooks

    @prof
    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        """Start the workers; return their pids by local rank."""
        spec = worker_group.spec
        envs = {worker.local_rank: self._worker_env(worker) for worker in worker_group.workers}
        args = {local_rank: substitute_texts(spec.args, local_rank) for local_rank in envs}
        self._setup_local_watchdog(envs=envs)
        self._pcontext = start_processes(
            name=spec.role,
            entrypoint=spec.entrypoint,
            args=args,
            envs=envs,
            logs_specs=self._logs_specs,
            log_line_prefixes=log_prefixes(self._log_line_prefix_template, worker_group, os.uname().nodename),
            start_method=self._start_method,
            numa_options=spec.numa_options,
            duplicate_stdout_filters=spec.duplicate_stdout_filters,
            duplicate_stderr_filters=spec.duplicate_stderr_filters,
            shutdown_timeout=self._shutdown_timeout,
            settings=self._start_settings(),
        )
        return self._pcontext.pids()

    def _start_settings(self) -> StartSettings:
        trap = self._trap if isinstance(self._trap, SignalTrap) else None
        environ = without_dead_pipe(os.environ)
        return ON_ITS_OWN._replace(trap=trap, base_env=environ, guard=self._guard)

    def _worker_env(self, worker: Worker) -> dict[str, str]:
        handler, spec = self._handler, self._worker_group.spec
        run = {
            "TORCHELASTIC_RESTART_COUNT": str(spec.max_restarts - self._remaining_restarts),
            "TORCHELASTIC_RUN_ID": handler.get_run_id(),
            "TORCHELASTIC_USE_AGENT_STORE": str(handler.use_agent_store),
        }
        return elastic_env(worker, self._worker_group, os.environ, run)

    @prof
    def _stop_workers(self, worker_group: WorkerGroup) -> None:  # noqa: ARG002 - torch's signature
        """End the workers as at the end of the run; health checks are still answered."""
        self._goes_on = True
        try:
            call_shutdown(self._shutdown, self._shutdown_timeout)
        finally:
            self._goes_on = False

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: float | None = None) -> None:
        """End the workers and their watchers.

        Args:
            death_sig: sent to the workers first.
            timeout: from then to SIGKILL [s]; None: the agent's shutdown timeout.
        """
        try:
            if self._worker_watchdog is not None:
                self._worker_watchdog.stop()
            if self._health_check_server is not None and not self._goes_on:
                self._health_check_server.stop()
                self._health_check_server = None
        finally:
            if self._pcontext is not None:
                self._pcontext.close(death_sig, self._shutdown_timeout if timeout is None else timeout)

    @prof
    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        """Look at the workers; failures and return values are by global rank."""
        if self._pcontext is None:
            raise RuntimeError("the workers have not been started")
        pids = set(self._pcontext.pids().values())
        known = {worker.id for worker in worker_group.workers}
        if known != pids:
            logger.error(
                "[%s] worker pids do not match process_context pids. Expected: %s, actual: %s",
                *(worker_group.spec.role, known, pids),
            )
            return RunResult(WorkerState.UNKNOWN)
        result = self._pcontext.wait(0)
        if result is not None:
            self._explain(result)
            return _by_global_rank(result, worker_group)
        timeout = self._uninterruptible_state_timeout
        stuck = self._check_uninterruptible_state_timeout(worker_group, timeout) if timeout > 0 else None
        return stuck or RunResult(WorkerState.HEALTHY)

    def _explain(self, result: RunProcsResult) -> None:
        """Say of workers that this agent's watchdog has ended that it has."""
        if self._worker_watchdog is not None:
            for failure in result.failures.values():
                explain(failure, self._worker_watchdog.reason(failure.pid))

    def _check_uninterruptible_state_timeout(
        self, worker_group: WorkerGroup, timeout: float
    ) -> RunResult | None:
        """Return that the group is UNHEALTHY if a worker has been stuck in the kernel for too long.

        It holds something that another worker on this node would need, too: no restarts are left then.
        While the rendezvous does not answer the cause may pass with that.
        """
        by_pid = {worker.id: worker for worker in worker_group.workers}
        failures = {}
        for pid in self._stuck.check(() if self._membership.is_out_of_touch else tuple(by_pid)):
            logger.error(
                "[%s] Worker pid=%s stuck in uninterruptible sleep (D-state) for %.1fs or longer;"
                " marking worker group UNHEALTHY and disabling restarts.",
                *(worker_group.spec.role, pid, timeout),
            )
            worker = by_pid[pid]
            failure = ProcessFailure(worker.local_rank, pid, ExitCode.WEDGED, "")
            explain(failure, stuck_words(timeout))
            failures[worker.global_rank] = failure
        if not failures:
            return None
        self._remaining_restarts = 0
        return RunResult(WorkerState.UNHEALTHY, failures=failures)


def _by_global_rank(result: RunProcsResult, group: WorkerGroup) -> RunResult:
    ranks = {worker.local_rank: worker.global_rank for worker in group.workers}
    if result.is_failed():
        failures = {ranks[local_rank]: failure for local_rank, failure in result.failures.items()}
        return RunResult(WorkerState.FAILED, failures=failures)
    values = {ranks[local_rank]: value for local_rank, value in result.return_values.items()}
    return RunResult(WorkerState.SUCCEEDED, values)


def _poll(fds: list[int | None], seconds: float) -> bool:
    """Wait until a descriptor is readable, at most so long [s]; return whether one is."""
    poller = select.poll()
    for fd in fds:
        if fd is not None:
            poller.register(fd, select.POLLIN)
    return bool(poller.poll(max(0.0, seconds) * 1000))


def elastic_env(
    worker: Worker, group: WorkerGroup, environ: Mapping[str, str], run: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables of a worker in addition to the agent's own environment.

    Args:
        worker: the worker.
        group: the workers of the agent, in their round.
        environ: the agent's environment.
        run: the values of the rendezvous and the agent, the same for all workers.

    Raises:
        TooFewDevicesError: each worker is to see a GPU of its own, and there is none for this one.
    """
    spec = group.spec
    env = {
        "LOCAL_RANK": "0" if spec.virtual_local_rank else str(worker.local_rank),
        "RANK": str(worker.global_rank),
        "GROUP_RANK": str(group.group_rank),
        "ROLE_RANK": str(worker.role_rank),
        "ROLE_NAME": spec.role,
        "LOCAL_WORLD_SIZE": str(spec.local_world_size),
        "WORLD_SIZE": str(worker.world_size),
        "GROUP_WORLD_SIZE": str(group.group_world_size),
        "ROLE_WORLD_SIZE": str(worker.role_world_size),
        "MASTER_ADDR": str(group.master_addr),
        "MASTER_PORT": str(group.master_port),
        "TORCHELASTIC_MAX_RESTARTS": str(spec.max_restarts),
        _ASYNC_ERRORS: environ.get(_ASYNC_ERRORS, "1"),
        **run,
    }
    devices = visible_devices(worker.local_rank, environ.get(DEVICES_ENV), virtual=spec.virtual_local_rank)
    if devices is not None:
        env[DEVICES_ENV] = devices
    if _THREADS in environ:
        env[_THREADS] = environ[_THREADS]
    return env


def log_prefixes(template: str | None, group: WorkerGroup, node: str) -> dict[int, str] | None:
    """Return the header of each worker's lines on the console; None: the default.

    Args:
        template: may use ``${role_name}``, ``${rank}``, ``${local_rank}`` and ``${node}``.
        group: the workers, in their round.
        node: this node's name.
    """
    if not template:
        return None
    return {
        worker.local_rank: log_line_prefix(
            template,
            role_name=group.spec.role,
            rank=worker.global_rank,
            local_rank=worker.local_rank,
            node=node,
        )
        for worker in group.workers
    }
