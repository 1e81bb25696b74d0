"""A training without a framework: fits a line by SGD and survives being killed at any moment.

Every rank computes the same weights, rank 0 saves them. The result is the same to the last bit
whether or not the run was interrupted, and does not depend on the number of ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from pathlib import Path

from hpc_elastic import worker

RANK = int(os.environ.get("RANK", "0"))
LEARNING_RATE = 0.05


def train_step(weights: list[float], step: int) -> list[float]:
    """Return the weights after one SGD step; what is drawn depends on the step number alone."""
    draw = random.Random(step)  # noqa: S311 - no cryptography
    x = draw.uniform(-1.0, 1.0)
    y = 3.0 * x - 0.5 + draw.gauss(0.0, 0.1)
    slope, offset = weights
    error = slope * x + offset - y
    return [slope - LEARNING_RATE * error * x, offset - LEARNING_RATE * error]


def save(step: int, weights: list[float]) -> None:
    """Write the checkpoint of a step and tell hpc_elastic that it is on disk."""
    run_dir = worker.run_dir()
    if RANK != 0 or run_dir is None:  # without an agent there is no run that could resume
        return
    path = Path(run_dir) / f"saved/step-{step}.json"
    path.parent.mkdir(exist_ok=True)
    with worker.atomic_write(path) as file:
        file.write(json.dumps({"step": step, "weights": weights}).encode())
    worker.checkpoint_saved(step, path)


def load() -> tuple[int, list[float]]:
    """Return the step to start at and its weights."""
    saved = worker.latest_checkpoint()
    if saved is None:
        return 0, [0.0, 0.0]
    state = json.loads(Path(saved.path).read_text())
    return state["step"], state["weights"]


def crash_once(marker: Path) -> None:
    """Fail, unless this failure has already happened."""
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return
    raise RuntimeError("this crash was asked for with --crash-at")


def train(options: argparse.Namespace) -> None:
    """Train from the newest checkpoint to the end, or until a stop is requested."""
    start, weights = load()
    print(f"rank {RANK}: starting at step {start}", flush=True)
    for step in range(start, options.steps):
        if step == options.crash_at and options.crash_rank == RANK:
            crash_once(options.out.with_suffix(".crashed"))
        weights = train_step(weights, step)
        time.sleep(options.step_time)
        done = step + 1
        worker.tick(done)
        if worker.should_stop():
            save(done, weights)
            print(f"rank {RANK}: stopped at step {done}", flush=True)
            return
        if done % options.save_every == 0:
            save(done, weights)
    if RANK == 0:
        result = {"steps": options.steps, "weights": [weight.hex() for weight in weights]}
        with worker.atomic_write(options.out) as file:
            file.write(json.dumps(result).encode())
    print(f"rank {RANK}: finished at step {options.steps}", flush=True)


def main() -> None:
    """Read the options and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=20, metavar="STEPS")
    out = Path(worker.run_dir() or ".") / "result.json"
    parser.add_argument("--out", type=Path, default=out, help="default: result.json in the run directory")
    parser.add_argument("--step-time", type=float, default=0.0, metavar="S", help="slow each step down")
    parser.add_argument("--crash-at", type=int, default=-1, metavar="STEP", help="fail there, once")
    parser.add_argument("--crash-rank", type=int, default=0, metavar="RANK")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
