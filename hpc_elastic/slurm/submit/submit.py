"""Submitting a run: check, create the run directory, queue, record; a run that ended is queued again."""

from __future__ import annotations

import os
from collections.abc import Callable

from hpc_elastic.clock import Clock, date_text
from hpc_elastic.errors import InputError, RunDirError, SlurmCommandError, SlurmError, SlurmNotFoundError
from hpc_elastic.ids import LOCAL_JOB, LOGIN
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Decision, Role
from hpc_elastic.record.run_log import open_log
from hpc_elastic.slurm.client import parse
from hpc_elastic.slurm.client.commands import Slurm, SlurmTimeoutError
from hpc_elastic.slurm.client.grace_times import discard_drain, learn_site
from hpc_elastic.slurm.client.parse import JobState
from hpc_elastic.slurm.job.options import header_line
from hpc_elastic.slurm.run_jobs import existing_run, submissions
from hpc_elastic.slurm.run_jobs.may_start import why_not_again
from hpc_elastic.slurm.run_jobs.run_files import facts_of
from hpc_elastic.slurm.run_jobs.submissions import Link, Submission, read_links
from hpc_elastic.slurm.submit import run_dir, validate
from hpc_elastic.slurm.submit.request import SubmitRequest
from hpc_elastic.slurm.submit.resubmit import queue, queue_chain, with_measured_lead
from hpc_elastic.slurm.submit.run_dir import read_request
from hpc_elastic.slurm.submit.validate import check_size, check_time
from hpc_elastic.text import for_shell

_LOOKUPS = 4  # after an sbatch without an answer, how often Slurm is asked for the job
_LOOKUP_PAUSE_S = 2.0


class Submitted(NamedTuple):
    """A run that is queued.

    Args:
        job_id: Slurm's id of the job.
        request: that was queued.
        was_queued_before: an earlier, interrupted submission had queued it already.
        chain: the jobs that take the run up after this one.
        trouble: why fewer of them could be queued than were asked for.
    """

    job_id: str
    request: SubmitRequest
    was_queued_before: bool = False
    chain: tuple[str, ...] = ()
    trouble: str = ""


class UncertainSubmissionError(SlurmCommandError):
    """sbatch did not answer, and the job was not found: it may or may not be queued.

    Args:
        cause: the end of sbatch.
        root: the run directory, which was kept.
    """

    def __init__(self, cause: SlurmCommandError, root: str) -> None:
        super().__init__(cause.argv, cause.exit_code, cause.stderr)
        self.root = root

    def __str__(self) -> str:
        return (
            f"sbatch did not say whether it queued the job: {self.stderr.strip()}\n"
            f"  fix: when Slurm answers again: hpc-elastic submit --resume {for_shell(self.root)}\n"
            "       (it looks for the job first and queues it only if it is not there)"
        )


class RefusedError(SlurmCommandError):
    """Slurm did not take the job.

    Args:
        cause: the end of sbatch.
        asked: the options of sbatch that the job asked for.
    """

    def __init__(self, cause: SlurmCommandError, asked: str) -> None:
        super().__init__(cause.argv, cause.exit_code, cause.stderr)
        self.asked = asked

    def __str__(self) -> str:
        return f"{super().__str__()}\n  asked for: {self.asked}"


