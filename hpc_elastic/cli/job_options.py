"""The job that the options and the words of a command line describe."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

from hpc_elastic.errors import InputError
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.settings.table import JOB
from hpc_elastic.slurm.job.job_file import JobFile, build_spec, placed, read_job_file
from hpc_elastic.slurm.job.own_script import OwnScript
from hpc_elastic.slurm.job.own_script_file import is_job_script, read_own_script
from hpc_elastic.slurm.job.settings_files import settings_for
from hpc_elastic.slurm.job.spec import JobSpec


def with_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a command's arguments with those of a job's options as ``given``, its fields."""
    given = {name: value for name, value in values.items() if name in JOB and name != "command"}
    return {"given": given, **{name: value for name, value in values.items() if name not in given}}


class WantedJob(NamedTuple):
    """A job as the user wants it.

    Attributes:
        spec: of the job.
        warnings: of the job file, if other users may have written it.
        is_python_own: whether the user alone has named the interpreter of the agents.
        is_file_own: whether no other user may have written the job file.
        own_script: the job script of the user's own that is the job; None: it is none.
    """

    spec: JobSpec
    warnings: list[str]
    is_python_own: bool
    is_file_own: bool
    own_script: OwnScript | None = None


@contextlib.contextmanager
def wanted_job(
    job_file: str | None,
    given: Mapping[str, object],
    command: tuple[str, ...],
    *,
    profile: str | None = None,
    is_local: bool = False,
) -> Iterator[WantedJob]:
    """Give the job for settings files, a job file, options and the worker command after ``--``.

    An error in a field inside of the `with` block names the option or the line of the file.

    Args:
        job_file: the job file, or a job script.
        given: fields given as options.
        command: the words after ``--``, or behind a job script.
        profile: of the settings files.
        is_local: the job is played on this machine.

    Raises:
        InputError: naming the option or the line of the file.
    """
    is_own = job_file is not None and (given.get("mode") == "script" or is_job_script(job_file))
    file = read_job_file(job_file) if job_file and not is_own else JobFile()
    words: dict[str, object] = {"command": command} if command else {}
    if is_own:
        _refuse_mode(given)
        words = {"mode": "script", "command": (job_file, *command)}
    everything = {**given, **words}
    own = read_own_script(_path_of(job_file)) if job_file is not None and is_own else None
    settings = settings_for({**file.values, **everything}, profile, is_local=is_local, own=own)
    spec = build_spec(file, everything, settings)
    try:
        is_file_own = not file.others
        yield WantedJob(spec, file.warnings, "python" in given or is_file_own, is_file_own, own)
    except InputError as error:
        top = error.where.partition(".")[0]
        raise placed(error, file, everything, settings) if top in JOB else error from None


def _refuse_mode(given: Mapping[str, object]) -> None:
    """Refuse the modes of agents for a job script, which has a mode of its own."""
    if given.get("mode", "script") not in ("script", JOB["mode"].default):
        raise InputError(
            f"mode = {given['mode']!r} is for agents and workers, and the job script runs as it is",
            where="--mode",
            fix="leave it out; an array of the script: hpc-elastic sbatch --array=1-10 SCRIPT",
        )


def _path_of(script: str) -> str:
    return os.path.abspath(os.path.expanduser(script))
