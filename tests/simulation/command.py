"""The command line of scripts/simulate."""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import NamedTuple

from tests.simulation.broken import BrokenError
from tests.simulation.endings.array import ARRAY_ENDINGS
from tests.simulation.endings.mutations import ENDING_MUTATIONS
from tests.simulation.endings.scenario import ENDINGS
from tests.simulation.exhaustive import plays, search
from tests.simulation.mutations import MUTATIONS, table
from tests.simulation.worlds import WORLDS, Failure, mixed, of_endings, simulate

DESCRIPTION = """\
Run the real rendezvous, or the real ends of starts, in simulated worlds: many schedules, each with its
faults from a seed. The exit code is 1 if something did not hold; the first failing schedule tells its story
and how to replay it.
"""
BATCH = 100  # schedules a process does before it reports
PROGRESS_S = 30.0
MIXED, ALL_ENDINGS = "mixed", "all endings"  # in place of one kind of world
WORLD_NAMES = (MIXED, *WORLDS, ALL_ENDINGS, *ENDINGS, *ARRAY_ENDINGS)


class Options(NamedTuple):
    """What was asked for."""

    schedules: int
    jobs: int
    seed: int
    world: str
    replay: int | None
    exhaustive: int | None
    mutations: bool


class Batch(NamedTuple):
    """What some schedules have given."""

    schedules: int
    counts: Counter[str]
    simulated_s: float
    failure: str  # "" for none


def main(argv: list[str]) -> int:
    """Do what the arguments say and return the exit code."""
    options = Options(**vars(_parser().parse_args(argv)))
    if options.mutations:
        mutations = ENDING_MUTATIONS if options.world == ALL_ENDINGS else MUTATIONS
        text, complete = table(mutations, max(options.schedules, 1000))
        print(text)
        return 0 if complete else 1
    if options.exhaustive is not None:
        return _exhaust(options.exhaustive)
    if options.replay is not None:
        return _replay(options.replay, options.world)
    return _simulate(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("simulate", description=DESCRIPTION)
    parser.add_argument("--schedules", type=int, default=1000, metavar="N", help="how many (default: 1000)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (default: 1)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="the first seed (default: 0)")
    parser.add_argument("--world", choices=WORLD_NAMES, default=MIXED, help="kind of world")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run one schedule and tell everything")
    parser.add_argument("--exhaustive", type=int, choices=(2, 3), help="search all interleavings of N nodes")
    parser.add_argument("--mutations", action="store_true", help="see which faults in the code are noticed")
    return parser


def _world(seed: int, name: str) -> str:
    """Return the kind of world for a seed, where the name stands for several."""
    if name == ALL_ENDINGS:
        return of_endings(seed)
    return mixed(seed) if name == MIXED else name


def _exhaust(nodes: int) -> int:
    for play in plays(nodes):
        began = time.monotonic()
        try:
            report = search(play)
        except BrokenError as error:
            print(error)
            return 1
        print(f"{report.text()}, {time.monotonic() - began:.1f} s", flush=True)
    return 0


def _replay(seed: int, world: str) -> int:
    try:
        scenario = simulate(seed, _world(seed, world), is_verbose=True)
    except Failure as failure:
        print(failure)
        return 1
    print(scenario.story)
    return 0


def _simulate(options: Options) -> int:
    began = told = time.monotonic()
    counts: Counter[str] = Counter()
    done, simulated_s, failed = 0, 0.0, False
    with ProcessPoolExecutor(options.jobs) as pool:
        starts = range(options.seed, options.seed + options.schedules, BATCH)
        batches = _windowed(pool, options, iter(starts))
        for batch in batches:
            done, simulated_s = done + batch.schedules, simulated_s + batch.simulated_s
            counts += batch.counts
            if batch.failure:
                failed = True
                print(batch.failure)
                break
            if time.monotonic() - told >= PROGRESS_S:
                told = time.monotonic()
                print(
                    f"{done} schedules, {done / (told - began):.0f} per second", file=sys.stderr, flush=True
                )
    seconds = time.monotonic() - began
    print(_summary(done, seconds, simulated_s, counts))
    return 1 if failed else 0


def _windowed(pool: ProcessPoolExecutor, options: Options, starts: Iterator[int]) -> Iterator[Batch]:
    """Go through the batches in order, with only so many of them under way."""
    end = options.seed + options.schedules
    pending = []
    for start in starts:
        size = min(BATCH, end - start)
        pending.append(pool.submit(partial(run_batch, start, size, options.world)))
        if len(pending) >= 2 * options.jobs:
            yield pending.pop(0).result()
    for future in pending:
        yield future.result()


def run_batch(first: int, number: int, world: str) -> Batch:
    """Run some schedules, up to the first that fails."""
    gc.disable()  # the circles of one batch are collected at once: that is quicker
    counts: Counter[str] = Counter()
    simulated_s = 0.0
    failure = ""
    for seed in range(first, first + number):
        try:
            scenario = simulate(seed, _world(seed, world))
        except Failure as error:
            failure = str(error)
            number = seed - first + 1
            break
        counts += scenario.world.counts
        simulated_s += scenario.world.now
    gc.collect()
    return Batch(number, counts, simulated_s, failure)


def _summary(done: int, seconds: float, simulated_s: float, counts: Counter[str]) -> str:
    lines = [
        f"{done} schedules in {seconds:.0f} s: {done / max(seconds, 0.001):.0f} per second",
        f"{simulated_s / 3600:.1f} simulated hours",
        *(f"{number:12d}  {name}" for name, number in sorted(counts.items(), key=lambda item: -item[1])),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
