"""DDP whose ranks meet at a port that nobody chose before: one line is hpc_elastic's, two more save."""

from __future__ import annotations

import argparse
import json
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hpc_elastic import worker
from hpc_elastic.frameworks import ElasticLoop
from hpc_elastic.frameworks.torch import bootstrap


def batch_of(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return this rank's part of a step's batch: a pure function of step and rank."""
    x = torch.rand(8, 1, generator=torch.Generator().manual_seed(step * 1009 + dist.get_rank()))
    return x, 2 * x - 1


def kill_once(marker: Path) -> None:
    """End this rank as the kernel would, unless it has already happened."""
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Read the options and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--kill-at", type=int, default=-1, metavar="STEP", help="kill rank 0 there, once")
    parser.add_argument("--out", type=Path, default=Path(worker.run_dir() or ".") / "result.json")
    options = parser.parse_args()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo", **bootstrap())
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(20)
    model = torch.nn.Linear(1, 1).to(device)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)

    def save(path: str) -> None:
        if dist.get_rank() == 0:
            torch.save(model.state_dict(), path)
        dist.barrier()  # all ranks tell that the checkpoint is there

    def load(path: str) -> None:
        model.load_state_dict(torch.load(path, map_location=device))

    elastic = ElasticLoop(save, load, save_every=options.save_every)
    for step in elastic.steps(options.steps):
        if step == options.kill_at and dist.get_rank() == 0:
            kill_once(options.out.with_suffix(".killed"))
        x, y = (part.to(device) for part in batch_of(step))
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(ddp(x), y).backward()
        optimizer.step()
    if dist.get_rank() == 0 and not elastic.stopped:
        result = {"steps": options.steps, "weight": model.weight.item(), "bias": model.bias.item()}
        with worker.atomic_write(options.out) as file:
            file.write(json.dumps(result).encode())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
