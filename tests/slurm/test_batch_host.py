"""What survivors do when the batch host's agent is gone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_elastic.paths import RunPaths
from hpc_elastic.record.array_task import TaskStart
from hpc_elastic.record.journal import (
    AfterDrain,
    Cause,
    Decision,
    Drained,
    DrainExplained,
    DrainRequested,
    Epoch,
    EpochStarted,
    Member,
    NodeLeft,
    Requeued,
    RoundFormed,
)
from hpc_elastic.record.run_log import open_log, read_records, read_state
from hpc_elastic.slurm.end.batch_host import (
    WATCH_S,
    ends_for_its_script,
    requeue_in_its_place,
    requeue_task_in_its_place,
    script_is_alive,
    task_lost_its_script,
)
from hpc_elastic.slurm.run_jobs.job_start import LOCAL
from hpc_elastic.testing.clock import FakeClock
from tests.slurm.stand_in import FakeJob

E0 = Epoch(0, 0, 0, 0)


class EventfulClock(FakeClock):
    """A clock during whose sleeps something happens."""

    def __init__(self, happen: Callable[[], object]) -> None:
        super().__init__()
        self._happen = happen

    def sleep(self, seconds: float) -> None:
        """Let time pass, and the event happen."""
        super().sleep(seconds)
        self._happen()


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeJob:
    """Return a running job of two nodes, and let its commands be found."""
    job = FakeJob(tmp_path / "slurm")
    monkeypatch.setenv("PATH", str(job.bin))
    job.set(NodeList="n[1-2]")
    return job


@pytest.fixture
def drained(run_paths: RunPaths) -> RunPaths:
    """Return a run whose batch host n1 is lost and whose workers are gone."""
    Path(run_paths.identity).write_text('{"format": 1}')
    log = open_log(run_paths, "test")
    for entry in (EpochStarted(E0, "7", ("n1", "n2"), "n1"), Drained(E0, Cause.NODE_LOSS, None, "")):
        log.commit(lambda _state, entry=entry: entry)  # type: ignore[misc]
    return run_paths


def finish(paths: RunPaths, clock: FakeClock, place: int = 0) -> list[str]:
    """Let a survivor act in the batch host's place; return what it says."""
    said: list[str] = []
    environ = {"SLURM_JOB_ID": "7", "HPC_ELASTIC_SUBMISSION": "0", "SLURM_JOB_NUM_NODES": "2"}
    requeue_in_its_place(paths, environ, place, clock, said.append)
    return said


SECOND_START = {"SLURM_JOB_ID": "7", "HPC_ELASTIC_SUBMISSION": "0", "SLURM_RESTART_COUNT": "1"}


def script_is_killed(paths: RunPaths) -> Epoch:
    """Let the agents hear that the batch script of the second start was killed, and leave."""
    log = open_log(paths, "test")
    epoch = Epoch(0, 0, 1, 0)
    for entry in (
        EpochStarted(epoch, "7", ("n1", "n2"), "n1"),
        DrainRequested(Cause.PREEMPTION, "n1", AfterDrain.LEAVE, "SIGTERM", epoch),
        DrainExplained(epoch, Cause.LAUNCH_FAILURE, "its batch script was killed", 4.0),
        Drained(epoch, Cause.LAUNCH_FAILURE, None, ""),
    ):
        log.commit(lambda _state, entry=entry: entry)  # type: ignore[misc]
    return epoch


def requeues(paths: RunPaths) -> int:
    """Return how many requeues are recorded."""
    return sum(isinstance(record.entry, Requeued) for record in read_records(paths))


def test_a_counting_script_is_alive(run_paths: RunPaths) -> None:
    """A counter that moves is a script that lives; one that stands still, or none, is not."""
    beat = Path(run_paths.batch_beat)
    counts = iter(range(100))
    assert not script_is_alive(run_paths, FakeClock())
    assert script_is_alive(run_paths, EventfulClock(lambda: beat.write_text(str(next(counts)))))
    assert not script_is_alive(run_paths, FakeClock())


