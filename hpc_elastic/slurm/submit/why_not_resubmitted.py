"""A run that is over, or is about to be, while Slurm still has its job: what to say and what to do. Pure."""

from __future__ import annotations

import shlex

from hpc_elastic.ids import LOCAL_JOB
from hpc_elastic.record.journal import Decision
from hpc_elastic.record.state import RunState
from hpc_elastic.record.why_left import USERS_WISH, drain_cause
from hpc_elastic.slurm.client.parse import JobState

_LEAVES = (JobState.RUNNING, JobState.COMPLETING)


def first_to_do(job_id: str, job: JobState) -> str:
    """Return what comes before a run that has ended can be started again.

    Args:
        job_id: its job.
        job: how that stands; it is active.
    """
    return f"wait until {_has_left(job_id)} (some seconds)" if job in _LEAVES else f"scancel {job_id}"


def why_not_again(state: RunState, submission: int, job_id: str, job: JobState, root: str) -> tuple[str, str]:
    """Return why a run is not started again beside its job, and what to do.

    Args:
        state: what the records say.
        submission: number of the newest submission.
        job_id: its job.
        job: how that stands; it is active.
        root: the run directory.
    """
    is_current, ending = state.epoch.submission >= submission, state.ending
    stands = f"its job {job_id} is {job.value}"
    if is_current and ending is not None and ending.decision is not Decision.HELD:
        why = f"the run in {root} has ended ({ending.decision.value}), but {stands}"
        stays = f"; if it stays: scancel {job_id}" if job in _LEAVES and not _is_local(job_id) else ""
        return why, f"{first_to_do(job_id, job)}, then try again{stays}"
    why = f"the run in {root} has not ended: {stands}"
    if is_current and drain_cause(state) in USERS_WISH and job in _LEAVES:
        look = f"hpc-elastic status {shlex.quote(root)} tells how far it is"
        return f"{why}, and it stops already", f"wait until {_has_left(job_id)}, then try again; {look}"
    return why, f"stop it first: hpc-elastic stop {shlex.quote(root)}"


def _has_left(job_id: str) -> str:
    return f"{job_id} has ended" if _is_local(job_id) else f"job {job_id} has left Slurm"


def _is_local(job_id: str) -> bool:
    """Tell whether it is a process on this machine."""
    return job_id.startswith(LOCAL_JOB)
