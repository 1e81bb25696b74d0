"""What a partition allows, where Slurm takes a job that it will never start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hpc_elastic.errors import InputError, SlurmCommandError, SlurmNotFoundError
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.client.deadlines import seconds
from hpc_elastic.slurm.job.spec import JobSpec


def check_time(spec: JobSpec, slurm: Slurm) -> list[str]:
    """Refuse a time limit that none of the job's partitions allows; accept it without an answer of Slurm.

    Slurm queues such a job unless ``EnforcePartLimits`` is set, and it waits for ever.

    Returns:
        A warning instead, if the job names a QOS: that may lift the limit.

    Raises:
        InputError: with what is allowed.
    """
    wanted_s = spec.time_limit_s
    if wanted_s is None or spec.sbatch.get("time-min") is not None:
        return []
    asked = spec.partition or slurm.environ.get("SBATCH_PARTITION") or ""
    names = asked.split(",")
    try:
        known = [slurm.show_partition(name) for name in names]
    except (SlurmCommandError, SlurmNotFoundError):
        return []
    longest = longest_limit(known)
    if longest is None or wanted_s <= longest[0]:
        return []
    where = f"partition {asked}" if asked else "the default partition"
    told = f"time = {spec.time} is more than {where} allows ({longest[1]}), so the job would never start"
    if spec.qos:
        return [
            f"{told} unless QOS {spec.qos} lifts that\n  fix: ask for {longest[1]} or less if it does not"
        ]
    raise InputError(
        told,
        where="time",
        fix=f"ask for {longest[1]} or less: the run is requeued and goes on; sinfo -o '%P %l' shows what "
        "others allow (--skip-sbatch-test: do not look)",
    )


def longest_limit(partitions: Iterable[Mapping[str, str]]) -> tuple[float, str] | None:
    """Return the longest time limit [s] that a job may have, and how Slurm writes it. Pure.

    Args:
        partitions: the fields of ``scontrol show partition`` for each.

    Returns:
        None if one has no limit, or none that is known.
    """
    found = []
    for fields in partitions:
        text = fields.get("MaxTime", "")
        limit_s = seconds(text)
        if limit_s is None:
            return None
        found.append((limit_s, text))
    return max(found, default=None)


def check_size(spec: JobSpec, slurm: Slurm) -> None:
    """Refuse an array that Slurm would refuse; accept it without an answer of Slurm.

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
