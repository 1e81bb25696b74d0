"""Ending a run from outside, with real records and stand-ins for Slurm's commands."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import InputError
from hpc_elastic.meet.membership import RUN_ID
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import (
    AfterDrain,
    Cause,
    Decision,
    Drained,
    DrainRequested,
    Entry,
    Epoch,
    EpochStarted,
    Member,
    RoundFormed,
    RunEnded,
)
from hpc_elastic.record.run_log import open_log, read_state
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.operate.end_run import EndRun, end_tasks
from hpc_elastic.slurm.run_jobs import submissions
from hpc_elastic.slurm.run_jobs.submissions import Submission
from hpc_elastic.testing.waiting import wait_until
from tests.slurm.stand_in import FakeJob

EPOCH = Epoch(0, 0, 0, 0)
STARTED = EpochStarted(EPOCH, "7", ("n1",))
ROUND = RoundFormed(1, EPOCH, (Member("n1.1", "n1", 1),), "n1", 1, None)
ENDED = RunEnded(Decision.DONE, 0, "", None)


@pytest.fixture
def job(tmp_path: Path) -> FakeJob:
    """Return a running job."""
    return FakeJob(tmp_path / "slurm")


@pytest.fixture
def paths(run_paths: RunPaths) -> RunPaths:
    """Return a run that was submitted as job 7."""
    submissions.record(run_paths, Submission(0, "token", "7", ""))
    return run_paths


def write(paths: RunPaths, *entries: Entry) -> None:
    """Write records as the agents do."""
    log = open_log(paths, "n1")
    for entry in entries:
        log.commit(lambda _state, entry=entry: entry)  # type: ignore[misc]


def ending(paths: RunPaths) -> Decision | None:
    """Return how the run ended."""
    found = read_state(paths).ending
    return None if found is None else found.decision


class Ender:
    """Runs `stop` and `cancel` and keeps what they said."""

    def __init__(self, paths: RunPaths, job: FakeJob) -> None:
        self.said: list[str] = []
        self._end = EndRun(paths, Slurm(job.environ), SystemClock(), self.said.append)
        self.stop, self.cancel = self._end.stop, self._end.cancel


def test_running_workers_are_asked_to_save_and_stop(paths: RunPaths, job: FakeJob) -> None:
    """The journal carries the request; Slurm's job is left to end by itself."""
    write(paths, STARTED, ROUND)
    Ender(paths, job).stop()
    drain = read_state(paths).drain
    assert drain is not None
    assert (Cause.STOP, AfterDrain.LEAVE) == (drain.cause, drain.then)
    assert [] == job.calls
    again = Ender(paths, job)
    again.stop()
    assert "already" in again.said[0]


def test_a_job_that_waits_is_stopped_by_cancelling_it(paths: RunPaths, job: FakeJob) -> None:
    """There is nothing to save; agents that start all the same find the run ended."""
    job.set(JobState="PENDING", Reason="Priority")
    Ender(paths, job).stop()
    assert Decision.STOPPED is ending(paths)
    assert ["scancel 7"] == job.calls
    write(paths, EpochStarted(EPOCH._replace(restart=1), "7", ("n1",)))
    assert Decision.STOPPED is ending(paths)


def test_a_requeued_job_that_waits_is_stopped_too(paths: RunPaths, job: FakeJob) -> None:
    """The run was drained before; it stays saved."""
    write(paths, STARTED, ROUND, Drained(EPOCH, Cause.PREEMPTION, 5, ""))
    job.set(JobState="PENDING", Restarts="1")
    Ender(paths, job).stop()
    assert Decision.STOPPED is ending(paths)
    assert ["scancel 7"] == job.calls


def test_workers_that_were_left_behind_by_a_requeue_are_not_waited_for(paths: RunPaths, job: FakeJob) -> None:
    """The newest round belongs to a start that Slurm has ended."""
    write(paths, STARTED, ROUND)
    job.set(Restarts="1")
    Ender(paths, job).stop()
    assert Decision.STOPPED is ending(paths)
    assert [] == job.calls


def test_a_drain_under_way_is_waited_for(paths: RunPaths, job: FakeJob) -> None:
    """Ending the run at once would cost the checkpoint that is being written."""
    write(paths, STARTED, ROUND, DrainRequested(Cause.TIME_LIMIT, "n1", AfterDrain.LEAVE, ""))
    ender = Ender(paths, job)
    thread = threading.Thread(target=ender.stop)
    thread.start()
    wait_until(lambda: bool(ender.said), "stop says that it waits")
    assert ending(paths) is None
    write(paths, Drained(EPOCH, Cause.TIME_LIMIT, 5, ""))
    thread.join(120)
    assert Decision.STOPPED is ending(paths)
    assert ["scancel 7"] == job.calls


def test_cancel_ends_a_running_run_at_once(paths: RunPaths, job: FakeJob) -> None:
    """The record tells the agents, scancel the job."""
    write(paths, STARTED, ROUND)
    Ender(paths, job).cancel()
    assert Decision.CANCELLED is ending(paths)
    assert ["scancel 7"] == job.calls


def test_cancel_before_the_start_holds_when_the_job_starts_all_the_same(
    paths: RunPaths, job: FakeJob
) -> None:
    """An ending belongs to its submission even if no agent has written a record."""
    job.set(JobState="PENDING")
    Ender(paths, job).cancel()
    write(paths, EpochStarted(EPOCH, "7", ("n1",)))
    assert Decision.CANCELLED is ending(paths)


