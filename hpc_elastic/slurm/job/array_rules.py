"""What must hold for a job spec in array mode, before anything is queued."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_elastic.errors import InputError
from hpc_elastic.slurm.client import hostlist

if TYPE_CHECKING:
    from hpc_elastic.slurm.job.spec import JobSpec

# sbatch option -> why it means nothing for a job of one node
_ONE_NODE = {
    "contiguous": "each task is a job of one node",
    "nodefile": "each task would have to get all nodes of the file",
    "spread-job": "each task is a job of one node",
    "switches": "Slurm places each task by itself",
    "use-min-nodes": "each task is a job of one node",
}


def check(spec: JobSpec) -> None:
    """Refuse what contradicts the mode.

    Raises:
        InputError: naming the field and what to do.
    """
    if spec.mode != "array":
        if spec.spares is not None:
            raise InputError(
                f"spares = {spec.spares} is for array mode; this run is one job",
                where="spares",
                fix='set mode = "array", or ask for more nodes with --nodes MIN:MAX and use fewer with scale',
            )
        return
    _check_dependency(spec)
    _check_nodelist(spec)
    for name, why in _ONE_NODE.items():
        if spec.sbatch.get(name) not in (None, False):
            raise InputError(
                f"--{name} has no meaning in array mode: {why}",
                where=f"sbatch.{name}",
                fix='remove it, or set mode = "step"',
            )


def _check_dependency(spec: JobSpec) -> None:
    if "singleton" in (spec.dependency or ""):
        raise InputError(
            f"dependency = {spec.dependency!r} in array mode: Slurm would run one task at a time, "
            "as all of them have the same name",
            where="dependency",
            fix="wait for a job by its id, e.g. afterany:1234",
        )


def _check_nodelist(spec: JobSpec) -> None:
    names = hostlist.expand(spec.nodelist) if spec.nodelist else ()
    if len(names) > 1:
        raise InputError(
            f"nodelist = {spec.nodelist!r} in array mode: each task would have to get all {len(names)} nodes",
            where="nodelist",
            fix='choose nodes by constraint, partition or exclude, or set mode = "step"',
        )


def refuse_local(spec: JobSpec) -> None:
    """Refuse to play an array on one machine without Slurm.

    Raises:
        InputError: the run is one.
    """
    if spec.mode == "array":
        raise InputError(
            'mode = "array" needs Slurm: tasks that are queued and requeued one by one are not played here',
            where="--local",
            fix="leave the mode out: --local N plays the nodes of one job, with the same agents",
        )
