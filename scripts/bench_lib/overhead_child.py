"""One rank that trains in steps of 50 ms, and prints the share of the time that `done` has taken."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from hpc_elastic.frameworks.torch import Checkpoints

STEP_S = 0.05
WIDTH = 1000  # of a layer: a million numbers, 4 MB, and as much in the optimizer
LAYER_MB = 8
MANY = 5000  # layers of three tensors


def many() -> torch.nn.Module:
    """Return a model of many tensors, the same on all ranks."""
    torch.manual_seed(0)
    layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(MANY)])
    for layer in layers:
        layer.register_buffer("count", torch.zeros(4))
    for parameter in layers.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return layers


def main(meet: str, kind: str, replicas: int, steps: int, rank_mb: int) -> None:
    """Train, and print the share of the time that `done` has taken in it."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=ranks)
    layers = max(1, rank_mb * (ranks if kind == "fsdp" else 1) // LAYER_MB)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(layers)))
    trained: torch.nn.Module = many() if kind == "many" else model
    if kind == "fsdp":
        fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
    elif kind != "many":
        trained = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(trained.parameters(), lr=1e-3, momentum=0.9)
    if kind != "many":
        trained(torch.ones(1, WIDTH)).sum().backward()
    state = {"model": trained, "optimizer": optimizer}
    checkpoints = Checkpoints(every=None, replicas=1 if replicas else 0)
    checkpoints.load(state)
    taken, worked, copies = [], list[float](), dict[int, int]()  # copies: when all ranks had them
    for step in range(steps):
        began = time.perf_counter()
        if step == 0:
            optimizer.step()
        time.sleep(max(0.0, STEP_S - (time.perf_counter() - began)))
        began, worked_before = time.perf_counter(), time.thread_time()
        checkpoints.done(step + 1, state)
        taken.append(time.perf_counter() - began)
        worked.append(time.thread_time() - worked_before)
        memory = checkpoints._memory  # noqa: SLF001 - the measure looks inside
        if memory is not None and memory.copies is not None and memory.copies.step is not None:
            copies.setdefault(memory.copies.step, step)
    dist.barrier()
    known = list(
        copies.values()
    )  # between the first copy and the last one the interval is that of their cost
    later = taken[known[0] + 1 : known[-1] + 1] if len(known) > 1 else taken[steps // 10 :]
    facts = {
        "share": sum(later) / (sum(later) + STEP_S * len(later)),
        "median_s": statistics.median(later),
        "longest_s": max(later),
        "first_cpu_s": worked[0],
        "cpu_s": statistics.median(worked[1:]),
        "copies": len(copies),
    }
    print(json.dumps(facts))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *(int(word) for word in sys.argv[3:6]))
