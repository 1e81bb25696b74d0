"""The CPU time of a node that waits for others, per turn of its waiting."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from bench_lib.scale_measures import KNOWN, UNKNOWN, Scale
from bench_lib.series import Series

if TYPE_CHECKING:
    from bench_lib.scale_nodes import World

_MEASURE = "waiting-turn"
_WHAT = "CPU time of a node that waits, per turn [ms]"
_WARM_UP = 3  # turns that are not counted: the first one reads all names
_TURNS = 40
_SHARE = (
    100  # of the others, one in so many has beaten since the last turn: a beat a second, a turn each 10 ms
)


def waiting_turn(scale: Scale) -> Iterator[Series]:
    """CPU time of a turn [ms], while all nodes but the last one are in."""
    from bench_lib.scale_nodes import World  # noqa: PLC0415
    from hpc_elastic.paths import RunPaths  # noqa: PLC0415 - the launchers are measured without it

    listing = Series(_MEASURE, _WHAT, "the listing of the members alone")
    for system in (KNOWN, UNKNOWN):
        first, other = (Series(_MEASURE, _WHAT, f"{system}, {who}") for who in ("first node", "another node"))
        for size in scale.effort.sizes:
            scale.say(f"{_MEASURE}: {system}, {size} nodes ...")
            world = World(RunPaths(""), size, system == KNOWN)
            for series, index in zip((first, other), _first_and_another(world), strict=True):
                with tempfile.TemporaryDirectory(prefix="bench-") as root:
                    world = world._replace(paths=RunPaths(os.path.join(root, "run")))
                    for turn_s in _turns(world, index):
                        series.add(size, turn_s * 1e3)
                    for listing_s in _listings(world):
                        listing.add(size, listing_s * 1e3)
        yield from (first, other)
    yield listing


def _first_and_another(world: World) -> tuple[int, int]:
    """Return the node that forms the round, and one that does not look at the others: of a few all do."""
    from bench_lib.scale_nodes import looking_from_the_start  # noqa: PLC0415 - as above

    looks = looking_from_the_start(world)
    return looks.index(True), 0 if all(looks) else looks.index(False, world.nodes // 2)


def _listings(world: World) -> list[float]:
    """Return the CPU time of listing the members [s], a part of each turn of the first node."""
    from hpc_elastic.record.journal import MEMBERS  # noqa: PLC0415

    took = []
    for _ in range(_TURNS):
        began = time.thread_time()
        os.listdir(os.path.join(world.paths.root, MEMBERS))
        took.append(time.thread_time() - began)
    return took


def _turns(world: World, index: int) -> list[float]:
    """Return the CPU time of each turn [s] of a node, while the others beat and the last one is missing."""
    from bench_lib.scale_nodes import make_run  # noqa: PLC0415
    from hpc_elastic.meet.member_names import Phase  # noqa: PLC0415
    from hpc_elastic.meet.shared_fs import SharedFsRendezvous, Waiting  # noqa: PLC0415
    from hpc_elastic.record.run_directory import prepare_run_dir  # noqa: PLC0415
    from hpc_elastic.store.shared_dir import SharedDirStore  # noqa: PLC0415

    prepare_run_dir(world.paths)
    store = SharedDirStore(world.paths.root)
    others = [make_run(world, other, store) for other in range(world.nodes - 1) if other != index]
    for other in others:
        other.membership.set_phase(Phase.JOINING, 1)
    run = make_run(world, index, store)
    run.announce()
    took: list[float] = []
    began = [0.0]

    def wait(_seconds: float) -> None:
        took.append(time.thread_time() - began[0])
        share = max(1, len(others) // _SHARE)
        for at in range(share):
            others[(len(took) * share + at) % len(others)].membership.tell_news()
        began[0] = time.thread_time()

    waiting = Waiting(wait, lambda: 1, lambda: len(took) >= _WARM_UP + _TURNS)
    SharedFsRendezvous(run, waiting).join()
    return took[_WARM_UP:]
