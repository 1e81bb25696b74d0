"""The tasks of a run's arrays as Slurm has them."""

from __future__ import annotations

import pytest

from hpc_elastic.slurm.client.answers import SlurmTask, arrays_of, max_array_size, parse_tasks
from hpc_elastic.slurm.client.parse import JobState

OURS = ("12", "0", "RUNNING", "n1", "None", "token a comment")


def test_tasks_of_the_submission_and_of_the_first_array_count() -> None:
    """By the first word of their comment, or by the array; without a token by the array alone."""
    rows = [
        OURS,
        ("13", "4", "PENDING", "", "Priority", "token"),
        ("13", "5", "PENDING", "", "Priority", "token a comment of two words"),
        ("12", "1", "RUNNING", "n2", "None", "other"),
        ("14", "0", "RUNNING", "n3", "None", "tokens"),
        ("15", "0", "RUNNING", "n4", "None", ""),
    ]
    found = parse_tasks(rows, token="token", array="12")  # noqa: S106 - no password
    assert ["12_0", "13_4", "13_5", "12_1"] == [task.name for task in found]
    assert SlurmTask("12", 0, JobState.RUNNING, "n1") == found[0]
    assert ("Priority", JobState.PENDING, "") == (found[1].reason, found[1].state, found[1].node)
    assert ["12_0", "12_1"] == [task.name for task in parse_tasks(rows, token="", array="12")]


@pytest.mark.parametrize("row", [("12", "[0-3]", *OURS[2:]), ("x", "0", *OURS[2:]), ("12", "", *OURS[2:])])
def test_what_is_no_task_is_passed_over(row: tuple[str, ...]) -> None:
    """The rest of an array that waits, and jobs that are none."""
    assert [] == parse_tasks([row], token="token", array="12")  # noqa: S106 - no password


@pytest.mark.parametrize(
    ("state", "runs", "waits"),
    [
        (JobState.RUNNING, True, False),
        (JobState.SUSPENDED, True, False),
        (JobState.PENDING, False, True),
        (JobState.REQUEUED, False, True),
        (JobState.COMPLETING, False, False),
        (JobState.ENDED, False, False),
    ],
)
def test_who_runs_and_who_waits(state: JobState, runs: bool, waits: bool) -> None:
    """A task that is about to end does neither."""
    task = SlurmTask("12", 0, state)
    assert (runs, waits, "None") == (task.is_running, task.is_waiting, task.reason)


def test_arrays_are_in_their_order() -> None:
    """By number, each once."""
    tasks = [SlurmTask(array, 0, JobState.RUNNING) for array in ("100", "99", "100")]
    assert ("99", "100") == arrays_of(tasks)


@pytest.mark.parametrize(
    ("text", "most"),
    [("MaxArraySize            = 1001\n", 1001), ("MaxArraySize            = many\n", None), ("", None)],
)
def test_the_size_of_an_array_is_read(text: str, most: int | None) -> None:
    """As Slurm's configuration has it."""
    assert most == max_array_size(text)
