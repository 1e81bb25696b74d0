"""The way of an executor's calls to Slurm: one job, one array, or several jobs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from submitit.core.utils import FailedSubmissionError, JobPaths

from hpc_elastic.api.run import Run
from hpc_elastic.api.start import named_as_fields, start
from hpc_elastic.clock import SystemClock, date_text
from hpc_elastic.errors import HpcElasticError, InputError, SlurmCommandError, SlurmError
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.paths import readable_name
from hpc_elastic.settings.values import has_control
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.client.grace_times import ask_site, keep_site
from hpc_elastic.slurm.job.options import header_line
from hpc_elastic.slurm.job.script import quote
from hpc_elastic.slurm.run_jobs import submissions
from hpc_elastic.slurm.run_jobs.submissions import Submission
from hpc_elastic.slurm.submit import request, run_dir
from hpc_elastic.slurm.submit.request import SubmitRequest, read_template
from hpc_elastic.slurm.submit.submit import Submitter, UncertainSubmissionError
from hpc_elastic.store import files
from hpc_elastic.submitit.job import HpcElasticJob
from hpc_elastic.submitit.parameters import parameter_of

if TYPE_CHECKING:
    from hpc_elastic.slurm.job.spec import JobSpec


_THREADS = 16
AT_ONCE = 256  # how many tasks of an array run at once by default, as with submitit's Slurm executor
_SCRIPT = """#!/bin/bash
{options}
#SBATCH {output}
#SBATCH --array=0-{last}%{at_once}
#
# {calls} calls of one map_array or batch. Each task is a run of its own: its script is in its directory.

run={stem}-"$SLURM_ARRAY_TASK_ID" found=
for ((look = 0; look < 30; look++)); do
  cd -P -- "$run" 2> /dev/null && [ -r job.sbatch ] && found=$(stat -c '%u %A' .) && break
  sleep 2  # a mount may come back
