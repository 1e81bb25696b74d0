"""What torchrun's rendezvous over a directory learns from Slurm; torch itself is not needed for that."""

from __future__ import annotations

import pytest

from hpc_elastic.rendezvous.torchrun import restart_of

JOB = {"SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": "2"}
TASK = {
    **JOB,
    "SLURM_ARRAY_JOB_ID": "17",
    "SLURM_ARRAY_TASK_ID": "3",
}  # the last one: its job id is the array's


@pytest.mark.parametrize(
    ("run_id", "environ", "restart"),
    [
        ("17", JOB, {"restart": "2"}),
        ("17", {"SLURM_JOB_ID": "17"}, {"restart": "0"}),
        ("17_3", TASK, {"restart": "2"}),
        ("17", TASK, {}),
        ("mine", JOB, {}),
        ("none", {}, {}),
    ],
    ids=["requeued", "first start", "array task", "whole array", "own id", "no job"],
)
def test_the_start_of_a_run_is_that_of_its_job(
    run_id: str, environ: dict[str, str], restart: dict[str, str]
) -> None:
    """Only if the run is the job's own: jobs that share a run have different restart counts."""
    assert restart == restart_of(run_id, environ)