class Submitter:
    """Queues runs.

    Args:
        slurm: Slurm's commands.
        clock: for waiting and for times shown to people.
        prepare: changes a request right before it is queued, also one that is queued again.
    """

    def __init__(
        self, slurm: Slurm, clock: Clock, prepare: Callable[[SubmitRequest], SubmitRequest] | None = None
    ) -> None:
        self._slurm = slurm
        self._clock = clock
        self._prepare = prepare

    def prepared(self, wanted: SubmitRequest) -> SubmitRequest:
        """Return a request as it is queued."""
        return wanted if self._prepare is None else self._prepare(wanted)

    def check(self, wanted: SubmitRequest, *, ask_slurm: bool = True) -> list[str]:
        """Do all checks that need nothing to be created; return warnings.

        Args:
            wanted: the submission to come.
            ask_slurm: let the controller judge the script too (``sbatch --test-only``).

        Raises:
            InputError: the request cannot work.
            SlurmNotFoundError: there is no sbatch.
            SlurmCommandError: Slurm would refuse the script.
        """
        if not self._slurm.has("sbatch"):  # the first thing to know: nothing else helps then
            raise SlurmNotFoundError("sbatch")
        warnings = validate.check(wanted, self._slurm.option_names(wanted.spec.option_names()))
        if wanted.overrides_no_requeue(self._slurm.environ):
            warnings.append(
                f"SBATCH_NO_REQUEUE is set here, and {wanted.spec.name} is requeued all the same\n"
                "  fix: --max-requeues 0 for a job that is not to start again"
            )
        check_size(wanted.spec, self._slurm)
        if ask_slurm:
            warnings += check_time(wanted.spec, self._slurm)
            try:
                self._slurm.sbatch_test(wanted.script, self._environ_for(wanted))
            except SlurmCommandError as error:
                raise _refusal(error, wanted) from None
        return warnings

    def submit(self, wanted: SubmitRequest) -> Submitted:
        """Create the run directory and queue the run; a refusal leaves nothing behind.

        Raises:
            RunDirError: the run directory cannot be used.
            SlurmError: Slurm is not there, refused, or does not answer.
        """
        if existing_run.may_be_queued(wanted.paths):
            return self._go_on(wanted)
        wanted = self.prepared(wanted)
        is_new = run_dir.create(wanted, now_s=self._clock.wall())
        try:
            return self._queue(wanted)
        except SlurmError as error:
            if not isinstance(error, UncertainSubmissionError):
                run_dir.discard(wanted.paths, with_root=is_new)
            raise

    def _go_on(self, wanted: SubmitRequest) -> Submitted:
        """Take up a submission that was killed while it called sbatch; Slurm is asked for its job first."""
        root = wanted.paths.root
        if read_request(wanted.paths).spec != wanted.spec:
            raise RunDirError(
                f"the submission of another command was interrupted in {root}, and may have queued its job",
                where="run_dir",
                fix=f"choose another --run-dir, or go on with that one: "
                f"hpc-elastic submit --resume {for_shell(root)}",
            )
        return self.resume(root)

    def resume(self, root: str) -> Submitted:
        """Queue the stored script of a run that ended or was stopped once more.

        Raises:
            InputError: there is no run, it belongs to another user, is done, or its job is still active.
            SlurmError: Slurm is not there, refused, or does not answer.
        """
        stored = read_request(RunPaths(root))
        done = submissions.read_submissions(stored.paths)
        if done and not done[-1].job_id:
            found = self._slurm.jobs_with_comment(done[-1].token)
            if found:
                self._record(stored.paths, done[-1].number, done[-1].token, found[0])
                if not _was_ended(stored.paths, done[-1].number):
                    return Submitted(found[0], stored, was_queued_before=True)
                self._slurm.cancel(found[0])  # its agents would find the run ended, and leave
        request = self.next_request(root)
        run_dir.write_start(request)
        return self._queue(self.prepared(with_measured_lead(request)))

    def next_request(self, root: str) -> SubmitRequest:
        """Return the stored request of a run with the next number.

        Raises:
            InputError: there is no run, it belongs to another user, is done, or its job is still active.
            SlurmError: Slurm is not there or does not answer.
        """
        stored = read_request(RunPaths(root))
        done = submissions.read_submissions(stored.paths)
        _refuse_done(stored.paths, done[-1].number if done else 0)
        further = read_links(stored.paths, done[-1].number) if done else []
        known: list[Submission | Link] = [*done, *further]
        for earlier in known:
            state = self._state_of(earlier)
            if state is not None and state.is_active:
                raise _not_again(stored.paths, done[-1].number, earlier.job_id, state)
        if done and stored.spec.mode == "array":
            self._refuse_further_arrays(stored.paths, done[-1])
        return stored.again(done[-1].number + 1 if done else 0)

    def _refuse_further_arrays(self, paths: RunPaths, newest: Submission) -> None:
        """Refuse a run whose first array is over, but not one that `scale` has added."""
        tasks = self._slurm.array_tasks(newest.token, newest.job_id)
        if tasks:
            raise _not_again(paths, newest.number, tasks[0].array, facts_of(tasks)[0].state)

    def _state_of(self, earlier: Submission | Link) -> JobState | None:
        if earlier.job_id.startswith(LOCAL_JOB):
            pid = earlier.job_id.removeprefix(LOCAL_JOB)
            return JobState.RUNNING if pid != str(os.getpid()) and os.path.exists(f"/proc/{pid}") else None
        return self._slurm.job_state(earlier.job_id) if earlier.job_id else None

    def _queue(self, wanted: SubmitRequest) -> Submitted:
        discard_drain(wanted.paths)
        submissions.announce(wanted.paths, wanted.submission, wanted.token, now_s=self._clock.wall())
        try:
            job_id = self.queue_script(wanted)
        except UncertainSubmissionError:
            raise
        except SlurmError:
            submissions.withdraw(wanted.paths, wanted.submission)
            raise
        self._record(wanted.paths, wanted.submission, wanted.token, job_id)
        learn_site(wanted.paths, self._slurm, wanted.spec.partition or "", wanted.spec.qos or "")
        chain, trouble = queue_chain(wanted, job_id, self._slurm, self._clock)
        return Submitted(job_id, wanted, chain=chain, trouble=trouble)

    def queue_script(self, wanted: SubmitRequest) -> str:
        """Have sbatch queue a script, and return the id of its job; nothing is written down.

        Raises:
            UncertainSubmissionError: sbatch did not answer, and the job was not found.
            SlurmError: Slurm is not there, or refused.
        """
        try:
            return self._sbatch(wanted)
        except SlurmCommandError as error:
            if _is_uncertain(error):
                raise UncertainSubmissionError(error, wanted.paths.root) from None
            raise _refusal(error, wanted) from None

    def _record(self, paths: RunPaths, number: int, token: str, job_id: str) -> None:
        try:
            submissions.record(paths, Submission(number, token, job_id, date_text(self._clock.wall())))
        except OSError as error:
            see = f"hpc-elastic status {for_shell(paths.root)}"
            raise RunDirError(
                f"job {job_id} is queued, but cannot be written down: {error.strerror} ({error.filename})",
                where="run directory",
                fix=f"the job runs all the same; mend the disk, then: {see}",
            ) from error

    def _sbatch(self, wanted: SubmitRequest) -> str:
        """Queue once: after an sbatch without an answer the job is looked for before the one repetition."""
        try:
            return self._sbatch_or_find(wanted)
        except SlurmCommandError as error:
            if not _is_uncertain(error):
                raise
        job_id = self._sbatch_or_find(wanted)
        self._cancel_twins(wanted.token, job_id)
        return job_id

    def _sbatch_or_find(self, wanted: SubmitRequest) -> str:
        try:
            return queue(self._slurm, wanted, wanted.sbatch_options)
        except SlurmCommandError as error:
            found = self._look_for(wanted.token) if _is_uncertain(error) else []
            if not found:
                raise
            return found[0]

    def _cancel_twins(self, token: str, job_id: str) -> None:
        """Cancel the job that a first sbatch without an answer queued after all."""
        for twin in self._slurm.jobs_with_comment(token):
            if twin != job_id:
                self._slurm.cancel(twin)

    def _look_for(self, token: str) -> list[str]:
        for attempt in range(_LOOKUPS):
            if attempt:
                self._clock.sleep(_LOOKUP_PAUSE_S)
            try:
                found = self._slurm.jobs_with_comment(token)
            except SlurmCommandError:
                continue  # the controller is as busy as it was for sbatch
            if found:
                return found
        return []

    def _environ_for(self, wanted: SubmitRequest) -> dict[str, str]:
        return wanted.environment(self._slurm.environ)


