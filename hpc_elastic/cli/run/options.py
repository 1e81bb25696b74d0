"""From the flags of ``hpc-elastic run`` and the environment to checked options."""

from __future__ import annotations

import argparse
import math
import os
import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hpc_elastic.cli.run.nodes import FIXED_MASTER, RunPlace, check_room, node_name, place_of, settings_of
from hpc_elastic.cli.run.values import meanings, signals, slots
from hpc_elastic.cli.run.work import (
    Work,
    check_binding,
    check_script,
    event_handler_of,
    logs_of,
    numa_of,
    prefix_of,
    preload_of,
    work_of,
)
from hpc_elastic.errors import InputError
from hpc_elastic.ids import Env
from hpc_elastic.meet.rules import MeetingSettings
from hpc_elastic.multiprocessing.logs import LogsSpecs
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.node.decision import RestartBudgets
from hpc_elastic.node.probe.rules import ProbeOptions
from hpc_elastic.node.setup.agent_setup import AgentTimes, SignalMeanings
from hpc_elastic.node.setup.hang_times import HangOptions
from hpc_elastic.node.stop_rules import DrainTimes, Unasked
from hpc_elastic.node.workers.local_group import Command
from hpc_elastic.settings.of_commands import RUN, RunSettings
from hpc_elastic.settings.setting import AT_LEAST_0, agents, check_number, check_values
from hpc_elastic.settings.table import JobSettings
from hpc_elastic.slurm.client.environment import SlurmEnv
from hpc_elastic.slurm.job.worker_launcher import title_of
from hpc_elastic.start.meeting import LaunchOptions

if TYPE_CHECKING:
    from hpc_elastic.processes.numa import NumaOptions

_AUTO, _OFF = "auto", "off"
_MAX_PORT = 65535
_FIX = "give seconds, auto (learned from the run) or off"


def budgets_of(args: argparse.Namespace) -> RestartBudgets:
    """Return the budgets that were asked for.

    Raises:
        InputError: one failure is to count as a repeated one.
    """
    if args.same_failure == 1:
        raise InputError("it is 1", where="--same-failure", fix="it must be 2 or more, or 0 for never")
    return RestartBudgets(args.max_restarts, args.max_hangs, same_failure=args.same_failure or None)


def hang_options_of(args: argparse.Namespace) -> HangOptions:
    """Return how long workers may make no progress.

    Raises:
        InputError: one of the limits is no time.
    """
    return HangOptions(
        timeout=_limit("--hang-timeout", args.hang_timeout),
        first_step=_limit("--first-step-timeout", args.first_step_timeout),
        silence=args.silence_timeout or math.inf,
    )


def _limit(flag: str, text: str) -> float | None:
    """Return a limit [s]; None: learned, inf: none."""
    word = text.strip().lower()
    if word == _AUTO:
        return None
    if word == _OFF:
        return math.inf
    from hpc_elastic.slurm.job.values import BadValueError, parse_duration_s  # noqa: PLC0415 - rare

    try:
        seconds = parse_duration_s(word)
    except BadValueError as error:
        raise InputError(f"{text!r} is no time", where=flag, fix=_FIX) from error
    if not seconds > 0:
        raise InputError(f"it is {text}", where=flag, fix=_FIX)
    return seconds


def drain_times_of(args: argparse.Namespace) -> DrainTimes:
    """Return how long workers have to save.

    Raises:
        InputError: no flag says whether workers that never ask are ended.
    """
    is_given = args.stop_timeout is not None
    return DrainTimes(
        stop=args.stop_timeout if is_given else agents(JobSettings.stop_timeout),
        warning=args.warn_timeout,
        is_stop_given=is_given,
        critical=args.critical_timeout,
        unasked=_unasked_of(args.unasked),
        rescues=args.keep_in_memory > 0,
    )


def _unasked_of(text: str) -> Unasked:
    word, colon, name = text.partition(":")
    if text in ("term", "run-on"):
        return Unasked(runs_on=text == "run-on")
    numbers = signals("--unasked", name) if word == "signal" and colon else ()
    if len(numbers) != 1:
        raise InputError(
            f"{text!r} says nothing about workers that never ask",
            where="--unasked",
            fix="write term, run-on, or signal:USR1",
        )
    return Unasked(runs_on=True, number=numbers[0])


def probe_of(args: argparse.Namespace) -> ProbeOptions:
    """Return the checks of a node before it joins.

    Raises:
        InputError: the free space is no size.
    """
    return ProbeOptions(
        mode=args.health_check,
        command=args.health_command,
        timeout=args.health_timeout,
        min_space=_size("--probe-min-space", args.probe_min_space),
        min_inodes=args.probe_min_inodes,
        gpu_devices=args.gpu_devices,
    )


def _size(flag: str, text: str) -> int:
    if text == agents(JobSettings.probe_min_space):
        return ProbeOptions().min_space
    from hpc_elastic.slurm.job.values import BadValueError, parse_size  # noqa: PLC0415 - not on the way to a start

    try:
        return parse_size(text)
    except BadValueError as error:
        raise InputError(error.message, where=flag, fix=error.fix) from None


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
    check_values(RUN, vars(args))
    check_room(settings.min_nodes, environ, slurm)
    work, count = work_of(args), slots(args.nproc_per_node, slurm, environ)
    if settings.max_nodes == 1:  # of several nodes one could lack it, and the others would wait for that node
        check_script(args, environ)
    node = node_name(args, slurm)
    master, master_notes = _master(args, settings, node, slurm)
    times, signals = _times(args, environ), _meanings(args)
    numa, events = numa_of(args), event_handler_of(args, environ)
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
        max_restarts=args.max_restarts,
        times=times,
        signals=signals,
        node=node,
        addr=args.local_addr or node if slurm else args.local_addr or os.uname().nodename,
        master_addr=master.addr,
        master_port=master.port,
        event_log_handler=events,
        probe=probe_of(args),
        hangs=hang_options_of(args),
        budgets=budgets_of(args),
        watch_node_drain=args.watch_node_drain,
        tracker_ids=args.tracker_ids,
        keep_logs=args.keep_logs,
        sample_gpus=args.sample_gpus,
        keep_in_memory=args.keep_in_memory,
        preload=preload_of(args),
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


def _times(args: argparse.Namespace, environ: Mapping[str, str]) -> AgentTimes:
    shutdown, where, text = args.shutdown_timeout, "--shutdown-timeout", ""
    if shutdown is None:
        text, where = environ.get(Env.SHUTDOWN_TIMEOUT, ""), Env.SHUTDOWN_TIMEOUT
        try:
            shutdown = float(text) if text else agents(RunSettings.shutdown_timeout)
        except ValueError:
            raise InputError(f"{text!r} is no number", where=where, fix="give seconds, or unset it") from None
    check_number(where, shutdown, AT_LEAST_0)
    return AgentTimes(
        drain=drain_times_of(args),
        shutdown=shutdown,
        told=shutdown if text or args.shutdown_timeout is not None else math.inf,
        exit_barrier=args.exit_barrier_timeout,
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
