"""Checks of checkpoints of tensors on a GPU."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict_saver import async_save

from gpu_check_lib.devices import Facts
from gpu_check_lib.run import CheckError
from gpu_check_lib.training import device_here
from hpc_elastic.frameworks.torch import Checkpoints

PIECE = 4_000_000  # numbers in one tensor: 16 MB
PIECES = 62 if torch.cuda.is_available() else 4  # 1 GB
TURNS = 4
Way = Callable[[int], Callable[[], object]]  # saves, and returns what waits until all is written


def blocking(place: Path) -> Facts:
    """How long a save of 1 GB blocks the loop, in turns with other ways; the first turn makes buffers."""
    place.mkdir(parents=True)
    ways = _ways(place)
    found: dict[str, list[float]] = {name: [] for name in ways}
    whole: list[float] = []
    for turn in range(TURNS + 1):
        for name, save in ways.items():
            _synchronize()
            began = time.perf_counter()
            wait = save(turn + 1)
            found[name].append(time.perf_counter() - began)
            wait()
            if name == "Checkpoints.save":
                whole.append(time.perf_counter() - began)
            for old in place.glob("async*"):
                shutil.rmtree(old)
    facts: Facts = {
        f"{name} [s]": [round(part(samples[1:]), 4) for part in (median, min, max)]
        for name, samples in found.items()
    }
    facts["until it is durable [s]"] = round(median(whole[1:]), 2)
    facts["first Checkpoints.save [s]"] = round(found["Checkpoints.save"][0], 2)
    return facts


def _ways(place: Path) -> dict[str, Way]:
    device = device_here()
    on_gpu = device.type == "cuda"
    tensors = [nn.Parameter(torch.rand(PIECE, device=device)) for _ in range(PIECES)]
    model = nn.ParameterList(tensors)
    kept = [torch.empty(PIECE, pin_memory=on_gpu) for _ in tensors]
    checkpoints = Checkpoints(place / "ours", every=None, keep=1)

    def copy(_: int) -> Callable[[], object]:
        with torch.no_grad():
            for buffer, tensor in zip(kept, tensors, strict=True):
                buffer.copy_(tensor, non_blocking=on_gpu)
        _synchronize()
        return int

    def ours(step: int) -> Callable[[], object]:
        checkpoints.save(step, {"model": model})
        return checkpoints.wait

    def torchs(step: int) -> Callable[[], object]:
        future: Any = async_save(model.state_dict(), checkpoint_id=place / f"async-{step}")
        written: Callable[[], object] = future.result
        return written

    def plain(_: int) -> Callable[[], object]:
        torch.save(model.state_dict(), place / "state.pt")
        return int

    return {
        "copy to pinned memory": copy,
        "Checkpoints.save": ours,
        "async_save": torchs,
        "torch.save": plain,
    }


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Randomness:
    """The generators of CPU and GPUs."""

    def state_dict(self) -> dict[str, Any]:
        """Return their states."""
        gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        return {"cpu": torch.get_rng_state(), "gpus": gpus}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set their states."""
        torch.set_rng_state(state["cpu"])
        if state["gpus"]:
            torch.cuda.set_rng_state_all(state["gpus"])


class Mixed:
    """A training with mixed precision and dropout, which draws random numbers on the GPU."""

    def __init__(self) -> None:
        self.device = device_here()
        torch.manual_seed(3)
        self.net = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.Dropout(), nn.Linear(256, 1))
        self.net.to(self.device)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.01)
        self.scaler = torch.amp.GradScaler(self.device.type)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 3)
        self.state: dict[str, Any] = {
            "model": self.net,
            "optimizer": self.optimizer,
            "scaler": self.scaler,
            "schedule": self.schedule,
            "random": Randomness(),
        }

    def step(self) -> None:
        """Make one step with random data."""
        inputs = torch.randn(32, 64, device=self.device)
        kind = torch.float16 if self.device.type == "cuda" else torch.bfloat16
        with torch.autocast(self.device.type, kind):
            loss = (self.net(inputs) ** 2).mean()
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()

    def seen(self) -> list[Any]:
        """Return all values."""
        states = list(self.optimizer.state.values())
        values = [value for state in states for value in state.values()]
        tensors = [*self.net.state_dict().values(), *values, torch.rand(4, device=self.device)]
        others = [self.scaler.state_dict(), self.schedule.last_epoch, self.optimizer.param_groups[0]["lr"]]
        return [*(tensor.cpu().tolist() for tensor in tensors), *others]


def same(place: Path) -> Facts:
    """After a load weights, optimizer, scaler and generators go on as without it, bit for bit."""
    torch.use_deterministic_algorithms(mode=True)
    job = Mixed()
    checkpoints = Checkpoints(place, every=None)
    for _ in range(5):
        job.step()
    checkpoints.save(5, job.state)
    checkpoints.wait()
    for _ in range(3):
        job.step()
    right = job.seen()
    step = Checkpoints(place, every=None).load(job.state)
    for _ in range(3):
        job.step()
    if step != 5 or job.seen() != right:  # noqa: PLR2004 - of the save above
        raise CheckError(f"after the load of step {step} the training goes on otherwise")
    again = Mixed()
    Checkpoints(place, every=None).load(again.state)
    for _ in range(3):
        again.step()
    if again.seen() != right:
        raise CheckError("a new training goes on otherwise after the load")
    return {"step": step, "equal to the last bit": True}


def auto(place: Path) -> Facts:
    """With every="auto" the first save and the interval that follows from its cost."""
    from hpc_elastic.frameworks.torch import pace  # noqa: PLC0415 - its first interval is shortened here

    pace.FIRST_S = 1.0
    job = Mixed()
    checkpoints = Checkpoints(place)
    until_s = time.monotonic() + 8
    saved: list[int] = []
    step = 0
    while time.monotonic() < until_s:
        job.step()
        step += 1
        if checkpoints.due(step):
            checkpoints.save(step, job.state)
            saved.append(step)
    checkpoints.wait()
    if not saved or checkpoints.latest() is None:
        raise CheckError("nothing was saved")
    facts = {"saves": len(saved), "steps": step, "blocked [s]": round(checkpoints.blocked_s, 4)}
    return {**facts, "interval [s]": None if checkpoints.every_s is None else round(checkpoints.every_s, 1)}