def _refusal(error: SlurmCommandError, wanted: SubmitRequest) -> SlurmCommandError:
    """Return the error with the request; one without an answer stays as it is."""
    if isinstance(error, SlurmTimeoutError):
        return error
    asked = [header_line(*each) for each in wanted.spec.header_options()]
    if wanted.excluded:
        asked.append(f"--exclude={','.join(wanted.excluded)} (with nodes on which runs have failed of late)")
    return RefusedError(error, " ".join(asked))


def _is_uncertain(error: SlurmCommandError) -> bool:
    return isinstance(error, SlurmTimeoutError) or parse.may_have_been_queued(error.stderr)


def _refuse_done(paths: RunPaths, newest: int) -> None:
    state = open_log(paths, LOGIN, Role.COMMAND).refresh()
    ending = state.ending
    if ending is None or ending.decision is not Decision.DONE or state.epoch.submission < newest:
        return
    raise InputError(
        f"the run in {paths.root} is done: {ending.reason}",
        where="--resume",
        fix="there is nothing to go on with; submit a new run",
    )


def _was_ended(paths: RunPaths, number: int) -> bool:
    """Tell whether a run was ended since a submission."""
    state = open_log(paths, LOGIN, Role.COMMAND).refresh()
    return state.ending is not None and state.epoch.submission >= number


def _not_again(paths: RunPaths, newest: int, job_id: str, job: JobState) -> InputError:
    """Return why a run is not queued again beside a job of its own."""
    state = open_log(paths, LOGIN, Role.COMMAND).refresh()
    why, fix = why_not_again(state, newest, job_id, job, paths.root)
    return InputError(why, where="--resume", fix=fix)


def was_local(root: str) -> bool:
    """Return whether the newest submission of a run was run on one machine without Slurm."""
    done = submissions.read_submissions(RunPaths(root))
    return bool(done) and done[-1].job_id.startswith(LOCAL_JOB)
