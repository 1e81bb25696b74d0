"""Submitting a run's script once more, as a further job of the same submission."""

from __future__ import annotations

import os
from collections.abc import Sequence

from hpc_elastic.clock import Clock
from hpc_elastic.errors import HpcElasticError, RunDirError, SlurmCommandError, SlurmError
from hpc_elastic.ids import Env
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.checkpoints import save_times
from hpc_elastic.settings.values import number_text
from hpc_elastic.slurm.client import deadlines, parse
from hpc_elastic.slurm.client.commands import Slurm, SlurmTimeoutError
from hpc_elastic.slurm.job.spec import MAX_SIGNAL_S, checkpoint_lead_s
from hpc_elastic.slurm.run_jobs import submissions
from hpc_elastic.slurm.run_jobs.run_files import drain_times
from hpc_elastic.slurm.run_jobs.submissions import Link
from hpc_elastic.slurm.submit.request import SubmitRequest, new_token
from hpc_elastic.store.trust import exposures
from hpc_elastic.text import for_shell

_STDIN = "/dev/stdin"  # sbatch takes no arguments of a script that it reads without a name


def stored_request(paths: RunPaths, submission: int) -> SubmitRequest:
    """Return the request of a further job of a submission: the stored script, warned as early as needed.

    Raises:
        RunDirError: there is no script of ours.
    """
    from hpc_elastic.slurm.submit.run_dir import read_request  # noqa: PLC0415 - it loads the job spec's checks

    return with_measured_lead(read_request(paths).again(submission))


def resubmit(request: SubmitRequest, number: int, slurm: Slurm, clock: Clock, *, after: str) -> str:
    """Submit the stored script as a further job; done twice it returns the same job.

    Args:
        request: the run and the submission that the job belongs to.
        number: the further job's number.
        slurm: Slurm's commands.
        clock: for times shown to people.
        after: the job that must have ended first.

    Returns:
        The id of the job.

    Raises:
        SlurmError: Slurm is not there, refused, or does not answer.
    """
    link = submissions.new_link(request.submission, number, new_token(), now_s=clock.wall())
    return submit_link(request, link, slurm, dependency=f"afterany:{after}")


def resubmit_task(paths: RunPaths, submission: int, task: str, link: int, slurm: Slurm) -> str:
    """Queue one more task of a run in array mode in the place of another; done twice it returns the same.

    It is a further array, of one task, as `scale` adds them: all carry the token of the submission.

    Args:
        paths: the run.
        submission: the submission that the task belongs to.
        task: the task that must have ended first.
        link: how many tasks came before the new one in its place.
        slurm: Slurm's commands.

    Returns:
        The name of the new task.

    Raises:
        RunDirError: there is no script of ours, or the submission left no record.
        SlurmError: Slurm is not there, refused, or does not answer.
    """
    known = [done.token for done in submissions.read_submissions(paths) if done.number == submission]
    if not known:
        raise RunDirError(
            f"submission {submission} of the run in {paths.root} left no record",
            where="run_dir",
            fix=f"hpc-elastic submit --resume {for_shell(paths.root)}",
        )
    request = stored_request(paths, submission)._replace(token=f"{known[0]} for:{task}")
    found = slurm.jobs_with_comment(request.token)
    return f"{found[0] if found else _sbatch_task(request, task, link, slurm)}_0"


def _sbatch_task(request: SubmitRequest, task: str, link: int, slurm: Slurm) -> str:
    """Queue the array; if sbatch gives no answer it is looked for."""
    options = ("--array=0-0", *_options(request, request.token, f"afterany:{task}"))
    try:
        return queue(slurm, request, options, link)
    except SlurmError as error:
        found = slurm.jobs_with_comment(request.token) if _may_be_queued(error) else []
        if not found:
            raise
        return found[0]


def _options(request: SubmitRequest, token: str, dependency: str) -> tuple[str, ...]:
    """Return the options of sbatch for a further job."""
    comment = f"{token} {request.spec.comment}" if request.spec.comment else token
    return (f"--comment={comment}", f"--dependency={dependency}", *request.warning_option)


def submit_link(request: SubmitRequest, link: Link, slurm: Slurm, *, dependency: str) -> str:
    """Submit one further job and write down its id.

    Args:
        request: the run.
        link: the job's place.
        slurm: Slurm's commands.
        dependency: the condition that Slurm is to wait for.

    Raises:
        SlurmError: Slurm is not there, refused, or does not answer.
    """
    is_first = submissions.announce_link(request.paths, link)
    if not is_first:  # another command that may have died before sbatch answered, or before it was called
        link = _announced(request.paths, link)
        found = [link.job_id] if link.job_id else slurm.jobs_with_comment(link.token)
        if found:
            return _recorded(request.paths, link, found[0])
    job_id = _recorded(request.paths, link, _sbatch(request, link, slurm, dependency))
    return job_id if is_first else _without_twins(link, job_id, slurm)


def _recorded(paths: RunPaths, link: Link, job_id: str) -> str:
    submissions.record_link(paths, link._replace(job_id=job_id))
    return job_id


def _announced(paths: RunPaths, link: Link) -> Link:
    """Return the record of another process in this place."""
    return {known.number: known for known in submissions.read_links(paths, link.submission)}.get(
        link.number, link
    )


