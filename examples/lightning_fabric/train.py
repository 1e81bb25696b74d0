"""A loop with Lightning Fabric, preempted and requeued without losing a step: two lines are hpc_elastic's."""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from pathlib import Path

import lightning as L
import torch

from hpc_elastic import worker
from hpc_elastic.frameworks.lightning import trainer_shape
from hpc_elastic.frameworks.torch import Checkpoints


def batch_of(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return this rank's part of a step's batch: a pure function of step and rank."""
    x = torch.rand(8, 1, generator=torch.Generator().manual_seed(step * 1009 + rank))
    return x, 2 * x - 1


def main() -> None:
    """Read the options and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--step-time", type=float, default=0.0, metavar="S", help="slow each step down")
    parser.add_argument("--out", type=Path, default=Path(worker.run_dir() or ".") / "result.json")
    options = parser.parse_args()
    fabric = L.Fabric(accelerator="auto" if torch.cuda.is_available() else "cpu", **trainer_shape())
    fabric.launch()
    fabric.seed_everything(20, verbose=False)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = fabric.setup(model, optimizer)
    state = {"model": model, "optimizer": optimizer}
    checkpoints = Checkpoints(every=options.save_every)
    for step in checkpoints.steps(options.steps, state):  # instead of range(options.steps)
        x, y = fabric.to_device(batch_of(step, fabric.global_rank))
        optimizer.zero_grad()
        fabric.backward(torch.nn.functional.mse_loss(model(x), y))
        optimizer.step()
        time.sleep(options.step_time)
    if fabric.is_global_zero and not checkpoints.stopped:
        weights = b"".join(tensor.cpu().numpy().tobytes() for tensor in model.state_dict().values())
        result = {"steps": options.steps, "weights": hashlib.sha256(weights).hexdigest()}
        with worker.atomic_write(options.out) as file:
            file.write(json.dumps(result).encode())


if __name__ == "__main__":
    main()
