"""Submitting a run's script once more, as a further job of the same submission."""

from __future__ import annotations

from hpc_elastic.clock import Clock
from hpc_elastic.errors import SlurmError
from hpc_elastic.paths import RunPaths
from hpc_elastic.slurm import links
from hpc_elastic.slurm.commands import Slurm, submit_environment
from hpc_elastic.slurm.links import Link
from hpc_elastic.slurm.request import SubmitRequest, new_token


def resubmit(paths: RunPaths, submission: int, number: int, slurm: Slurm, clock: Clock, *, after: str) -> str:
    """Submit the stored script as a further job; done twice it returns the same job.

    Args:
        paths: the files of the run.
        submission: the submission that the job belongs to.
        number: the further job's number.
        slurm: Slurm's commands.
        clock: for times shown to people.
        after: the job that must have ended first.

    Returns:
        The id of the job.

    Raises:
        SlurmError: Slurm is not there, refused, or does not answer.
        RunDirError: there is no script of ours.
    """
    from hpc_elastic.slurm.submit import read_request  # noqa: PLC0415 - it loads the job spec's checks

    stored = read_request(paths)
    return submit_link(stored, links.new_link(submission, number, new_token(), now_s=clock.wall()), slurm,
                       dependency=f"afterany:{after}")  # fmt: skip


def submit_link(request: SubmitRequest, link: Link, slurm: Slurm, *, dependency: str) -> str:
    """Submit one further job and write down its id.

    Args:
        request: the run.
        link: the job's place.
        slurm: Slurm's commands.
        dependency: what Slurm is to wait for.

    Raises:
        SlurmError: Slurm is not there, refused, or does not answer.
    """
    paths = request.paths
    if not links.announce(paths, link):
        return _made_before(paths, link, slurm)
    comment = f"{link.token} {request.spec.comment}" if request.spec.comment else link.token
    arguments = (
        f"--comment={comment}",
        f"--dependency={dependency}",
        paths.script,
        str(link.submission),
        str(link.number),
    )
    try:
        job_id = slurm.sbatch(arguments, submit_environment(slurm.environ, request.header_names))
    except SlurmError:
        links.withdraw(paths, link)
        raise
    links.record(paths, link._replace(job_id=job_id))
    return job_id


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
        link = links.new_link(request.submission, number, new_token(), now_s=clock.wall())
        dependency = "singleton" if by_name else f"afterany:{(first, *jobs)[-1]}"
        try:
            jobs.append(submit_link(request, link, slurm, dependency=dependency))
        except SlurmError as error:
            return tuple(jobs), f"job {number + 1} of the chain could not be queued: {error}"
    return tuple(jobs), ""


def _made_before(paths: RunPaths, link: Link, slurm: Slurm) -> str:
    """Return the id of a job that somebody else has submitted in this place."""
    made = {known.number: known for known in links.read_links(paths, link.submission)}.get(link.number, link)
    if made.job_id:
        return made.job_id
    found = slurm.jobs_with_comment(made.token)
    return found[0] if found else ""
