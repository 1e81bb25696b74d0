"""A status rests on records that are not older than Slurm's answer."""

from __future__ import annotations

from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Decision, RunEnded
from hpc_elastic.report.run_status import RunPhase, RunView, status_of
from hpc_elastic.slurm.client.job_standing import GONE
from hpc_elastic.slurm.run_jobs.run_files import read_run
from tests.slurm.test_finish import ROUND, STARTED, paths, write

__all__ = ["paths"]


def test_an_end_that_is_recorded_before_slurm_is_asked_counts(paths: RunPaths) -> None:
    """The run was read before; its job has ended since, and so has the run."""
    write(paths, STARTED, ROUND)
    read_before = read_run(paths)
    assert RunPhase.DONE is not status_of(RunView.of(read_before, GONE)).phase
    write(paths, RunEnded(Decision.DONE, 0, "", None))
    assert RunPhase.DONE is status_of(RunView.of(read_before, GONE)).phase
