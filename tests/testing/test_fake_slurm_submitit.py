"""submitit on the fake Slurm: its executor submits, its watcher asks sacct, its jobs requeue themselves."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest
import submitit
from submitit.helpers import Checkpointable

from hpc_elastic.testing.fake_slurm import FakeSlurm

pytestmark = pytest.mark.fake_slurm(user_signal=True, speed=600, grace=120)


class Steps(Checkpointable):
    """Counts to ten; the first start never gets there."""

    def __init__(self, done: int = 0) -> None:
        self.done = done

    def __call__(self, marks: str) -> int:
        """Take steps until told to stop, or all after a restart."""
        if self.done == 0:
            self.done = 4
            Path(marks).touch()
            while True:  # short naps: with other threads about, a signal may not wake the one that sleeps
                time.sleep(0.05)
        return self.done + 6


def executor(slurm: FakeSlurm, **parameters: Any) -> Any:
    """Return an executor whose jobs can import this file.

    Its folder is there before the job, which may start as soon as sbatch has its answer; one that is
    named by the job is made by submitit only afterwards.
    """
    made = submitit.AutoExecutor(folder=f"{slurm.directory}/logs", cluster="slurm")
    here = str(Path(__file__).parents[2])
    made.update_parameters(timeout_min=60, slurm_partition="low", slurm_setup=[f"export PYTHONPATH={here}"])
    made.update_parameters(**parameters)
    return made


def result_of(slurm: FakeSlurm, job: Any) -> Any:
    """Wait for a job, then return its result; submitit itself asks once a minute only."""
    slurm.wait_state(job.job_id, "COMPLETED")
    job.watcher.update()
    return job.result()


def test_an_array_of_functions_returns_values(fake_slurm: FakeSlurm) -> None:
    """`map_array` is a job array."""
    jobs = executor(fake_slurm).map_array(pow, [2, 3], [3, 2])
    assert [8, 9] == [result_of(fake_slurm, job) for job in jobs]
    assert {"COMPLETED"} == {job.state for job in jobs}


def test_a_preempted_function_goes_on_where_it_was(fake_slurm: FakeSlurm) -> None:
    """On a site with preempt_send_user_signal submitit hears USR2, saves, and requeues its job."""
    sys.modules.setdefault("tests.testing.test_fake_slurm_submitit", sys.modules[__name__])
    marks = Path(fake_slurm.directory, "begun")
    job = executor(fake_slurm).submit(Steps(), str(marks))
    fake_slurm.wait_for(marks.exists, 60, "the function to begin")
    high = fake_slurm.submit_high(4)
    fake_slurm.wait_state(high, "RUNNING")
    fake_slurm.command("scancel", high)
    assert 10 == result_of(fake_slurm, job)
    assert "1" == fake_slurm.job(job.job_id)["Restarts"]
