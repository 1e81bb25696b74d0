"""A loop with accelerate, preempted and requeued without losing a step: two lines are hpc_elastic's."""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

from hpc_elastic import worker
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
    set_seed(20)
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = accelerator.prepare(model, optimizer)
    checkpoints = Checkpoints(every=options.save_every)
    state = {"model": model, "optimizer": optimizer}
    for step in checkpoints.steps(options.steps, state):  # instead of range(options.steps)
        x, y = (part.to(accelerator.device) for part in batch_of(step, accelerator.process_index))
        optimizer.zero_grad()
        accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
        optimizer.step()
        time.sleep(options.step_time)
    if accelerator.is_main_process and not checkpoints.stopped:
        tensors = accelerator.unwrap_model(model).state_dict().values()
        weights = b"".join(tensor.cpu().numpy().tobytes() for tensor in tensors)
        result = {"steps": options.steps, "weights": hashlib.sha256(weights).hexdigest()}
        with worker.atomic_write(options.out) as file:
            file.write(json.dumps(result).encode())
    model, optimizer = accelerator.free_memory(model, optimizer)  # before the process group that they use
    accelerator.end_training()


if __name__ == "__main__":
    main()
