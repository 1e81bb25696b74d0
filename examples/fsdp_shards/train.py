"""FSDP with sharded checkpoints, which another number of ranks can load: two lines are hpc_elastic's."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from hpc_elastic import worker
from hpc_elastic.frameworks.torch import Checkpoints

BATCH = 48  # over all ranks, whose number has to divide it


def batch_of(step: int) -> torch.Tensor:
    """Return this rank's part of a step's batch: together all ranks see the same, however many they are."""
    x = torch.rand(BATCH, 4, generator=torch.Generator().manual_seed(step))
    return x[dist.get_rank() :: dist.get_world_size()]


def main() -> None:
    """Read the options and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--step-time", type=float, default=0.0, metavar="S", help="slow each step down")
    parser.add_argument("--out", type=Path, default=Path(worker.run_dir() or ".") / "result.json")
    parser.add_argument("--replicas", type=int, choices=[0, 1], default=0, help="copies on another node")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    torch.manual_seed(20)
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).to(device)
    fully_shard(model, mesh=init_device_mesh(device, (dist.get_world_size(),)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    state = {"model": model, "optimizer": optimizer}
    checkpoints = Checkpoints(every=options.save_every, replicas=options.replicas)
    for step in checkpoints.steps(options.steps, state):  # instead of range(options.steps)
        x = batch_of(step).to(device)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
        loss.backward()
        optimizer.step()
        time.sleep(options.step_time)
    norm = sum(parameter.full_tensor().double().square().sum() for parameter in model.parameters())
    if dist.get_rank() == 0 and not checkpoints.stopped:
        result = {"steps": options.steps, "norm": float(norm), "world_size": dist.get_world_size()}
        with worker.atomic_write(options.out) as file:
            file.write(json.dumps(result).encode())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
