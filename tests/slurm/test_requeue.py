"""Giving a job back to Slurm, with a stand-in for its commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.end.requeue import PATIENCE_S, HandBack, RequeueOutcome
from hpc_elastic.testing.clock import FakeClock
from tests.slurm.stand_in import FakeJob


@pytest.fixture
def job(tmp_path: Path) -> FakeJob:
    """Return a running job of two nodes."""
    return FakeJob(tmp_path / "slurm")


class SlowTries(FakeClock):
    """A clock whose pauses take ten times as long: fewer tries are as many programs less to run."""

    def sleep(self, seconds: float) -> None:
        """Let time pass [s]."""
        super().sleep(10 * seconds)


def hand_back(job: FakeJob, clock: FakeClock | None = None) -> HandBack:
    """Return what gives the first start of the job back."""
    return HandBack(Slurm(job.environ), "7", 0, clock or FakeClock())


def test_a_requeue_is_done_once(job: FakeJob) -> None:
    """The second time the job is in the queue already."""
    assert RequeueOutcome.DONE is hand_back(job).requeue().outcome
    assert RequeueOutcome.DONE is hand_back(job).requeue().outcome
    assert ["scontrol requeue 7"] == job.calls


def test_a_job_that_is_cancelled_at_the_last_moment_is_not_brought_back(job: FakeJob) -> None:
    """Slurm would do it, so that the job is looked at right before."""
    job.set(JobState="COMPLETING")
    assert RequeueOutcome.CANCELLED is hand_back(job).requeue().outcome
    assert RequeueOutcome.CANCELLED is hand_back(job).hold("why").outcome
    assert not any("requeue" in call for call in job.calls)


def test_a_controller_that_is_away_is_waited_for(job: FakeJob) -> None:
    """For half an hour: nobody else is served either."""
    job.fail(requeue=3)
    assert RequeueOutcome.DONE is hand_back(job).requeue().outcome
    job.set()
    job.fail(requeue=10_000)
    clock = SlowTries()
    began = clock.monotonic()
    handed = hand_back(job, clock).requeue()
    assert RequeueOutcome.REFUSED is handed.outcome
    assert "Unable to contact" in handed.words
    assert clock.monotonic() - began >= PATIENCE_S


@pytest.mark.parametrize(
    "words",
    [
        "slurm_requeue error: Socket timed out on send/recv operation",
        "slurm_requeue error: Zero Bytes were transmitted or received",
        "slurm_requeue error: Slurm temporarily unable to accept job, sleeping and retrying",
    ],
)
def test_a_controller_that_is_busy_has_refused_nothing(job: FakeJob, words: str) -> None:
    """Else a storm of requeues, as after a fault of the cluster, would fail the runs that wait in it."""
    job.refuse("requeue", words)
    clock = SlowTries()
    began = clock.monotonic()
    assert RequeueOutcome.REFUSED is hand_back(job, clock).requeue().outcome
    assert clock.monotonic() - began >= PATIENCE_S


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_refusal_is_taken_for_an_answer(job: FakeJob, *, is_seen: bool) -> None:
    """There is something else to do in the seconds that are left, also where squeue tells nothing."""
    if not is_seen:
        job.fail(show=10_000)
    job.refuse("requeue", "Requested operation is presently disabled for job 7")
    clock = FakeClock()
    began = clock.monotonic()
    handed = hand_back(job, clock).requeue()
    assert RequeueOutcome.REFUSED is handed.outcome
    assert "presently disabled" in handed.words
    assert clock.monotonic() - began < 10


def test_a_job_is_held_with_its_reason(job: FakeJob) -> None:
    """A running one goes into the queue held; one that is there already is held there."""
    assert RequeueOutcome.DONE is hand_back(job).hold("the budget is spent").outcome
    assert [
        "scontrol update JobId=7 Comment= | held: the budget is spent",
        "scontrol requeuehold 7",
    ] == job.calls
    job.set(JobState="PENDING", Restarts="1", Comment="token mine | held: before")
    assert RequeueOutcome.DONE is hand_back(job).hold("again").outcome
    assert ["scontrol update JobId=7 Comment=token mine | held: again", "scontrol hold 7"] == job.calls[-2:]
