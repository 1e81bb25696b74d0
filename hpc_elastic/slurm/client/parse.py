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
    UNKNOWN = "UNKNOWN"  # a word of a later version: the job may run, wait or be over

    @property
    def is_active(self) -> bool:
        """Whether Slurm may still have something to do for the job."""
        return self is not JobState.ENDED


_WORDS = {
    JobState.PENDING: ("PENDING", "PD", "RESV_DEL_HOLD", "RD"),
    JobState.RUNNING: (
        "RUNNING", "R", "CONFIGURING", "CF", "RESIZING", "RS", "SIGNALING", "SI", "POWER_UP_NODE",
    ),
    JobState.SUSPENDED: ("SUSPENDED", "S", "STOPPED", "ST"),
    JobState.COMPLETING: ("COMPLETING", "CG", "STAGE_OUT", "SO", "UPDATE_DB"),
    JobState.REQUEUED: (  # its owner may not change it before it is PENDING
        "REQUEUED", "RQ", "REQUEUE_FED", "RF", "REQUEUE_HOLD", "RH", "SPECIAL_EXIT", "SE", "RECONFIG_FAIL",
        "EXPEDITING", "EX",
    ),
    JobState.ENDED: (
        "COMPLETED", "CD", "CANCELLED", "CA", "FAILED", "F", "TIMEOUT", "TO", "NODE_FAIL", "NF", "PREEMPTED",
        "PR", "BOOT_FAIL", "BF", "DEADLINE", "DL", "OUT_OF_MEMORY", "OOM", "LAUNCH_FAILED", "LF", "REVOKED",
        "RV",
    ),
}  # fmt: skip
"""The words of Slurm 20.11 to 26.05, long and short."""

_STATES = {word: state for state, words in _WORDS.items() for word in words}


def job_state(text: str) -> JobState:
    """Return the state for Slurm's long or short name; a word that is not known is UNKNOWN."""
    word = re.split(r"[ +,]", text.strip())[0].upper()
    return _STATES.get(word, JobState.UNKNOWN)


def help_options(text: str) -> frozenset[str]:
    """Return the long names of all options in the output of ``sbatch --help``."""
    return frozenset(re.findall(r"^\s+(?:-\w,?\s+)?--([a-z][a-z0-9-]*)", text, re.MULTILINE))


def submitted_job_id(text: str) -> str | None:
    """Return the job id in the output of ``sbatch --parsable``: ``1234`` or ``1234;cluster``.

    A site's own submit filter may print more lines before; sbatch's own is the last one.
    """
    found = re.findall(r"^(\d+)(?:;\S+)?\s*$", text, re.MULTILINE)
    return found[-1] if found else None


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


def between_s(first: str, last: str) -> float | None:
    """Return the seconds between two of Slurm's dates; None if one is none."""
    a, b = _stamp(first), _stamp(last)
    return None if a is None or b is None else float(max(0, b - a))


def _stamp(text: str) -> int | None:
    """Return the seconds of ``2026-11-21T20:00:00`` in a calendar of its own; good for differences only."""
    found = re.fullmatch(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)", text)
    if found is None:
        return None
    year, month, day, hours, minutes, secs = map(int, found.groups())
    months = 12 * year + month - 3  # a year that begins in March has its odd day at its end
    of_year = (153 * (months % 12) + 2) // 5 + day
    days = 365 * (months // 12) + months // 48 - months // 1200 + months // 4800 + of_year
    return ((days * 24 + hours) * 60 + minutes) * 60 + secs
