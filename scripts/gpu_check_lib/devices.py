"""Checks of counts, of processes that end, and of errors of CUDA."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from gpu_check_lib.machine import alive, gpus, memory_used_mb, on_gpu, query, until
from gpu_check_lib.run import TRAINING, CheckError, Run, all_of
from hpc_elastic.node.probe_rules import MEMORY, NVIDIA_SMI, Measured, judge_gpus
from hpc_elastic.processes.numa import AffinityMode, Machine, NumaOptions, cpus_of
from hpc_elastic.processes.nvidia_smi import gpus_of

Facts = dict[str, Any]
GRACE_S = 20.0
SAMPLES = 4  # of each GPU
SHOW = (
    "import os; print('seen', os.environ['WORLD_SIZE'], os.environ['LOCAL_RANK'], "
    "os.environ.get('CUDA_VISIBLE_DEVICES', 'unset'), flush=True)"
)


def training(place: Path, flags: list[str], **choices: Any) -> Run:
    """Start a run of `gpu_check_lib.training`."""
    return Run(place, flags, [str(TRAINING), json.dumps(choices)])


def counts(place: Path) -> Facts:
    """Workers are counted by GPUs, each sees its own, and the driver's words are understood."""
    every = ["--nproc-per-node", "gpu"]
    known, here = len(gpus()), [address for address, _ in Machine().gpus()]
    return all_of(
        {
            "gpus": lambda: [*gpus(), *here],
            "gpu": lambda: _seen(place / "gpu", known, every),
            "auto": lambda: _seen(place / "auto", known, ["--nproc-per-node", "auto"]),
            "own": lambda: _seen(place / "own", known, [*every, "--virtual-local-rank"]),
            "chosen": lambda: _seen(place / "chosen", 1, every, {"CUDA_VISIBLE_DEVICES": "0"}),
            "near": lambda: _seen(place / "near", known, [*every, "--numa-binding", "node"]),
            "CPUs near GPU 0": lambda: len(cpus_of(0, NumaOptions(AffinityMode.NODE))),
            "health": lambda: _health(known),
            "doctor": lambda: _doctor(place),
        }
    )


def _seen(place: Path, count: int, flags: list[str], environ: dict[str, str] | None = None) -> list[str]:
    """Return world size, local rank and CUDA_VISIBLE_DEVICES of all workers.

    Raises:
        CheckError: there are more or fewer.
    """
    with Run(place, flags, ["--no-python", sys.executable, "-c", SHOW], environ) as run:
        code, log = run.end(), run.output()
    seen = sorted({line.split("seen ")[1] for line in log.splitlines() if "seen " in line})
    if code or [line.split()[0] for line in seen] != [str(count)] * count:
        raise CheckError(f"{count} workers are right, not {seen}, exit code {code}: {log[-500:]}")
    return seen


def _health(known: int) -> str:
    """Return what the driver says to the health check.

    Raises:
        CheckError: the check finds defects.
    """
    words = "\n".join(query(NVIDIA_SMI[1].removeprefix("--query-")))
    found = judge_gpus(0, words, Measured(workers=1, gpus_promised=known))
    if found:
        raise CheckError(f"{[one.text for one in found]}: {words}")
    memory = "\n".join(query(MEMORY[1].removeprefix("--query-")))
    if len(gpus_of(memory, 3)) < known:
        raise CheckError(f"the memory of {known} GPUs in use is not told: {memory}")
    return f"{words}; {memory}"


def _doctor(place: Path) -> str:
    argv = [sys.executable, "-m", "hpc_elastic", "doctor", str(place / "runs")]
    env = {**os.environ, "COLUMNS": "200"}
    said = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, env=env).stdout
    line = next((line.strip() for line in said.splitlines() if "GPUs" in line), "")
    if not line:
        raise CheckError(f"doctor does not name the GPUs: {said[-1000:]}")
    return line


