"""A job of a script that somebody has given to sbatch once more: it does nothing to the run."""

from __future__ import annotations

import pytest

from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import (
    Cause,
    Decision,
    DrainRequested,
    Entry,
    Epoch,
    EpochStarted,
    RunEnded,
    SetupFailure,
    Then,
)
from hpc_elastic.record.run_log import read_records, read_state
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.end.bad_nodes import run_with_nodes
from hpc_elastic.slurm.end.choices import RequeueBudgets
from hpc_elastic.slurm.end.finish import Finish
from hpc_elastic.slurm.run_jobs.job_start import Ended, Start, with_own_submission
from tests.slurm.stand_in import FakeJob
from tests.slurm.test_finish import EPOCH, ROUND, FastClock, job, paths, write

__all__ = ["job", "paths"]
OTHER = EpochStarted(EPOCH, "6", ("n1", "n2"), "n1", "2:2")
STOP = DrainRequested(Cause.STOP, "", Then.LEAVE, "stop")
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
