"""What Slurm's commands print, read. Pure."""

from __future__ import annotations

import re
from enum import Enum


class JobState(Enum):
    """The states of a job that matter here; each knows whether the job can still run."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    COMPLETING = "COMPLETING"
    REQUEUED = "REQUEUED"
    ENDED = "ENDED"

    @property
    def is_active(self) -> bool:
        """Whether Slurm still has something to do for the job."""
        return self is not JobState.ENDED


_STATES = {
    "PD": "PENDING", "PENDING": "PENDING", "CONFIGURING": "RUNNING", "CF": "RUNNING", "R": "RUNNING",
    "RUNNING": "RUNNING", "RESIZING": "RUNNING", "RS": "RUNNING", "SIGNALING": "RUNNING", "SI": "RUNNING",
    "STAGE_OUT": "COMPLETING", "SO": "COMPLETING", "CG": "COMPLETING", "COMPLETING": "COMPLETING",
    "S": "SUSPENDED", "SUSPENDED": "SUSPENDED", "ST": "SUSPENDED", "STOPPED": "SUSPENDED",
    "REQUEUED": "REQUEUED", "RQ": "REQUEUED", "REQUEUE_FED": "REQUEUED", "RF": "REQUEUED",
    "REQUEUE_HOLD": "REQUEUED", "RH": "REQUEUED", "RESV_DEL_HOLD": "PENDING", "RD": "PENDING",
    "SPECIAL_EXIT": "REQUEUED", "SE": "REQUEUED",
}  # fmt: skip


def job_state(text: str) -> JobState:
    """Return the state for Slurm's long or short name; every final state is ENDED."""
    word = re.split(r"[ +]", text.strip(), maxsplit=1)[0].upper()
    return JobState(_STATES.get(word, "ENDED"))


def help_options(text: str) -> frozenset[str]:
    """Return the long names of all options in the output of ``sbatch --help``."""
    return frozenset(re.findall(r"^\s+(?:-\w,?\s+)?--([a-z][a-z0-9-]*)", text, re.MULTILINE))


def submitted_job_id(text: str) -> str | None:
    """Return the job id in the output of ``sbatch --parsable``: ``1234`` or ``1234;cluster``.

    A site's own submit filter may print more lines.
    """
    found = re.findall(r"^(\d+)(?:;\S+)?\s*$", text, re.MULTILINE)
    return found[-1] if found else None


def show_job(text: str) -> dict[str, str]:
    """Return the fields of a job in the output of ``scontrol show job -o``; of an array its liveliest task.

    A value may hold blanks (a command, a comment): it runs on to the next ``Name=``.
    """
    return min(show_jobs(text), key=_liveliness, default={})


def show_jobs(text: str) -> list[dict[str, str]]:
    """Return the fields of each job in the output of ``scontrol show job -o``; see `show_job`."""
    return [fields_of(line) for line in text.splitlines() if line.startswith("JobId=")]


def _liveliness(fields: dict[str, str]) -> int:
    return _LIVELIEST_FIRST.index(job_state(fields.get("JobState", "")))


_LIVELIEST_FIRST = (
    JobState.RUNNING,
    JobState.SUSPENDED,
    JobState.COMPLETING,
    JobState.REQUEUED,
    JobState.PENDING,
    JobState.ENDED,
)


def fields_of(line: str) -> dict[str, str]:
    """Return the fields of one line of ``scontrol show ... -o``."""
    marks = list(re.finditer(r"(?:^| )([A-Z][A-Za-z:/_]*)=", line))
    ends = [mark.start() for mark in marks[1:]] + [len(line)]
    fields: dict[str, str] = {}
    for mark, end in zip(marks, ends, strict=False):  # Slurm may have said nothing
        fields.setdefault(mark[1], line[mark.end() : end].strip())
    return fields


def jobs_with_comment(text: str, token: str) -> list[str]:
    """Return the ids of the jobs whose comment starts with a token, from ``squeue -o '%F|%k'``.

    A token is one word or several.
    """
    found = []
    for line in text.splitlines():
        job_id, _, comment = line.strip().partition("|")
        if job_id.isdigit() and f"{comment} ".startswith(f"{token} ") and job_id not in found:
            found.append(job_id)
    return found


def time_left_s(text: str) -> float | None:
    """Return the time left in the output of ``squeue -h -o %L`` [s]; None if there is no limit."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text.strip())
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(days * 86400 + hours * 3600 + minutes * 60 + seconds)


def is_unknown_job(stderr: str) -> bool:
    """Return whether Slurm's words mean that it does not (or no longer) know the job."""
    return "Invalid job id" in stderr


def may_have_been_queued(stderr: str) -> bool:
    """Return whether a failed sbatch may still have reached the controller."""
    return "timed out" in stderr.lower() or "Zero Bytes were transmitted" in stderr


def controllers(output: str) -> list[tuple[str, bool]]:
    """Return host and whether it is up of each line of ``scontrol ping``."""
    lines = re.findall(r"^Slurmctld\([^)]*\) at (\S+) is (\w+)", output, re.MULTILINE)
    return [(host, state == "UP") for host, state in lines]
