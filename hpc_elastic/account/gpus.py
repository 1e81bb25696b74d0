"""The use of the GPUs of a node, from the samples of its agent. Pure.

An agent that samples its GPUs keeps one small file, ``gpus/<node>.json``, which each sample replaces: of each
GPU the number and the sum of its samples, its highest memory and its newest values. So the file does not
grow, and a requeue goes on with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from hpc_elastic.errors import DamagedError
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.typed_json import Count, Prose, Seconds, read

FORMAT = 1
MOST_GPUS = 64  # in the file of a node; the starts of a job may have different ones
_ALL = 100  # percent


class GpuSample(NamedTuple):
    """One look at a GPU; None: its driver does not tell."""

    number: str
    uuid: str
    busy: int | None = None  # share of the last moment in which it ran kernels [%]
    memory: int | None = None  # in use [bytes]
    limit: int | None = None  # memory that it has [bytes]


class GpuUse(NamedTuple):
    """The use of a GPU over all samples; None: not known."""

    number: Prose
    uuid: Prose
    samples: Count = 0  # with a share
    busy: Count = 0  # sum of their shares [%]
    now: Count | None = None  # the newest share [%]
    memory: Count | None = None  # the newest value [bytes]
    peak: Count | None = None  # the highest value [bytes]
    limit: Count | None = None  # memory that it has [bytes]

    @property
    def share(self) -> float | None:
        """The mean share of time in which it ran kernels."""
        return self.busy / self.samples / _ALL if self.samples else None


class NodeGpus(NamedTuple):
    """The use of the GPUs of a node."""

    node: Prose
    at: Seconds  # wall time of the newest sample [s since the epoch]
    gpus: tuple[GpuUse, ...] = ()
    format: Count = FORMAT


class GpuSummary(NamedTuple):
    """The use of all GPUs of a run that are sampled; None: not known."""

    nodes: tuple[str, ...]
    gpus: int
    share: float | None = None  # mean over all samples
    least: tuple[float, str, str] | None = None  # the least busy one: its share, node and number
    peak: int | None = None  # the highest memory of one [bytes]
    limit: int | None = None  # of the same one [bytes]


def noted(known: NodeGpus, samples: Iterable[GpuSample], at: float) -> NodeGpus:
    """Return the use of a node's GPUs with one more sample of each.

    Args:
        known: the use so far.
        samples: one of each GPU that the job has now.
        at: wall time [s since the epoch].
    """
    by_uuid = {gpu.uuid: gpu for gpu in known.gpus}
    for one in samples:
        before = by_uuid.pop(one.uuid, GpuUse(one.number, one.uuid))
        by_uuid[one.uuid] = before._replace(
            number=one.number,
            samples=before.samples + (one.busy is not None),
            busy=before.busy + (one.busy or 0),
            now=one.busy,
            memory=one.memory,
            peak=max((size for size in (before.peak, one.memory) if size is not None), default=None),
            limit=before.limit if one.limit is None else one.limit,
        )
    return known._replace(at=at, gpus=tuple(by_uuid.values())[-MOST_GPUS:])


def encode_gpus(found: NodeGpus) -> bytes:
    """Return the content of a node's file."""
    gpus = [gpu._asdict() for gpu in found.gpus]
    return json.dumps({**found._asdict(), "gpus": gpus}, separators=(",", ":")).encode()


def parse_gpus(data: bytes) -> NodeGpus | None:
    """Return the use in the content of a node's file; None if it is damaged."""
    try:
        found = read(NodeGpus, data)
    except DamagedError:
        return None
    return found if found.format == FORMAT else None


def by_share(nodes: Sequence[NodeGpus]) -> list[tuple[str, GpuUse]]:
    """Return all GPUs with their nodes, the least busy one first, those without a share last."""
    return sorted(_each(nodes), key=lambda pair: 2.0 if pair[1].share is None else pair[1].share)


def _each(nodes: Iterable[NodeGpus]) -> Iterator[tuple[str, GpuUse]]:
    for one in nodes:
        for gpu in one.gpus:
            yield one.node, gpu


def summary_of(nodes: Sequence[NodeGpus]) -> GpuSummary | None:
    """Return the use of all GPUs together; None without any."""
    gpus = by_share(nodes)
    if not gpus:
        return None
    samples, busy = sum(gpu.samples for _, gpu in gpus), sum(gpu.busy for _, gpu in gpus)
    node, first = gpus[0]
    least = None if first.share is None else (first.share, node, first.number)
    fullest = max((gpu for _, gpu in gpus), key=lambda gpu: gpu.peak or 0)
    names = tuple(one.node for one in nodes if one.gpus)
    share = busy / samples / _ALL if samples else None
    return GpuSummary(names, len(gpus), share, least, fullest.peak, fullest.limit)
