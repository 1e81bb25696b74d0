"""A run that has ended, or stops, while Slurm still has its job."""

from __future__ import annotations

import pytest

from hpc_elastic.record.journal import AfterDrain, Cause, Decision, DrainRequested, RunEnded
from hpc_elastic.record.state import RunState
from hpc_elastic.slurm.client.parse import JobState
from hpc_elastic.slurm.run_jobs.may_start import first_to_do, why_not_again
from tests.meet.build import after, formed, start

RUNS = after(start(), formed(1))
CANCELLED = after(start(), formed(1), RunEnded(Decision.CANCELLED, 130, "by the user", None))
HELD = after(start(), formed(1), RunEnded(Decision.HELD, 1, "a budget is spent", None))
STOPS = after(start(), formed(1), DrainRequested(Cause.STOP, "", AfterDrain.LEAVE, ""))
PREEMPTED = after(start(), formed(1), DrainRequested(Cause.PREEMPTION, "n1", AfterDrain.LEAVE, ""))
STOP = "stop it first: hpc-elastic stop '/my run'"

LOOK = "hpc-elastic status '/my run' tells how far it is"


@pytest.mark.parametrize(
    ("state", "job", "why", "fix"),
    [
        (RUNS, JobState.RUNNING, "has not ended: its job 7 is RUNNING", STOP),
        (RUNS, JobState.COMPLETING, "has not ended: its job 7 is COMPLETING", STOP),
        (HELD, JobState.PENDING, "has not ended: its job 7 is PENDING", STOP),
        (PREEMPTED, JobState.RUNNING, "has not ended: its job 7 is RUNNING", STOP),
        (
            CANCELLED,
            JobState.COMPLETING,
            "has ended (cancelled), but its job 7 is COMPLETING",
            "wait until job 7 has left Slurm (some seconds), then try again; if it stays: scancel 7",
        ),
        (
            CANCELLED,
            JobState.PENDING,
            "has ended (cancelled), but its job 7 is PENDING",
            "scancel 7, then try again",
        ),
        (
            STOPS,
            JobState.RUNNING,
            "has not ended: its job 7 is RUNNING, and it stops already",
            f"wait until job 7 has left Slurm, then try again; {LOOK}",
        ),
        (STOPS, JobState.PENDING, "has not ended: its job 7 is PENDING", STOP),
    ],
)
def test_only_a_run_that_goes_on_is_to_be_stopped(state: RunState, job: JobState, why: str, fix: str) -> None:
    """One that has ended, or was asked to stop, has nothing left to be stopped: it is waited for."""
    assert (f"the run in /my run {why}", fix) == why_not_again(state, 0, "7", job, "/my run")


def test_what_an_earlier_submission_came_to_says_nothing() -> None:
    """The newest one has left no record yet."""
    assert "has not ended" in why_not_again(CANCELLED, 1, "8", JobState.PENDING, "/run")[0]


def test_a_local_run_is_no_job_of_slurms() -> None:
    """It is a process on this machine."""
    assert "wait until local-7 has ended (some seconds)" == first_to_do("local-7", JobState.RUNNING)
    assert "scancel" not in why_not_again(CANCELLED, 0, "local-7", JobState.RUNNING, "/run")[1]
