"""What Slurm says about a job that was cancelled in the second in which its preemption began."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_elastic.slurm.client.commands import Slurm, look
from hpc_elastic.slurm.client.job_standing import Standing, standing
from tests.slurm.stand_in import FakeJob

SECOND = "2026-11-21T08:00:00"


@pytest.mark.parametrize(
    ("fields", "stands"),
    [
        ({}, Standing.CANCELLED),
        ({"PreemptMode": "CANCEL"}, Standing.PREEMPTED),
        ({"PreemptType": "preempt/qos"}, Standing.PREEMPTED),
        ({"Requeue": "0"}, Standing.PREEMPTED),
        ({"JobState": "PREEMPTED"}, Standing.PREEMPTED),
    ],
    ids=str,
)
def test_a_cancelled_job_is_not_taken_for_preempted(
    tmp_path: Path, fields: dict[str, str], stands: Standing
) -> None:
    """Where Slurm requeues what it preempts, a job that it has not requeued was cancelled."""
    job = FakeJob(tmp_path / "slurm")
    job.set(
        **{"JobState": "COMPLETING", "PreemptTime": SECOND, "EndTime": SECOND, "Partition": "low", **fields}
    )
    assert stands is standing(look(Slurm(job.environ), "7"), 0)


def test_a_job_that_is_gone(tmp_path: Path) -> None:
    """There is nothing to tell."""
    job = FakeJob(tmp_path / "slurm")
    job.forget()
    assert look(Slurm(job.environ), "7") is None
