"""Slurm as a job script outside of a container has told it, for a `finish` that has no Slurm commands."""

from __future__ import annotations

from hpc_elastic.errors import SlurmNotFoundError
from hpc_elastic.ids import ExitCode
from hpc_elastic.slurm import parse
from hpc_elastic.slurm.commands import Slurm


class SlurmByScript(Slurm):
    """Knows of one job what ``scontrol show job -o`` has printed; what is to be done is left to the script.

    Args:
        job_info: that output; empty if scontrol failed.
    """

    def __init__(self, job_info: str) -> None:
        super().__init__()
        self._fields = parse.show_job(job_info)
        self.asks: ExitCode | None = None  # what the script is to do

    def show_job(self, job_ref: str) -> dict[str, str] | None:
        """Return what was told of the job.

        Raises:
            SlurmNotFoundError: nothing was told.
        """
        del job_ref  # a script knows its own job alone
        if not self._fields:
            raise SlurmNotFoundError("scontrol")
        return self._fields

    def hold(self, job_ref: str) -> None:
        """Have the script hold the job, which is in the queue already."""
        self.requeue(job_ref, hold=True)

    def requeue(self, job_ref: str, *, hold: bool = False) -> None:
        """Have the script put the job back into the queue."""
        del job_ref
        self.asks = ExitCode.HOLD_JOB if hold else ExitCode.REQUEUE_JOB
