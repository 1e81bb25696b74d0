"""Ranks that have parameters of their own; part of what ranks do in the tests of checkpoints."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from hpc_elastic.errors import InputError
from hpc_elastic.frameworks.torch import Checkpoints


class Experts(nn.Module):
    """A layer that is the same on all ranks, and what each rank has for itself.

    Args:
        kind: a layer of other ``values``, ``shapes`` or ``names`` on each rank, or ``statistics`` alone;
            ``sent statistics``: DDP gives all ranks those of rank 0 before each forward pass.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        rank = dist.get_rank()
        torch.manual_seed(7)
        self.shared = nn.Linear(2, 2)
        torch.manual_seed(0 if kind.endswith("statistics") else rank)
        self.own = nn.ModuleDict({f"{rank}" if kind == "names" else "all": nn.Linear(2, 2)})
        if kind == "shapes":
            self.own = nn.ModuleDict({"all": nn.Linear(2, 2 + rank)})
        self.norm = nn.BatchNorm1d(2, affine=False)

    def forward(self, x: torch.Tensor) -> Any:
        """Return the sum of all layers."""
        self.norm(x * (1 + dist.get_rank()))
        return self.shared(x).sum() + sum(layer(x).sum() for layer in self.own.values())


def experts(directory: str | None, kind: str, steps: int) -> dict[str, Any]:
    """Train layers that each rank has for itself, and save them after the last step."""
    net = Experts(kind)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    outer = DistributedDataParallel(net) if kind == "sent statistics" else net
    state = {"net": outer, "optimizer": optimizer}
    checkpoints = Checkpoints(directory, every=None)

    def seen() -> list[Any]:
        states = [[(key, value.tolist()) for key, value in one.items()] for one in optimizer.state.values()]
        return [{name: value.tolist() for name, value in net.state_dict().items()}, states]

    start = checkpoints.load(state)
    loaded = seen()
    for step in range(start, start + steps):
        optimizer.zero_grad()
        outer(torch.rand(3, 2, generator=torch.Generator().manual_seed(step))).backward()
        optimizer.step()
        checkpoints.done(step + 1, state)
    if steps:
        checkpoints.save(start + steps, state)
    checkpoints.wait()
    memory = checkpoints._memory
    rescue = None if memory is None else memory.rescue
    keeps = rescue is not None and rescue.is_able and bool(rescue._channel.keeper)
    return {"start": start, "loaded": loaded, "seen": seen(), "keeps": keeps}


def local_steps(kind: str) -> list[bool]:
    """Train ranks whose parameters are equal at some steps; tell after each whether one keeps it for all.

    Args:
        kind: they are averaged after each step, and their momentum is not (``momentum``); or they are equal
            up to step 2 (``late``), and a checkpoint is saved after step 3 (``save``); or one element of a
            buffer differs alone (``buffer``), and such a checkpoint is saved (``buffer save``).
    """
    torch.manual_seed(7)
    net = nn.Linear(2, 2)
    net.register_buffer("seen", torch.zeros(100))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9 if kind == "momentum" else 0.0)
    state = {"net": net, "optimizer": optimizer}
    checkpoints = Checkpoints(every=None)
    memory, found = checkpoints._memory, list[bool]()
    assert memory is not None
    assert memory.rescue is not None
    for step in range(checkpoints.load(state), 4):
        optimizer.zero_grad()
        own = dist.get_rank() if kind == "momentum" or step >= 2 else 0
        if kind.startswith("buffer"):
            net.seen[5], own = own, 0
        (net(torch.ones(1, 2)).sum() * (1 + own)).backward()
        optimizer.step()
        with torch.no_grad():
            for one in net.parameters() if kind == "momentum" else ():
                dist.all_reduce(one)
                one.div_(2)
        checkpoints.done(step + 1, state)
        if kind.endswith("save") and step == 2:
            checkpoints.save(step + 1, state)
            checkpoints.wait()
        found.append(memory.rescue.is_able)
    return found


def cut_otherwise() -> str:
    """Return the error for a state of an optimizer that is cut into other parts than its parameter."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    net = fully_shard(nn.Linear(4, 4), mesh=mesh)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    state = {"net": net, "optimizer": optimizer}
    net(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    Checkpoints(None).load(state)
    optimizer.state[net.weight]["row"] = distribute_tensor(torch.zeros(4), mesh, [Replicate()])
    try:
        Checkpoints(None).load(state)
    except InputError as error:
        return error.message
    return ""
