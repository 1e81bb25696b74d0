"""How many nodes of a run a partition can ever hold at once, for a run that is to have another size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from hpc_elastic.errors import InputError, SlurmCommandError, SlurmNotFoundError
from hpc_elastic.slurm.client import hostlist
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.client.nodes import ListedNode, features_of, gpus_in
from hpc_elastic.slurm.run_jobs.run_files import RunFiles, is_array
from hpc_elastic.text import are_text, count_text


class Room(NamedTuple):
    """What a partition has for a run.

    Attributes:
        partition: its name, or several as ``a,b``; empty for the default one.
        nodes: that fit what the job asks of each.
        up: how many of them can run something, now or when other jobs have ended.
        most: how many nodes of the run they hold at once if nobody else is there; None: not known.
        each: what bounds that number, for people.
    """

    partition: str
    nodes: int
    up: int
    most: int | None
    each: str = ""

    @property
    def name(self) -> str:
        """The partition for people."""
        return f"partition {self.partition}" if self.partition else "the default partition"

    def text(self) -> str:
        """Return what there is, as a line."""
        text = f"{self.name} has {count_text(self.nodes, 'node')} for this run, {self.up} of them up"
        return f"{text}; room for {self.most} at once ({self.each})" if self.each else text


def room(run: RunFiles, slurm: Slurm) -> Room | None:
    """Return what there is for a run; None if nobody can tell."""
    try:
        job = slurm.show_job(run.job_id)
        if job is None:
            return None
        name = str(run.spec.get("partition") or job.get("Partition") or "")
        nodes = slurm.nodes(name or None)
        known = [slurm.show_partition(one) for one in name.split(",")]
    except (SlurmCommandError, SlurmNotFoundError):
        return None
    return room_of(run.spec, name, nodes, known, tasks=is_array(run)) if nodes else None


def room_of(
    spec: Mapping[str, Any],
    partition: str,
    nodes: Iterable[ListedNode],
    settings: Iterable[Mapping[str, str]],
    *,
    tasks: bool,
) -> Room:
    """Return what there is for a job spec. Pure.

    Args:
        spec: as it is stored, without what is as by default.
        partition: name of the partition, or several as ``a,b``.
        nodes: of the partitions.
        settings: the fields of ``scontrol show partition``, for each of them.
        tasks: whether each node of the run is a job of its own, so that a host may hold several.
    """
    gpus, features = gpus_in(f"gpu:{spec.get('gpus_per_node') or 0}"), features_of(spec.get("constraint"))
    never = hostlist.expand(spec["exclude"]) if spec.get("exclude") else ()
    fits = [
        node
        for node in nodes
        if node.name not in never and (features or frozenset()) <= node.features and node.gpus >= gpus
    ]
    found = list(settings)
    is_whole = spec.get("exclusive") or all(_says(one, "OverSubscribe", "EXCLUSIVE") for one in found)
    most: int | None = len(fits)
    each = ""
    if not tasks:
        limits = [int(one["MaxNodes"]) for one in found if one.get("MaxNodes", "").isdecimal()]
        if limits and len(limits) == len(found) and max(limits) < len(fits):
            most, each = max(limits), "MaxNodes, for one job"
    elif not is_whole and gpus:
        most, each = sum(node.gpus // gpus for node in fits), f"GPUs: {gpus} each"
    elif not is_whole:
        most, each = _by_cpus(spec, found)
    return Room(partition, len(fits), sum(node.is_up for node in fits), most, each)


def _by_cpus(spec: Mapping[str, Any], settings: list[Mapping[str, str]]) -> tuple[int | None, str]:
    """Return how many tasks the CPUs of the partitions are enough for."""
    cpus = int(spec.get("cpus_per_node") or spec.get("cpus_per_task") or 1)
    totals = [one.get("TotalCPUs", "") for one in settings]
    is_known = all(total.isdecimal() for total in totals)
    if not is_known or any(_says(one, "OverSubscribe", "FORCE") for one in settings):
        return None, ""
    return sum(map(int, totals)) // cpus, f"CPUs: {cpus} each"


def _says(fields: Mapping[str, str], name: str, start: str) -> bool:
    return fields.get(name, "").startswith(start)


def refuse_beyond(found: Room, size: int) -> None:
    """Refuse a size that the partition never holds.

    Raises:
        InputError: with both numbers.
    """
    if found.most is None or size <= found.most:
        return
    raise InputError(
        f"{are_text(size, 'node')} wanted, which can never run at once: {found.text()}",
        where="--nodes",
        fix=f"give {found.most} or less"
        if found.most
        else "look at what the job asks of each node: sinfo -o '%P %D %c %m %G'",
    )
