"""From the flags of ``hpc-elastic run`` and the environment to checked options."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Mapping

from hpc_elastic.agent.parts import AgentTimes, SignalMeanings
from hpc_elastic.agent.wish import DrainTimes
from hpc_elastic.clock import SystemClock, date_text
from hpc_elastic.errors import InputError
from hpc_elastic.ids import Env
from hpc_elastic.launch import LaunchOptions, default_python
from hpc_elastic.multiprocessing.logs import DefaultLogsSpecs
from hpc_elastic.multiprocessing.std import Std
from hpc_elastic.paths import RunPaths
from hpc_elastic.rendezvous.rules import RendezvousSettings
from hpc_elastic.slurm.environment import SlurmEnv

_CONF = ("join_timeout", "last_call_timeout", "heartbeat_interval", "lease")
_NO_ID = "none"  # torchrun's
_SHARED = ("shared_fs", "static", "c10d")


def resolve(args: argparse.Namespace, environ: Mapping[str, str]) -> tuple[LaunchOptions, SlurmEnv | None]:
    """Return checked options and what Slurm told, if this process is a step's task.

    Raises:
        InputError: a value cannot be used; names the flag and what to do.
    """
    slurm = SlurmEnv.from_environ(environ)
    if slurm is not None and not slurm.in_step:
        slurm = None
    settings = _rendezvous(args, slurm)
    if settings.max_nodes == 1:  # of several nodes one could lack it, and the others would wait for that node
        check_script(args, environ)
    node = _node_name(args, slurm)
    run_id = args.rdzv_id or environ.get(Env.RUN_ID) or (slurm.job_ref if slurm else _NO_ID)
    paths = RunPaths(_run_dir(args, environ, slurm, settings, run_id))
    options = LaunchOptions(
        paths=paths,
        run_id=run_id if run_id != _NO_ID else paths.name,
        rendezvous=settings,
        slots=slots(args.nproc_per_node, slurm, environ),
        argv=_command(args),
        title=os.path.basename(args.training_script),
        logs=_logs(args, paths),
        prefixes=args.log_line_prefix_template,
        max_restarts=_at_least("--max-restarts", args.max_restarts, 0),
        times=AgentTimes(
            drain=DrainTimes(stop=args.stop_timeout, warning=args.warn_timeout),
            shutdown=args.shutdown_timeout,
            exit_barrier=args.exit_barrier_timeout,
        ),
        signals=SignalMeanings(
            drain=_signals("--drain-signals", args.drain_signals),
            warning=_signals("--warning-signals", args.warning_signals),
        ),
        node=node,
        addr=args.local_addr or node if slurm else args.local_addr or os.uname().nodename,
        role=args.role,
        master_addr=args.master_addr,
        master_port=args.master_port,
    )
    return options, slurm


def _rendezvous(args: argparse.Namespace, slurm: SlurmEnv | None) -> RendezvousSettings:
    low, high = nodes(args.nnodes, len(slurm.node_names) if slurm else 1)
    if args.standalone:
        low = high = 1
    if args.rdzv_backend not in _SHARED:
        raise InputError(
            f"unknown rendezvous backend {args.rdzv_backend!r}",
            where="--rdzv-backend",
            fix="use shared_fs (the default): agents meet in the run directory",
        )
    settings = RendezvousSettings(min_nodes=low, max_nodes=high)
    given = {**_conf(args.rdzv_conf)}
    for name in _CONF:
        value = getattr(args, name)
        if value is not None:
            given[name] = value
    settings = settings._replace(**given)  # type: ignore[arg-type]
    for name in _CONF:
        if getattr(settings, name) <= 0:
            raise InputError(
                f"{name} is {getattr(settings, name):g} s", where=name, fix="it must be positive"
            )
    if settings.lease < 3 * settings.heartbeat_interval:
        raise InputError(
            f"a lease of {settings.lease:g} s with a heartbeat each {settings.heartbeat_interval:g} s "
            "gives healthy nodes up",
            where="--lease",
            fix="make the lease at least three heartbeat intervals",
        )
    return settings


def nodes(text: str | None, default: int) -> tuple[int, int]:
    """Return the least and the most nodes of ``N`` or ``MIN:MAX``."""
    if text is None:
        return default, default
    low, _, high = text.partition(":")
    try:
        least, most = int(low), int(high or low)
    except ValueError:
        raise InputError(
            f"{text!r} is not a number of nodes", where="--nnodes", fix="write N or MIN:MAX"
        ) from None
    if not 1 <= least <= most:
        raise InputError(
            f"{text!r}: the minimum must be at least 1 and at most the maximum",
            where="--nnodes",
            fix=f"write {most}:{least}" if 1 <= most < least else "write N or MIN:MAX",
        )
    return least, most


def _conf(text: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if name not in _CONF or not equals:
            raise InputError(
                f"{part!r} is not a setting of the rendezvous",
                where="--rdzv-conf",
                fix=f"use NAME=SECONDS with {', '.join(_CONF)}",
            )
        try:
            found[name] = float(value)
        except ValueError:
            raise InputError(f"{part!r}: not a number", where="--rdzv-conf", fix="give seconds") from None
    return found


def _node_name(args: argparse.Namespace, slurm: SlurmEnv | None) -> str:
    if slurm is not None and slurm.node_name:
        return slurm.node_name
    name = os.uname().nodename
    return f"{name}-{args.node_rank}" if args.node_rank is not None else name


def _run_dir(
    args: argparse.Namespace,
    environ: Mapping[str, str],
    slurm: SlurmEnv | None,
    settings: RendezvousSettings,
    run_id: str,
) -> str:
    given = args.run_dir or environ.get(Env.RUN_DIR)
    if given:
        return str(given)
    if args.rdzv_endpoint:
        if "/" not in args.rdzv_endpoint:
            raise InputError(
                f"{args.rdzv_endpoint!r} is a host, not a directory",
                where="--rdzv-endpoint",
                fix="agents meet in a shared directory: give its path, or use --run-dir",
            )
        return os.path.join(args.rdzv_endpoint, run_id)
    base = environ.get("SLURM_SUBMIT_DIR") if slurm else None
    if base or settings.max_nodes == 1:
        stamp = date_text(SystemClock().wall()).replace("-", "").replace(":", "").replace(" ", "-")
        name = run_id if slurm or run_id != _NO_ID else f"run-{stamp}-{os.getpid()}"
        return os.path.join(base or os.getcwd(), "hpc_elastic_runs", name)
    raise InputError(
        f"{settings.max_nodes} nodes need a directory to meet in",
        where="--run-dir",
        fix="give one on a file system that all nodes share, the same for all agents of the run",
    )


def names_own_dir(args: argparse.Namespace, environ: Mapping[str, str]) -> bool:
    """Tell whether the run directory is one that nobody has named."""
    return not (args.run_dir or args.rdzv_endpoint or environ.get(Env.RUN_DIR))


def slots(text: str | None, slurm: SlurmEnv | None, environ: Mapping[str, str]) -> int:
    """Return the number of workers on this node.

    Args:
        text: ``--nproc-per-node``; None means one per GPU under Slurm, else one.
        slurm: what Slurm gave this node.
        environ: for the GPUs a scheduler has made visible.
    """
    if text is not None and text.isdigit() and int(text) > 0:
        return int(text)
    gpus = _gpus(slurm, environ)
    if text is None:
        return (gpus or 1) if slurm else 1
    if text == "cpu" or (text == "auto" and not gpus):
        return len(os.sched_getaffinity(0))
    if text in ("gpu", "auto") and gpus:
        return gpus
    if text == "gpu":
        raise InputError("no GPU is visible on this node", where="--nproc-per-node", fix="ask Slurm for GPUs")
    raise InputError(
        f"{text!r} is not a number of workers", where="--nproc-per-node", fix="use N, auto, gpu or cpu"
    )


def _gpus(slurm: SlurmEnv | None, environ: Mapping[str, str]) -> int:
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len(
            [device for device in visible.split(",") if device.strip() not in ("", "-1", "NoDevFiles")]
        )
    if slurm is not None and slurm.gpus_on_node:
        return slurm.gpus_on_node
    return len([name for name in os.listdir("/dev") if name.startswith("nvidia") and name[6:].isdigit()])


def _command(args: argparse.Namespace) -> tuple[str, ...]:
    script, rest = args.training_script, tuple(args.training_script_args)
    if args.no_python and args.module:
        raise InputError(
            "--no-python and --module exclude each other",
            where="hpc-elastic run",
            fix="leave one of them out",
        )
    if args.no_python:
        command: tuple[str, ...] = (script, *rest)
    else:
        flags = ("-u", "-m") if args.module else ("-u",)
        command = (default_python(), *flags, script, *rest)
    if not args.container:
        return command
    import shlex  # noqa: PLC0415

    return (*shlex.split(args.container), *command)


def check_script(args: argparse.Namespace, environ: Mapping[str, str]) -> None:
    """Refuse a script or program that is not there; a module and what is in a container are not looked at.

    Raises:
        InputError: it is missing, or a directory without ``__main__.py``.
    """
    script = args.training_script
    if args.module or args.container:
        return
    if args.no_python and "/" not in script:
        places = [os.path.join(place, script) for place in environ.get("PATH", os.defpath).split(":")]
        if not any(os.access(place, os.X_OK) for place in places):
            raise InputError(
                f"the program {script} is not on PATH", where="training_script", fix="check the name"
            )
    elif not os.path.exists(script):
        raise InputError(
            f"the {'program' if args.no_python else 'script'} {script} does not exist",
            where="training_script",
            fix=f"check the path; it is looked for in {os.getcwd()}",
        )
    elif os.path.isdir(script) and (
        args.no_python or not os.path.exists(os.path.join(script, "__main__.py"))
    ):
        raise InputError(f"{script} is a directory", where="training_script", fix="name the script in it")


def _logs(args: argparse.Namespace, paths: RunPaths) -> DefaultLogsSpecs:
    try:
        ranks = {int(rank) for rank in args.local_ranks_filter.split(",") if rank}
        redirects, tee = Std.from_str(args.redirects), Std.from_str(args.tee)
    except ValueError as error:
        raise InputError(
            str(error), where="--redirects, --tee or --local-ranks-filter", fix="see hpc-elastic run --help"
        ) from None
    return DefaultLogsSpecs(args.log_dir or paths.logs, redirects, tee, ranks or None, is_of_run=True)


def _at_least(name: str, value: int, least: int) -> int:
    if value < least:
        raise InputError(f"it is {value}", where=name, fix=f"it must be at least {least}")
    return value


def _signals(where: str, text: str) -> tuple[int, ...]:
    found = []
    for name in filter(None, text.split(",")):
        full = name.strip().upper()
        full = full if full.startswith("SIG") else f"SIG{full}"
        if full not in signal.Signals.__members__ or full in ("SIGKILL", "SIGSTOP"):
            raise InputError(
                f"{name!r} is not a signal that can be caught", where=where, fix="use TERM, USR1 ..."
            )
        found.append(int(signal.Signals[full]))
    return tuple(found)
