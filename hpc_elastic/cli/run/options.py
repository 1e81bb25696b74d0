"""From the flags of ``hpc-elastic run`` and the environment to checked options and the workers' command."""

from __future__ import annotations

import argparse
import math
import os
import signal
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from hpc_elastic.cli.run.nodes import FIXED_MASTER, RunPlace, check_room, node_name, place_of, settings_of
from hpc_elastic.cli.run.values import local_ranks, meanings, signals, slots, streams
from hpc_elastic.errors import InputError
from hpc_elastic.ids import Env
from hpc_elastic.meet.rules import MeetingSettings
from hpc_elastic.multiprocessing.logs import DEFAULT_PREFIX, DefaultLogsSpecs, LogsSpecs
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.node.setup.agent_setup import AgentTimes, SignalMeanings
from hpc_elastic.node.stop_rules import DrainTimes, Unasked
from hpc_elastic.node.workers.local_group import Command
from hpc_elastic.paths import RunPaths, absence_of
from hpc_elastic.settings.of_commands import AgentSettings
from hpc_elastic.settings.setting import SECONDS
from hpc_elastic.settings.values import BadValueError
from hpc_elastic.slurm.client.environment import SlurmEnv
from hpc_elastic.slurm.job.worker_launcher import refuse_launcher, title_of
from hpc_elastic.start.agent import default_python
from hpc_elastic.start.meeting import LaunchOptions
from hpc_elastic.store.plain_file import absence_fix
from hpc_elastic.text import for_shell, visible

if TYPE_CHECKING:
    from hpc_elastic.processes.numa import NumaOptions

_MAX_PORT = 65535
PREFIX_VARIABLE: Final = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"


def drain_times_of(settings: AgentSettings) -> DrainTimes:
    """Return how long workers have to save."""
    return DrainTimes(
        stop=settings.stop_timeout,
        warning=settings.warn_timeout,
        is_stop_given="stop_timeout" in settings.given,
        critical=settings.critical_timeout,
        unasked=_unasked_of(settings.unasked),
        rescues=settings.keep_in_memory > 0,
    )


def _unasked_of(text: str) -> Unasked:
    name = text.partition(":")[2]
    number = signals("--unasked", [name])[0] if name else None
    return Unasked(runs_on=text != "term", number=number)


class RunPlan(NamedTuple):
    """The agent to start, and the messages before its start."""

    options: LaunchOptions
    slurm: SlurmEnv | None  # Slurm's variables, if this process is a step's task
    place: RunPlace
    notes: tuple[str, ...]


class Master(NamedTuple):
    """The fixed address and port of the workers' process group; None for those of each round."""

    addr: str | None
    port: int | None


def resolve(args: argparse.Namespace, environ: Mapping[str, str]) -> RunPlan:
    """Return checked options and Slurm's facts of the step.

    Raises:
        InputError: a value cannot be used; names the flag and the fix.
    """
    slurm = SlurmEnv.from_environ(environ)
    if slurm is not None and not slurm.in_step:
        slurm = None
    settings, notes = settings_of(args, slurm)
    check_room(settings.min_nodes, environ, slurm)
    work, count = work_of(args), slots(args.nproc_per_node, slurm, environ)
    if settings.max_nodes == 1:  # of several nodes one could lack it, and the others would wait for that node
        check_script(args, environ)
    node = node_name(args, slurm)
    master, master_notes = _master(args, settings, node, slurm)
    given = AgentSettings.of(args)
    times, signals = _times(given, environ), _meanings(args)
    numa = numa_of(args)
    check_event_handler(given.event_log_handler, environ)
    if not args.virtual_local_rank:
        check_binding(numa, count, environ)
    place = place_of(args, environ, slurm, settings.max_nodes)
    options = LaunchOptions(
        paths=place.paths,
        run_id=place.run_id,
        rendezvous=settings,
        slots=count,
        command=_command(args, work, numa, logs_of(args, place.paths), prefix_of(args, environ)),
        title=title_of((args.training_script, *args.training_script_args)),
        settings=given,
        times=times,
        signals=signals,
        node=node,
        addr=args.local_addr or node if slurm else args.local_addr or os.uname().nodename,
        master_addr=master.addr,
        master_port=master.port,
    )
    return RunPlan(options, slurm, place, (*notes, *_use_env(args), *master_notes, *place.notes))


