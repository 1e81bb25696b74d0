"""The variables by which a Slurm task knows its place, for a worker. Pure.

An agent is one task of a step of one task per node. What a worker would inherit of that is wrong for it:
libraries that look for Slurm (JAX, TensorFlow's resolver, submitit, Lightning, open_clip) would take each
worker of a node for the same task of a smaller step. The names are those of srun(1), OUTPUT ENVIRONMENT
VARIABLES.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from hpc_elastic.record.journal import Member

OF_MPI = ("PMI_", "PMI2_", "PMIX_")
"""What srun tells a task of its place in MPI; a worker is no task, so nothing of it holds for one."""


def task_env(
    members: tuple[Member, ...], group_rank: int, local_rank: int, cpus_per_task: str | None
) -> dict[str, str]:
    """Return the variables of a worker, as if srun had started one task per worker.

    Args:
        members: the nodes of the round, in the order of their ranks.
        group_rank: the place of the worker's node among them.
        local_rank: the worker's place on its node.
        cpus_per_task: SLURM_CPUS_PER_TASK of the agent; None if it is not set.
    """
    slots = members[group_rank].slots
    first = sum(member.slots for member in members[:group_rank])
    world = str(sum(member.slots for member in members))
    per_node = _per_node(member.slots for member in members)
    found = {
        "SLURM_PROCID": str(first + local_rank),
        "SLURM_LOCALID": str(local_rank),
        "SLURM_NODEID": str(group_rank),
        "SLURM_NTASKS": world,
        "SLURM_NPROCS": world,
        "SLURM_STEP_NUM_TASKS": world,
        "SLURM_STEP_NUM_NODES": str(len(members)),
        "SLURM_STEP_NODELIST": ",".join(member.node for member in members),
        "SLURM_STEP_TASKS_PER_NODE": per_node,
        "SLURM_TASKS_PER_NODE": per_node,
        "SLURM_NTASKS_PER_NODE": str(slots),
        "SLURM_GTIDS": ",".join(str(first + rank) for rank in range(slots)),
    }
    if cpus_per_task is not None and cpus_per_task.isdecimal():
        found["SLURM_CPUS_PER_TASK"] = str(max(1, int(cpus_per_task) // slots))
    return found


def _per_node(slots: Iterable[int]) -> str:
    """Return counts as Slurm writes them: ``2(x3),1``."""
    runs = ((count, len([*same])) for count, same in groupby(slots))
    return ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in runs)