def _sbatch(request: SubmitRequest, link: Link, slurm: Slurm, dependency: str) -> str:
    """Queue the job; if sbatch gives no answer it is looked for."""
    paths = request.paths
    options = _options(request, link.token, dependency)
    try:
        return queue(slurm, request, options, link.number)
    except SlurmError as error:
        if not _may_be_queued(error):
            submissions.withdraw_link(paths, link)
            raise
        found = slurm.jobs_with_comment(link.token)
        if not found:  # the announcement stays: with its token the job is found if it comes after all
            raise
        return found[0]


def _may_be_queued(error: SlurmError) -> bool:
    if isinstance(error, SlurmTimeoutError):
        return True
    return isinstance(error, SlurmCommandError) and parse.may_have_been_queued(error.stderr)


def _without_twins(link: Link, job_id: str, slurm: Slurm) -> str:
    """Keep the oldest of the jobs in one place: the process that announced it may have been slow only."""
    try:
        found = sorted(slurm.jobs_with_comment(link.token), key=int)
        for twin in found[1:]:
            slurm.cancel(twin)
    except SlurmError:
        return job_id  # one of them finds that the other one runs
    return found[0] if found else job_id


def queue_chain(
    request: SubmitRequest, first: str, slurm: Slurm, clock: Clock
) -> tuple[tuple[str, ...], str]:
    """Submit the further jobs of a chain; each one waits for the one before.

    Args:
        request: the run; its first job is queued.
        first: the id of that job.
        slurm: Slurm's commands.
        clock: for times shown to people.

    Returns:
        The ids of the jobs, and why there are not as many as were asked for.
    """
    jobs: list[str] = []
    by_name = request.spec.chain_by == "singleton"
    for number in range(1, request.spec.chain or 1):
        link = submissions.new_link(request.submission, number, new_token(), now_s=clock.wall())
        dependency = "singleton" if by_name else f"afterany:{(first, *jobs)[-1]}"
        try:
            jobs.append(submit_link(request, link, slurm, dependency=dependency))
        except (SlurmError, OSError) as error:
            return tuple(jobs), f"job {number + 1} of the chain could not be queued: {error}"
    return tuple(jobs), ""


def with_measured_lead(wanted: SubmitRequest) -> SubmitRequest:
    """Return the request with the lead that this run's own saves and drains call for.

    It stays as it is where its user has set `checkpoint_lead`, where the time limit is not known, and where
    nothing was measured that needs more than the default.

    Args:
        wanted: a further job of a run.
    """
    spec = wanted.spec
    limit_s = None if "time-min" in spec.sbatch else spec.time_limit_s
    if spec.checkpoint_lead is not None or limit_s is None:
        return wanted
    default_s = checkpoint_lead_s(spec)
    try:
        saves, drains = save_times(wanted.paths), drain_times(wanted.paths)
    except (OSError, HpcElasticError):
        return wanted
    most_s = MAX_SIGNAL_S - deadlines.WARNING_JITTER_S
    lead_s = min(deadlines.warning_lead_s(saves, drains, default_s, limit_s), most_s)
    return wanted._replace(lead_s=lead_s) if lead_s > default_s else wanted


def lead_text(queued: SubmitRequest) -> str:
    """Return the text for people about the warning of a job; nothing if it is the default."""
    if queued.lead_s is None:
        return ""
    default_s = checkpoint_lead_s(queued.spec)
    return (
        f"workers get {number_text(queued.lead_s)} s to save before the time limit, by the needs of this "
        f"run so far ({number_text(default_s)} s by default; checkpoint_lead sets it)"
    )


def expedited(wanted: SubmitRequest, slurm: Slurm) -> SubmitRequest:
    """Return the request as one whose job starts again at once after a requeue, where the site allows that.

    A job of a chain is never requeued, nor is one with max_requeues = 0, and another cluster has settings of
    its own. A script that an older version of this package has written would not see to it that its job ends,
    and is not held.

    Args:
        wanted: a job of a run.
        slurm: Slurm's commands; the site is asked each time, as its settings may have changed.
    """
    spec = wanted.spec
    sees_to_it = Env.EXPEDITED in (wanted.functions or wanted.script)
    if not (spec.expedite and sees_to_it) or not spec.requeues or "clusters" in spec.sbatch:
        return wanted
    try:
        return wanted._replace(expedited=slurm.may_expedite())
    except SlurmError:
        return wanted


def queue(slurm: Slurm, request: SubmitRequest, options: Sequence[str], link: int = 0) -> str:
    """Queue the script of a request and return the id of the job.

    A user that can rename a directory above the script could have sbatch find another one under its name,
    which would run as the user. There sbatch gets the text instead.

    Args:
        slurm: Slurm's commands.
        request: has the script.
        options: of sbatch.
        link: how many jobs of this submission come before.

    Raises:
        SlurmError: Slurm is not there, refused, or does not answer.
    """
    environ = request.environment(slurm.environ)
    arguments = expedited(request, slurm).sbatch_call(options, link)
    if _is_private(request.script_file):
        return slurm.sbatch(arguments, environ, directory=request.directory)
    words = [_STDIN if word == request.script_file else word for word in arguments]
    return slurm.sbatch(words, environ, text=request.script, directory=request.directory)


def _is_private(path: str) -> bool:
    """Tell whether no other user can put another file in the place of one."""
    try:
        return not exposures(os.path.abspath(path), with_groups=False)
    except OSError:
        return False