def _command(
    args: argparse.Namespace, work: Work, numa: NumaOptions | None, logs: LogsSpecs, prefixes: str
) -> Command:
    return Command(
        args.role,
        work.argv,
        logs,
        prefixes,
        function=work.entrypoint,
        args=work.args,
        start_method=args.start_method,
        numa=numa,
        filters=(tuple(args.duplicate_stdout_filters), tuple(args.duplicate_stderr_filters)),
        virtual_local_rank=args.virtual_local_rank,
    )


def _use_env(args: argparse.Namespace) -> list[str]:
    """Return the note about a flag of earlier versions."""
    note = "--use-env is not needed: LOCAL_RANK is always in the environment of a worker"
    return [note] if args.use_env else []


def _meanings(args: argparse.Namespace) -> SignalMeanings:
    return meanings(args.drain_signals, args.warning_signals, args.signals_to_handle, _ignored())


def _ignored() -> list[int]:
    """Return SIGHUP where ``nohup`` has this process ignore it: the run outlives its terminal."""
    return [number for number in (signal.SIGHUP,) if signal.getsignal(number) is signal.SIG_IGN]


def _times(settings: AgentSettings, environ: Mapping[str, str]) -> AgentTimes:
    shutdown, text = settings.shutdown_timeout, environ.get(Env.SHUTDOWN_TIMEOUT, "")
    is_told = "shutdown_timeout" in settings.given
    if text and not is_told:
        try:
            shutdown, is_told = SECONDS.parse(text), True
        except BadValueError as error:
            fix = f"{error.fix}, or unset it"
            raise InputError(error.message, where=Env.SHUTDOWN_TIMEOUT, fix=fix) from None
    return AgentTimes(
        drain=drain_times_of(settings),
        shutdown=shutdown,
        told=shutdown if is_told else math.inf,
        exit_barrier=settings.exit_barrier_timeout,
    )


def _master(
    args: argparse.Namespace, settings: MeetingSettings, node: str, slurm: SlurmEnv | None
) -> tuple[Master, list[str]]:
    """Return the fixed address and port, and a note on those that are not used.

    Raises:
        InputError: the port is none, or taken on the node that is to open it.
    """
    addr, port = args.master_addr, args.master_port
    if args.standalone or args.rdzv_backend not in FIXED_MASTER:
        given = [f"--{name}" for name, value in (("master-addr", addr), ("master-port", port)) if value]
        verb, why = ("are", "each round has its own") if len(given) > 1 else ("is", "each round has its own")
        how = "--standalone" if args.standalone else f"--rdzv-backend {args.rdzv_backend}"
        notes = [f"{' and '.join(given)} {verb} not used with {how}: {why}"] if given else []
        return Master(args.local_addr if settings.max_nodes == 1 else None, None), notes
    if port is not None and not 0 < port <= _MAX_PORT:
        raise InputError(
            f"{port} is no port", where="--master-port", fix=f"give 1 to {_MAX_PORT}, or leave it out"
        )
    is_first = settings.max_nodes == 1 or args.node_rank == 0 or (slurm and node in slurm.node_names[:1])
    if port is not None and is_first:
        _check_is_free(port)
    if addr is None and settings.max_nodes == 1:
        addr = args.local_addr
    return Master(_without_brackets(addr), port), []


def _without_brackets(addr: str | None) -> str | None:
    """Return an address as workers look it up; torchrun wants brackets around IPv6 addresses."""
    return addr[1:-1] if addr and addr[0] == "[" and addr[-1] == "]" else addr