def test_the_ending_of_an_earlier_submission_does_not_keep_from_stopping(
    paths: RunPaths, job: FakeJob
) -> None:
    """A run that was submitted again can be stopped again."""
    write(paths, STARTED, ENDED)
    submissions.record(paths, Submission(1, "token2", "8", ""))
    job.set(JobState="PENDING")
    Ender(paths, job).stop()
    assert Decision.STOPPED is ending(paths)
    assert ["scancel 8"] == job.calls


@pytest.mark.parametrize("command", ["stop", "cancel"])
def test_a_run_that_has_ended_is_refused(paths: RunPaths, job: FakeJob, command: str) -> None:
    """The error says how it ended."""
    write(paths, STARTED, ENDED)
    job.forget()
    with pytest.raises(InputError, match="ended already: done"):
        getattr(Ender(paths, job), command)()


def test_a_run_that_was_cancelled_is_run_again_once_its_job_has_left(paths: RunPaths, job: FakeJob) -> None:
    """`submit --resume` would refuse it before."""
    write(paths, STARTED, RunEnded(Decision.CANCELLED, 130, "by the user", None))
    job.set(JobState="COMPLETING")
    with pytest.raises(InputError) as caught:
        Ender(paths, job).stop()
    assert caught.value.fix.startswith(
        "to run it again: wait until job 7 has left Slurm (some seconds), then "
    )
    job.forget()
    with pytest.raises(InputError) as caught:
        Ender(paths, job).stop()
    assert "wait" not in caught.value.fix


def test_a_run_that_has_saved_is_not_said_to_save(paths: RunPaths, job: FakeJob) -> None:
    """It was asked to stop, and its job is about to end."""
    write(paths, STARTED, ROUND, Drained(EPOCH, Cause.STOP, 5, ""))
    ender = Ender(paths, job)
    ender.stop()
    assert ["the run was asked to stop already; its workers have ended, and its job ends"] == ender.said


def test_a_job_that_outlived_its_run_can_be_cancelled(paths: RunPaths, job: FakeJob) -> None:
    """Slurm may have requeued a job whose run was done."""
    write(paths, STARTED, ENDED)
    job.set(JobState="PENDING")
    Ender(paths, job).cancel()
    assert Decision.DONE is ending(paths)
    assert ["scancel 7"] == job.calls


def test_without_slurm_on_path_the_record_is_written_and_the_rest_is_said(
    paths: RunPaths, job: FakeJob
) -> None:
    """Agents end by the record; a job in the queue has to be taken away by hand."""
    write(paths, STARTED, ROUND)
    job.remove()
    ender = Ender(paths, job)
    ender.cancel()
    assert Decision.CANCELLED is ending(paths)
    assert "scancel 7" in ender.said[-1]


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ((), "no workers ran"),
        ((STARTED, ROUND, Drained(EPOCH, Cause.PREEMPTION, 9, "")), "its workers had ended"),
    ],
)
def test_the_reason_knows_of_earlier_rounds(
    paths: RunPaths, job: FakeJob, entries: tuple[Entry, ...], reason: str
) -> None:
    """A run that waits in the queue again had workers before."""
    write(paths, *entries)
    job.set(JobState="PENDING", Restarts="1")
    Ender(paths, job).stop()
    ended = read_state(paths).ending
    assert ended is not None
    assert reason == ended.reason


def test_agents_of_torchrun_are_not_asked(run_paths: RunPaths, job: FakeJob) -> None:
    """Nobody would hear it, and the user would wait."""
    write(run_paths, STARTED, ROUND)
    Path(run_paths.nodes, RUN_ID).write_text('{"run_id": "7"}')
    with pytest.raises(InputError, match="torchrun's, and hear no stop\n  fix: scancel"):
        Ender(run_paths, job).stop()


def test_a_directory_in_which_nothing_was_started_is_refused(run_paths: RunPaths, job: FakeJob) -> None:
    """There is nothing to end."""
    with pytest.raises(InputError, match="nothing was ever started"):
        Ender(run_paths, job).stop()


def test_a_task_that_has_ended_meanwhile_keeps_no_other_one_running(paths: RunPaths, job: FakeJob) -> None:
    """Nor does one that has no records yet; the array is to be ended as a whole."""
    tasks = [RunPaths(Path(paths.tasks) / str(index)) for index in range(3)]
    for task in tasks:
        for directory in task.directories():
            Path(directory).mkdir(parents=True)
        Path(task.identity).write_text("{}")
    for task in tasks[1:]:
        write(task, EpochStarted(EPOCH, "7_1", ("n1",)))
    said: list[str] = []

    def stop(task: RunPaths) -> None:
        if task.root == tasks[1].root:
            write(task, ENDED)
        EndRun(task, Slurm(job.environ), SystemClock(), said.append).stop()

    end_tasks(paths, Slurm(job.environ), stop, said.append)
    assert [None, Decision.DONE, Decision.STOPPED] == [ending(task) for task in tasks]
    assert "nothing was ever started" in said[0]
    assert "the run has ended already" in said[1]
    assert "scancel --state=PENDING 7" in job.calls


def test_an_array_whose_first_task_has_no_run_yet_is_ended_as_a_whole(paths: RunPaths, job: FakeJob) -> None:
    """Its tasks have runs of their own, and would not learn of the end by a record."""
    Path(paths.tasks).mkdir()
    Ender(paths, job).stop()
    assert Decision.STOPPED is ending(paths)
    assert ["scancel 7"] == job.calls
