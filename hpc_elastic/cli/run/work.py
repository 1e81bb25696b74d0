"""The command of each worker of ``hpc-elastic run``, and the place of its output."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from hpc_elastic.cli.parser import source_of
from hpc_elastic.cli.run.values import local_ranks, streams
from hpc_elastic.errors import InputError
from hpc_elastic.ids import Env
from hpc_elastic.multiprocessing.logs import DEFAULT_PREFIX, DefaultLogsSpecs, LogsSpecs
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.paths import RunPaths, absence_of
from hpc_elastic.slurm.job.worker_launcher import refuse_launcher
from hpc_elastic.start.agent import default_python
from hpc_elastic.store.plain_file import absence_fix
from hpc_elastic.text import for_shell, visible

if TYPE_CHECKING:
    from hpc_elastic.processes.numa import NumaOptions

PREFIX_VARIABLE: Final = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"


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
    return Work((*_words_of(args.container), *command))


def _words_of(prefix: str) -> list[str]:

    try:
        return shlex.split(prefix)
    except ValueError as error:
        raise InputError(
            f"{prefix!r} cannot be split into words: {error}",
            where="--container",
            fix="close the quotes, as for a shell",
        ) from None


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
            raise InputError(
                f"the program {script} is not on PATH", where="training_script", fix="check the name"
            )
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


def preload_of(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the modules that are to be imported once on this node.

    Raises:
        InputError: one of the names is none of a module.
    """
    if not args.preload:
        return ()
    from hpc_elastic.processes.preload.rules import names_of  # noqa: PLC0415 - only if it is asked for

    names, bad = names_of(args.preload)
    if bad:
        raise InputError(
            f"{bad!r} is no name of a module",
            where=f"--preload{source_of('--preload')}",
            fix="write --preload torch,mypackage",
        )
    return names


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


def event_handler_of(args: argparse.Namespace, environ: Mapping[str, str]) -> str:
    """Return the destination of events; one that a module of the user's may register is taken as it is.

    Raises:
        InputError: there is none of this name.
    """
    name = str(args.event_log_handler)
    if name == "null" or environ.get(Env.EVENTS):
        return name
    from hpc_elastic.events import get_logging_handler  # noqa: PLC0415 - logging, 10 ms

    try:
        get_logging_handler(name)
    except KeyError as error:
        fix = f"use one of them; a module that registers others is named by {Env.EVENTS}"
        raise InputError(str(error.args[0]), where="--event-log-handler", fix=fix) from None
    return name
