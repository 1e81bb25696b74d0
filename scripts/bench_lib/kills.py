"""What is left of the time of a training that loses a worker every 20 seconds."""

from __future__ import annotations

import os
import random
import signal
import statistics
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from bench_lib.group import Group, is_alive
from bench_lib.launchers import HPC_ELASTIC, Effort, Launcher, Samples, Shape
from bench_lib.recovery import MODULES, STORE_OF_ITS_OWN, training

SCRIPT = Path(__file__).with_name("kills_worker.py")
NOTES = "steps"  # the name that the worker gives them
EVERY_S = 20.0
JITTER_S = 2.5  # half the time from one file to the next, so that kills come at all places between


class StepNote(NamedTuple):
    """A step that is done: when (monotonic [s]), in which process, and its number."""

    at: float
    pid: int
    step: int


def kills(launcher: Launcher, effort: Effort) -> Samples:
    """One of two DDP workers is killed every 20 s -> the share of the time that led to no step.

    Ours also with preloaded modules, and with checkpoints that keep the state of the survivor.
    """
    samples = {"kills_lost_share": [_lost(training(launcher, SCRIPT), effort)]}
    if launcher.name == HPC_ELASTIC.name:
        flags = ("--preload", MODULES)
        warm = training(launcher, SCRIPT, flags)
        samples["kills_warm_lost_share"] = [_lost(warm, effort)]
        kept = training(launcher, SCRIPT, ("--preload", f"{MODULES},hpc_elastic.frameworks.torch"), ("ours",))
        samples["kills_rescue_lost_share"] = [_lost(kept, effort)]
    return samples


def _lost(launcher: Launcher, effort: Effort) -> float:
    draw = random.Random(20)  # noqa: S311 - repeatable, not secret
    with Group(launcher, Shape(agents=1, workers=2), wrap=STORE_OF_ITS_OWN) as group:
        group.wait_for_workers()
        began_s = time.monotonic()
        for number in range(1, effort.repetitions):
            _sleep_until(began_s + number * EVERY_S + draw.uniform(-JITTER_S, JITTER_S))
            alive = [stamp for stamp in group.stamps() if is_alive(stamp.pid)]
            if alive:
                os.kill(alive[number % len(alive)].pid, signal.SIGKILL)
        _sleep_until(began_s + effort.repetitions * EVERY_S)
        text = (group.folder / NOTES).read_text(encoding="ascii")
    lines = (line.split() for line in text.splitlines())
    notes = [StepNote(float(at), int(pid), int(step)) for at, pid, step in lines]
    return lost_share(notes, began_s + effort.repetitions * EVERY_S)


def lost_share(notes: Sequence[StepNote], ended_s: float) -> float:
    """Return the share of the time since the first step that did not lead to a step which still counts.

    Args:
        notes: of the first rank, in order.
        ended_s: when no more was counted (monotonic) [s].
    """
    first, last = notes[0], notes[-1]
    step_s = statistics.median(two.at - one.at for one, two in pairwise(notes) if one.pid == two.pid)
    return 1 - (last.step - first.step) * step_s / (ended_s - first.at)


def _sleep_until(at: float) -> None:
    time.sleep(max(0.0, at - time.monotonic()))
