"""The end of a job start, with real records and stand-ins for Slurm's commands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpc_elastic.errors import HpcElasticError, RunDirError, TakenOverError
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.checkpoints import MarkName, write_mark
from hpc_elastic.record.journal import (
    AfterDrain,
    Cause,
    Decision,
    Drained,
    DrainRequested,
    Entry,
    Epoch,
    EpochStarted,
    MarkedCheckpoint,
    Member,
    Note,
    Requeued,
    RoundFormed,
    RunEnded,
    StopAgreed,
)
from hpc_elastic.record.run_log import open_log, read_records, read_state
from hpc_elastic.report.timeline import timeline
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.end.choices import RequeueBudgets
from hpc_elastic.slurm.end.finish import Finish
from hpc_elastic.slurm.run_jobs import submissions
from hpc_elastic.slurm.run_jobs.job_start import Ended, Start
from tests.slurm.client.test_forged import HOSTILE
from tests.slurm.stand_in import FakeJob

EPOCH = Epoch(0, 0, 0, 0)
STARTED = EpochStarted(EPOCH, "7", ("n1", "n2"))
ROUND = RoundFormed(1, EPOCH, (Member("n1.1", "n1", 1), Member("n2.1", "n2", 1)), "n1", 1234, None)
DRAINED = (
    STARTED,
    ROUND,
    DrainRequested(Cause.PREEMPTION, "n1", AfterDrain.LEAVE, ""),
    Drained(EPOCH, Cause.PREEMPTION, 4, ""),
)


class FastClock:
    """A clock that sleeps in no time.

    Args:
        times: how often as long as it is told to: fewer tries are as many programs less to run.
    """

    def __init__(self, times: float = 1.0) -> None:
        self.now = 0.0
        self._times = times

    def monotonic(self) -> float:
        """Return the time slept [s]."""
        return self.now

    def wall(self) -> float:
        """Return the time slept [s]."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass [s]."""
        self.now += seconds * self._times


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    """Return an empty run directory."""
    paths = RunPaths(tmp_path / "run")
    for directory in paths.directories():
        os.makedirs(directory)
    Path(paths.identity).write_text('{"format": 1}')
    return paths


@pytest.fixture
def job(tmp_path: Path) -> FakeJob:
    """Return a running job of two nodes."""
    return FakeJob(tmp_path / "slurm")


def write(paths: RunPaths, *entries: Entry) -> None:
    """Write records as the agents do."""
    log = open_log(paths, "n1")
    for entry in entries:
        log.commit(lambda _state, entry=entry: entry)  # type: ignore[misc]


def finish(
    paths: RunPaths,
    job: FakeJob,
    *,
    epoch: Epoch = EPOCH,
    srun_exit_code: int = 75,
    clock: FastClock | None = None,
) -> tuple[Ended, list[str]]:
    """End a start; return what is to be done and the lines for the log."""
    start = Start(paths, epoch, "7", 2, local=False, srun_exit_code=srun_exit_code)
    said: list[str] = []
    ended = Finish(start, RequeueBudgets(), Slurm(job.environ), clock or FastClock(), said.append).run()
    return ended, said


def kinds(paths: RunPaths) -> list[type]:
    """Return the kinds of all records."""
    return [type(record.entry) for record in read_records(paths)]


def test_a_drained_job_is_recorded_and_requeued(paths: RunPaths, job: FakeJob) -> None:
    """The record comes first, so that the budget counts even if the script is killed."""
    write(paths, *DRAINED)
    ended, said = finish(paths, job)
    assert 75 == ended.code
    assert ["scontrol requeue 7"] == job.calls
    assert Requeued(EPOCH, Cause.PREEMPTION, "preemption") == read_records(paths)[-1].entry
    assert 1 == len(said)