def _check_is_free(port: int) -> None:
    import socket  # noqa: PLC0415 - 5 ms

    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a closing socket leaves its port free
        try:
            probe.bind(("", port))
        except OSError as error:
            raise InputError(
                f"port {port} cannot be had on {os.uname().nodename}: {error.strerror}",
                where="--master-port",
                fix="choose another, or leave it out: then each round has a free one",
            ) from None


class Work(NamedTuple):
    """A program with its arguments, or a function with its."""

    argv: tuple[str, ...]
    entrypoint: Callable[..., Any] | None = None
    args: tuple[str, ...] = ()


def work_of(args: argparse.Namespace) -> Work:
    """Return the command of each worker.

    Raises:
        InputError: flags that exclude each other, or a prefix that is no words.
    """
    for first, second in (("no_python", "module"), ("run_path", "module"), ("run_path", "container")):
        if getattr(args, first) and getattr(args, second):
            flags = [f"--{name.replace('_', '-')}" for name in (first, second)]
            raise InputError(
                f"{flags[0]} and {flags[1]} exclude each other",
                where="hpc-elastic run",
                fix="leave one of them out",
            )
    script, rest = args.training_script, tuple(args.training_script_args)
    if args.run_path:
        from hpc_elastic.cli.run.script import run_script_path  # noqa: PLC0415 - only if it is asked for

        return Work((script,), run_script_path, (script, *rest))
    if args.no_python:
        command: tuple[str, ...] = (script, *rest)
    else:
        flags = ["-u", "-m"] if args.module else ["-u"]
        command = (default_python(), *flags, script, *rest)
    if args.nproc_per_node != "1" or args.nnodes != "1":  # a single one may be any program
        refuse_launcher(command, "training_script", is_run=True)
    if not args.container:
        return Work(command)
    return Work((*args.container, *command))


def check_script(args: argparse.Namespace, environ: Mapping[str, str]) -> None:
    """Refuse a script or program that is not there; modules and programs of a container are not looked at.

    Raises:
        InputError: it is missing, or a directory without ``__main__.py``.
    """
    script = args.training_script
    is_program = args.no_python and not args.run_path
    if args.module or args.container:
        return
    if is_program and "/" not in script:
        places = [os.path.join(place, script) for place in environ.get("PATH", os.defpath).split(":")]
        if not any(os.access(place, os.X_OK) for place in places):
            fix = f"write {for_shell(f'./{script}')}" if os.path.isfile(script) else "check the name"
            raise InputError(f"the program {script} is not on PATH", where="training_script", fix=fix)
    elif not os.path.exists(script):
        raise InputError(
            f"the {'program' if is_program else 'script'} {script} {absence_of(script)}",
            where="training_script",
            fix=absence_fix(script, f"check the path; it is looked for in {visible(os.getcwd())}"),
        )
    elif os.path.isdir(script) and (is_program or not os.path.exists(os.path.join(script, "__main__.py"))):
        raise InputError(f"{script} is a directory", where="training_script", fix="name the script in it")
    elif is_program and not os.access(script, os.X_OK):
        raise InputError(
            f"the program {script} cannot be executed",
            where="training_script",
            fix=f"chmod +x {for_shell(script)}, or leave --no-python out if it is a Python script",
        )


def logs_of(args: argparse.Namespace, paths: RunPaths) -> LogsSpecs:
    """Return where output goes: into the run directory, or into one of the run's below the given one.

    Raises:
        InputError: a value cannot be used, or no package offers the log specs.
    """
    given = (
        os.path.abspath(os.path.expanduser(args.log_dir)) if args.log_dir else ""
    )  # a worker may go elsewhere
    if args.logs_specs or given == os.devnull:
        return logs_specs_of(args, given or paths.logs)
    if given and os.path.exists(given) and not os.path.isdir(given):
        raise InputError(f"{args.log_dir} is no directory", where="--log-dir", fix="give a directory")
    if given:
        _check_writable(given)
    return logs_specs_of(args, os.path.join(given, paths.name) if given else paths.logs, is_of_run=True)


