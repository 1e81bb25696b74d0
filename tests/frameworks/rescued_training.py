"""A training of two ranks that tell their steps in files; its arguments: number of steps, directory, the step
at which rank 1 fails. If the directory has a file `held`, saves after the first one wait until it is gone;
with a file `paused` rank 0 waits before the step that stands in it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hpc_elastic.frameworks.torch import Checkpoints

EVERY = 1000  # more steps than there are
EVERY_HELD = 10


class HeldSave:
    """Saves as PyTorch does; later saves wait as on a file system that hangs.

    Args:
        sign: the file that has them wait.
    """

    def __init__(self, sign: Path) -> None:
        self._sign = sign
        self._save: Any = torch.distributed.checkpoint.save
        self._count = 0

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Save."""
        self._count += 1
        while self._count > 1 and self._sign.exists():
            time.sleep(0.05)
        return self._save(*args, **options)


def digest(*objects: Any) -> str:
    """Return a checksum of all tensors in modules and optimizers."""
    found = hashlib.sha256()
    for one in objects:
        for leaf in torch.utils._pytree.tree_leaves(one.state_dict()):
            found.update(leaf.numpy().tobytes() if isinstance(leaf, torch.Tensor) else repr(leaf).encode())
    return found.hexdigest()


def main(steps: int, place: Path, fails_at: int) -> None:
    """Train."""
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(20)
    torch.set_num_threads(1)
    net = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 7)
    model = DistributedDataParallel(net)
    for _ in range(2):  # after the first one DDP arranges its buckets anew, which changes the last bits
        model(torch.ones(8, 16)).sum().backward()
    is_held = (place / "held").exists()
    torch.distributed.checkpoint.save = HeldSave(place / "held")
    paused = place / "paused"
    paused_at = int(paused.read_text()) if paused.exists() else -1
    checkpoints = Checkpoints(every=EVERY_HELD if is_held else EVERY)
    state = {"model": model, "optimizer": optimizer, "schedule": schedule}
    with (place / f"steps-{rank}").open("a", buffering=1) as told:
        is_first = True
        for step in checkpoints.steps(steps, state):
            if is_first:
                is_first = False
                told.write(f"start {step} {os.getpid()}\nloaded {step} {digest(net, optimizer)}\n")
            inputs = torch.randn(32, 16, generator=torch.Generator().manual_seed(step * ranks + rank))
            if rank == 1 and step == fails_at:
                raise ValueError(f"step {step} cannot be made")
            while (rank, step) == (0, paused_at) and paused.exists():
                time.sleep(0.05)
            optimizer.zero_grad()
            ((model(inputs) - inputs.sum(dim=1, keepdim=True)) ** 2).mean().backward()
            optimizer.step()
            schedule.step()
            told.write(f"done {step + 1} {digest(net, optimizer)}\n")
    if rank == 0:
        weights = b"".join(tensor.numpy().tobytes() for tensor in net.state_dict().values())
        (place / "result.json").write_text(json.dumps({"weights": hashlib.sha256(weights).hexdigest()}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
