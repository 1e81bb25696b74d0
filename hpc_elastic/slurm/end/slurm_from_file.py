"""Slurm as a job script outside of a container has told it, for a `finish` that has no Slurm commands."""

from __future__ import annotations

from hpc_elastic.errors import SlurmNotFoundError
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.slurm.client import answers
from hpc_elastic.slurm.client.answers import UnclearAnswerError
from hpc_elastic.slurm.client.commands import Slurm


class UnclearJobInfoError(SlurmNotFoundError):
    """The script's answer cannot be read for sure, and there is no other source.

    Args:
        why: the fault in it.
    """

    def __init__(self, why: UnclearAnswerError) -> None:
        super().__init__("scontrol")
        self.why = why

    def __str__(self) -> str:
        return str(self.why)


class SlurmByScript(Slurm):
    """Knows of one job the output of ``scontrol show job -o``; acts are left to the script.

    Args:
        job_info: that output; empty if scontrol failed.
    """

    def __init__(self, job_info: str) -> None:
        super().__init__()
        self._job_info = job_info
        self.asks: ExitCode | None = None  # what the script is to do

    def show_job(self, job_ref: str) -> dict[str, str]:
        """Return the fields of the job in that output.

        Raises:
            SlurmNotFoundError: there is no output.
            UnclearJobInfoError: the output cannot be read for sure.
        """
        try:
            fields = answers.job(self._job_info, job_ref)
        except UnclearAnswerError as error:
            raise UnclearJobInfoError(error) from None
        if not fields:
            raise SlurmNotFoundError("scontrol")
        return fields

    def excluded_by(self, job_ref: str) -> str:
        """Return the host list that the job leaves out, as far as the output has it."""
        return self.show_job(job_ref).get("ExcNodeList", "")

    def hold(self, job_ref: str) -> None:
        """Have the script hold the job, which is in the queue already."""
        self.requeue(job_ref, hold=True)

    def requeue(self, job_ref: str, *, hold: bool = False) -> None:
        """Have the script put the job back into the queue."""
        del job_ref
        self.asks = ExitCode.HOLD_JOB if hold else ExitCode.REQUEUE_JOB
