"""The other jobs of a run at the end of one: those that come after it, and the other tasks of an array."""

from __future__ import annotations

from collections.abc import Iterable

from hpc_elastic.clock import Clock
from hpc_elastic.errors import RunDirError, SlurmCommandError, SlurmError, SlurmNotFoundError
from hpc_elastic.record.journal import Record
from hpc_elastic.slurm.client.answers import SlurmTask, arrays_of
from hpc_elastic.slurm.client.commands import Slurm, is_not_ready, is_unreachable
from hpc_elastic.slurm.end import history
from hpc_elastic.slurm.end.choices import Chain, Others
from hpc_elastic.slurm.run_jobs import submissions
from hpc_elastic.slurm.run_jobs.job_start import Patience, Say, Start
from hpc_elastic.slurm.run_jobs.submissions import Link, read_links
from hpc_elastic.text import count_text

ASIDE_PATIENCE_S = 60.0  # for questions about the other tasks alone
_SLURM = (SlurmCommandError, SlurmNotFoundError)


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
        """Return the rest of the chain of so many jobs; None if there is no chain, or no Slurm."""
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
        except _SLURM:
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
            except _SLURM:
                self._say(f"job {link.job_id} waits for nothing: scancel {link.job_id}")

    def resubmit(self) -> str:
        """Submit the script again as the next job of this submission; return its id.

        Raises:
            SlurmError: Slurm is not there, refused, or does not answer.
            RunDirError: there is no script of ours.
        """
        from hpc_elastic.slurm.submit.resubmit import (  # noqa: PLC0415 - the same
            lead_text,
            resubmit,
            stored_request,
        )

        start = self._start
        request = stored_request(start.paths, start.epoch.submission)
        job_id = resubmit(request, start.link + 1, self._slurm, self._clock, after=start.job_ref)
        lead = lead_text(request)
        if lead:
            self._say(f"job {job_id}: {lead}")
        return job_id


class OtherTasks:
    """Knows and takes away the other tasks of a run in array mode, and queues one more.

    Args:
        start: this start of a task.
        slurm: Slurm's commands.
        patiently: paces retries.
        say: prints a line for the batch log.
    """

    def __init__(self, start: Start, slurm: Slurm, patiently: Patience, say: Say) -> None:
        self._start = start
        self._slurm = slurm
        self._patiently = patiently
        self._say = say

    def count(self, records: Iterable[Record]) -> Others | None:
        """Return how many may still do something for the run; None if Slurm does not answer."""
        tasks = self._tasks()
        if tasks is None:
            return None
        over = {self._start.job_ref, *history.given_up(records)}
        others = [task for task in tasks if task.name not in over]
        return Others(sum(task.is_running for task in others), sum(task.is_waiting for task in others))

    def _tasks(self) -> list[SlurmTask] | None:
        """Return the tasks of the run that are not over, None if Slurm does not answer."""
        submission = self._start.epoch.submission
        known = self._patiently(lambda: submissions.read_submissions(self._start.paths))
        token = next((done.token for done in known if done.number == submission), "")
        array = self._start.job_ref.partition("_")[0]
        try:
            return self._patiently(
                lambda: self._slurm.array_tasks(token, array), ASIDE_PATIENCE_S, SlurmCommandError
            )
        except _SLURM as error:
            self._say(f"squeue tells nothing about the other tasks: {error}")
            return None

    def cancel(self) -> None:
        """Cancel the tasks of the run that wait; the verdict holds whether Slurm answers or not."""
        waiting = [task for task in self._tasks() or () if task.is_waiting]
        for array in arrays_of(waiting):
            tasks = count_text(sum(task.array == array for task in waiting), "task")
            try:
                self._slurm.cancel_waiting(array)
                self._say(
                    f"took {tasks} of array {array} out of the queue, where there is nothing left to do"
                )
            except _SLURM as error:
                self._say(f"{tasks} of array {array} stay in the queue and end at once later: {error}")

    def resubmit(self) -> str:
        """Queue a task of a further array in the place of this one; return its name.

        Raises:
            SlurmError: Slurm is not there, refused, or does not answer.
            RunDirError: there is no script of ours.
        """
        from hpc_elastic.slurm.submit.resubmit import resubmit_task  # noqa: PLC0415 - it loads the job spec

        start = self._start
        return resubmit_task(start.paths, start.epoch.submission, start.job_ref, start.link + 1, self._slurm)


def resubmitted(others: Successors | OtherTasks, patiently: Patience, patience_s: float) -> str | Exception:
    """Return the name of a job that was queued in the place of this one, or the error.

    Args:
        others: queue it.
        patiently: tries again after errors that may pass.
        patience_s: for how long [s].
    """

    def once() -> str | SlurmCommandError:
        try:
            return others.resubmit()
        except SlurmCommandError as error:
            if is_unreachable(error) or is_not_ready(error):
                raise
            return error

    try:
        return patiently(once, patience_s, SlurmCommandError)
    except (SlurmError, RunDirError, OSError) as error:
        return error
