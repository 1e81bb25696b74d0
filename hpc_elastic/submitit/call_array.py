"""Several calls as one job array: each task is a run of its own, in a directory that ends with its index.

This is not the array mode of a job spec, in which the tasks are the nodes of one run: here a task has as
many nodes as the run wants, and is preempted, requeued, held and cancelled alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpc_elastic.api.run import Run
from hpc_elastic.clock import SystemClock, date_text
from hpc_elastic.errors import SlurmCommandError
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.client.grace_times import ask_site, keep_site
from hpc_elastic.slurm.job.options import header_line
from hpc_elastic.slurm.job.script import quote
from hpc_elastic.slurm.job.templates import read_template
from hpc_elastic.slurm.run_jobs import submissions
from hpc_elastic.slurm.run_jobs.submissions import Submission
from hpc_elastic.slurm.submit import request, run_dir
from hpc_elastic.slurm.submit.request import SubmitRequest
from hpc_elastic.slurm.submit.submit import Submitter, UncertainSubmissionError
from hpc_elastic.store import files

if TYPE_CHECKING:
    from hpc_elastic.slurm.job.spec import JobSpec

_THREADS = 16
AT_ONCE = 256  # how many tasks of an array run at once where nobody says, as with submitit's Slurm executor

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


@dataclass(frozen=True, slots=True)
class ArrayRequest(SubmitRequest):
    """The submission of an array; its run is that of its first task.

    Args:
        file: where its script is.
    """

    file: str = ""

    @property
    def script_file(self) -> str:
        """Where the script is."""
        return self.file

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
        request.plan(spec.model_copy(update={"run_dir": f"{stem}-{index}"}), template, now_s=clock.wall())
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
