"""The names of torch.distributed.launcher.api."""

from __future__ import annotations

import itertools
import logging
import os
import sys
import uuid
from collections.abc import Callable, Mapping
from dataclasses import fields
from multiprocessing import process
from typing import TYPE_CHECKING, Any, Final

import hpc_elastic.rendezvous.registry as rdzv_registry
from hpc_elastic import events, metrics
from hpc_elastic.agent.server.api import WorkerSpec
from hpc_elastic.agent.server.local_elastic_agent import LocalElasticAgent
from hpc_elastic.errors import InputError
from hpc_elastic.launcher.adoption import ADOPTION, AsBefore, is_changed
from hpc_elastic.launcher.config import LaunchConfig
from hpc_elastic.meet.interface import RendezvousHandler
from hpc_elastic.multiprocessing import DefaultLogsSpecs, LogsSpecs, Std
from hpc_elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from hpc_elastic.multiprocessing.signals import SIGNALS_ENV, SignalException
from hpc_elastic.node.spec import SpecError
from hpc_elastic.rendezvous.other_names import directory_of
from hpc_elastic.rendezvous.parameters import RendezvousParameters
from hpc_elastic.rendezvous.shared_fs import SharedFsHandler
from hpc_elastic.rendezvous.utils import parse_rendezvous_endpoint
from hpc_elastic.utils.logging import get_logger

if TYPE_CHECKING:
    from hpc_elastic.node.listeners.health_check import HealthCheckServer

__all__ = [
    "DefaultLogsSpecs",
    "LaunchConfig",
    "LogsSpecs",
    "Std",
    "elastic_launch",
    "get_logger",
    "launch_agent",
]

logger = logging.getLogger(__name__)

Entrypoint = Callable[..., Any] | str | None

_launches = itertools.count(1)
_NO_PORT: Final = -1
_NOBODY: Final = -1  # the rank of a failure that has none


def _name_signals(names: str | None) -> None:
    """Have workers that launch themselves take these signals; None: not given."""
    if names is None:
        os.environ.pop(SIGNALS_ENV, None)
    else:
        os.environ[SIGNALS_ENV] = names


_SIGNALS: Final = AsBefore(lambda: os.environ.get(SIGNALS_ENV), _name_signals)


class elastic_launch:  # noqa: N801 - torch's name
    """Runs this node's agent: ``elastic_launch(config, train)(lr)`` calls ``train(lr)`` in each worker.

    Args:
        config: how.
        entrypoint: a function, or a command.
        health_check_server: answers whether the agent is alive, in place of its own.
    """

    def __init__(
        self,
        config: LaunchConfig,
        entrypoint: Entrypoint,
        health_check_server: HealthCheckServer | None = None,
    ) -> None:
        self._config = config
        self._entrypoint = entrypoint
        self._health_check_server = health_check_server

    def __call__(self, *args: Any) -> dict[int, Any]:
        """Run the workers to their end, over all restarts; see `launch_agent`.

        Args:
            args: of the entrypoint; ``${local_rank}`` in a text stands for the worker's local rank.
        """
        return launch_agent(
            self._config, self._entrypoint, list(args), health_check_server=self._health_check_server
        )


def launch_agent(
    config: LaunchConfig,
    entrypoint: Entrypoint,
    args: list[Any],
    health_check_server: HealthCheckServer | None = None,
) -> dict[int, Any]:
    """Run this node's agent to its end; nothing is left running or changed in this process.

    A `LocalElasticAgent` that a program has put in place of ours, or into which it has put methods, is the
    agent over any backend.

    A run without an id gets one, with a warning: all nodes of a Slurm step find the same, elsewhere it
    is random.

    Args:
        config: how.
        entrypoint: a function, or a command, that each worker runs.
        args: of the entrypoint.
        health_check_server: answers whether the agent is alive, in place of its own; it has been started,
            and is stopped in the end.

    Returns:
        The values of the workers of this node by global rank; commands return None.

    Raises:
        InputError: something that was given cannot be used.
        ValueError: the same, for the parameters of the rendezvous.
        ChildFailedError: the run has failed, here or on another node.
        SignalException: this process got a signal to end; the workers have ended.
        RendezvousError: the run has ended or is being left, or too few nodes came.
    """
    _refuse_unguarded_main()
    spec = _spec(config, entrypoint, args)
    if not config.run_id:
        config.run_id = _new_run_id(os.environ)
    entrypoint_name = _get_entrypoint_name(entrypoint, args)
    _tell(config, entrypoint_name)
    params = _parameters(config)
    spec.master_addr, spec.master_port = _get_addr_and_port(params)
    with _SIGNALS.restored():
        _name_signals(config.signals_to_handle)
        metrics.initialize_metrics(metrics.MetricsConfig(config.metrics_cfg))
        handler = spec.rdzv_handler = rdzv_registry.get_rendezvous_handler(params)
        return _launch(config, spec, handler, entrypoint_name, health_check_server)


def _launch(
    config: LaunchConfig,
    spec: WorkerSpec,
    handler: RendezvousHandler,
    name: str,
    health_check_server: HealthCheckServer | None,
) -> dict[int, Any]:
    """Run the agent that fits the rendezvous handler to its end."""
    if isinstance(handler, SharedFsHandler) and not is_changed(LocalElasticAgent):
        from hpc_elastic.launcher import shared_run  # noqa: PLC0415 - another handler needs none of it

        task = shared_run.LaunchTask(spec.entrypoint, spec.args, name)
        try:
            return shared_run.launch(config, task, handler, os.environ)
        finally:
            if health_check_server is not None:
                health_check_server.stop()
    agent = LocalElasticAgent(
        spec=spec,
        logs_specs=config.logs_specs,
        start_method=config.start_method,
        log_line_prefix_template=config.log_line_prefix_template,
        exit_barrier_timeout=config.exit_barrier_timeout,
        shutdown_timeout=config.shutdown_timeout,
        health_check_server=health_check_server,
    )
    return _run(agent, config, name, handler)


