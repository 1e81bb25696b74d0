"""Submitting a run from Python."""

from __future__ import annotations

import os
import re
import subprocess
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from hpc_elastic.api import function
from hpc_elastic.api.run import RUNNER_LOG, Run
from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import InputError, SlurmError
from hpc_elastic.isolated.lookup import argv_here
from hpc_elastic.settings.table import JOB
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.job.job_file import build_spec, read_job_file, spec_over
from hpc_elastic.slurm.job.settings_files import settings_for
from hpc_elastic.slurm.job.spec import JobSpec
from hpc_elastic.slurm.submit import request, run_dir, validate
from hpc_elastic.slurm.submit.request import SubmitRequest, read_template
from hpc_elastic.slurm.submit.submit import Submitter, UncertainSubmissionError
from hpc_elastic.store import files
from hpc_elastic.store.plain_file import open_to_append

_OPTION = re.compile(r"(?<![\w/-])--([a-z]+(?:-[a-z]+)*)(?![\w-])")
_JOB_FILE = ".toml"
_IN_BACKGROUND = '"$@" >&2 & echo $!'

Work = Callable[..., Any] | Sequence[str] | str | os.PathLike[str] | JobSpec


def submit(
    work: Work, /, *args: Any, local: int | None = None, profile: str | None = None, **fields: Any
) -> Run:
    """Queue a run that survives preemption, requeue and node loss.

    Args:
        work: a function, which each worker calls; the command of a worker, as a list or a line of a
            shell; a job file (``*.toml``); the path of a script or job file; or a `JobSpec`.
        args: arguments of the function.
        local: run on this machine without Slurm, in the background, with so many agents as nodes.
        profile: of the settings files, which give the fields that are not given here.
        fields: of `JobSpec`, as in a job file: ``nodes=2, gpus_per_node=8, time="4h"``.

    Raises:
        InputError: a field cannot be used, or the function cannot be sent to workers.
        RunDirError: the run directory cannot be used.
        SlurmError: Slurm is not there, refused, or does not answer.
    """
    if isinstance(work, os.PathLike):
        path = os.fspath(work)
        work = path if path.endswith(_JOB_FILE) else (path,)
    call = function.pickled(work, args) if callable(work) else None
    if call is None and args:
        raise InputError(
            f"arguments {args!r} are for functions", where="submit", fix="put them into the command"
        )
    with named_as_fields():
        spec = _spec(work, fields, local, profile)
    return start(spec, call, local=local)


def start(spec: JobSpec, call: bytes | None, *, local: int | None, called: Callable[[str], str] = str) -> Run:
    """Queue a run, or start it here.

    Args:
        spec: the job.
        call: the call of `function.MODULE`, if the work of the run is a function.
        local: how many nodes to play on this machine; None for Slurm.
        called: returns the caller's name of a field of the spec.

    Raises:
        InputError, RunDirError, SlurmError: as for `submit`.
    """
    with named_as_fields(called):
        wanted = request.plan(spec, read_template(spec.mode), now_s=SystemClock().wall())
        if local is not None:
            return _run_here(wanted, call, local, called)
        return _queue(wanted, call, called)


@contextmanager
def named_as_fields(called: Callable[[str], str] = str) -> Iterator[None]:
    """Have errors name the fields of a job spec as Python does, not as options of a command line.

    Args:
        called: returns the caller's name of a field.
    """
    try:
        yield
    except InputError as error:
        where, fix = _as_fields(error.where, called), _as_fields(error.fix, called)
        raise type(error)(error.message, where=where, fix=fix) from None


def _as_fields(text: str, called: Callable[[str], str] = str) -> str:
    def field_of(option: re.Match[str]) -> str:
        name = option[1].replace("-", "_")
        row = JOB.get(name)
        if row is None:
            return name if name in ("local", "profile") else option[0]
        return f"{called(name)}=True" if row.is_switch else called(name)

    words, line, rest = text.partition("hpc-elastic ")  # a command line stays one
    return _OPTION.sub(field_of, words) + line + rest


def _spec(work: Work, fields: dict[str, Any], local: int | None, profile: str | None) -> JobSpec:
    """Return the job, with the arguments of the caller laid over it, and settings files below it."""
    here: dict[str, Any] = {} if local is None else {"nodes": str(local), "allow_local_run_dir": True}
    is_local = local is not None
    if isinstance(work, JobSpec):
        own = {**here, **work.given, **fields}
    elif callable(work):
        _refuse_program(fields)
        own = {"name": function.name_of(work), **here, **fields, "module": function.MODULE}
    elif isinstance(work, str) and work.endswith(_JOB_FILE):
        file = read_job_file(work)
        _warn(file.warnings, str)
        file = file._replace(values={**here, **file.values})
        return build_spec(file, fields, settings_for({**file.values, **fields}, profile, is_local=is_local))
    else:
        own = {**here, **fields, "command": work}
    return spec_over(settings_for(own, profile, is_local=is_local), own)


def _refuse_program(fields: dict[str, Any]) -> None:
    for name in ("command", "module"):
        if name in fields:
            raise InputError(
                f"{name} = {fields[name]!r} is for programs, and the work of this run is a function",
                where="submit",
                fix=f"leave {name} out, or have the function start the program",
            )


def _warn(texts: list[str], called: Callable[[str], str]) -> None:
    """Warn of the messages that a command line would print."""
    for text in texts:
        warnings.warn(_as_fields(text, called), stacklevel=5)  # points to the caller of `submit`


def _queue(wanted: SubmitRequest, call: bytes | None, called: Callable[[str], str]) -> Run:
    submitter = Submitter(Slurm(), SystemClock())
    _warn(submitter.check(wanted), called)
    is_new = _create(wanted, call)
    try:
        submitter.resume(wanted.paths.root)
    except SlurmError as error:
        if not isinstance(error, UncertainSubmissionError):
            with suppress(OSError):
                os.unlink(wanted.paths.function)
            run_dir.discard(wanted.paths, with_root=is_new)
        raise
    return Run(wanted.paths.root)


def _run_here(wanted: SubmitRequest, call: bytes | None, nodes: int, called: Callable[[str], str]) -> Run:
    """Start the agents in the background; the output of the runner is in the run directory."""
    validate.check_local_nodes(wanted.spec, nodes)
    _warn(validate.check(wanted, None, is_local=True), called)
    _create(wanted, call)
    root = wanted.paths.root
    argv = (*argv_here(), "submit", "--resume", root, "--local", str(nodes))
    with os.fdopen(open_to_append(os.path.join(root, RUNNER_LOG)), "ab") as output:
        shell = subprocess.run(  # which leaves the runner to init, as no child of this process
            ("/bin/sh", "-c", _IN_BACKGROUND, "sh", *argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            start_new_session=True,
            check=True,
        )
    return Run(root, runner=int(shell.stdout))


def _create(wanted: SubmitRequest, call: bytes | None) -> bool:
    is_new = run_dir.create(wanted, now_s=SystemClock().wall())
    if call is not None:
        files.replace(wanted.paths.function, call)
    return is_new
