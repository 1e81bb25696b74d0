"""The worker of the measure `recovery`: examples/digits_ddp, which notes when its first step is done."""

import os
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hpc_elastic import worker

STEP_S = 0.05  # each step takes longer by this

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.data / 16.0, dtype=torch.float32)
labels = torch.tensor(digits.target)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
ddp = DistributedDataParallel(model)
step = 0
while True:
    optimizer.zero_grad()
    nn.functional.cross_entropy(ddp(images), labels).backward()
    optimizer.step()
    step += 1
    worker.tick(step)
    if step == 1:
        name = f"{time.monotonic():.6f}+{rank}+{dist.get_world_size()}+{os.getpid()}"
        place = os.path.join(os.environ["BENCH_STAMPS"], name)
        with open(f"{place}.cpu", "w", encoding="ascii") as file:
            file.write(f"{time.process_time()}")
        os.rename(f"{place}.cpu", place)
    time.sleep(STEP_S)