def _spec(config: LaunchConfig, entrypoint: Entrypoint, args: list[Any]) -> WorkerSpec:
    """Return the description of the workers, without the place of the rendezvous.

    Raises:
        InputError: a value cannot be used.
    """
    if entrypoint is None:
        raise SpecError(
            "there is nothing to run", where="entrypoint", fix="give a function or a command as entrypoint"
        )
    if config.nproc_per_node < 1:
        raise InputError(
            f"it is {config.nproc_per_node}",
            where="LaunchConfig.nproc_per_node",
            fix="it must be at least 1",
        )
    return WorkerSpec(
        role=config.role,
        local_world_size=config.nproc_per_node,
        entrypoint=entrypoint,
        args=tuple(args),
        max_restarts=config.max_restarts,
        monitor_interval=config.monitor_interval,
        local_addr=config.local_addr,
        event_log_handler=config.event_log_handler,
        numa_options=config.numa_options,
        duplicate_stdout_filters=config.duplicate_stdout_filters,
        duplicate_stderr_filters=config.duplicate_stderr_filters,
        virtual_local_rank=config.virtual_local_rank,
    )


def _parameters(config: LaunchConfig) -> RendezvousParameters:
    params = RendezvousParameters(
        backend=config.rdzv_backend,
        endpoint=config.rdzv_endpoint,
        run_id=config.run_id,
        min_nodes=config.min_nodes,
        max_nodes=config.max_nodes,
        local_addr=config.local_addr,
        **config.rdzv_configs,
    )
    if params.backend == "shared_fs" and params.max_nodes == 1 and not params.endpoint.strip():
        params.endpoint = directory_of(params)  # with no other node to meet, any directory will do
    return params


def _run(
    agent: LocalElasticAgent, config: LaunchConfig, name: str, handler: RendezvousHandler
) -> dict[int, Any]:
    """Run an agent over a handler that knows nothing of runs, and leave the rendezvous.

    After a signal it stays open for the other nodes.
    """
    is_left = True
    try:
        with ADOPTION.restored():
            result = agent.run()
        events.record(agent.get_event_succeeded(), config.event_log_handler)
    except Exception as error:
        is_left = not isinstance(error, SignalException)
        events.record(agent.get_event_failed(), config.event_log_handler)
        raise
    finally:
        if is_left:
            _shut_down(handler)
    if result.is_failed():
        raise ChildFailedError(name, result.failures or {_NOBODY: ProcessFailure(_NOBODY, 0, 1, "")})
    return dict(result.return_values)


def _shut_down(handler: RendezvousHandler) -> None:
    """Leave the rendezvous; that this fails hides neither a result nor an error."""
    try:
        handler.shutdown()
    except Exception:  # foreign handlers raise any exception
        logger.warning("the rendezvous could not be shut down", exc_info=True)


def _refuse_unguarded_main() -> None:
    """Refuse to launch from a worker that only imports the script that has launched it."""
    if getattr(process.current_process(), "_inheriting", False):
        raise InputError(
            "a worker of this script has come to the launch itself, as it imports the script",
            where="elastic_launch",
            fix="put the launch below: if __name__ == '__main__':"
            " (and so the code that submits to submitit's debug executor)",
        )


def _new_run_id(environ: Mapping[str, str]) -> str:
    """Make up a run id and tell it; the n-th launch of a Slurm step's tasks gets the same on all nodes."""
    job, step = environ.get("SLURM_JOB_ID"), environ.get("SLURM_STEP_ID", "")
    number = next(_launches)
    if job and step.isdecimal():
        run_id = f"{job}.{step}.{number}"
        logger.warning("config has no run_id, that of the Slurm step is taken: %s", run_id)
        return run_id
    run_id = str(uuid.uuid4().int)
    logger.warning("config has no run_id, generated a random run_id: %s", run_id)
    return run_id


def _tell(config: LaunchConfig, entrypoint_name: str) -> None:
    """Log the launch."""
    facts = {
        "entrypoint": entrypoint_name,
        **{item.name: getattr(config, item.name) for item in fields(config)},
    }
    lines = "".join(f"\n  {name:<24} : {value}" for name, value in facts.items())
    logger.info("Starting elastic_operator with launch configs:%s", lines)


def _get_entrypoint_name(entrypoint: Entrypoint, args: list[Any]) -> str:
    """Return a name of the program: for the Python interpreter it is the script."""
    if callable(entrypoint):
        inner = getattr(entrypoint, "func", entrypoint)  # of a functools.partial
        return str(getattr(inner, "__name__", None) or type(inner).__name__)
    if entrypoint == sys.executable:
        return next((str(arg) for arg in args if not str(arg).startswith("-")), "")
    return entrypoint or ""


def _get_addr_and_port(rdzv_parameters: RendezvousParameters) -> tuple[str | None, int | None]:
    """Return where the workers' process group is to meet; of other backends than static nothing is fixed.

    Raises:
        ValueError: the endpoint of the static backend lacks a host or a port.
    """
    if rdzv_parameters.backend != "static":
        return None, None
    endpoint = rdzv_parameters.endpoint.strip()
    if not endpoint:
        raise ValueError("Endpoint is missing in endpoint. Try to add --master-addr and --master-port")
    addr, port = parse_rendezvous_endpoint(endpoint, default_port=_NO_PORT)
    if port == _NO_PORT:
        raise ValueError(f"port is missing in endpoint: {endpoint}. Try to specify --master-port")
    return addr, port
