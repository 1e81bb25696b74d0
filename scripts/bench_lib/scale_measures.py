"""How things grow with the number of nodes: time and operations of a rendezvous."""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from bench_lib.group import free_port
from bench_lib.scale_group import Job, Place, ScaleError, TooSlowError, rendezvous
from bench_lib.series import LOCAL, Series

DELAY_S = 0.005
KNOWN = "hpc_elastic, nodes known"
UNKNOWN = "hpc_elastic, only N known"
TORCH_TCP = "torch c10d, TCPStore"
TORCH_FILE = "torch c10d, FileStore"
_SYSTEMS = {KNOWN: "known", UNKNOWN: "unknown", TORCH_TCP: "tcp", TORCH_FILE: "file"}
_NETWORK = "(network)"


@dataclass(frozen=True, slots=True)
class ScaleEffort:
    """How much work a measure of scale may be.

    Attributes:
        sizes: numbers of nodes that meet.
        steady_sizes: numbers of nodes that only live.
        repetitions: how often each is measured.
        limit_s: a series ends when one rendezvous takes longer [s].
        span_s: simulated time over which operations are counted [s].
        watch_s: how long a real agent is watched [s].
        trips: how often a key is set and answered.
    """

    sizes: tuple[int, ...] = (2, 8, 32, 128, 512, 1024)
    steady_sizes: tuple[int, ...] = (4, 16, 64, 256, 1024)
    repetitions: int = 3
    limit_s: float = 120.0
    span_s: float = 60.0
    watch_s: float = 30.0
    trips: int = 100


FULL = ScaleEffort()
QUICK = ScaleEffort(
    sizes=(2, 8), steady_sizes=(4, 16), repetitions=1, limit_s=30.0, span_s=20.0, watch_s=5.0, trips=10
)


@dataclass(slots=True)
class Scale:
    """What a measure of scale needs, and what it did not get.

    Attributes:
        places: where the shared files are.
        effort: how much work it may be.
        peers: measure torch too.
        failures: what went wrong, for people.
        say: tells what is being done.
    """

    places: list[Place]
    effort: ScaleEffort
    peers: bool
    say: Callable[[str], None]
    failures: list[str] = field(default_factory=list)

    @property
    def has_torch(self) -> bool:
        """Whether torch is to be measured and can be."""
        return self.peers and importlib.util.find_spec("torch") is not None


def rendezvous_time(scale: Scale) -> Iterator[Series]:
    """All agents ready -> the last one has its place [s], and the CPU time that takes a node [s]."""
    for place in scale.places:
        for system in (KNOWN, UNKNOWN):
            took = Series(
                "rendezvous-scale", "all agents ready -> the last has its place [s]", system, place.name
            )
            cpu = Series("rendezvous-scale", "CPU time of one node [ms]", system, place.name)
            for size, nodes in _repeated(scale, place, took):
                took.add(size, max(node["took_s"] for node in nodes))
                cpu.add(size, statistics.mean(node["cpu_s"] for node in nodes) * 1e3)
            yield from (took, cpu)
    if not scale.has_torch:
        return
    for system, place in _torch_places(scale):
        name = _NETWORK if system == TORCH_TCP else place.name
        took = Series("rendezvous-scale", "all agents ready -> the last has its place [s]", system, name)
        for size, nodes in _repeated(scale, place, took):
            took.add(size, max(node["took_s"] for node in nodes))
        yield took


def _torch_places(scale: Scale) -> Iterator[tuple[str, Place]]:
    """Torch's own code cannot be slowed, and its TCP store needs no shared files."""
    yield TORCH_TCP, Place(LOCAL)
    yield from ((TORCH_FILE, place) for place in scale.places if not place.delay_s)


def rendezvous_operations(scale: Scale) -> Iterator[Series]:
    """Store operations and file-system calls of a node until it has its place."""
    for place in scale.places:
        lines = {
            (what, who): Series("rendezvous-ops", f"{text} per node", who, place.name)
            for what, text in (("operations", "store operations"), ("calls", "file-system calls"))
            for who in ("first node", "busiest other", "mean of the others")
        }
        for size, nodes in _repeated(scale, place, lines["operations", "first node"], KNOWN, count=True):
            for what in ("operations", "calls"):
                first, *others = (
                    sum(node[what].values()) for node in sorted(nodes, key=lambda node: int(node["rank"]))
                )
                lines[what, "first node"].add(size, first)
                lines[what, "busiest other"].add(size, max(others))
                lines[what, "mean of the others"].add(size, statistics.mean(others))
        yield from lines.values()


def _repeated(
    scale: Scale, place: Place, series: Series, system: str = "", *, count: bool = False
) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Yield what the nodes did in each repetition for each number of nodes, until it takes too long.

    Repetitions of one size end early once together they have taken as long as one may take.
    """
    code = _SYSTEMS[system or series.system]
    for size in scale.effort.sizes:
        scale.say(f"{series.measure}: {system or series.system}, {place.name}, {size} nodes ...")
        left_s = scale.effort.limit_s
        for _ in range(scale.effort.repetitions):
            endpoint = f"127.0.0.1:{free_port()}" if code == "tcp" else ""
            try:
                nodes = rendezvous(place, Job(code, size, count), scale.effort.limit_s, endpoint)
            except TooSlowError as error:
                series.stopped[size] = str(error)
                return
            except ScaleError as error:
                series.stopped[size] = "failed"
                scale.failures.append(f"{series.system}, {place.name}, {size} nodes: {error}")
                return
            yield size, nodes
            left_s -= max(node["took_s"] for node in nodes)
            if left_s <= 0:
                break
