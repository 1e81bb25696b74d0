"""What a user waits for after a crash: from the end of a worker to the next training step of all."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench_lib.group import Group
from bench_lib.launchers import HPC_ELASTIC, Effort, Launcher, Place, Samples, Shape

SCRIPT = Path(__file__).with_name("ddp_worker.py")
MODULES = "torch,sklearn.datasets,torch._dynamo"  # the last is loaded by a first optimizer
SETTLE_S = 2.0
# torchrun's agents else meet the stale addresses of the round before, and may hang
STORE_OF_ITS_OWN = ("env", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1")


def recovery(launcher: Launcher, effort: Effort) -> Samples:
    """One of two DDP workers is killed -> the first step of both is done [s]; CPU time of each [s]."""
    took, cpu = _recover(training(launcher, SCRIPT), effort)
    samples = {"next_step_s": took, "next_step_cpu_s": cpu}
    if launcher.name == HPC_ELASTIC.name:
        took, cpu = _recover(training(launcher, SCRIPT, ("--preload", MODULES)), effort)
        samples.update(warm_next_step_s=took, warm_next_step_cpu_s=cpu)
    return samples


def training(
    launcher: Launcher, script: Path, flags: Sequence[str] = (), words: Sequence[str] = ()
) -> Launcher:
    """Return the launcher with flags of its own, and a script that trains with words of its own."""

    def argv(shape: Shape, place: Place, index: int) -> list[str]:
        return [*launcher.argv(shape, place, index)[:-1], *flags, str(script), *words]

    return replace(launcher, argv=argv)


def _recover(launcher: Launcher, effort: Effort) -> tuple[list[float], list[float]]:
    took, cpu = [], []
    with Group(launcher, Shape(agents=1, workers=2), wrap=STORE_OF_ITS_OWN) as group:
        workers = group.wait_for_workers()
        for _ in range(effort.long_repetitions):
            time.sleep(SETTLE_S)
            died_s = time.monotonic()
            os.kill(workers[-1].pid, signal.SIGKILL)
            workers = group.wait_for_workers(after_s=died_s)
            took.append(workers[-1].started_s - died_s)
            cpu += [float(group.noted(worker)) for worker in workers]
    return took, cpu
