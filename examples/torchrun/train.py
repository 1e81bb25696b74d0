"""Plain PyTorch training below torchrun: started again, it goes on from its newest checkpoint."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hpc_elastic import worker


def batch_of(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return this rank's part of a step's batch: a pure function of step and rank."""
    x = torch.rand(8, 4, generator=torch.Generator().manual_seed(step * 1009 + rank))
    return x, x.sum(1, keepdim=True)


def main() -> None:
    """Read the options and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--step-time", type=float, default=0.0, metavar="S", help="slow each step down")
    parser.add_argument("--out", type=Path, default=Path("out"), help="directory that all nodes see")
    options = parser.parse_args()
    dist.init_process_group("gloo")  # nccl on GPUs
    torch.manual_seed(20)
    model, start = torch.nn.Linear(4, 1, bias=False), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    newest = options.out / "newest.pt"
    if newest.exists():  # all ranks read it before any of them makes a step
        saved = torch.load(newest)
        start = saved["step"]
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    print(f"rank {dist.get_rank()} of {dist.get_world_size()}: start at step {start}", flush=True)
    ddp = DistributedDataParallel(model)
    options.out.mkdir(exist_ok=True)
    for step in range(start + 1, options.steps + 1):
        x, y = batch_of(step, dist.get_rank())
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(ddp(x), y).backward()
        optimizer.step()
        time.sleep(options.step_time)
        if step % options.save_every == 0 and dist.get_rank() == 0:
            state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            with worker.atomic_write(newest) as file:  # whole or not at all, whenever the job is ended
                torch.save(state, file)
    if dist.get_rank() == 0:
        weights = [value.hex() for value in model.weight.flatten().tolist()]
        (options.out / "result.json").write_text(json.dumps({"steps": options.steps, "weights": weights}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