@pytest.mark.parametrize(("cause", "is_told"), [(Cause.TIME_LIMIT, True), (Cause.PREEMPTION, False)])
def test_little_training_before_the_time_limit_is_told(
    paths: RunPaths, job: FakeJob, cause: Cause, *, is_told: bool
) -> None:
    """In the batch log, with the limit that the job has now."""
    job.set(StartTime="2026-11-21T07:58:00")
    write(paths, STARTED, ROUND, Drained(EPOCH, cause, 40, "SIGUSR2"))
    _, said = finish(paths, job)
    text = "this start has trained for 0 s of a time limit of 120 s"
    assert is_told == any(line.startswith(text) for line in said)


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETING"])
@pytest.mark.parametrize("text", [HOSTILE[0], HOSTILE[3], HOSTILE[4], HOSTILE[6]])
def test_what_becomes_of_a_job_is_the_same_whatever_is_written_into_it(
    tmp_path: Path, job: FakeJob, state: str, text: str
) -> None:
    """A comment may look like Slurm's words; a job that runs is requeued, a cancelled one is not."""
    came = []
    for name, words in (("plain", "token"), ("hostile", text)):
        paths = RunPaths(tmp_path / name)
        for directory in paths.directories():
            os.makedirs(directory)
        Path(paths.identity).write_text('{"format": 1}')
        write(paths, *DRAINED)
        job.set(JobState=state, Comment=words, Features=words)
        came.append((*finish(paths, job), [record.entry for record in read_records(paths)]))
    assert came[0] == came[1]
    assert ["scontrol requeue 7"] * (2 if state == "RUNNING" else 0) == job.calls


def test_finishing_twice_requeues_and_counts_once(paths: RunPaths, job: FakeJob) -> None:
    """The second time Slurm says that the job is queued again."""
    write(paths, *DRAINED)
    finish(paths, job)
    ended, _ = finish(paths, job)
    assert 75 == ended.code
    assert ["scontrol requeue 7"] == job.calls
    assert 1 == read_state(paths).requeues


@pytest.mark.parametrize(
    ("stop", "words"),
    [
        (
            StopAgreed(1, 9),
            "the last start has saved nothing newer than step 4 (held after 3: max_starts_without_save)",
        ),
        (StopAgreed(1, -1), "nothing is known of its saves, so each start may begin anew: worker.tick(step)"),
    ],
)
def test_a_start_that_has_saved_nothing_is_told_at_once(
    paths: RunPaths, job: FakeJob, stop: StopAgreed, words: str
) -> None:
    """From the first one on, before three of them hold the job."""
    began = ROUND if stop.step < 0 else ROUND._replace(checkpoint=MarkedCheckpoint(4, ""))
    saved = None if stop.step < 0 else 4
    write(paths, STARTED, began, DRAINED[2], stop, Drained(EPOCH, Cause.PREEMPTION, saved, ""))
    ended, said = finish(paths, job)
    assert 75 == ended.code
    assert [line for line in said if words in line], said


def test_a_start_that_has_saved_is_not_talked_about(paths: RunPaths, job: FakeJob) -> None:
    """A mark that no record tells of counts."""
    write(paths, STARTED, ROUND, DRAINED[2], Drained(EPOCH, Cause.PREEMPTION, None, ""))
    write_mark(paths, MarkName(4, 1, 0, 1), "x", 1)
    assert [] == [line for line in finish(paths, job)[1] if "save" in line]


def test_a_requeue_is_tried_again_when_slurm_is_busy(paths: RunPaths, job: FakeJob) -> None:
    """A controller that fails over costs seconds, not the run."""
    write(paths, *DRAINED)
    job.fail(requeue=3)
    ended, _ = finish(paths, job)
    assert 75 == ended.code
    assert 4 == len(job.calls)
    assert read_state(paths).ending is None


def test_a_requeue_that_slurm_refuses_for_good_ends_the_run(paths: RunPaths, job: FakeJob) -> None:
    """The reason holds Slurm's words."""
    write(paths, *DRAINED)
    job.fail(requeue=1000)
    ended, _ = finish(paths, job, clock=FastClock(times=10))
    ending = read_state(paths).ending
    assert 76 == ended.code
    assert ending is not None
    assert "Unable to contact" in ending.reason


def test_a_job_cancelled_while_it_is_held_is_cancelled(paths: RunPaths, job: FakeJob) -> None:
    """Else its user would be told to release a job that is gone."""
    write(paths, STARTED, ROUND, RunEnded(Decision.HELD, 75, "the budget is spent", None))
    job.set(JobState="COMPLETING")
    assert "cancelled" in str(finish(paths, job)[0].state.ending)


def test_slurm_that_does_not_answer_is_asked_again(paths: RunPaths, job: FakeJob) -> None:
    """Nothing is decided before it has spoken."""
    write(paths, *DRAINED)
    job.fail(show=4)
    ended, said = finish(paths, job)
    assert 75 == ended.code
    assert ["scontrol requeue 7"] == job.calls
    assert "trying again" in said[0]


