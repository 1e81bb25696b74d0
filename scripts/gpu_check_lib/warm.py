"""Checks of workers that are forked from a process that has imported PyTorch."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from statistics import median

import psutil

from gpu_check_lib.devices import Facts, training
from gpu_check_lib.machine import devices_of, gpus, on_gpu, until
from gpu_check_lib.run import START_S, CheckError, Run

KILLS = 3
MODULES = "torch,torch._dynamo"
OPENS = """
import torch
if torch.cuda.is_available():
    torch.cuda.init()
else:
    file = open('/dev/full', 'w')
"""


def next_step(place: Path) -> Facts:
    """A worker is killed -> its next step on the GPU, with and without preloading."""
    facts: Facts = {}
    for name, more in (("cold", []), ("warm", ["--preload", MODULES])):
        took: list[float] = []
        flags = ["--nproc-per-node", "1", "--max-restarts", str(KILLS), *more]
        with training(place / name, flags, steps=100_000, hang="pause") as run:
            for count in range(1, KILLS + 1):
                pid = run.wait_for(count, "pid")[-1]["pid"]
                done = len([one for one in run.told() if "done" in one])
                run.wait_for(done + 20, "done")
                if more:
                    facts.update(_preloader(run, pid))
                died = time.monotonic()
                os.kill(pid, signal.SIGKILL)
                took.append(_next_done(run, count + 1) - died)
        facts[f"{name}: next step after [s]"] = [round(one, 2) for one in took]
        facts[f"{name}: median [s]"] = round(median(took), 2)
    return facts


def _next_done(run: Run, start: int) -> float:
    """Return when the first step of a start was done [s]."""
    run.wait_for(start, "pid")

    def at() -> float | None:
        told = run.told()
        places = [index for index, one in enumerate(told) if "pid" in one]
        return next((one["at"] for one in told[places[start - 1] :] if "done" in one), None)

    if until(at, START_S) is None:
        raise CheckError(f"no step of start {start} within {START_S:g} s: {run.log()}")
    found = at()
    assert found is not None  # noqa: S101 - it was there
    return found


def _preloader(run: Run, worker: int) -> Facts:
    """Return that the process which is forked has nothing to do with the GPU, and its worker has.

    Raises:
        CheckError: it has.
    """
    found = [
        child.pid
        for child in psutil.Process(run.agent.pid).children()
        if child.pid != worker and "torch" in " ".join(child.cmdline())
    ]
    if not found:
        raise CheckError(f"no process has preloaded: {run.log()}")
    for pid in found:
        if devices_of(pid) or pid in on_gpu():
            raise CheckError(f"the process that has preloaded is on the GPU: {devices_of(pid)}")
    if gpus() and not devices_of(worker):
        raise CheckError("the worker is not on the GPU")
    return {"the worker has open": devices_of(worker)[:3], "the driver lists it": worker in on_gpu()}


def refused(place: Path) -> Facts:
    """A module that uses CUDA as it is imported is not preloaded, and named with the reason."""
    modules = place / "modules"
    modules.mkdir(parents=True)
    (modules / "opens_cuda.py").write_text(OPENS)
    flags = ["--nproc-per-node", "1", "--preload", "torch,opens_cuda"]
    path = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = f"{modules}{os.pathsep}{path}"
    with training(place / "run", flags, steps=5) as run:
        code = run.end()
        line = next((line for line in run.log(1 << 20).splitlines() if "opens_cuda" in line), "")
    if code or not line:
        raise CheckError(f"exit code {code}, and no line names the module: {run.log()}")
    return {"exit code": code, "said": line.strip()}
