"""The answers of Slurm about many jobs, asked once for all tasks of an array, and rarely."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from hpc_elastic.clock import Clock, SystemClock
from hpc_elastic.errors import SlurmError
from hpc_elastic.slurm.client.commands import Slurm

FRESH_S = 10.0  # how old an answer may be


class _Answer(NamedTuple):
    at: float
    jobs: dict[str, dict[str, str]]  # by name: an id, ``12_3``, or ``12_[5-9%2]`` for those not begun


def by_name(jobs: Iterable[dict[str, str]]) -> dict[str, dict[str, str]]:
    """Return the fields of jobs by their name in Slurm's commands."""
    found = {}
    for fields in jobs:
        index = fields.get("ArrayTaskId", "")
        name = index if index.isdecimal() else f"[{index}]"
        found[f"{fields['ArrayJobId']}_{name}" if index else fields["JobId"]] = fields
    return found


def find(jobs: dict[str, dict[str, str]], name: str) -> dict[str, str] | None:
    """Return the fields of a job; tasks of an array that have not begun share one record."""
    own = jobs.get(name)
    if own is not None:
        return own
    _, _, index = name.partition("_")
    waiting = (fields for key, fields in jobs.items() if index.isdecimal() and key.endswith("]"))
    return next((fields for fields in waiting if _holds(fields["ArrayTaskId"], int(index))), None)


def _holds(indices: str, index: int) -> bool:
    """Tell whether ``0-3,7,9-20:2%4`` has an index; Slurm cuts long lists off with dots."""
    if "..." in indices:
        return True
    for part in indices.partition("%")[0].split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        if match is None:
            continue
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if index in range(first, last + 1, step):
            return True
    return False


class SharedLook(Slurm):
    """Slurm's commands, with answers about jobs that are kept for a while.

    Args:
        clock: tells how old an answer is.
        fresh_s: how old it may be [s].
    """

    def __init__(self, clock: Clock | None = None, fresh_s: float = FRESH_S) -> None:
        super().__init__()
        self._clock = clock or SystemClock()
        self._fresh_s = fresh_s
        self._answers: dict[str, _Answer] = {}
        self._trouble: tuple[float, SlurmError] | None = None  # when Slurm gave no answer, and why

    def show_job(self, job_ref: str) -> dict[str, str] | None:
        """Return the last answer of Slurm about a job, None if it does not know it.

        Raises:
            SlurmError: it gives no answer; then the next question waits, as each one may take long.
        """
        asked = job_ref.partition("_")[0]
        now = self._clock.monotonic()
        known = self._answers.get(asked)
        if known is None or now - known.at > self._fresh_s:
            known = self._ask_anew(asked, now)
        return find(known.jobs, job_ref)

    def _ask_anew(self, asked: str, now: float) -> _Answer:
        if self._trouble is not None and now - self._trouble[0] <= self._fresh_s:
            raise self._trouble[1]
        self._forget(now)
        try:
            known = self._answers[asked] = _Answer(now, by_name(self.show_tasks(asked)))
        except SlurmError as error:
            self._trouble = (self._clock.monotonic(), error)
            raise
        return known

    def _forget(self, now: float) -> None:
        old = [name for name, answer in self._answers.items() if now - answer.at > self._fresh_s]
        for name in old:
            del self._answers[name]