def test_slurm_that_never_answers_is_left_alone(paths: RunPaths, job: FakeJob) -> None:
    """The job may have been cancelled, so it is not requeued; the log says so."""
    write(paths, *DRAINED)
    job.fail(show=1000)
    ended, said = finish(paths, job, clock=FastClock(times=10))
    assert 75 == ended.code
    assert [] == job.calls
    assert "does not answer" in said[-2]
    note = read_records(paths)[-1].entry
    assert isinstance(note, Note)
    for told in (said[-1], note.text):
        assert "later: squeue -j 7; if it is not in the queue: hpc-elastic submit --resume" in told


def test_a_start_that_slurm_requeued_is_recorded_although_no_agent_came(
    paths: RunPaths, job: FakeJob
) -> None:
    """The budget of requeues counts them all."""
    job.set(JobState="COMPLETING", Restarts="1")
    ended, _ = finish(paths, job, srun_exit_code=143)
    assert 75 == ended.code
    assert [] == job.calls
    assert [EpochStarted, Requeued] == kinds(paths)


def test_a_cancelled_job_is_recorded_as_cancelled(paths: RunPaths, job: FakeJob) -> None:
    """It stays cancelled."""
    write(paths, *DRAINED)
    job.set(JobState="COMPLETING")
    ended, _ = finish(paths, job)
    ending = read_state(paths).ending
    assert 130 == ended.code
    assert [] == job.calls
    assert ending is not None
    assert Decision.CANCELLED == ending.decision


def test_a_dead_srun_is_answered_with_the_nodes_that_are_left(paths: RunPaths, job: FakeJob) -> None:
    """The script starts it again on so many nodes."""
    write(paths, STARTED, ROUND)
    job.set(NumNodes="1")
    ended, _ = finish(paths, job, srun_exit_code=137)
    assert (80, 1) == (ended.code, ended.nodes)
    assert [] == job.calls
    last = timeline(read_records(paths))[-1].text
    assert last.startswith("srun ended with exit code 137")
    assert last.endswith("start the agents again on 1 node (1 of 3)")


def test_a_job_that_slurm_does_not_know_is_left_alone(paths: RunPaths, job: FakeJob) -> None:
    """There is nothing to requeue."""
    write(paths, *DRAINED)
    job.forget()
    ended, _ = finish(paths, job)
    assert 75 == ended.code
    assert [] == job.calls


