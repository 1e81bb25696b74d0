"""Whether an agent may take part in a run, and whether a run may be submitted again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hpc_elastic.clock import date_text
from hpc_elastic.errors import RunDirError
from hpc_elastic.ids import LOCAL_JOB, Env
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Decision, RunEnded
from hpc_elastic.record.run_directory import holds_submitted_run, require_run
from hpc_elastic.record.state import RunState
from hpc_elastic.record.why_left import USERS_WISH, drain_cause
from hpc_elastic.text import count_text, for_shell

if TYPE_CHECKING:
    from hpc_elastic.slurm.client.parse import JobState


def is_own_script(paths: RunPaths, environ: Mapping[str, str]) -> bool:
    """Tell whether a process is below the batch script of the run in a directory."""
    if Env.SUBMISSION not in environ:
        return False
    return os.path.realpath(environ.get(Env.RUN_DIR) or paths.root) == os.path.realpath(paths.root)


def admit(paths: RunPaths, environ: Mapping[str, str]) -> None:
    """Refuse an agent that has no business in a directory. Changes nothing.

    Below the run's own script the run must be there; a run that `submit` made takes no others in.
    A run that was not submitted takes each agent in.

    Raises:
        RunDirError: the agent's own run is gone, or the directory holds another run.
        TakenOverError: another directory is in the place of the agent's own run, or can be put there.
        StoreError: the file system does not tell.
    """
    if is_own_script(paths, environ):
        require_run(paths, environ.get(Env.RUN_ID, ""))
    elif holds_submitted_run(paths):
        _refuse_stranger(paths)


def _refuse_stranger(paths: RunPaths) -> None:
    """Refuse an agent that the run was not submitted with; one that has ended tells so by itself."""
    from hpc_elastic.slurm.run_jobs.run_files import RunFiles, ask_job, read_run  # noqa: PLC0415 - rare

    run: RunFiles = read_run(paths)
    is_current = run.state.epoch.submission >= run.submission
    if is_current and run.state.ending is not None:
        return
    from hpc_elastic.slurm.client.commands import Slurm  # noqa: PLC0415 - rare

    job = ask_job(run, Slurm()).job
    lives, members = job is None or job.state.is_active, run.state.running
    doing = f"submitted as job {run.job_id}" if run.job_id else "being submitted"
    if lives and members is not None:
        nodes = len(members.members)
        doing = f"running as job {run.job_id} ({count_text(nodes, 'node')})"
    instead = "stop it: hpc-elastic stop" if lives else "go on with it: hpc-elastic submit --resume"
    raise RunDirError(
        f"{paths.root} holds the run {run.name}, {doing}",
        where="--run-dir",
        fix=f"choose another directory, or {instead} {for_shell(paths.root)}",
    )


def refuse_running_elsewhere(paths: RunPaths, state: RunState, job_ref: str) -> None:
    """Refuse to resume a run in which another job of the user is still active.

    Slurm is asked only if another job has begun the newest epoch and has not left it. Without an
    answer of Slurm the run is resumed.

    Raises:
        RunDirError: the other job is active.
    """
    if state.leaving or state.job_id in ("", job_ref):
        return
    from hpc_elastic.slurm.client.commands import Slurm  # noqa: PLC0415 - rare
    from hpc_elastic.slurm.client.parse import JobState  # noqa: PLC0415 - rare
    from hpc_elastic.slurm.run_jobs.run_files import RunFiles, ask_job  # noqa: PLC0415 - rare

    job = ask_job(RunFiles(paths, [], state, [], {}), Slurm()).job
    # of a job that completes Slurm already takes the processes down: its successor may go on
    if job is None or not job.state.is_active or job.state is JobState.COMPLETING:
        return
    other = state.job_id
    raise RunDirError(
        f"it holds the run of job {other}, which is still active ({job.word}); nothing was started",
        where=f"run directory {paths.root}",
        fix=f"give this job a --run-dir of its own; to go on with that run, wait for job {other} to end "
        f"or end it: scancel {for_shell(other)}",
    )


def ended_text(paths: RunPaths, state: RunState) -> str:
    """Return the message for a user that starts an agent in a run that has ended.

    Args:
        paths: the run.
        state: how it stands; it has an ending.
    """
    from hpc_elastic.record.run_log import read_records  # noqa: PLC0415 - rare

    ending = state.ending
    if ending is None:
        raise ValueError("the run has not ended")
    at = [record.at for record in read_records(paths) if isinstance(record.entry, RunEnded)]
    since = f" since {date_text(at[-1])}" if at else ""
    why = f" ({ending.reason})" if ending.reason and ending.decision is not Decision.DONE else ""
    lines = [
        f"the run in {paths.root} is {ending.decision.value}{since}{why}; nothing was started",
        "  to begin a new run: take another --run-dir",
    ]
    if ending.decision is not Decision.DONE and os.path.exists(paths.script):
        lines.append(f"  to go on with it: hpc-elastic submit --resume {for_shell(paths.root)}")
    return "\n".join(lines)


def first_to_do(job_id: str, job: JobState) -> str:
    """Return the steps before a run that has ended can be started again.

    Args:
        job_id: its job.
        job: how that stands; it is active.
    """
    return f"wait until {_has_left(job_id)} (some seconds)" if _leaves(job) else f"scancel {job_id}"


def why_not_again(state: RunState, submission: int, job_id: str, job: JobState, root: str) -> tuple[str, str]:
    """Return why a run is not started again beside its job, and the advice.

    Args:
        state: by the records.
        submission: number of the newest submission.
        job_id: its job.
        job: how that stands; it is active.
        root: the run directory.
    """
    is_current, ending = state.epoch.submission >= submission, state.ending
    stands = f"its job {job_id} is {job.value}"
    if is_current and ending is not None and ending.decision is not Decision.HELD:
        why = f"the run in {root} has ended ({ending.decision.value}), but {stands}"
        stays = f"; if it stays: scancel {job_id}" if _leaves(job) and not _is_local(job_id) else ""
        return why, f"{first_to_do(job_id, job)}, then try again{stays}"
    why = f"the run in {root} has not ended: {stands}"
    if is_current and drain_cause(state) in USERS_WISH and _leaves(job):
        look = f"hpc-elastic status {for_shell(root)} tells how far it is"
        return f"{why}, and it stops already", f"wait until {_has_left(job_id)}, then try again; {look}"
    return why, f"stop it first: hpc-elastic stop {for_shell(root)}"


def _leaves(job: JobState) -> bool:
    """Tell whether a job may be about to leave Slurm, where the records have its end."""
    from hpc_elastic.slurm.client.parse import JobState  # noqa: PLC0415 - an agent asks for none

    return job in (JobState.RUNNING, JobState.COMPLETING)


def _has_left(job_id: str) -> str:
    return f"{job_id} has ended" if _is_local(job_id) else f"job {job_id} has left Slurm"


def _is_local(job_id: str) -> bool:
    """Tell whether it is a process on this machine."""
    return job_id.startswith(LOCAL_JOB)
