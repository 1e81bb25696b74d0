"""The measure `ettr`: all ways in turns, each on a fake Slurm of its own, under the same faults."""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench_lib.ettr.course import Course, plan, run
from bench_lib.ettr.table import Outcome, outcome, rate, render
from bench_lib.ettr.ways import NODES, WAYS, Job, Way
from bench_lib.group import GroupError
from hpc_elastic.testing.fake_slurm import FakeSlurm, Settings

ETTR = "ettr"
GRACE_S = 20.0
HANG_S = 8.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this measure."""
    group = parser.add_argument_group("useful time", f"--measure {ETTR}: needs torch; only by --measure")
    group.add_argument("--minutes", type=float, default=15.0, metavar="M", help="length of each run (15)")
    group.add_argument("--fault-every", type=float, default=60.0, metavar="S", help="a fault so often (60)")
    group.add_argument("--state-mb", type=int, default=0, metavar="MB", help="further state (0)")
    group.add_argument("--seed", type=int, default=1, help="of the faults (1)")
    group.add_argument("--ways", nargs="+", choices=[way.name for way in WAYS], help="only these")


def measure(options: argparse.Namespace, failures: list[str]) -> dict[str, Outcome]:
    """Run all ways; what goes wrong is added to `failures`."""
    ways = [way for way in WAYS if options.ways is None or way.name in options.ways]
    missing = [way for way in ways if not way.is_there]
    failures += [f"{ETTR}, {way.name}: {way.needs} is not installed here" for way in missing]
    length_s = 60 * options.minutes
    faults = plan(options.seed, options.fault_every, length_s)
    found: dict[str, Outcome] = {}
    try:
        paces = [_undisturbed(options)]
        for way in (way for way in ways if way.is_there):
            print(f"{way.name}: {ETTR} ...", file=sys.stderr, flush=True)
            try:
                course = _run(way, options, faults, length_s)
            except GroupError as error:
                failures.append(f"{ETTR}, {way.name}: {error}")
                continue
            found[way.name] = outcome(course, paces[-1])  # stays, if the pace is not measured again
            paces.append(_undisturbed(options))
            found[way.name] = outcome(course, statistics.mean(paces[-2:]))
    except GroupError as error:
        failures.append(f"{ETTR}, without faults: {error}")
    return found


def _undisturbed(options: argparse.Namespace) -> float:
    """Return the steps per second without faults; measured around each way, since machines change their pace.

    Raises:
        GroupError: the job was refused, or did not begin.
    """
    found = rate(_run(WAYS[0], options, [], min(15 * options.minutes, 60.0)))
    print(f"without faults: {found:.2f} steps per second", file=sys.stderr, flush=True)
    return found


def _run(way: Way, options: argparse.Namespace, faults: list[tuple[float, str]], length_s: float) -> Course:
    with tempfile.TemporaryDirectory(prefix="bench-ettr-", ignore_cleanup_errors=True) as root:
        place, cluster = Path(root) / "job", Path(root) / "slurm"
        for folder in (place / "notes", place / "saves", cluster):
            folder.mkdir(parents=True)
        words = ("--notes", str(place / "notes"), "--saves", str(place / "saves"), "--hang", f"{HANG_S:g}")
        size = ("--state-mb", str(options.state_mb), "--fault-every", f"{options.fault_every:g}")
        # one node more than the job has; who is preempted gets the signal that it has asked for
        settings = Settings(nodes=NODES + 1, gpus=1, grace=GRACE_S, kill_wait=5.0, user_signal=True)
        with FakeSlurm(cluster, settings) as slurm:
            return run(way, Job(slurm, place, (*words, *size), HANG_S), faults, length_s)


def text(outcomes: dict[str, Outcome], options: argparse.Namespace) -> str:
    """Return the table."""
    what = (
        f"{ETTR}: {NODES} ranks, {options.minutes:g} minutes each, a fault about every "
        f"{options.fault_every:g} s (seed {options.seed}), "
        f"{options.state_mb} MB of further state; median times [s]"
    )
    return render(outcomes, what)


def record(outcomes: dict[str, Outcome]) -> dict[str, Any]:
    """Return what is written to a file."""
    return {name: one._asdict() for name, one in outcomes.items()}
