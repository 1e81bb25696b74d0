"""The arrays of a run in array mode as one job: how it stands, and which job ids it has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpc_elastic.errors import SlurmCommandError, SlurmNotFoundError
from hpc_elastic.slurm.array_tasks import Task, arrays_of
from hpc_elastic.slurm.commands import Slurm
from hpc_elastic.slurm.parse import JobState
from hpc_elastic.slurm.standing import JobFacts

if TYPE_CHECKING:
    from hpc_elastic.slurm.run_files import RunFiles


def is_array(run: RunFiles) -> bool:
    """Tell whether the newest submission of a run is an array in Slurm."""
    return run.spec.get("mode") == "array" and bool(run.job_id) and not run.is_local


def tasks_of(run: RunFiles, slurm: Slurm) -> list[Task]:
    """Return the tasks of the newest submission that are not over.

    Raises:
        SlurmError: Slurm is not there or does not answer.
    """
    token = run.submissions[-1].token if run.submissions else ""
    return slurm.array_tasks(token, run.job_id)


def job_ids(run: RunFiles, slurm: Slurm) -> tuple[str, ...]:
    """Return the ids of the jobs of the newest submission: in array mode `scale` may have added some."""
    if not is_array(run):
        return (run.job_id,)
    try:
        found = arrays_of(tasks_of(run, slurm))
    except (SlurmCommandError, SlurmNotFoundError):
        return (run.job_id,)
    return found or (run.job_id,)


def facts_of(tasks: Sequence[Task]) -> tuple[JobFacts, dict[str, str]]:
    """Return how an array stands as a whole, and the same in the fields of ``scontrol show job``.

    A restart count is a task's own, so the whole has none.
    """
    running = [task for task in tasks if task.is_running]
    waiting = [task for task in tasks if task.is_waiting]
    state = JobState.RUNNING if running else JobState.PENDING if waiting else JobState.COMPLETING
    words = [
        f"{len(found)} {'task' if len(found) == 1 else 'tasks'} {does if len(found) == 1 else do}"
        for found, does, do in ((running, "runs", "run"), (waiting, "waits", "wait"))
        if found
    ]
    arrays = arrays_of(tasks)
    of = f" (arrays {', '.join(arrays)})" if len(arrays) > 1 else ""
    nodes = ",".join(sorted({task.node for task in running if task.node}))
    why = next((task.reason for task in waiting if task.reason not in ("", "None")), "None")
    facts = JobFacts(
        state,
        state.value,
        why if state is JobState.PENDING else "None",
        0,
        may_requeue=True,
        nodes=len(running),
        preempted=False,
        node_list=nodes,
        held=state is JobState.PENDING and all("held" in task.reason.lower() for task in waiting),
    )
    return facts, {
        "JobId": ",".join(arrays),
        "Reason": why,
        "JobState": (", ".join(words) or "its tasks end") + of,
        "NodeList": nodes,
        "NumTasks": str(len(running) + len(waiting)),
    }