done
# From here, and not by its path: a user who can rename a directory above may have replaced it.
of_name=$(stat -c %u -- "$run")  # of a link itself
if [[ $found == "$EUID d"????-??-* && ( ${{PWD##*/}} == "${{run##*/}}" || $of_name == "$EUID" ) ]]; then
  exec /bin/bash job.sbatch
fi
if [ -n "$found" ]; then
  echo "hpc_elastic: another directory is in the place of $run, or others can write to it:" \\
    "nothing is started" >&2
  exit 76
fi
echo "hpc_elastic: $run/job.sbatch cannot be read, so nothing is started" >&2
exit 127
"""

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
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"the folder {str(place)!r} cannot be used: {error.strerror}",
            where="folder",
            fix="give a directory in which you can write, on a file system that all nodes share",
        ) from None
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
    if has_control(str(place)):
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
    runs = submit_array(part.specs, part.calls, stem, part.at_once or AT_ONCE)
    return [HpcElasticJob.of_run(part.folder, run) for run in runs]


def _as_job(wanted: WantedJobs, index: int, place: Path) -> list[HpcElasticJob[Any]]:
    spec = wanted.specs[index]
    if spec.run_dir is None:
        spec = spec.replaced(run_dir=new_run_dir(place, spec.name))
    run = start(spec, wanted.calls[index], local=wanted.local, called=parameter_of)
    return [HpcElasticJob.of_run(wanted.folder, run)]


def new_run_dir(folder: Path, name: str) -> str:
    """Return a path for the next run below submitit's folder."""
    return str(folder / f"{readable_name(name) or 'run'}-{os.urandom(4).hex()}")


def _cancel(jobs: list[HpcElasticJob[Any]]) -> None:
    for job in jobs:
        try:
            job.cancel()
        except HpcElasticError:
            continue


class UncertainArrayError(SlurmCommandError):
    """sbatch did not answer, and the array was not found: it may or may not be queued.

    Args:
        cause: the error of sbatch.
        stem: the beginning of the names of the run directories; they were kept.
    """

    def __init__(self, cause: SlurmCommandError, stem: str) -> None:
        super().__init__(cause.argv, cause.exit_code, cause.stderr)
        self.stem = stem

    def __str__(self) -> str:
        return (
            f"sbatch did not say whether it queued the array: {self.stderr.strip()}\n"
            f"  fix: when Slurm answers again, for each of the run directories {self.stem}-*:\n"
            "       hpc-elastic submit --resume DIRECTORY\n"
            "       (it looks for the array first and queues a run only if it is not there)"
        )


class ArrayRequest(SubmitRequest):
    """The submission of an array; its run is that of its first task."""

    __slots__ = ()

    @property
    def sbatch_arguments(self) -> tuple[str, ...]:
        """The arguments of sbatch, after ``--parsable``."""
        comment = f"{self.token} {self.spec.comment}" if self.spec.comment else self.token
        return (f"--comment={comment}", self.script_file)


def array_text(first: str, stem: str, calls: int, at_once: int) -> str:
    """Return the script of an array. Pure.

    Args:
        first: the script of its first run, whose options are those of all.
        stem: the beginning of the names of the run directories; an index follows.
        calls: how many tasks it has.
        at_once: how many of them may run at once.
    """
    given = [line for line in first.splitlines() if line.startswith("#SBATCH ")]
    kept = [line for line in given if not line.startswith("#SBATCH --output=")]
    output = header_line("output", stem.replace("%", "%%") + "-%a/slurm-%A_%a.out")
    return _SCRIPT.format(
        options="\n".join(kept), output=output, last=calls - 1, at_once=min(at_once, calls), calls=calls,
        stem=quote(stem),
    )  # fmt: skip


def token_of(array: str, index: int) -> str:
    """Return the token of one task's run, by which it is found if sbatch did not answer."""
    return f"{array}#{index}"


def submit_array(specs: Sequence[JobSpec], calls: Sequence[bytes], stem: str, at_once: int) -> list[Run]:
    """Queue one array with a task for each call; a refusal leaves nothing behind.

    Args:
        specs: of the runs; they differ in name only.
        calls: the call of each run.
        stem: the beginning of the names of the run directories.
        at_once: how many tasks may run at once.

    Raises:
        InputError: something cannot work.
        RunDirError: a run directory cannot be used.
        SlurmError: Slurm is not there, refused, or does not answer.
    """
    clock, slurm = SystemClock(), Slurm()
    template, submitter = read_template(), Submitter(slurm, clock)
    runs = [
        request.plan(spec.replaced(run_dir=f"{stem}-{index}"), template, now_s=clock.wall())
        for index, spec in enumerate(specs)
    ]
    first = runs[0]
    text = array_text(first.script, stem, len(runs), at_once)
    array = ArrayRequest(first.spec, first.paths, first.run_id, first.token, 0, text, file=f"{stem}.sbatch")
    submitter.check(array)
    try:
        _create(runs, calls, array, now_s=clock.wall())
        array_id = submitter.queue_script(array)
    except UncertainSubmissionError as error:
        raise UncertainArrayError(error, stem) from None
    except BaseException:
        _discard(runs, array)
        raise
    _record(runs, array, array_id, time=date_text(clock.wall()))
    _learn_site(runs, slurm)
    return [Run(run.paths.root) for run in runs]


def _create(runs: Sequence[SubmitRequest], calls: Sequence[bytes], array: ArrayRequest, now_s: float) -> None:
    """Make the run directories, each with the intent to submit it."""

    def create(index: int) -> None:
        run = runs[index]
        run_dir.create(run, now_s=now_s)
        files.replace(run.paths.function, calls[index])
        submissions.announce(run.paths, 0, token_of(array.token, index), now_s=now_s)

    _at_once(create, len(runs))
    files.replace(array.file, array.script.encode("utf-8", "surrogateescape"))


def _at_once(act: Callable[[int], None], number: int) -> None:
    """Do something for each run; a shared file system takes its time, but takes many at once."""
    with ThreadPoolExecutor(_THREADS) as pool:
        for _ in pool.map(act, range(number)):
            pass


def _discard(runs: Sequence[SubmitRequest], array: ArrayRequest) -> None:
    for run in runs:
        with suppress(OSError):
            submissions.withdraw(run.paths, 0)
        with suppress(OSError):
            os.unlink(run.paths.function)
        run_dir.discard(run.paths, with_root=True)
    with suppress(OSError):
        os.unlink(array.file)


def _record(runs: Sequence[SubmitRequest], array: ArrayRequest, array_id: str, *, time: str) -> None:
    def record(index: int) -> None:
        task = Submission(0, token_of(array.token, index), f"{array_id}_{index}", time)
        submissions.record(runs[index].paths, task)

    _at_once(record, len(runs))


def _learn_site(runs: Sequence[SubmitRequest], slurm: Slurm) -> None:
    """Ask once for all runs for the limits of the cluster for a job that ends."""
    spec = runs[0].spec
    site = ask_site(slurm, spec.partition or "", spec.qos or "")
    if site is not None:  # else the agents ask
        _at_once(lambda index: keep_site(runs[index].paths, site), len(runs))
