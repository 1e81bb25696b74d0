"""The tasks of a run's arrays as Slurm has them. Pure.

A run has one array; `scale` beyond it adds further ones. All carry the token of the submission in
their comment, so they are found together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hpc_elastic.slurm.client import told
from hpc_elastic.slurm.client.jobs import reason_word
from hpc_elastic.slurm.client.parse import JobState, job_state

_RUNNING = (JobState.RUNNING, JobState.SUSPENDED)
_WAITING = (JobState.PENDING, JobState.REQUEUED)


class SlurmTask(NamedTuple):
    """One task of an array."""

    array: str
    number: int  # index in the array
    state: JobState
    node: str = ""
    reason: str = "None"  # why it waits

    @property
    def name(self) -> str:
        """How Slurm's commands name it."""
        return f"{self.array}_{self.number}"

    @property
    def is_running(self) -> bool:
        """Whether it has a node and is not about to end."""
        return self.state in _RUNNING

    @property
    def is_waiting(self) -> bool:
        """Whether it is in the queue."""
        return self.state in _WAITING


def parse_tasks(rows: Iterable[Sequence[str]], *, token: str, array: str) -> list[SlurmTask]:
    """Return the tasks of a submission.

    Args:
        rows: of squeue's table `client.jobs.TASKS`, one per task.
        token: what the comment of its jobs starts with; empty if it is not known.
        array: the id of the run's first array, whose tasks count whatever their comment says.
    """
    found = []
    for of_array, number, word, node, reason, comment in rows:
        if not re.fullmatch("[0-9]{1,18}", of_array) or not re.fullmatch("[0-9]{1,18}", number):
            continue
        is_ours = bool(token) and comment.partition(" ")[0] == token
        if is_ours or of_array == array:
            found.append(SlurmTask(of_array, int(number), job_state(word), node, reason_word(reason)))
    return found


def arrays_of(tasks: Iterable[SlurmTask]) -> tuple[str, ...]:
    """Return the ids of the arrays, the oldest first."""
    return tuple(sorted({task.array for task in tasks}, key=int))


def max_array_size(text: str) -> int | None:
    """Return the number of tasks an array may have, from ``scontrol show config``; None if it is not told.

    Slurm's MaxArraySize is one more than the highest index.
    """
    most = told.config(text).get("MaxArraySize", "")
    return int(most) if most.isdecimal() else None
