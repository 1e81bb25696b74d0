"""Programs of several ranks: data-parallel, sharded, with parameters of single ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tests.harmless.programs import program
from tests.harmless.trial import Training, Trial

OPTIM = torch.optim


@program("several ranks", ranks=2)
def ddp(trial: Trial) -> Training:
    """`DistributedDataParallel`."""
    net = nn.parallel.DistributedDataParallel(trial.net())
    for _ in range(2):  # after the first one DDP arranges its buckets anew, which changes the last bits
        net(torch.ones(8, 6)).sum().backward()
    optimizer = OPTIM.AdamW(net.parameters(), lr=0.02)

    def step(number: int) -> None:
        optimizer.zero_grad()
        trial.backward(lambda: net(trial.batch(number)).square().mean())
        trial.update(optimizer.step)

    return Training({"net": net, "optimizer": optimizer}, step)


@program("several ranks", ranks=2)
def ddp_counters(trial: Trial) -> Training:
    """DDP with numbers of the program's own in the state."""
    net = nn.parallel.DistributedDataParallel(trial.net())
    for _ in range(2):
        net(torch.ones(8, 6)).sum().backward()
    optimizer = OPTIM.SGD(net.parameters(), lr=0.1, momentum=0.9)
    seen = {"samples": 0}

    def step(number: int) -> None:
        seen["samples"] += 8 + trial.rank
        optimizer.zero_grad()
        trial.backward(lambda: (1 + 0.01 * seen["samples"]) * net(trial.batch(number)).square().mean())
        trial.update(optimizer.step)

    return Training({"net": net, "optimizer": optimizer, "seen": seen}, step, None, [seen])


@program("several ranks", ranks=2, is_copied=True)
def experts_by_rank(trial: Trial) -> Training:
    """MoE: each rank has an expert of its own under one name, and a shared head."""
    shared = trial.net(out=6)
    torch.manual_seed(100 + trial.rank)
    expert = nn.Linear(6, 2)
    of_shared, of_expert = OPTIM.Adam(shared.parameters(), lr=0.02), OPTIM.Adam(expert.parameters(), lr=0.02)

    def step(number: int) -> None:
        of_shared.zero_grad()
        of_expert.zero_grad()
        trial.backward(lambda: expert(shared(trial.batch(number))).square().mean())
        trial.reduce([shared.parameters()])
        trial.update(of_shared.step)
        of_expert.step()
        dist.barrier()

    state = {"shared": shared, "expert": expert, "of_shared": of_shared, "of_expert": of_expert}
    return Training(state, step)


@program("several ranks", ranks=2, is_copied=True)
def stages_by_rank(trial: Trial) -> Training:
    """A pipeline: the stages have other shapes under one name."""
    stage = nn.Linear(6, 3 + trial.rank)
    optimizer = OPTIM.SGD(stage.parameters(), lr=0.1, momentum=0.9)

    def step(number: int) -> None:
        optimizer.zero_grad()
        trial.backward(lambda: stage(trial.batch(number)).square().mean())
        trial.update(optimizer.step)
        dist.barrier()

    return Training({"stage": stage, "optimizer": optimizer}, step)


def _sharded(trial: Trial, mesh: Any) -> Training:
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - of these programs alone

    net = trial.net(8)
    for layer in (net[0], net[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = OPTIM.AdamW(net.parameters(), lr=0.02)

    def step(number: int) -> None:
        optimizer.zero_grad()
        trial.backward(lambda: net(trial.batch(number)).square().mean())
        trial.update(optimizer.step)

    return Training({"net": net, "optimizer": optimizer}, step)


@program("several ranks", ranks=2, is_copied=True)
def fsdp2(trial: Trial) -> Training:
    """FSDP2 over two ranks."""
    return _sharded(trial, dist.device_mesh.init_device_mesh("cpu", (2,)))


@program("several ranks", ranks=4, is_copied=True)
def hsdp(trial: Trial) -> Training:
    """HSDP: two replicas, each of two shards."""
    mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    return _sharded(trial, mesh)


@program("several ranks", ranks=2)
def zero(trial: Trial) -> Training:
    """`ZeroRedundancyOptimizer`: each rank has the state of its part."""
    from torch.distributed.optim import ZeroRedundancyOptimizer  # noqa: PLC0415 - of this program alone

    net = trial.net()
    optimizer = ZeroRedundancyOptimizer(net.parameters(), OPTIM.Adam, lr=0.02)

    def step(number: int) -> None:
        trial.descend(optimizer, lambda: net(trial.batch(number)).square().mean())

    return Training({"net": net, "optimizer": optimizer}, step)


@program("several ranks", ranks=2, is_copied=True)
def local_sgd(trial: Trial) -> Training:
    """Local SGD: ranks have parameters of their own between averages over all every fourth step."""
    net = trial.net()
    optimizer = OPTIM.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def step(number: int) -> None:
        optimizer.zero_grad()
        trial.backward(lambda: net(trial.batch(number)).square().mean())
        trial.update(optimizer.step)
        if number % 4 == 3:
            with torch.no_grad():
                for one in net.parameters():
                    dist.all_reduce(one)
                    one.div_(trial.ranks)
        else:
            dist.barrier()

    return Training({"net": net, "optimizer": optimizer}, step)


@program("several ranks", ranks=2)
def sync_batch_stats(trial: Trial) -> Training:
    """DDP with batch norms whose statistics are broadcast."""
    net = nn.parallel.DistributedDataParallel(
        nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)), broadcast_buffers=True
    )
    for _ in range(2):
        net(trial.batch(99)).sum().backward()
    optimizer = OPTIM.AdamW(net.parameters(), lr=0.02)

    def step(number: int) -> None:
        optimizer.zero_grad()
        trial.backward(lambda: net(trial.batch(number)).square().mean())
        trial.update(optimizer.step)

    return Training({"net": net, "optimizer": optimizer}, step)