def ends(place: Path) -> Facts:
    """SIGTERM and SIGKILL of the agent leave no process on the GPU."""
    facts: Facts = {}
    before = on_gpu()
    for name, number in (("SIGTERM", signal.SIGTERM), ("SIGKILL", signal.SIGKILL)):
        flags = ["--nproc-per-node", "2", "--preload", "torch"]
        with training(place / name, flags, steps=100_000, hang="pause", width=1024) as run:
            for rank in (0, 1):
                run.wait_for(10, "done", rank)
            pids = run.pids()
            facts[f"{name}: on the GPU before"] = len(on_gpu() - before)
            os.kill(run.agent.pid, number)
            took_s = until(lambda pids=pids: not alive(pids) and not on_gpu() - before, GRACE_S)  # type: ignore[misc]
            if took_s is None:
                raise CheckError(f"{GRACE_S:g} s after {name}: {alive(pids)} live, on the GPU {on_gpu()}")
            facts[f"{name}: all gone after [s]"] = round(took_s, 2)
            facts[f"{name}: exit code"] = run.end()
    facts["memory in use afterwards [MB]"] = memory_used_mb()
    return facts


def errors(place: Path) -> Facts:
    """An error of CUDA in one rank is the cause that is named, not its consequence in another."""
    out_of_memory = ("OutOfMemory", "allocate memory")
    return all_of(
        {
            "assert": lambda: _error(place, "assert", ["-r", "3"], ("device-side assert", "IndexError")),
            "memory": lambda: _error(place, "memory", ["--run-path"], out_of_memory),
        }
    )


def _error(place: Path, name: str, flags: list[str], words: tuple[str, ...]) -> list[str]:
    """Return the lines that name the cause.

    Raises:
        CheckError: there is none, or it is another rank's.
    """
    flags = ["--nproc-per-node", "2", *flags]
    with training(place / name, flags, steps=6, kill_at=2, fail=name) as run:
        code, said = run.end(), run.explained()
    (place / f"explain-{name}.txt").write_text(said)
    lines = [" ".join(part.split()) for part in said.split(". ") if any(word in part for word in words)]
    if not code or not lines or "rank 1" not in lines[0]:
        raise CheckError(f"explain does not name rank 1 and one of {words}: {said[:1500]}")
    return lines


def sampled(place: Path) -> Facts:
    """The agent's samples tell the use and the memory of each GPU, as the driver does."""
    flags = ["--nproc-per-node", "2", "--preload", "torch", "--sample-gpus", "1"]
    with training(place / "first", flags, steps=100_000, width=2048) as run:
        for rank in (0, 1):
            run.wait_for(10, "done", rank)
        found = until(lambda: _samples(run) >= SAMPLES, GRACE_S)
        held = memory_used_mb()
        os.kill(run.agent.pid, signal.SIGTERM)
        run.end()
        if found is None:
            raise CheckError(f"{_samples(run)} samples after {GRACE_S:g} s: {run.log()}")
        told = run.command("status", "--json")
    told_gpus = json.loads(told)["account"]["gpus"]
    sizes = [int(line) for line in query("gpu=memory.total")]
    if [gpu["limit"] >> 20 for gpu in told_gpus] != sizes:
        raise CheckError(f"the driver tells {sizes} MB of memory: {told_gpus}")
    if not all(gpu["busy"] and gpu["peak"] for gpu in told_gpus):
        raise CheckError(f"a GPU is not used: {told_gpus}")
    return {"gpus": told_gpus, "in use at the end, as the driver tells [MB]": held}


def _samples(run: Run) -> int:
    """Return how many samples each GPU has at least."""
    files = list((run.run_dir / "gpus").glob("*.json"))
    return min((gpu["samples"] for file in files for gpu in json.loads(file.read_text())["gpus"]), default=0)


def stop(place: Path) -> Facts:
    """A stop saves the state on the GPU, and the next start goes on from it."""
    flags = ["--nproc-per-node", "2", "--preload", "torch,torch._dynamo"]
    choices = {"steps": 100_000, "hang": "pause", "width": 1024}
    with training(place / "first", flags, **choices) as run:
        run.wait_for(5, "done", 0)
        run.wait_for(5, "done", 1)
        began = time.monotonic()
        os.kill(run.agent.pid, signal.SIGTERM)
        code = run.end()
        took_s, last = time.monotonic() - began, run.told(0)[-1].get("done")
    again = [*flags, "--run-dir", str(run.run_dir)]
    with training(place / "again", again, **choices) as run:
        first = run.wait_for(1, "first", 0)[0]["first"]
    if first != last:
        raise CheckError(f"the next start begins at step {first}, and the last one was {last}")
    return {"exit code": code, "save and end [s]": round(took_s, 2), "step": first}
