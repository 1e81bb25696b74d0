"""What must hold for a job spec in array mode, before anything is queued."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_elastic.errors import InputError, SlurmCommandError, SlurmNotFoundError
from hpc_elastic.slurm.client import hostlist

if TYPE_CHECKING:
    from hpc_elastic.slurm.client.commands import Slurm
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


def check_size(spec: JobSpec, slurm: Slurm) -> None:
    """Refuse an array that Slurm would not take; nobody is refused for want of an answer.

    Raises:
        InputError: it has too many tasks.
    """
    if spec.mode != "array":
        return
    _check_partition(spec, slurm)
    try:
        most = slurm.max_array_size()
    except (SlurmCommandError, SlurmNotFoundError):
        return
    if most is not None and spec.tasks > most:
        raise InputError(
            f"nodes = {spec.nodes}"
            + (f" and spares = {spec.spares}" if spec.spares else "")
            + f" make an array of {spec.tasks} tasks, and this cluster allows {most} (MaxArraySize)",
            where="nodes",
            fix=f'ask for at most {most}, or set mode = "step"',
        )


def _check_partition(spec: JobSpec, slurm: Slurm) -> None:
    """Refuse an array of whole nodes that the partition cannot hold at once: Slurm takes it, task by task.

    The tasks that start would wait for the others on nodes that nobody uses.
    """
    if not spec.exclusive:
        return
    try:
        nodes = slurm.nodes(spec.partition)
    except (SlurmCommandError, SlurmNotFoundError):
        return
    least = spec.node_range.low
    if nodes and least > len(nodes):  # of a partition that is not there Slurm itself tells
        where = f"partition {spec.partition}" if spec.partition else "the default partition"
        raise InputError(
            f"nodes = {spec.nodes} needs {least} whole nodes at once, and {where} has {len(nodes)}",
            where="nodes",
            fix=f"let fewer be enough, e.g. --nodes {min(2, len(nodes))}:{len(nodes)}",
        )
