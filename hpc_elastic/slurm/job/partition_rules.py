"""What a partition allows, where Slurm takes a job that it will never start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hpc_elastic.errors import InputError, SlurmCommandError, SlurmNotFoundError
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.client.deadlines import seconds
from hpc_elastic.slurm.job.spec import JobSpec


def check_time(spec: JobSpec, slurm: Slurm) -> list[str]:
    """Refuse a time limit that none of the job's partitions allows; nobody is refused for want of an answer.

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
