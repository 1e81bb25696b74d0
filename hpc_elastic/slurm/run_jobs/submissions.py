"""The numbered records of a run's submissions: an intent before sbatch is called, the job id after."""

from __future__ import annotations

import os
from dataclasses import dataclass

from hpc_elastic.clock import date_text
from hpc_elastic.errors import RunDirError
from hpc_elastic.paths import RunPaths
from hpc_elastic.slurm.run_jobs import job_record
from hpc_elastic.slurm.run_jobs.job_record import JobRecord
from hpc_elastic.store import files
from hpc_elastic.typed_json import whole_number

_INTENT = ".intent"
_RECORD = ".json"


@dataclass(frozen=True, slots=True)
class Submission:
    """One submission of a run.

    Args:
        number: 0 for the first.
        token: what the comment of the job starts with.
        job_id: Slurm's id; empty as long as sbatch has not answered.
        time: wall time for display.
    """

    number: int
    token: str
    job_id: str = ""
    time: str = ""


def read_submissions(paths: RunPaths) -> list[Submission]:
    """Return the submissions of a run, oldest first; one without a job id was interrupted.

    Raises:
        RunDirError: a record is damaged.
    """
    newest: dict[int, Submission] = {}
    for name in files.list_names(paths.submissions):  # "000000.intent" sorts before "000000.json"
        stem, suffix = os.path.splitext(name)
        number = whole_number(stem)
        if suffix in (_INTENT, _RECORD) and number is not None:
            newest[number] = Submission(number, *job_record.read(os.path.join(paths.submissions, name)))
    return [newest[number] for number in sorted(newest)]


def announce(paths: RunPaths, number: int, token: str, *, now_s: float) -> None:
    """Write down that a submission is about to happen.

    Raises:
        RunDirError: somebody else is submitting this run at the moment.
    """
    data = job_record.encode(JobRecord(token, time=date_text(now_s)))
    if not files.publish_new(_path(paths, number, _INTENT), data):
        raise RunDirError(
            f"submission {number} of the run in {paths.root} is being made by another process",
            where="run_dir",
            fix="wait for it, then look with: hpc-elastic status",
        )


def record(paths: RunPaths, submission: Submission) -> None:
    """Write down the job id of a submission; a record that is there already stays."""
    data = job_record.encode(JobRecord(submission.token, submission.job_id, submission.time))
    files.publish_new(_path(paths, submission.number, _RECORD), data)


def withdraw(paths: RunPaths, number: int) -> None:
    """Take back an announced submission that Slurm refused."""
    files.remove_name(paths.submissions, f"{number:06d}{_INTENT}")


def _path(paths: RunPaths, number: int, suffix: str) -> str:
    return os.path.join(paths.submissions, f"{number:06d}{suffix}")
