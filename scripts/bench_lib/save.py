"""The measure of saves: for how long each way to save the state of a training blocks its loop."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench_lib.series import short

SAVE = "save"
CHILD = Path(__file__).with_name("save_child.py")
LIMIT_S = 1800.0
COPY = "memory copy"  # that the other ways are compared with
Saves = dict[str, list[float]]  # way to save -> for how long the loop was blocked, each time [s]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this measure."""
    group = parser.add_argument_group("saves", f"--measure {SAVE}: needs torch; only by --measure")
    group.add_argument("--size", type=int, default=1000, metavar="MB", help="of the state (1000)")
    group.add_argument("--in", dest="place", type=Path, metavar="DIR", help="save below it (here)")


def measure(options: argparse.Namespace, failures: list[str]) -> Saves:
    """Save in turns in all ways; what goes wrong is added to `failures`."""
    if importlib.util.find_spec("torch") is None:
        failures.append(f"{SAVE}: torch is not installed here")
        return {}
    repetitions = 2 if options.quick else 7
    with tempfile.TemporaryDirectory(prefix="bench-save-", dir=options.place or Path.cwd()) as place:
        root = Path(__file__).parents[2]
        argv = [sys.executable, str(CHILD), place, str(options.size), str(repetitions)]
        done = subprocess.run(
            argv,
            env={**os.environ, "PYTHONPATH": str(root)},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    if done.returncode != 0:
        failures.append(f"{SAVE}: {(done.stderr.strip().splitlines() or ['no reason'])[-1]}")
        return {}
    found: Saves = json.loads(done.stdout)
    return found


def render(saves: Saves, size_mb: int) -> str:
    """Return the table: median, smallest and largest value, and the ratio to a copy in memory."""
    base = statistics.median(saves[COPY])
    lines = [f"{SAVE}: loop blocked by a save of {size_mb} MB [s]", ""]
    lines += ["| way | median (smallest - largest) | to a memory copy |", "|---|---|---|"]
    for name, samples in saves.items():
        middle = statistics.median(samples)
        spread = f"{short(min(samples))} - {short(max(samples))}"
        lines.append(f"| {name} | {short(middle)} ({spread}) | {middle / base:.2f} |")
    return "\n".join(lines)