def _check_writable(directory: str) -> None:
    """Refuse a directory for logs in which nothing can be made on this node.

    Raises:
        InputError: names the part of the path that is in the way.
    """
    place = directory
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    how = _why_unwritable(place)
    if how:
        raise InputError(
            f"logs cannot be written to {directory}: {place} {how} on {os.uname().nodename}",
            where="--log-dir",
            fix="give a directory that this user can write to on every node",
        )


def _why_unwritable(place: str) -> str:
    """Return why nothing can be made in a place, empty if it can; for root only an attempt shows it."""
    if not os.path.isdir(place):
        return "is no directory"
    if not os.access(place, os.W_OK | os.X_OK):
        return "is not writable"
    trial = os.path.join(place, f".hpc_elastic-{os.uname().nodename}-{os.getpid()}")
    try:
        os.mkdir(trial, 0o700)
        os.rmdir(trial)
    except OSError as error:
        return f"takes no files ({error.strerror})"
    return ""


def logs_specs_of(args: argparse.Namespace, directory: str | None, *, is_of_run: bool = False) -> LogsSpecs:
    """Return ours or those that a package offers, for a log directory.

    Args:
        args: the flags.
        directory: of the logs.
        is_of_run: whether it belongs to one run.

    Raises:
        InputError: a value cannot be used, or no package offers the log specs.
    """
    redirects, tee = streams("--redirects", args.redirects), streams("--tee", args.tee)
    ranks = local_ranks(args.local_ranks_filter)
    if not args.logs_specs:
        return DefaultLogsSpecs(directory, redirects, tee, ranks, is_of_run=is_of_run)
    from hpc_elastic.multiprocessing.logs import make_logs_specs  # noqa: PLC0415 - 30 ms

    try:
        return make_logs_specs(args.logs_specs, directory, redirects, tee, ranks)
    except ValueError as error:
        fix = "check the name, or install the package that offers it"
        raise InputError(str(error), where="--logs-specs", fix=fix) from None


def prefix_of(args: argparse.Namespace, environ: Mapping[str, str]) -> str:
    """Return the template of the text before teed lines."""
    if args.log_line_prefix_template is not None:
        return str(args.log_line_prefix_template)
    return environ.get(PREFIX_VARIABLE) or DEFAULT_PREFIX


def numa_of(args: argparse.Namespace) -> NumaOptions | None:
    """Return how workers are bound to CPUs, None if they are not."""
    if args.numa_binding is None:
        return None
    from hpc_elastic.processes.numa import AffinityMode, NumaOptions  # noqa: PLC0415 - rare

    return NumaOptions(AffinityMode(args.numa_binding))


def check_binding(options: NumaOptions | None, workers: int, environ: Mapping[str, str]) -> None:
    """Refuse a binding that cannot be had on this node.

    Raises:
        InputError: the kernel does not tell which CPUs are near which GPU, or there are too few.
    """
    if options is None:
        return
    from hpc_elastic.processes.numa import cpus_of  # noqa: PLC0415 - rare

    try:
        for local_rank in range(workers):
            cpus_of(local_rank, options, environ)
    except (RuntimeError, ValueError) as error:
        raise InputError(str(error), where="--numa-binding", fix="leave it out on this node") from None


def check_event_handler(name: str, environ: Mapping[str, str]) -> None:
    """Refuse a destination of events that there is not; a module of the user's may register one.

    Raises:
        InputError: there is none of this name.
    """
    if name == "null" or environ.get(Env.EVENTS):
        return
    from hpc_elastic.events import get_logging_handler  # noqa: PLC0415 - logging, 10 ms

    try:
        get_logging_handler(name)
    except KeyError as error:
        fix = f"use one of them; a module that registers others is named by {Env.EVENTS}"
        raise InputError(str(error.args[0]), where="--event-log-handler", fix=fix) from None
