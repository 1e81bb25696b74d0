"""A launch over a shared directory: the agent of `hpc-elastic run`, within the caller's own process."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Mapping
from typing import Any, Final

from hpc_elastic.errors import RendezvousClosedError
from hpc_elastic.launcher.adoption import ADOPTION
from hpc_elastic.launcher.config import LaunchConfig
from hpc_elastic.launcher.failures import error_of, run_failed
from hpc_elastic.multiprocessing.logs import DefaultLogsSpecs
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.node.setup.agent_setup import AgentTimes, SignalMeanings
from hpc_elastic.node.stop_rules import DrainTimes
from hpc_elastic.node.workers.local_group import Command
from hpc_elastic.paths import RunPaths
from hpc_elastic.rendezvous.shared_fs import SharedFsHandler
from hpc_elastic.settings.of_commands import AgentSettings
from hpc_elastic.slurm.client.environment import SlurmEnv
from hpc_elastic.slurm.run_jobs.may_start import admit, ended_text
from hpc_elastic.start.agent import open_agent
from hpc_elastic.start.meeting import LaunchOptions, ended_before

logger = logging.getLogger(__name__)

_PREFIX: Final = "[${role_name}${local_rank}]:"
_LOOPBACK: Final = "127.0.0.1"
_WARNINGS: Final = (signal.SIGUSR1, signal.SIGUSR2)


class LaunchTask(NamedTuple):
    """The task of the workers."""

    entrypoint: Callable[..., Any] | str
    args: tuple[Any, ...]
    name: str  # for people


def launch(
    config: LaunchConfig, task: LaunchTask, handler: SharedFsHandler, environ: Mapping[str, str]
) -> dict[int, Any]:
    """Run this node's part to its end.

    Args:
        config: how.
        task: the task of the workers.
        handler: says where the nodes meet; not usable afterwards.
        environ: of this process.

    Returns:
        The values of this node's workers by global rank.

    Raises:
        InputError: something that was given cannot be used.
        ChildFailedError: the run has failed, here or on another node.
        SignalException: this process got a signal to end; the workers have ended.
        RendezvousError: the run has ended or is being left, or too few nodes came.
    """
    slurm = _slurm_of(config, environ)
    options = options_of(config, task, handler, slurm)
    handler.release()
    admit(options.paths, environ)
    ended = ended_before(options.paths, slurm)
    if ended is not None:
        raise RendezvousClosedError(ended_text(options.paths, ended).replace("--run-dir", "rdzv_endpoint"))
    values, error = _run(options, task, slurm)
    try:
        if error is not None:
            raise error.with_traceback(None)  # else it would keep all that the agent stood on
        return values
    finally:
        del error


def _run(
    options: LaunchOptions, task: LaunchTask, slurm: SlurmEnv | None
) -> tuple[dict[int, Any], Exception | None]:
    with ADOPTION.restored(), open_agent(options, slurm, owns_process=False) as opened:
        outcome = opened.agent.run_to_end()
        opened.log.say(f"leaving: {outcome.reason}")
        failed = run_failed(outcome, task.name, opened.run.node)
        if failed is not None:
            opened.own_log.say(str(failed))
            base = os.path.splitext(options.paths.agent_log(opened.run.node))[0]
            failed.save(f"{base}.root_cause.json")
        signalled = opened.loop.last_signal
        return dict(outcome.result.return_values), error_of(outcome, failed, signalled)


def _slurm_of(config: LaunchConfig, environ: Mapping[str, str]) -> SlurmEnv | None:
    """Return the facts of Slurm's environment, if this process is a task of a step with other tasks."""
    slurm = SlurmEnv.from_environ(environ)
    return slurm if slurm is not None and slurm.in_step and config.max_nodes > 1 else None


def options_of(
    config: LaunchConfig, task: LaunchTask, handler: SharedFsHandler, slurm: SlurmEnv | None
) -> LaunchOptions:
    """Return the options of this node's agent."""
    paths = RunPaths(handler.run_dir)
    facts, settings = handler.run.membership.facts, handler.run.settings
    timeout = config.rdzv_configs.get("timeout")
    if timeout is not None and "join_timeout" not in config.rdzv_configs:
        settings = settings._replace(join_timeout=float(timeout))
    node = slurm.node_name if slurm and slurm.node_name else facts.member.node
    addr = _LOOPBACK if config.max_nodes == 1 else node if slurm else facts.addr
    grace_s = float(config.shutdown_timeout or 0)
    given = AgentSettings(
        max_restarts=config.max_restarts,
        event_log_handler=config.event_log_handler,
        preload=tuple(config.preload),
    )
    return LaunchOptions(
        paths=paths,
        run_id=config.run_id,
        rendezvous=settings,
        slots=config.nproc_per_node,
        command=_command_of(config, task, paths),
        title=task.name,
        settings=given,
        times=AgentTimes(
            drain=DrainTimes(stop=grace_s, warning=grace_s),
            shutdown=grace_s,
            told=grace_s,
            exit_barrier=float(config.exit_barrier_timeout or 0),
        ),
        signals=signal_meanings(config.signals_to_handle),
        node=node,
        addr=config.local_addr or addr,
    )


def _command_of(config: LaunchConfig, task: LaunchTask, paths: RunPaths) -> Command:
    program = task.entrypoint if isinstance(task.entrypoint, str) else None
    return Command(
        config.role,
        () if program is None else (program, *map(str, task.args)),
        config.wanted_logs or DefaultLogsSpecs(paths.logs, is_of_run=True),
        config.log_line_prefix_template or _PREFIX,
        function=None if isinstance(task.entrypoint, str) else task.entrypoint,
        args=task.args if program is None else (),
        start_method=config.start_method,
        numa=config.numa_options,
        filters=(
            tuple(config.duplicate_stdout_filters or ()),
            tuple(config.duplicate_stderr_filters or ()),
        ),
        virtual_local_rank=config.virtual_local_rank,
    )


def signal_meanings(names: str) -> SignalMeanings:
    """Return the meaning of each of the named signals; unknown names are reported and left out."""
    found = []
    for name in filter(None, (name.strip() for name in names.split(","))):
        number = signal.Signals.__members__.get(name)
        if number is None or number in (signal.SIGKILL, signal.SIGSTOP):
            logger.warning("Failed to register signal handler for %r: no signal that can be caught", name)
        else:
            found.append(number)
    return SignalMeanings(
        drain=tuple(n for n in found if n != signal.SIGINT and n not in _WARNINGS),
        warning=tuple(n for n in found if n in _WARNINGS),
        interrupt=tuple(n for n in found if n == signal.SIGINT),
    )