def test_a_script_that_counted_while_its_observer_stood_still_is_alive(run_paths: RunPaths) -> None:
    """An agent that is frozen for longer than it watches takes another look."""
    beat = Path(run_paths.batch_beat)

    def stand_still() -> None:
        beat.write_text("7")
        clock.advance(WATCH_S)

    clock = EventfulClock(stand_still)
    assert script_is_alive(run_paths, clock)


def test_the_script_is_left_to_decide(drained: RunPaths, job: FakeJob) -> None:
    """When only the agent beside the script is gone, survivors leave at once and requeue nothing."""
    beat = Path(drained.batch_beat)
    counts = iter(range(100))
    clock = EventfulClock(lambda: beat.write_text(str(next(counts))) and None)
    assert ["its batch script is alive: it decides"] == finish(drained, clock)
    assert 0 == requeues(drained)


def test_the_job_is_requeued_once_slurm_has_noticed(drained: RunPaths, job: FakeJob) -> None:
    """The first survivor waits until Slurm has taken the node away, then requeues after a short pause."""
    noticed_s = WATCH_S + 22

    def happen() -> None:
        if clock.monotonic() >= began + noticed_s:
            job.set(NodeList="n2")

    clock = EventfulClock(happen)
    began = clock.monotonic()
    finish(drained, clock)
    assert 1 == requeues(drained)
    assert noticed_s <= clock.monotonic() - began < noticed_s * 1.1
    assert len(job.questions) < 40


def test_a_file_system_that_is_away_for_a_while_does_not_stop_a_survivor(
    drained: RunPaths, job: FakeJob
) -> None:
    """The job would run on without anybody to end it; what cannot be read is no sign of life either."""
    steps = iter(range(100))
    journal, beat = Path(drained.journal), Path(drained.batch_beat)
    away = journal.with_name("away")

    def happen() -> None:
        step = next(steps)
        if step == 1:
            beat.unlink()
            beat.mkdir()  # which cannot be read
        elif step == 2:
            beat.rmdir()
            beat.write_text("7")
        elif step == 12:
            journal.rename(away)
            journal.write_text("")
        elif step == 15:
            journal.unlink()
            away.rename(journal)
        elif step == 20:
            job.set(NodeList="n2")

    beat.write_text("7")
    finish(drained, EventfulClock(happen))
    assert 1 == requeues(drained)


def test_the_second_survivor_takes_over_only_if_need_be(drained: RunPaths, job: FakeJob) -> None:
    """A later survivor does nothing when the first has requeued, and acts when nobody has."""
    job.set(NodeList="n2")
    finish(drained, FakeClock(), place=1)
    assert 1 == requeues(drained)
    assert [] == finish(drained, FakeClock(), place=0)
    assert 1 == requeues(drained)


def test_a_killed_script_is_replaced_at_once(drained: RunPaths, job: FakeJob) -> None:
    """Slurm has said that it is dead, and kills the agents in a moment: nobody watches its counter."""
    script_is_killed(drained)
    job.set(JobState="COMPLETING", Reason="JobLaunchFailure", Restarts="1")
    clock = FakeClock()
    began = clock.monotonic()
    requeue_in_its_place(drained, SECOND_START, 0, clock, lambda _text: None)
    assert clock.monotonic() == began
    requeued = read_records(drained)[-1].entry
    assert isinstance(requeued, Requeued)
    assert Cause.LAUNCH_FAILURE is requeued.cause


def test_a_script_that_is_killed_while_it_is_watched_is_not_watched_any_longer(
    drained: RunPaths, job: FakeJob
) -> None:
    """Its agent was killed seconds before it: the survivors have left already when Slurm ends the job."""
    looks = iter(range(100))
    ends = {"JobState": "COMPLETING", "Reason": "JobLaunchFailure"}
    clock = EventfulClock(lambda: job.set(**ends) if next(looks) == 1 else None)
    began = clock.monotonic()
    finish(drained, clock)
    assert clock.monotonic() - began < WATCH_S / 2
    assert 1 == requeues(drained)