def test_a_run_that_comes_back_in_time_goes_on(paths: RunPaths, job: FakeJob) -> None:
    """A mount may be away for a moment."""
    write(paths, *DRAINED)
    away = f"{paths.root}.away"
    os.rename(paths.root, away)

    class Clock(FastClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if self.now > 5 and os.path.exists(away):
                os.rename(away, paths.root)

    begun = Start(paths, EPOCH, "7", 2, local=False, srun_exit_code=75, is_submitted=True)
    assert 75 == Finish(begun, RequeueBudgets(), Slurm(job.environ), Clock(), print).run().code


@pytest.mark.parametrize("for_good", [False, True])
def test_records_of_a_chain_that_cannot_be_read_for_a_while(
    paths: RunPaths, job: FakeJob, *, for_good: bool
) -> None:
    """The run goes on with its next job; one that has ended keeps its end whatever is to be read."""
    write(paths, *DRAINED)
    link = submissions.new_link(0, 1, "token", now_s=0.0)
    assert submissions.announce_link(paths, link)
    submissions.record_link(paths, link._replace(job_id="8"))
    directory, away = Path(paths.submissions), Path(f"{paths.submissions}.away")
    directory.rename(away)
    directory.touch()  # which cannot be listed

    class Clock(FastClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if self.now > 5 and away.exists() and not for_good:
                directory.unlink()
                away.rename(directory)

    start = Start(paths, EPOCH, "7", 2, local=False, srun_exit_code=75, chain=0 if for_good else 2)
    if for_good:
        write(paths, RunEnded(Decision.DONE, 0, "", None))
    said: list[str] = []
    ended = Finish(start, RequeueBudgets(), Slurm(job.environ), Clock(), said.append).run()
    assert (0 if for_good else 75) == ended.code
    assert "stay in the queue and end at once" in said[-1] if for_good else "job 8 goes on" in said[-1]


def test_a_script_of_the_users_own_takes_the_submission_of_its_agents(paths: RunPaths, job: FakeJob) -> None:
    """The job before has other records; only the agents know how often the run was taken up."""
    mine = Epoch(1, 0, 0, 0)
    write(paths, STARTED._replace(job_id="6"), Drained(EPOCH, Cause.PREEMPTION, 4, ""))
    write(paths, STARTED._replace(epoch=mine), Drained(mine, Cause.PREEMPTION, 8, ""))
    ended, _ = finish(paths, job)
    assert 75 == ended.code
    requeued = read_records(paths)[-1].entry
    assert isinstance(requeued, Requeued)
    assert (mine, Cause.PREEMPTION) == (requeued.epoch, requeued.cause)


def test_a_job_that_has_left_the_run_to_another_leaves_it_alone(paths: RunPaths, job: FakeJob) -> None:
    """What the other does with it is its own affair."""
    write(paths, STARTED, STARTED._replace(epoch=Epoch(1, 0, 0, 0), job_id="8"))
    ended, _ = finish(paths, job)
    assert 77 == ended.code
    assert [] == job.calls


def test_a_directory_that_no_agent_has_made_is_refused(tmp_path: Path, job: FakeJob) -> None:
    """The agents of a user's own script may have had wrong flags, or another directory."""
    with pytest.raises(RunDirError, match="no agent has begun a run in it"):
        finish(RunPaths(tmp_path / "not-there"), job, srun_exit_code=2)
    assert [] == job.calls


def test_a_requeue_that_slurm_refuses_in_clear_words_ends_a_run_without_a_script(
    paths: RunPaths, job: FakeJob
) -> None:
    """There is nothing to submit again; Slurm's words are told."""
    write(paths, *DRAINED)
    job.refuse("requeue", "Requested operation is presently disabled for job 7")
    ended, said = finish(paths, job)
    assert 76 == ended.code
    assert "presently disabled" in said[-1]


def test_what_slurm_wrote_into_the_batch_log_names_the_cause(paths: RunPaths, job: FakeJob) -> None:
    """A job that is back in the queue shows nowhere else that it was preempted."""
    write(paths, *DRAINED)
    line = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-21T20:42:57 DUE TO PREEMPTION ***"
    Path(paths.batch_log.replace("%j", "7")).write_text(f"loss\n{line}\n")
    job.set(JobState="COMPLETING", Restarts="1")
    finish(paths, job)
    requeued = read_records(paths)[-1].entry
    assert isinstance(requeued, Requeued)
    assert Cause.PREEMPTION is requeued.cause


def test_a_job_that_slurm_ends_for_a_reason_of_its_own_is_told_of(paths: RunPaths, job: FakeJob) -> None:
    """Nobody requeues it, so that its user has to; the records tell it as well as the log."""
    write(paths, *DRAINED)
    job.set(JobState="COMPLETING", Reason="DeadLine")
    ended, said = finish(paths, job)
    assert 75 == ended.code
    assert [] == job.calls
    assert "later: squeue -j 7; if it is not in the queue: hpc-elastic submit --resume" in said[-1]
    assert "Reason=DeadLine" in timeline(read_records(paths))[-1].text


@pytest.mark.parametrize("is_like_a_mount", [False, True])
def test_a_directory_that_nobody_knows_is_told_at_once(
    tmp_path: Path, job: FakeJob, is_like_a_mount: bool
) -> None:
    """A mount that is away leaves an empty directory, and is waited for, which is said."""
    beside = tmp_path / "runs"
    beside.mkdir()
    if not is_like_a_mount:
        (beside / "train-1").mkdir()
    said: list[str] = []
    clock = FastClock()
    environ = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"}
    start = Start.from_environ(RunPaths(str(beside / "trian-1")), environ, relaunch=0, srun_exit_code=1)
    began = clock.monotonic()
    with pytest.raises(RunDirError, match="no agent has begun a run in it"):
        Finish(start, RequeueBudgets(), Slurm(job.environ), clock, said.append).run()
    assert is_like_a_mount == (clock.monotonic() > began)
    told = "looking again for up to 30 s, a mount may come back: run directory"
    assert [is_like_a_mount] == [any(line.startswith(told) for line in said)]


TAKEN = {
    "another run": ("train-2", 0o700, 0o700, "it holds the run train-2, not train-1"),
    "open to others": ("train-1", 0o700, 0o770, "others can write to it"),
    "in an open place": ("train-1", 0o777, 0o700, "everybody can write to "),
}


@pytest.mark.parametrize("case", TAKEN)
def test_a_directory_that_was_taken_is_not_waited_for(paths: RunPaths, job: FakeJob, case: str) -> None:
    """Nothing is written into it, and nothing is asked of Slurm."""
    run_id, mode_above, mode, words = TAKEN[case]
    Path(paths.identity).write_text(f'{{"format": 1, "run_id": "{run_id}"}}')
    Path(paths.root).chmod(mode)
    Path(paths.root).parent.chmod(mode_above)
    clock = FastClock()
    environ = {"SLURM_JOB_ID": "7", "HPC_ELASTIC_SUBMISSION": "0", "HPC_ELASTIC_RUN_ID": "train-1"}
    start = Start.from_environ(paths, environ, relaunch=0, srun_exit_code=76)
    with pytest.raises(TakenOverError, match=words):
        Finish(start, RequeueBudgets(), Slurm(job.environ), clock, lambda _: None).run()
    assert (0.0, []) == (clock.monotonic(), job.calls)


def test_a_directory_of_other_files_is_not_the_runs(tmp_path: Path, job: FakeJob) -> None:
    """One of the user's own, too; an empty one may be that of a mount which is away, and is waited for."""
    elsewhere = tmp_path / "data"
    elsewhere.mkdir(mode=0o700)
    environ = {"SLURM_JOB_ID": "7", "HPC_ELASTIC_SUBMISSION": "0", "HPC_ELASTIC_RUN_ID": "train-1"}
    start = Start.from_environ(RunPaths(elsewhere), environ, relaunch=0, srun_exit_code=76)

    def look(clock: FastClock) -> HpcElasticError:
        with pytest.raises(RunDirError) as refused:
            Finish(start, RequeueBudgets(), Slurm(job.environ), clock, lambda _: None).run()
        return refused.value

    waits = FastClock()
    assert not isinstance(look(waits), TakenOverError)
    assert waits.monotonic() > 0.0
    (elsewhere / "images.tar").touch()
    clock = FastClock()
    error = look(clock)
    assert isinstance(error, TakenOverError)
    assert (0.0, []) == (clock.monotonic(), job.calls)
    assert "there is no run.json in it, but other files are" in error.message
    assert str(elsewhere) not in error.fix  # no advice to begin the run in there
    (elsewhere / "journal").mkdir()  # of a run whose identity was removed
    assert not isinstance(look(FastClock()), TakenOverError)


class PreemptingClock(FastClock):
    """A clock in whose pause Slurm does something to a job.

    Args:
        job: the job.
        fields: of it, from then on.
    """

    def __init__(self, job: FakeJob, **fields: str) -> None:
        super().__init__()
        self._job = job
        self._fields = fields

    def sleep(self, seconds: float) -> None:
        """Let time pass [s]."""
        super().sleep(seconds)
        self._job.set(**self._fields)


@pytest.mark.parametrize(
    ("fields", "requeues"),
    [({"PreemptTime": "2026-11-21T07:59:00"}, ["scontrol requeue 7"]), ({"JobState": "COMPLETING"}, [])],
    ids=["in a grace", "cancelled"],
)
def test_a_job_that_slurm_ends_before_its_agents_are_started_again_is_seen(
    paths: RunPaths, job: FakeJob, fields: dict[str, str], requeues: list[str]
) -> None:
    """The pause before another srun is long enough for that, and its signal is ignored meanwhile."""
    write(paths, STARTED, ROUND)
    ended, _ = finish(paths, job, srun_exit_code=137, clock=PreemptingClock(job, **fields))
    assert ExitCode.RELAUNCH != ended.code
    assert requeues == job.calls
    assert Note in kinds(paths)


def test_agents_are_started_again_where_slurm_is_silent_by_then(paths: RunPaths, job: FakeJob) -> None:
    """It has answered some seconds before."""
    write(paths, STARTED, ROUND)

    class Silent(FastClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            job.fail(show=99)

    ended, _ = finish(paths, job, srun_exit_code=137, clock=Silent())
    assert (ExitCode.RELAUNCH, 2) == (ended.code, ended.nodes)


@pytest.mark.parametrize(("holds", "calls"), [(True, ["scontrol hold 7"]), (False, ["scancel 7"])])
def test_a_job_that_slurm_has_put_back_does_not_start_for_a_failed_run(
    paths: RunPaths, job: FakeJob, calls: list[str], *, holds: bool
) -> None:
    """It would wait in the queue, and then only tell that the run is over."""
    write(paths, *DRAINED)
    job.set(JobState="PENDING", Restarts="1")
    start = Start(paths, EPOCH, "7", 2, local=False, srun_exit_code=75)
    budgets, said = RequeueBudgets(max_requeues=0, holds=holds), list[str]()
    ended = Finish(start, budgets, Slurm(job.environ), FastClock(), said.append).run()
    assert (ExitCode.REQUEUE if holds else ExitCode.FAILED) == ended.code
    assert calls == [call for call in job.calls if "Comment" not in call]
