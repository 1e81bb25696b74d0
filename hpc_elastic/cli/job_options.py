"""The job that the options and the words of a command line describe."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from hpc_elastic.errors import InputError
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.settings.setting import OPTIONS, VARIABLES, Setting
from hpc_elastic.settings.table import JOB
from hpc_elastic.slurm.job.job_file import JobFile, build_spec, placed, read_job_file
from hpc_elastic.slurm.job.spec import JobSpec

_PAIRS = (OPTIONS, VARIABLES)


def with_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a command's arguments with those of a job's options as ``given``, its fields.

    Raises:
        InputError: a NAME=VALUE option has no name.
    """
    of_job = {name: value for name, value in values.items() if name in JOB and name != "command"}
    given = {
        name: _pairs(JOB[name], value) if JOB[name].kind in _PAIRS else value
        for name, value in of_job.items()
    }
    return {"given": given, **{name: value for name, value in values.items() if name not in of_job}}


def _pairs(row: Setting, texts: list[str]) -> dict[str, object]:
    flag = row.written.short
    pairs: dict[str, object] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        is_path = not equals and any(mark in text for mark in "./%")  # of a log, as these letters of sbatch
        if not name or is_path or (row.kind is VARIABLES and not equals):
            what = "a variable of the workers" if row.kind is VARIABLES else "an option of sbatch by its name"
            logs = "; the logs are in the run directory: hpc-elastic logs RUN" if is_path else ""
            fix = f"write {flag} NAME=VALUE, {what}{logs}"
            raise InputError(f"{text!r} is not NAME=VALUE", where=flag, fix=fix)
        if name in pairs:
            raise InputError(f"{name} is given twice", where=flag, fix="keep one of them")
        pairs[name] = value if equals else True
    return pairs


class WantedJob(NamedTuple):
    """A job as the user wants it.

    Attributes:
        spec: of the job.
        warnings: of the job file, if other users may have written it.
        is_python_own: whether the user alone has named the interpreter.
    """

    spec: JobSpec
    warnings: list[str]
    is_python_own: bool


@contextlib.contextmanager
def wanted_job(
    job_file: str | None, given: Mapping[str, object], command: tuple[str, ...]
) -> Iterator[WantedJob]:
    """Give the job for a job file, options and the worker command after ``--``.

    An error in a field inside of the `with` block names the option or the line of the file.

    Raises:
        InputError: naming the option or the line of the file.
    """
    file = read_job_file(job_file) if job_file else JobFile()
    words: dict[str, object] = {"command": command} if command else {}
    everything = {**given, **words}
    spec = build_spec(file, everything)
    try:
        yield WantedJob(spec, file.warnings, "python" in given or not file.others)
    except InputError as error:
        top = error.where.partition(".")[0]
        raise placed(error, file, everything) if top in JOB else error from None