def test_a_process_asks_whether_its_job_ends_for_its_script(drained: RunPaths, job: FakeJob) -> None:
    """Nobody is asked where there is no job."""
    assert not ends_for_its_script(drained, SECOND_START)
    job.set(JobState="COMPLETING", Reason="JobLaunchFailure", Restarts="1")
    assert ends_for_its_script(drained, SECOND_START)
    assert not ends_for_its_script(drained, {**SECOND_START, "SLURM_RESTART_COUNT": "0"})
    assert not ends_for_its_script(drained, {})
    asked = len(job.questions)
    assert not ends_for_its_script(drained, {**SECOND_START, LOCAL: "1"})
    assert asked == len(job.questions)


def test_a_survivor_that_cannot_reach_slurm_is_replaced_within_killwait(
    drained: RunPaths, job: FakeJob
) -> None:
    """It has written the requeue down, and Slurm knows nothing of it: the next one does not take its word."""
    requeued = Requeued(script_is_killed(drained), Cause.LAUNCH_FAILURE, "its batch script was killed")
    open_log(drained, "test").commit(lambda _state: requeued)
    job.set(JobState="COMPLETING", Reason="JobLaunchFailure", Restarts="1")
    clock = FakeClock()
    began = clock.monotonic()
    requeue_in_its_place(drained, SECOND_START, 2, clock, lambda _text: None)
    assert clock.monotonic() - began <= 3
    assert any("requeue" in call for call in job.calls)
    job.set(JobState="PENDING", Restarts="2")
    before = len(job.calls)
    requeue_in_its_place(drained, SECOND_START, 1, clock, lambda _text: None)
    assert not any("requeue" in call for call in job.calls[before:])


def test_the_last_job_of_a_chain_is_followed_by_no_other(drained: RunPaths, job: FakeJob) -> None:
    """Whoever stands in for its script keeps to what the user has asked for, and has none submitted."""
    Path(drained.job).write_text('{"format": 1, "spec": {"chain": 1}}')
    Path(drained.script).write_text("#!/bin/bash\n")
    job.set(NodeList="n2", Requeue="0")
    assert any("the chain is used up" in line for line in finish(drained, FakeClock()))
    ending = read_state(drained).ending
    assert ending is not None
    assert Decision.STOPPED is ending.decision


TASK = TaskStart("7_1", 0, 0)
ME = "n2.1@7_1-0-0"


def test_a_task_whose_script_was_killed_is_requeued_alone(
    run_paths: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own agent does that; the run goes on, and the agent of another task has nothing to do."""
    job = FakeJob(tmp_path / "slurm")
    monkeypatch.setenv("PATH", str(job.bin))
    job.set(JobState="COMPLETING", Reason="JobLaunchFailure")
    Path(run_paths.identity).write_text('{"format": 1}')
    log, epoch = open_log(run_paths, "test"), Epoch(0, 0, 0, 0)
    members = (Member("n1.1@7_0-0-0", "n1", 1), Member(ME, "n2", 1))
    for entry in (
        EpochStarted(epoch, "7", ()),
        RoundFormed(1, epoch, members, "n1", 1234, None),
        NodeLeft(epoch, ME, "n2", Cause.LAUNCH_FAILURE, "its batch script was killed"),
        NodeLeft(epoch, members[0].node_id, "n1", Cause.PREEMPTION, "SIGTERM"),
    ):
        log.commit(lambda _state, entry=entry: entry)  # type: ignore[misc]
    assert task_lost_its_script(run_paths, TASK)
    assert not task_lost_its_script(run_paths, TASK._replace(task="7_0"))
    environ = {
        "HPC_ELASTIC_MODE": "array",
        "HPC_ELASTIC_SUBMISSION": "0",
        "SLURM_JOB_ID": "8",
        "SLURM_ARRAY_JOB_ID": "7",
        "SLURM_ARRAY_TASK_ID": "1",
    }
    said: list[str] = []
    requeue_task_in_its_place(run_paths, environ, FakeClock(), said.append)
    assert "the batch script was killed: this task is requeued (1 of at most 500)" in said
    assert "7_1" in " ".join(job.calls)
    assert 0 == requeues(run_paths)
