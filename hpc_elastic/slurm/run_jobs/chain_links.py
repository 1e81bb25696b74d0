"""The further jobs of one submission: the later ones of a chain, and those that finish submitted itself.

They are starts of the same run as requeues are, only that Slurm knows each of them by another id.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from hpc_elastic.clock import date_text
from hpc_elastic.paths import RunPaths
from hpc_elastic.slurm.run_jobs import job_record
from hpc_elastic.slurm.run_jobs.job_record import JobRecord
from hpc_elastic.store import files

_NAME = re.compile(r"([0-9]{6})-([0-9]{4})\.(intent|json)")


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
        match = _NAME.fullmatch(name)
        if match is not None and int(match[1]) == submission:
            found[int(match[2])] = Link(
                submission, int(match[2]), *job_record.read(os.path.join(paths.submissions, name))
            )
    return [found[number] for number in sorted(found)]


def announce(paths: RunPaths, link: Link) -> bool:
    """Write down that a job is about to be submitted; return False if somebody else has."""
    data = job_record.encode(JobRecord(link.token, time=link.time))
    return files.publish_new(_path(paths, link, "intent"), data)


def record(paths: RunPaths, link: Link) -> None:
    """Write down the id of a submitted job; a record that is there already stays."""
    data = job_record.encode(JobRecord(link.token, link.job_id, link.time))
    files.publish_new(_path(paths, link, "json"), data)


def withdraw(paths: RunPaths, link: Link) -> None:
    """Take back an announced job that Slurm refused."""
    files.remove_name(paths.submissions, os.path.basename(_path(paths, link, "intent")))


def new_link(submission: int, number: int, token: str, *, now_s: float) -> Link:
    """Return a job that is about to be submitted."""
    return Link(submission, number, token, time=date_text(now_s))


def _path(paths: RunPaths, link: Link, suffix: str) -> str:
    return os.path.join(paths.submissions, f"{link.submission:06d}-{link.number:04d}.{suffix}")
