"""What is read from Slurm's answer about an array, and how often Slurm is asked."""

from __future__ import annotations

import pytest

from hpc_elastic.slurm.client.commands import SlurmTimeoutError
from hpc_elastic.submitit.job import SharedLook, by_name, find
from hpc_elastic.testing.clock import FakeClock

SHOWN = [
    {"JobId": "41", "ArrayJobId": "40", "ArrayTaskId": "1", "JobState": "RUNNING", "Restarts": "1"},
    {"JobId": "42", "ArrayJobId": "40", "ArrayTaskId": "0", "JobState": "COMPLETED", "Restarts": "0"},
    {"JobId": "40", "ArrayJobId": "40", "ArrayTaskId": "3-5,9,20-30:5%2", "JobState": "PENDING"},
]


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("40_0", "COMPLETED"),
        ("40_1", "RUNNING"),
        ("40_2", None),
        ("40_3", "PENDING"),
        ("40_5", "PENDING"),
        ("40_6", None),
        ("40_9", "PENDING"),
        ("40_25", "PENDING"),
        ("40_26", None),
    ],
)
def test_tasks_that_have_not_begun_share_one_record(name: str, state: str | None) -> None:
    """Each other has one of its own; one of which Slurm knows nothing any more is gone."""
    fields = find(by_name(SHOWN), name)
    assert state == (fields and fields["JobState"])


def test_a_list_that_slurm_has_cut_off_holds_all() -> None:
    """Nobody is taken for gone because his index is in the part that was left out."""
    cut = {"JobId": "40", "ArrayJobId": "40", "ArrayTaskId": "1,3,5,...", "JobState": "PENDING"}
    assert find(by_name([cut]), "40_77")


def test_a_job_outside_of_an_array() -> None:
    """It is found by its id."""
    found = by_name([{"JobId": "7", "JobState": "RUNNING"}])
    assert "RUNNING" == (find(found, "7") or {})["JobState"]
    assert find(found, "8") is None


class Counted(SharedLook):
    """Counts what is asked.

    Args:
        clock: of the test.
    """

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.asked: list[str] = []
        self.is_away = False

    def show_tasks(self, array: str) -> list[dict[str, str]]:
        """Answer the same whatever is asked, unless Slurm is away."""
        self.asked.append(array)
        if self.is_away:
            raise SlurmTimeoutError(("squeue",), 30.0)
        return SHOWN


def test_slurm_is_asked_once_for_all_tasks(clock: FakeClock) -> None:
    """And again only when the answer is too old."""
    slurm = Counted(clock)
    states = [(slurm.show_job(f"40_{index}") or {}).get("JobState") for index in range(4)]
    assert ["COMPLETED", "RUNNING", None, "PENDING"] == states
    assert ["40"] == slurm.asked
    clock.advance(11.0)
    slurm.show_job("40_1")
    slurm.show_job("50")
    assert ["40", "40", "50"] == slurm.asked


def test_a_controller_that_is_away_is_not_asked_for_each_job(clock: FakeClock) -> None:
    """A question may take half a minute, and there may be a thousand jobs."""
    slurm = Counted(clock)
    slurm.is_away = True
    for name in ("40_0", "40_1", "50"):
        with pytest.raises(SlurmTimeoutError):
            slurm.show_job(name)
    assert ["40"] == slurm.asked
    slurm.is_away = False
    clock.advance(11.0)
    assert "RUNNING" == (slurm.show_job("40_1") or {})["JobState"]
