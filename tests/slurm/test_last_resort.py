"""The requeue of a job whose batch script was killed while the shared directory stalls."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import SlurmCommandError
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.end import requeue
from hpc_elastic.slurm.end.requeue import LastResort
from hpc_elastic.testing.clock import FakeClock

LIMIT_S = 120.0
KILLED = {"JobState": "FAILED", "Reason": "RaisedSignal:9(Killed)"}


class Job(Slurm):
    """A job of a Slurm that answers as a test wants, and whose agent is held up."""

    def __init__(self) -> None:
        super().__init__({})
        self.fields = {"JobState": "RUNNING"}
        self.failures = 0  # so often Slurm does not answer
        self.questions = 0
        self.requeues: list[str] = []
        self.told = threading.Event()
        self.held_up_for = 5.0
        self._looks = threading.Semaphore(0)

    def show_job(self, job_ref: str) -> dict[str, str] | None:
        """Return the job."""
        assert job_ref == "7"
        self.questions += 1
        if self.failures:
            self.failures -= 1
            raise SlurmCommandError(("scontrol",), 1, "Socket timed out on send/recv operation")
        return {"Restarts": "0", "Reason": "None", **self.fields}

    def requeue(self, job_ref: str, *, hold: bool = False) -> None:
        """Put it back into the queue."""
        assert not hold
        self.requeues.append(job_ref)

    def held_up_s(self) -> float:
        """Return for how long the agent has been held up [s]."""
        self._looks.release()
        return self.held_up_for

    def let_look(self, count: int) -> None:
        """Wait until the agent has been looked at again so often."""
        while self._looks.acquire(blocking=False):
            pass
        for _ in range(count):
            assert self._looks.acquire(timeout=LIMIT_S)

    def let_ask(self, count: int) -> None:
        """Hold the agent up until Slurm has been asked again so often."""
        until = self.questions + count
        while self.questions < until:
            self.held_up_for += 20.0
            self.let_look(2)


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    """Return a job that is looked after, in a hurry."""
    monkeypatch.setattr(requeue, "LOOK_S", 0.001)
    job = Job()
    with closing(LastResort(job, ("7", 0), FakeClock(), job.held_up_s, job.told.set)):
        yield job


def test_a_job_without_its_script_is_requeued_once(job: Job) -> None:
    """Then nobody looks after it any more."""
    job.let_ask(2)
    assert [] == job.requeues  # it runs
    job.fields = KILLED
    job.held_up_for += 20.0
    assert job.told.wait(LIMIT_S)
    assert ["7"] == job.requeues


@pytest.mark.parametrize(
    "fields",
    [
        {"JobState": "CANCELLED"},
        {"JobState": "COMPLETING"},  # cancelled, too
        {"JobState": "COMPLETING", "Reason": "TimeLimit"},
        {"JobState": "PENDING", "Restarts": "1"},
        {"JobState": "COMPLETED"},
    ],
)
def test_a_job_that_ends_for_another_reason_is_left_alone(job: Job, fields: dict[str, str]) -> None:
    """The batch script, or Slurm, does what is to be done."""
    job.fields = fields
    job.let_ask(3)
    assert [] == job.requeues


def test_slurm_is_not_asked_while_the_agent_goes_on(job: Job) -> None:
    """One that is not held up writes what has happened by itself."""
    job.held_up_for = 0.0
    job.let_look(2)
    asked = job.questions
    job.fields = KILLED
    job.let_look(20)
    assert asked == job.questions
    assert [] == job.requeues


def test_slurm_is_asked_on_until_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that goes on has asked why SIGTERM came, in vain; one answer is enough."""
    monkeypatch.setattr(requeue, "LOOK_S", 0.001)
    job = Job()
    job.held_up_for, job.failures = 0.0, 2
    with closing(LastResort(job, ("7", 0), SystemClock(), job.held_up_s)) as resort:
        resort.go_on_asking()
        while job.questions <= 2:
            job.let_look(1)
        job.let_look(20)
    assert (3, []) == (job.questions, job.requeues)


def test_slurm_is_asked_seldom(job: Job) -> None:
    """As long as an agent is held up, with growing pauses: many jobs may hang in one stall."""
    job.let_ask(1)
    asked = job.questions
    job.let_look(20)  # no time passes
    assert asked == job.questions


def test_an_agent_that_goes_on_meanwhile_requeues_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has been let go while Slurm was asked, and may find that the run is to wait for its user."""
    monkeypatch.setattr(requeue, "LOOK_S", 0.001)
    job, answered = Job(), threading.Event()
    job.fields = KILLED
    resort: LastResort

    def answer(_job_ref: str) -> dict[str, str]:
        resort.close()
        answered.set()
        return {"Restarts": "0", **KILLED}

    monkeypatch.setattr(job, "show_job", answer)
    job.held_up_for = 0.0
    others = set(threading.enumerate())
    resort = LastResort(job, ("7", 0), FakeClock(), job.held_up_s)
    mine = set(threading.enumerate()) - others
    job.held_up_for = 5.0
    assert answered.wait(LIMIT_S)
    for thread in mine:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    assert [] == job.requeues


def test_an_agent_that_slurm_has_told_requeues_before_all_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not held up, but may have to save, and to wait for a node that has died at the same moment."""
    monkeypatch.setattr(requeue, "LOOK_S", LIMIT_S)  # it is not waited for
    job, done = Job(), threading.Event()
    job.fields, job.held_up_for = KILLED, 0.0
    monkeypatch.setattr(job, "requeue", lambda _job_ref: done.set())
    with closing(LastResort(job, ("7", 0), FakeClock(), job.held_up_s, job.told.set)) as resort:
        resort.at_once()
        assert done.wait(LIMIT_S)
    assert 1 == job.questions  # it may have been cancelled meanwhile


def test_a_job_that_its_user_has_cancelled_meanwhile_is_not_requeued(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm is asked once more right before."""
    monkeypatch.setattr(requeue, "LOOK_S", 0.001)
    job = Job()
    job.fields, job.held_up_for = {"JobState": "CANCELLED"}, 0.0
    with closing(LastResort(job, ("7", 0), FakeClock(), job.held_up_s, job.told.set)) as resort:
        resort.at_once()
        job.let_look(3)
    assert 1 == job.questions
    assert [] == job.requeues


def test_a_slurm_that_does_not_answer_is_asked_again(job: Job) -> None:
    """It may be busy with the other jobs of the stall."""
    job.failures = 2
    job.let_ask(3)
    job.fields = KILLED
    job.held_up_for += 20.0
    assert job.told.wait(LIMIT_S)
    assert ["7"] == job.requeues
