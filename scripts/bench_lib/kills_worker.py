"""The worker of the measure `kills`: digits, with a file every 100 steps, or `Checkpoints` as they are."""

import os
import sys
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEP_S = 0.05  # each step takes longer by this
SAVE_EVERY = 100  # steps
NEVER = 1 << 40
FILE = "checkpoint.pt"  # in the directory of the run, as is NOTES
NOTES = "steps"

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.set_num_threads(1)
torch.manual_seed(20)
digits = load_digits()
images = torch.tensor(digits.data / 16.0, dtype=torch.float32)
labels = torch.tensor(digits.target)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
ddp = DistributedDataParallel(model)
state = {"model": ddp, "optimizer": optimizer}


def steps() -> Iterator[int]:
    """Yield the steps that are left; save in between."""
    if sys.argv[1:] == ["ours"]:
        from hpc_elastic.frameworks.torch import Checkpoints  # noqa: PLC0415 - in one of the ways alone

        yield from Checkpoints().steps(NEVER, state)
        return
    done = 0
    if os.path.exists(FILE):
        found = torch.load(FILE)
        done = found.pop("step")
        for name, content in found.items():
            state[name].load_state_dict(content)
    for step in range(done, NEVER):
        yield step
        if rank == 0 and (step + 1) % SAVE_EVERY == 0:
            content = {name: one.state_dict() for name, one in state.items()}
            torch.save({"step": step + 1, **content}, f"{FILE}.part")
            os.replace(f"{FILE}.part", FILE)


is_first = True
with open(NOTES, "a", encoding="ascii", buffering=1) as notes:
    for step in steps():
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(images), labels).backward()
        optimizer.step()
        if rank == 0:
            notes.write(f"{time.monotonic():.4f} {os.getpid()} {step + 1}\n")
        if is_first:
            name = f"{time.monotonic():.6f}+{rank}+{dist.get_world_size()}+{os.getpid()}"
            open(os.path.join(os.environ["BENCH_STAMPS"], name), "x", encoding="ascii").close()
            is_first = False
        time.sleep(STEP_S)
