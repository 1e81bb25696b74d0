"""The kinds of worlds that are simulated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from hpc_elastic.record import journal, run_log
from hpc_elastic.record.state import RunState
from tests.simulation.array import ArrayScenario
from tests.simulation.endings.array import ARRAY_ENDINGS, ArrayEndings
from tests.simulation.endings.scenario import ENDINGS, Endings
from tests.simulation.faults import USUAL
from tests.simulation.mount import Weather
from tests.simulation.scenario import Chances, Scenario

_READER: Any = run_log
ROUGH = Weather(stale=0.1, lost_reply=0.01, late=0.001)
WILD = Weather(stale=0.4, lost_reply=0.05, late=0.01)

WORLDS = {
    "calm": Chances(),
    "small": Chances(nodes=2, max_nodes=2, faults=(2, 4), within_s=15.0, work_s=(2.0, 6.0)),
    "three": Chances(nodes=3, max_nodes=3, faults=(2, 4), within_s=15.0, work_s=(2.0, 6.0), weather=ROUGH),
    "rough": Chances(faults=(4, 12), weather=ROUGH),
    "wild": Chances(faults=(10, 24), weather=WILD),
    "two-of-four": Chances(min_nodes=2, max_nodes=3, faults=(4, 12), weather=ROUGH),
    "eight": Chances(nodes=8, max_nodes=8, faults=(4, 12), weather=ROUGH),
    # so many that only some look at the others from the start
    "unnamed": Chances(nodes=16, min_nodes=16, max_nodes=16, named=0.0, faults=(2, 5), within_s=15.0),
    "loss": Chances(faults=(1, 2), kinds=("kill",), within_s=12.0),
    "uneven": Chances(
        nodes=3, min_nodes=3, max_nodes=3, faults=(2, 5), kinds=("worker crash",), within_s=12.0, early=0.6
    ),
    "uneven loss": Chances(
        min_nodes=2, faults=(2, 6), kinds=("worker crash", "worker crash", "kill"), within_s=15.0, early=0.6
    ),
    "stall": Chances(faults=(1, 4), kinds=("stall of all",), within_s=12.0, may_lose=False),
    "stall of most": Chances(
        nodes=5,
        max_nodes=5,
        faults=(1, 1),
        kinds=("short stall of most",),
        within_s=12.0,
        work_s=(20.0, 30.0),
        may_lose=False,
    ),
    "spares": Chances(max_nodes=2, faults=(0, 2), within_s=8.0, weather=WILD, work_s=(1.0, 3.0)),
    "ended": Chances(
        faults=(3, 6), kinds=("user ends the run", "worker crash", "worker crash", "kill"), within_s=6.0
    ),
    "broken lock": Chances(faults=(2, 5), kinds=("lock shared", "worker crash", "signal"), within_s=12.0),
    "wall clocks": Chances(faults=(2, 5), kinds=("wall clock", "wall clock", "kill"), within_s=12.0),
    "wedges": Chances(
        nodes=3,
        max_nodes=3,
        faults=(2, 5),
        kinds=("wedge", "wedge", "worker crash", "kill", "signal"),
        weather=ROUGH,
        work_s=(2.0, 20.0),
    ),
    "zombies": Chances(
        nodes=3,
        max_nodes=3,
        faults=(2, 5),
        kinds=("zombie", "zombie", "worker crash", "freeze in an operation"),
    ),
}

_TASKS = ("leave", "leave", "all leave", "leave and die", "cut off", "started anew", "kill", "worker crash")
ARRAYS = {
    "array leaves": Chances(
        min_nodes=2, faults=(1, 4), kinds=("leave", "leave", "all leave"), within_s=20.0, work_s=(4.0, 15.0)
    ),
    "array": Chances(faults=(2, 6), kinds=_TASKS, within_s=25.0, weather=ROUGH, work_s=(4.0, 25.0)),
    "array of three": Chances(
        nodes=3, min_nodes=2, max_nodes=3, faults=(2, 5), kinds=_TASKS, within_s=20.0, work_s=(15.0, 40.0)
    ),
    "array scaled": Chances(
        min_nodes=2,
        max_nodes=3,
        faults=(2, 6),
        kinds=("scale", "scale", "leave", "kill", "cut off", "all leave"),
        within_s=25.0,
        weather=ROUGH,
        work_s=(6.0, 25.0),
    ),
    "array spares": Chances(
        min_nodes=2, max_nodes=2, faults=(2, 5), kinds=_TASKS, within_s=20.0, work_s=(5.0, 25.0)
    ),
    "array wild": Chances(
        faults=(4, 10), kinds=(*_TASKS, "scale", *USUAL), within_s=30.0, weather=WILD, work_s=(4.0, 20.0)
    ),
}
WORLDS.update(ARRAYS)

_RARE = ("calm", "eight", "unnamed")
_MIX = tuple(name for name in WORLDS if name not in _RARE) + ("small",) * 4 + ("three",) * 4


def mixed(seed: int) -> str:
    """Return the kind of world that a seed stands for; the small ones come more often."""
    return _MIX[seed % len(_MIX)]


def of_endings(seed: int) -> str:
    """Return the kind of world of endings that a seed stands for."""
    worlds = [*ENDINGS, *ARRAY_ENDINGS]
    return worlds[seed % len(worlds)]


def simulate(seed: int, world: str, *, is_verbose: bool = False) -> Scenario | Endings:
    """Run one schedule of a kind of world.

    Raises:
        AssertionError: something did not hold; the text tells the story and how to replay it.
    """
    scenario = _scenario(seed, world, is_verbose=is_verbose)
    try:
        with _each_record_taken_once():
            scenario.run()
    except Exception as error:
        raise Failure(seed, world, scenario, error) from error
    return scenario


@contextmanager
def _each_record_taken_once() -> Iterator[None]:
    """Keep what the real code makes of a record: all processes of a schedule read the same ones."""
    parse_all, fold = journal.parse_all, _READER.fold
    known: dict[tuple[int, bytes], journal.Record] = {}
    after: dict[tuple[int, int], tuple[RunState, journal.Record, RunState]] = {}

    def parse_new(found: Iterable[tuple[int, bytes]]) -> list[journal.Record]:
        records = []
        for one in found:
            if one not in known:
                (known[one],) = parse_all([one])
            records.append(known[one])
        return records

    def fold_new(state: RunState, records: Iterable[journal.Record]) -> RunState:
        for record in records:
            step = id(state) if state.last else 0, id(record)
            if step not in after:  # with both of them, so that no other object gets their ids
                after[step] = state, record, fold(state, [record])
            state = after[step][2]
        return state

    journal.parse_all, _READER.fold = parse_new, fold_new
    try:
        yield
    finally:
        journal.parse_all, _READER.fold = parse_all, fold


def _scenario(seed: int, world: str, *, is_verbose: bool) -> Scenario | Endings:
    if world in ARRAY_ENDINGS:
        return ArrayEndings(seed, ARRAY_ENDINGS[world], is_verbose=is_verbose)
    if world in ENDINGS:
        return Endings(seed, ENDINGS[world], is_verbose=is_verbose)
    kind = ArrayScenario if world in ARRAYS else Scenario
    return kind(seed, WORLDS[world], is_verbose=is_verbose)


class Failure(AssertionError):  # noqa: N818 - what is reported, not only raised
    """A schedule in which something did not hold.

    Args:
        seed: of the schedule.
        world: kind of world.
        scenario: it, with its story.
        error: what was raised.
    """

    def __init__(self, seed: int, world: str, scenario: Scenario | Endings, error: Exception) -> None:
        self.promise = getattr(error, "promise", type(error).__name__)
        self.seed = seed
        self.world = world
        self.headline = f"{world} seed {seed}: {type(error).__name__}: {error}"
        replay = f"replay: scripts/simulate --world {world!r} --replay {seed}"
        super().__init__(f"{self.headline}\n{scenario.story}\n{replay}")
