"""How the calls that an executor was given get to Slurm: one job, one array, or several jobs."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from submitit.core.utils import FailedSubmissionError, JobPaths

from hpc_elastic.api.start import named_as_fields, start
from hpc_elastic.errors import HpcElasticError, InputError, SlurmError
from hpc_elastic.paths import readable_name
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.job import options
from hpc_elastic.submitit import call_array
from hpc_elastic.submitit.job import HpcElasticJob
from hpc_elastic.submitit.parameters import parameter_of

if TYPE_CHECKING:
    from hpc_elastic.slurm.job.spec import JobSpec

_Start = Callable[[], list[HpcElasticJob[Any]]]


class WantedJobs(NamedTuple):
    """The submission of an executor."""

    folder: Path  # of the executor; may contain %j
    specs: list[JobSpec]  # one per call; they differ in name only
    calls: list[bytes]
    local: int | None = None  # nodes to play on this machine; None for Slurm
    at_once: int | None = None  # how many tasks of an array may run at once, if anybody has said so


def submit(wanted: WantedJobs) -> list[HpcElasticJob[Any]]:
    """Submit all calls; if one cannot be, those before it are cancelled.

    Raises:
        FailedSubmissionError: some were submitted, and cancelled.
        InputError: something cannot work.
        RunDirError: a run directory cannot be used.
        SlurmError: Slurm is not there, refused, or does not answer.
        UncompletedJobError: a runner on this machine did not start.
    """
    place = JobPaths.get_first_id_independent_folder(wanted.folder)
    _check(wanted, place)
    place.mkdir(parents=True, exist_ok=True)
    with named_as_fields(parameter_of):
        return _submit(wanted, place)


def _submit(wanted: WantedJobs, place: Path) -> list[HpcElasticJob[Any]]:
    jobs: list[HpcElasticJob[Any]] = []
    for begin in _starts(wanted, place):
        try:
            jobs += begin()
        except BaseException as error:
            if not jobs:
                raise
            _cancel(jobs)
            if not isinstance(error, Exception):  # such as Ctrl-C
                raise
            raise FailedSubmissionError(
                f"only {len(jobs)} of {len(wanted.calls)} calls were submitted, and then cancelled:\n{error}"
            ) from error
    return jobs


def _check(wanted: WantedJobs, place: Path) -> None:
    if options.has_control(str(place)):
        raise InputError(
            f"the folder {str(place)!r} has control characters in its name", where="folder", fix="rename it"
        )
    if "\\" in str(place):
        raise InputError(
            f"the folder {str(place)!r} has a backslash in its name, with which Slurm expands no patterns",
            where="folder",
            fix="choose another folder",
        )
    if wanted.local is None and not Slurm().has("sbatch"):
        raise InputError(
            "'sbatch' is not on PATH, so this machine cannot talk to Slurm",
            where="cluster='hpcelastic'",
            fix="run on a login node of the cluster, or try the job here without Slurm: "
            "AutoExecutor(folder, cluster='hpcelastic', hpcelastic_local=1)",
        )
    if "%a" in str(wanted.folder) and not _is_array(wanted):
        raise InputError(
            f"the folder {str(wanted.folder)!r} has %a in its name, and this is not a job array",
            where="folder",
            fix="write %j: it is the id of a job, and <array>_<index> for a task of an array",
        )
    run_dir = wanted.specs[0].run_dir
    if run_dir is not None and len(wanted.calls) > 1:
        raise InputError(
            f"run_dir = {run_dir!r} is one directory, and there are {len(wanted.calls)} calls",
            where="hpcelastic_run_dir",
            fix="leave it out: each call gets a directory below the executor's folder",
        )


def _starts(wanted: WantedJobs, place: Path) -> Iterator[_Start]:
    """Return the submitter of the calls: one array where Slurm can have one, else one by one."""
    if _is_array(wanted):
        yield from (partial(_as_array, part, place) for part in _parts(wanted))
    else:
        yield from (partial(_as_job, wanted, index, place) for index in range(len(wanted.calls)))


def _is_array(wanted: WantedJobs) -> bool:
    """Tell whether there are several calls, each of which is one job that Slurm requeues."""
    spec = wanted.specs[0]
    return len(wanted.calls) > 1 and wanted.local is None and spec.mode == "step" and not spec.chain


def _parts(wanted: WantedJobs) -> Iterator[WantedJobs]:
    """Return the calls in portions that Slurm takes as one array.

    Raises:
        InputError: there are several, and a limit of calls that run at once is given.
    """
    number, most = len(wanted.calls), _max_array_size() or len(wanted.calls)
    if number > most and wanted.at_once is not None:
        raise InputError(
            f"{number} calls become several arrays, as this cluster allows {most} tasks in one "
            f"(MaxArraySize), and array_parallelism = {wanted.at_once} holds for one only",
            where="hpcelastic_array_parallelism",
            fix=f"submit at most {most} calls at a time, or leave it out",
        )
    for first, last in pairwise([*range(0, number, most), number]):
        yield wanted._replace(specs=wanted.specs[first:last], calls=wanted.calls[first:last])


def _max_array_size() -> int | None:
    try:
        return Slurm().max_array_size()
    except SlurmError:  # sbatch tells whether it is too long
        return None


def _as_array(part: WantedJobs, place: Path) -> list[HpcElasticJob[Any]]:
    stem = new_run_dir(place, part.specs[0].name)
    runs = call_array.submit_array(part.specs, part.calls, stem, part.at_once or call_array.AT_ONCE)
    return [HpcElasticJob.of_run(part.folder, run) for run in runs]


def _as_job(wanted: WantedJobs, index: int, place: Path) -> list[HpcElasticJob[Any]]:
    spec = wanted.specs[index]
    if spec.run_dir is None:
        spec = spec.model_copy(update={"run_dir": new_run_dir(place, spec.name)})
    run = start(spec, wanted.calls[index], local=wanted.local, called=parameter_of)
    return [HpcElasticJob.of_run(wanted.folder, run)]


def new_run_dir(folder: Path, name: str) -> str:
    """Return a path for the next run below submitit's folder."""
    return str(folder / f"{readable_name(name) or 'run'}-{secrets.token_hex(4)}")


def _cancel(jobs: list[HpcElasticJob[Any]]) -> None:
    for job in jobs:
        try:
            job.cancel()
        except HpcElasticError:
            continue
