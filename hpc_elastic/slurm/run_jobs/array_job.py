"""The arrays of a run in array mode as one job: how it stands, and which job ids it has."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from hpc_elastic.record.member_names import natural
from hpc_elastic.slurm.client.array_tasks import SlurmTask, arrays_of
from hpc_elastic.slurm.client.job_standing import (
    JobFacts,
    is_held_reason,
)
from hpc_elastic.slurm.client.parse import JobState

_NAMED = 8  # of more tasks the array is named


def begin_of(shown: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return which tasks of an array are not to begin yet, in the fields of ``scontrol show job``; pure.

    Args:
        shown: the fields of each task. Those that had no node yet are one, with several numbers.

    Returns:
        `JobId` as scontrol takes it, `EligibleTime` of the last of them, and `Restarts` unless some have
        been requeued and others not; nothing if none waits for its time.
    """
    waiting = [task for task in shown if task.get("Reason") == "BeginTime"]
    names = {_name(task): task.get("ArrayJobId", "") for task in waiting}
    if not names or not all(names.values()):
        return {}
    is_long = len(names) > _NAMED or not all(re.fullmatch(r"\d+_\d+", name) for name in names)
    found = {
        "JobId": ",".join(sorted(set(names.values()), key=int) if is_long else sorted(names, key=natural))
    }
    if times := [task["EligibleTime"] for task in waiting if task.get("EligibleTime")]:
        found["EligibleTime"] = max(times)
    restarts = {task.get("Restarts", "") for task in waiting}
    if len(restarts) == 1 or "0" not in restarts:
        found["Restarts"] = max(restarts)
    return found


def _name(task: Mapping[str, str]) -> str:
    return f"{task.get('ArrayJobId', '')}_{task.get('ArrayTaskId', '')}"


def facts_of(tasks: Sequence[SlurmTask]) -> tuple[JobFacts, dict[str, str]]:
    """Return how an array stands as a whole, and the same in the fields of ``scontrol show job``.

    A restart count is a task's own, so the whole has none.
    """
    running = [task for task in tasks if task.is_running]
    waiting = [task for task in tasks if task.is_waiting]
    paused = [task for task in running if task.state is JobState.SUSPENDED]
    active = [task for task in running if task.state is not JobState.SUSPENDED]
    state = JobState.RUNNING if active else JobState.SUSPENDED if paused else JobState.PENDING
    state = state if running or waiting else JobState.COMPLETING
    words = [
        f"{len(found)} {'task' if len(found) == 1 else 'tasks'} {does if len(found) == 1 else do}"
        for found, does, do in (
            (active, "runs", "run"),
            (paused, "is suspended", "are suspended"),
            (waiting, "waits", "wait"),
        )
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
        held=state is JobState.PENDING and all(is_held_reason(task.reason) for task in waiting),
    )
    return facts, {
        "JobId": ",".join(arrays),
        "Reason": why,
        "JobState": (", ".join(words) or "its tasks end") + of,
        "NodeList": nodes,
        "NumTasks": str(len(running) + len(waiting)),
    }
