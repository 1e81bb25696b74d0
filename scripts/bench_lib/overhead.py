"""The measure `overhead`: the share of the time that states in memory take from a training without faults."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench_lib.series import short
from hpc_elastic.ids import Env
from hpc_elastic.worker.channel import Channel

OVERHEAD = "overhead"
CHILD = Path(__file__).with_name("overhead_child.py")
LIMIT_S = 900.0
RANKS = 2  # each on a node of its own
STEP_S = 0.05
WAYS = {  # what is kept, by the kind of the training and the options of `Checkpoints`
    "states are rescued (DDP)": ("ddp", 0),
    "the same with 15,000 tensors": ("many", 0),
    "copies in memory (FSDP)": ("fsdp", 0),
    "second copies too (FSDP)": ("fsdp", 1),
}
_HEAD = "| kept | share of the time | median per step [ms] | longest [ms] | copies |"
Overheads = dict[str, dict[str, float]]  # way -> what its slowest rank has measured


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this measure."""
    group = parser.add_argument_group("overhead", f"--measure {OVERHEAD}: needs torch; only by --measure")
    group.add_argument("--steps", type=int, default=2400, metavar="N", help="of 50 ms, in each way (2400)")
    group.add_argument("--rank-mb", type=int, default=16, metavar="MB", help="of state on each rank (16)")


def measure(options: argparse.Namespace, failures: list[str]) -> Overheads:
    """Train in all ways; what goes wrong is added to `failures`."""
    if importlib.util.find_spec("torch") is None:
        failures.append(f"{OVERHEAD}: torch is not installed here")
        return {}
    found: Overheads = {}
    for name, (kind, replicas) in WAYS.items():
        print(f"{name}: {OVERHEAD} ...", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="bench-overhead-", dir="/dev/shm") as place:
            try:
                found[name] = _way(Path(place), kind, replicas, options)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                failures.append(f"{OVERHEAD}, {name}: {error}")
    return found


def _way(place: Path, kind: str, replicas: int, options: argparse.Namespace) -> dict[str, float]:
    """Run the ranks of one way; return the greatest of their values.

    Raises:
        RuntimeError: one has failed.
    """
    words = [kind, str(replicas), str(options.steps), str(options.rank_mb)]
    ranks = [_start(place, rank, words) for rank in range(RANKS)]
    try:
        ends = [rank.communicate(timeout=LIMIT_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, (_, said) in zip(ranks, ends, strict=True):
        if rank.returncode != 0:
            raise RuntimeError((said.strip().splitlines() or ["no reason"])[-1])
    told: list[dict[str, float]] = [json.loads(printed) for printed, _ in ends]
    return {name: max(one[name] for one in told) for name in told[0]}


def _start(place: Path, rank: int, words: list[str]) -> subprocess.Popen[str]:
    node = place / f"node-{rank}"
    node.mkdir()
    (place / "run" / "checkpoints").mkdir(parents=True, exist_ok=True)
    path = str(node / "worker")
    Channel.create(path).close()
    of_run = {Env.RUN_DIR: str(place / "run"), Env.ROUND: "1", Env.CHECKPOINT: "", Env.CHANNEL: path}
    of_rank = {Env.NODE: f"n{rank}", "RANK": str(rank), "WORLD_SIZE": str(RANKS), "OMP_NUM_THREADS": "1"}
    root = str(Path(__file__).parents[2])
    environ: dict[str, Any] = {**os.environ, **of_run, **of_rank, "PYTHONPATH": root}
    argv = [sys.executable, str(CHILD), str(place / "meet"), *words]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(argv, env=environ, **pipes)


def render(overheads: Overheads, options: argparse.Namespace) -> str:
    """Return the table."""
    size = (
        f"{options.steps} steps of {1000 * STEP_S:g} ms, {RANKS} ranks, {options.rank_mb} MB of state on each"
    )
    lines = [
        f"{OVERHEAD}: {size}; the slower rank",
        "",
        f"{_HEAD} CPU of the first step [ms] | of each other one [ms] |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, one in overheads.items():
        times = f"{short(1000 * one['median_s'])} | {short(1000 * one['longest_s'])}"
        work = f"{short(1000 * one['first_cpu_s'])} | {short(1000 * one['cpu_s'])}"
        lines.append(f"| {name} | {one['share']:.2%} | {times} | {one['copies']:.0f} | {work} |")
    return "\n".join(lines)
