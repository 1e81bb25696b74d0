"""A job of a script that somebody has given to sbatch once more: it does nothing to the run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import (
    AfterDrain,
    Cause,
    Decision,
    DrainRequested,
    Entry,
    Epoch,
    EpochStarted,
    RunEnded,
    SetupFailure,
)
from hpc_elastic.record.run_log import read_records, read_state
from hpc_elastic.slurm.client.answers import PastStart
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.end.bad_nodes import run_with_nodes
from hpc_elastic.slurm.end.choices import RequeueBudgets
from hpc_elastic.slurm.end.finish import Finish
from hpc_elastic.slurm.run_jobs.job_start import Ended, Start, with_own_submission
from tests.slurm.stand_in import FakeJob
from tests.slurm.test_finish import EPOCH, ROUND, FastClock, job, paths, write

__all__ = ["job", "paths"]
OTHER = EpochStarted(EPOCH, "6", ("n1", "n2"), "n1", "2:2")
STOP = DrainRequested(Cause.STOP, "", AfterDrain.LEAVE, "stop")
HELD = RunEnded(Decision.HELD, ExitCode.REQUEUE, "a budget is spent", None)


def end(paths: RunPaths, job: FakeJob, epoch: Epoch = EPOCH, code: int = 2) -> tuple[Ended, list[str]]:
    """End a start of job 7; return what is to be done, and the lines for the log."""
    said: list[str] = []
    failure = SetupFailure("module load x", "setup", 1) if code == 0 else None
    start = Start(paths, epoch, "7", 2, local=False, srun_exit_code=code, is_submitted=True)
    start = start._replace(launch_failure=failure)
    slurm, clock = Slurm(job.environ), FastClock()
    finish = Finish(start, RequeueBudgets(), slurm, clock, said.append)
    return run_with_nodes(finish.run, finish.log, start, slurm, clock, said.append), said


@pytest.mark.parametrize(
    ("entries", "restart", "code"),
    [
        ((ROUND,), 0, 2),  # its agents were refused
        ((ROUND,), 1, 2),  # and Slurm had started it once more
        ((ROUND,), 0, 0),  # a line of its script has failed
        ((ROUND,), 0, 137),  # its srun was killed
        ((ROUND, STOP), 0, 2),  # the user stops the run; its own job saves
        ((), 0, 2),  # the agents of the other job have just begun
        ((ROUND, HELD), 1, 2),  # the other job waits for its user, and was not released
    ],
)
def test_a_second_job_does_nothing(
    paths: RunPaths, job: FakeJob, entries: tuple[Entry, ...], restart: int, code: int
) -> None:
    """It writes nothing, starts nothing, and leaves itself and all others to Slurm."""
    write(paths, OTHER, *entries)
    before = [record.entry for record in read_records(paths)]
    job.set(Restarts=str(restart))
    ended, said = end(paths, job, EPOCH._replace(restart=restart), code)
    assert (ExitCode.USAGE, 0, "") == (ended.code, ended.nodes, ended.next_job)
    assert before == [record.entry for record in read_records(paths)]
    assert [] == job.calls
    assert any("the run belongs to job 6, so nothing is done to it" in line for line in said)


def test_a_run_that_is_over_ends_a_second_job_with_its_own_code(paths: RunPaths, job: FakeJob) -> None:
    """Its user learns how the run ended."""
    write(paths, OTHER, ROUND, RunEnded(Decision.FAILED, 3, "a worker failed", None))
    ended, said = end(paths, job)
    assert (3, []) == (ended.code, job.calls)
    assert any("the run is failed: a worker failed" in line for line in said)


@pytest.mark.parametrize(
    ("entries", "is_active", "submission"),
    [
        ((ROUND,), True, 0),  # it was refused
        ((ROUND,), False, 1),  # the other job is gone
        ((ROUND, HELD), True, 1),  # the other job has left the run
        ((ROUND, RunEnded(Decision.DONE, 0, "", None)), False, 0),  # nothing is to be done
    ],
)
def test_a_job_of_a_script_of_ones_own_takes_up_a_run_that_no_other_job_works_on(
    paths: RunPaths, entries: tuple[Entry, ...], submission: int, *, is_active: bool
) -> None:
    """As its agents would have done: none of them came to record it."""
    write(paths, OTHER, *entries)
    start = Start(paths, EPOCH, "7", 2, local=False, srun_exit_code=137)
    found = with_own_submission(start, read_records(paths), read_state(paths), lambda _job: is_active)
    assert submission == found.epoch.submission


class Overtaken(Slurm):
    """Slurm, as another job begins the run in the moment in which it is asked.

    Args:
        job: the commands.
        begins: has the other job begin.
    """

    def __init__(self, job: FakeJob, begins: Callable[[], None]) -> None:
        super().__init__(job.environ)
        self._begins = begins

    def show_job(self, job_ref: str) -> dict[str, str] | None:
        """Return the facts of a job."""
        self._begins()
        return super().show_job(job_ref)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, 137),  # its agents were killed as they began
        ({"JobState": "COMPLETING", "Reason": "TimeLimit"}, 143),
        ({"JobState": "CANCELLED"}, 143),
    ],
    ids=["start again", "requeue", "end"],
)
def test_a_job_that_another_one_overtakes_does_nothing(
    paths: RunPaths, job: FakeJob, fields: dict[str, str], code: int
) -> None:
    """No agent had begun the run when its finish read the records."""
    job.set(**fields)
    slurm, said = Overtaken(job, lambda: write(paths, OTHER, ROUND)), list[str]()
    start = Start(paths, EPOCH, "7", 2, local=False, srun_exit_code=code, is_submitted=True)
    ended = Finish(start, RequeueBudgets(), slurm, FastClock(), said.append).run()
    assert (ExitCode.USAGE, []) == (ended.code, job.calls)
    assert [OTHER, ROUND] == [record.entry for record in read_records(paths)]
    assert "the run belongs to job 6, so nothing is done to it" == said[-1]


def test_a_second_job_that_another_one_overtakes_as_it_begins_charges_nothing(
    paths: RunPaths, job: FakeJob
) -> None:
    """It was started again before any agent had begun the run; the other one's start has not ended."""

    class Late(Slurm):
        def past_starts(self, job_ref: str) -> list[PastStart]:  # noqa: ARG002 - there are none
            write(paths, OTHER, ROUND)
            return []

    start = Start(paths, EPOCH._replace(restart=1), "7", 2, local=False, srun_exit_code=0)
    assert Finish(start, RequeueBudgets(), Late(job.environ), FastClock(), print).begin() is None
    assert [OTHER, ROUND] == [record.entry for record in read_records(paths)]
