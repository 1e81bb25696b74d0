"""A training of ranks with the same data, so that its state after a step does not depend on their number.

Run as a worker with one argument, choices in JSON (see `Choices`); a rank tells its steps in ``told-RANK`` of
the working directory.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hpc_elastic.frameworks.torch import Checkpoints

BATCH = 64
PAUSE_S = 0.02
HANG_S = 60.0  # without a GPU
CYCLES = 3_000_000_000_000  # of the GPU: more than ten minutes


class Choices(NamedTuple):
    """What a training does.

    Attributes:
        steps: how many.
        backend: of the process group.
        width: of its layers; the state has 24 times its square in bytes.
        kill_at: rank 1 is killed in this step of the first round; -1 for never.
        hang: where the GPU of rank 0 then hangs: ``before`` or ``in`` the step of the optimizer; empty for
            nowhere; ``pause``: nothing is killed, and each step takes longer.
        fail: the failure of rank 1 in that step: ``assert``, ``memory``, or empty.
        runs_ahead: the program does not wait for the GPU in each step.
        every: steps between checkpoints.
    """

    steps: int = 12
    backend: str = "gloo"
    width: int = 512
    kill_at: int = -1
    hang: str = ""
    fail: str = ""
    runs_ahead: bool = False
    every: int = 1000


class Job:
    """A network and its optimizer, with values on the GPU and beside it.

    Args:
        choices: its size.
        device: where it is.
    """

    def __init__(self, choices: Choices, device: torch.device) -> None:
        torch.manual_seed(7)
        torch.use_deterministic_algorithms(mode=True)
        torch.set_num_threads(1)
        wide = choices.width
        self.device = device
        self.net = nn.Sequential(nn.Linear(16, wide), nn.BatchNorm1d(wide), nn.Linear(wide, wide)).to(device)
        self.tail = nn.Linear(wide, wide, device=device)
        self.whole = nn.Sequential(self.net, self.tail)
        self.model: Any = self.whole
        self.optimizer = torch.optim.AdamW(self.whole.parameters(), lr=0.01)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 3)

    @property
    def state(self) -> dict[str, Any]:
        """What is saved."""
        return {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule}

    def backward(self, step: int) -> Any:
        """Make the gradients of a step; return the loss."""
        inputs = torch.randn(BATCH, 16, generator=torch.Generator().manual_seed(step)).to(self.device)
        self.optimizer.zero_grad()
        loss = (self.model(inputs) ** 2).mean()
        loss.backward()
        return loss

    def change(self) -> None:
        """Make the step of the optimizer."""
        self.optimizer.step()
        self.schedule.step()

    def digest(self) -> str:
        """Return a checksum of all that a step changes."""
        sums = hashlib.sha256(f"{self.optimizer.param_groups[0]['lr']} {self.schedule.last_epoch}".encode())
        for tensor in self.whole.state_dict().values():
            sums.update(_bytes(tensor))
        for parameter in self.whole.parameters():
            state = self.optimizer.state.get(parameter, {})
            for key in sorted(state):
                sums.update(_bytes(state[key]))
        return sums.hexdigest()[:16]


def _bytes(tensor: Any) -> bytes:
    found: bytes = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return found


def device_here() -> torch.device:
    """Return the GPU of this rank; ranks share one where there are fewer."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


def digests(choices: Choices) -> list[str]:
    """Return the checksums of a training that nothing disturbs, after 0, 1, 2 ... steps."""
    job = Job(choices, device_here())
    found = [job.digest()]
    for step in range(choices.steps):
        job.backward(step)
        job.change()
        found.append(job.digest())
    return found


class Worker:
    """One rank.

    Args:
        choices: what it does.
    """

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.device = device_here()
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        if choices.backend == "nccl":  # else it refuses ranks that share a GPU
            os.environ.setdefault("NCCL_HOSTID", f"rank-{os.environ['RANK']}")
        dist.init_process_group(choices.backend)
        self.rank = dist.get_rank()
        self.job = Job(choices, self.device)
        ids = [self.device.index] if self.device.type == "cuda" else None
        if dist.get_world_size() > 1:
            self.job.model = DistributedDataParallel(self.job.whole, device_ids=ids)
        self.is_first_round = os.environ.get("HPC_ELASTIC_ROUND", "1") in {"0", "1"}
        self.told = Path(f"told-{self.rank}").open("a", buffering=1)  # noqa: SIM115 - until the end

    def tell(self, **facts: Any) -> None:
        """Write one line."""
        self.told.write(json.dumps({**facts, "at": time.monotonic()}) + "\n")

    def train(self) -> None:
        """Make all steps."""
        checkpoints = Checkpoints(every=self.choices.every)
        self.tell(pid=os.getpid())
        is_first = True
        for step in checkpoints.steps(self.choices.steps, self.job.state):
            if is_first:
                self.tell(first=step, digest=self.job.digest())
            is_first = False
            self.step(step)
            self.tell(done=step + 1, **self.seen(step))
        if not checkpoints.stopped:
            self.tell(end=self.job.digest())
        dist.destroy_process_group()

    def step(self, step: int) -> None:
        """Make one step, with the faults that are chosen for it."""
        is_now = step == self.choices.kill_at and self.is_first_round
        if is_now and self.rank == 1 and self.choices.backend == "nccl":
            self.fail()  # the other rank waits on the GPU
        loss = self.job.backward(step)
        if not self.choices.runs_ahead:
            self.tell(loss=float(loss))
        if is_now and self.rank == 1:
            self.fail()
        if is_now and self.choices.hang == "before":
            self.hang()
        self.job.change()
        if is_now and self.choices.hang == "in":
            self.hang()
        if self.choices.hang == "pause":
            time.sleep(PAUSE_S)

    def seen(self, step: int) -> dict[str, str]:
        """Return the checksum after the last steps before a fault, as far as the GPU does not hang then."""
        choices = self.choices
        does_hang = choices.hang or choices.backend == "nccl"
        is_last = step == choices.kill_at - 1 or (step == choices.kill_at and not does_hang)
        return {"digest": self.job.digest()} if is_last else {}

    def hang(self) -> None:
        """Have the GPU work for minutes, in the order of its other work."""
        self.tell(hangs=True)
        if self.device.type == "cuda":
            torch.cuda._sleep(CYCLES)  # noqa: SLF001 - PyTorch has it for tests
        else:
            time.sleep(HANG_S)

    def fail(self) -> None:
        """Do what is chosen; by default die."""
        time.sleep(1.0)
        if self.choices.fail == "assert":
            torch.zeros(2, device=self.device)[torch.tensor([5], device=self.device)].sum().item()
        elif self.choices.fail == "memory":
            torch.empty(1 << 45, dtype=torch.uint8, device=self.device)
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    Worker(Choices(**json.loads(sys.argv[1]))).train()
