"""The numbered records of a run's jobs: an intent before sbatch is called, the job id after.

A submission may have further jobs, links: the later ones of a chain, and those that finish has submitted.
They are starts of the same run as requeues are, only that Slurm knows each of them by another id.
"""

from __future__ import annotations

import json
import os
import re
from typing import Annotated

from hpc_elastic.clock import date_text
from hpc_elastic.errors import DamagedError, RunDirError
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.paths import RunPaths
from hpc_elastic.store import files
from hpc_elastic.text import for_shell
from hpc_elastic.typed_json import Like, Prose, whole_number
from hpc_elastic.typed_json import read as read_typed

JobId = Annotated[str, Like(r"(?:[A-Za-z0-9][A-Za-z0-9_.;+-]{0,199})?", "the id of a job")]
_LINK_NAME = re.compile(r"([0-9]{6})-([0-9]{4})\.(intent|json)")

_INTENT = ".intent"
_RECORD = ".json"


class Submission(NamedTuple):
    """One submission of a run.

    Args:
        number: 0 for the first.
        token: the beginning of the comment of the job.
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
            newest[number] = Submission(number, *read_record(os.path.join(paths.submissions, name)))
    return [newest[number] for number in sorted(newest)]


def announce(paths: RunPaths, number: int, token: str, *, now_s: float) -> None:
    """Write down that a submission is about to happen.

    Raises:
        RunDirError: another process is submitting this run at the moment.
    """
    data = encode_record(JobRecord(token, time=date_text(now_s)))
    if not files.publish_new(_path(paths, number, _INTENT), data):
        raise RunDirError(
            f"submission {number} of the run in {paths.root} is being made by another process",
            where="run_dir",
            fix="wait for it, then look with: hpc-elastic status",
        )


def record(paths: RunPaths, submission: Submission) -> None:
    """Write down the job id of a submission; a record that is there already stays."""
    data = encode_record(JobRecord(submission.token, submission.job_id, submission.time))
    files.publish_new(_path(paths, submission.number, _RECORD), data)


def withdraw(paths: RunPaths, number: int) -> None:
    """Take back an announced submission that Slurm refused."""
    files.remove_name(paths.submissions, f"{number:06d}{_INTENT}")


def _path(paths: RunPaths, number: int, suffix: str) -> str:
    return os.path.join(paths.submissions, f"{number:06d}{suffix}")


class JobRecord(NamedTuple):
    """The content of such a file."""

    token: Prose  # the beginning of the job's comment
    job_id: JobId = ""  # Slurm's id; empty as long as sbatch has not answered
    time: Prose = ""  # wall time for display


def encode_record(record: JobRecord) -> bytes:
    """Return the content of a file; an id that is not known yet is left out."""
    known = {"job_id": record.job_id} if record.job_id else {}
    return json.dumps({**known, "token": record.token, "time": record.time}).encode()


def read_record(path: str) -> JobRecord:
    """Return the content of a file.

    Raises:
        RunDirError: it is damaged.
    """
    try:
        record = read_typed(JobRecord, files.read(path) or b"")
    except DamagedError as error:
        raise RunDirError(
            f"{path} is damaged, which tells of a job: {error}",
            where="run_dir",
            fix=f"see with squeue --me that no job of the run waits or runs, then: rm {for_shell(path)}",
        ) from None
    return record


class Link(NamedTuple):
    """One further job of a submission."""

    submission: int
    number: int  # 1 for the first one after the submission's own job
    token: str
    job_id: str = ""  # empty as long as sbatch has not answered
    time: str = ""  # wall time for display


def read_links(paths: RunPaths, submission: int) -> list[Link]:
    """Return the further jobs of a submission in their order.

    Raises:
        RunDirError: a record is damaged.
    """
    found: dict[int, Link] = {}
    for name in sorted(files.list_names(paths.submissions)):  # ".intent" before ".json"
        match = _LINK_NAME.fullmatch(name)
        if match is not None and int(match[1]) == submission:
            found[int(match[2])] = Link(
                submission, int(match[2]), *read_record(os.path.join(paths.submissions, name))
            )
    return [found[number] for number in sorted(found)]


def announce_link(paths: RunPaths, link: Link) -> bool:
    """Write down that a job is about to be submitted; return False if another process has."""
    data = encode_record(JobRecord(link.token, time=link.time))
    return files.publish_new(_link_path(paths, link, "intent"), data)


def record_link(paths: RunPaths, link: Link) -> None:
    """Write down the id of a submitted job; a record that is there already stays."""
    data = encode_record(JobRecord(link.token, link.job_id, link.time))
    files.publish_new(_link_path(paths, link, "json"), data)


def withdraw_link(paths: RunPaths, link: Link) -> None:
    """Take back an announced job that Slurm refused."""
    files.remove_name(paths.submissions, os.path.basename(_link_path(paths, link, "intent")))


def new_link(submission: int, number: int, token: str, *, now_s: float) -> Link:
    """Return a job that is about to be submitted."""
    return Link(submission, number, token, time=date_text(now_s))


def _link_path(paths: RunPaths, link: Link, suffix: str) -> str:
    return os.path.join(paths.submissions, f"{link.submission:06d}-{link.number:04d}.{suffix}")
