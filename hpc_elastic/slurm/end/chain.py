"""The jobs of a submission that come after this one."""

from __future__ import annotations

from hpc_elastic.clock import Clock
from hpc_elastic.errors import RunDirError, SlurmCommandError, SlurmNotFoundError
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.end.lifecycle import Chain
from hpc_elastic.slurm.run_jobs.chain_links import Link, read_links
from hpc_elastic.slurm.run_jobs.job_start import Say, Start


class Successors:
    """Knows, makes and takes away the later jobs of a submission.

    Args:
        start: this start of the job.
        slurm: Slurm's commands.
        clock: for times shown to people.
        say: prints a line for the batch log.
    """

    def __init__(self, start: Start, slurm: Slurm, clock: Clock, say: Say) -> None:
        self._start = start
        self._slurm = slurm
        self._clock = clock
        self._say = say

    def chain(self, size: int) -> Chain | None:
        """Return what is left of the chain of so many jobs; None if there is no chain, or no Slurm."""
        if not size or self._start.local:
            return None
        waiting = (link.job_id for link in self._later() if self._is_waiting(link.job_id))
        return Chain(size, next(waiting, ""))

    def _later(self) -> list[Link]:
        known = read_links(self._start.paths, self._start.epoch.submission)
        return [link for link in known if link.number > self._start.link and link.job_id]

    def _is_waiting(self, job_id: str) -> bool:
        try:
            state = self._slurm.job_state(job_id)
        except (SlurmCommandError, SlurmNotFoundError):
            return True
        return state is not None and state.is_active

    def cancel(self) -> None:
        """Take away the jobs that have nothing left to do; one that stays would end at once."""
        try:
            later = [] if self._start.local else self._later()
        except (RunDirError, OSError) as error:
            self._say(
                f"further jobs of the run, if there are any, stay in the queue and end at once: {error}"
            )
            return
        for link in later:
            try:
                self._slurm.cancel(link.job_id)
            except (SlurmCommandError, SlurmNotFoundError):
                self._say(f"job {link.job_id} waits for nothing: scancel {link.job_id}")

    def resubmit(self) -> str:
        """Submit the script again as the next job of this submission; return its id.

        Raises:
            SlurmError: Slurm is not there, refused, or does not answer.
            RunDirError: there is no script of ours.
        """
        from hpc_elastic.slurm.submit.next_warning import lead_text  # noqa: PLC0415 - it loads the job spec
        from hpc_elastic.slurm.submit.resubmit import resubmit, stored_request  # noqa: PLC0415 - the same

        start = self._start
        request = stored_request(start.paths, start.epoch.submission)
        job_id = resubmit(request, start.link + 1, self._slurm, self._clock, after=start.job_ref)
        lead = lead_text(request)
        if lead:
            self._say(f"job {job_id}: {lead}")
        return job_id
