"""One run of a small program: its data, the faults that are put into it, and the digest of its end.

The data of a step is a function of the step and the rank alone. So every right resume, however old the state
is that it goes on from, ends with the same bits, and a wrong one does not.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from tests.harmless.table import ANY_STEP, MARK, Fault

STEPS = 18
SAVE_EVERY = 4
EVALUATE_EVERY = 3


class Training(NamedTuple):
    """The objects of a program, and what it does with them.

    Attributes:
        state: that `Checkpoints` gets.
        step: makes one step, counted from 0.
        evaluate: called in the loop's body every third step, before the step and after another one.
        more: objects outside the state, for the digest.
    """

    state: dict[str, Any]
    step: Callable[[int], object]
    evaluate: Callable[[int], object] | None = None
    more: Sequence[Any] = ()


class Pace(NamedTuple):
    """The steps of a run.

    Attributes:
        steps: how many.
        pause_s: before each [s].
    """

    steps: int = STEPS
    pause_s: float = 0.0


class PlannedError(Exception):
    """A fault that was planned."""


class Trial:
    """What a program gets: its rank, its data, and the places at which faults may happen.

    Args:
        place: a directory of the run.
        faults: in the order in which they happen.
        checkpoints: makes the `Checkpoints`; None: the program runs without.
        pace: its steps.
    """

    def __init__(
        self,
        place: Path,
        faults: Sequence[Fault] = (),
        checkpoints: Callable[[], Any] | None = None,
        pace: Pace | None = None,
    ) -> None:
        self.place, self.faults = place, faults
        self.pace = pace or Pace()
        self.rank, self.ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.round = int(os.environ.get("HPC_ELASTIC_ROUND") or 1)
        self.checkpoints = checkpoints
        self.step = -1
        self.first: int | None = None  # step of this process
        self._evaluation = "evaluation"  # the one that is under way
        torch.set_num_threads(1)
        torch.manual_seed(20)
        random.seed(20)

    def tell(self, **facts: Any) -> None:
        """Note what has happened."""
        with (self.place / f"events-{self.rank}.jsonl").open("a") as file:
            file.write(json.dumps({"round": self.round, **facts}) + "\n")
        if (
            facts.keys() & {"begin", "fault"} and self.rank == self.ranks - 1
        ):  # so that the log shows what came between them
            os.write(2, f"{MARK}{json.dumps(facts)}\n".encode())

    def begins(self, step: int) -> None:
        """Take note that a step begins."""
        self.step = step
        if self.first is None:
            self.first = step
            self.tell(begin=step)
        if self.pace.pause_s:
            time.sleep(self.pace.pause_s)

    # Data and steps

    def net(self, width: int = 6, out: int = 4) -> Any:
        """Return a small network."""
        nn = torch.nn
        return nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, out))

    def batch(self, step: int, *shape: int) -> Any:
        """Return the data of a step on this rank."""
        generator = torch.Generator().manual_seed(step * 1009 + self.rank)
        return torch.randn(*(shape or (8, 6)), generator=generator)

    def descend(
        self, optimizer: Any, loss_of: Callable[[], Any], *, update: Callable[[], Any] | None = None
    ) -> None:
        """Make one step of an optimizer, with all places at which a fault may happen."""
        optimizer.zero_grad()
        self.backward(loss_of)
        self.reduce(group["params"] for group in optimizer.param_groups)
        self.update(update or optimizer.step)

    def backward(self, loss_of: Callable[[], Any]) -> None:
        """Compute gradients."""
        loss = loss_of()
        self.fault("forward")
        loss.backward()
        self.fault("backward")

    def update(self, step: Callable[[], Any]) -> None:
        """Have an optimizer make its step."""
        with self.torn():
            step()

    def evaluate(self, training: Training, phase: str) -> None:
        """Have a program evaluate: the phase is that of a fault in it."""
        self._evaluation = phase
        if training.evaluate is None:
            self.fault("evaluation")
        else:
            training.evaluate(self.step)

    def reduce(self, groups: Iterable[Iterable[Any]]) -> None:
        """Average gradients over the ranks."""
        if self.ranks > 1:
            for parameter in (one for group in groups for one in group):
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= self.ranks

    # Faults

    def _due(self, phase: str) -> Fault | None:
        """Return the fault that is to happen now, and take note that it does."""
        if self.rank != self.ranks - 1:
            return None
        for number, fault in enumerate(self.faults):
            mark = self.place / f"fault-{number}"
            if fault.phase not in ANY_STEP and fault.step < self.step:
                mark.touch()  # the program has no place for it
            if mark.exists():
                continue
            if fault.phase == phase and (phase in ANY_STEP or fault.step == self.step):
                mark.touch()
                self.tell(fault=phase, done=self.step, kill=fault.is_kill)
                return fault
            if fault.phase != "failed save":
                return None  # the ones after it wait
        return None

    def fault(self, phase: str) -> None:
        """Fail here, if that is planned."""
        fault = self._due(self._evaluation if phase == "evaluation" else phase)
        if phase == "forward" and fault is None and self.step == self.first and self.round > 1:
            fault = self._due("again")
        if fault is None:
            return
        if fault.is_kill:
            os.kill(os.getpid(), signal.SIGKILL)
        raise PlannedError(f"a fault in {phase} of step {self.step}")

    @contextmanager
    def torn(self) -> Iterator[None]:
        """Fail in the middle of what is done in this context, if that is planned."""
        fault = self._due("step")
        if fault is None:
            yield
            return
        with _Torn(fault, self.step):
            yield
        raise PlannedError(f"a fault right after the optimizer's step {self.step}")

    def hold_saves(self) -> None:
        """Have faults happen in saves."""
        save: Any = torch.distributed.checkpoint.save
        count = 0

        def saved(*args: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if (count > 1 or self.round > 1) and self._due("failed save"):
                options["storage_writer"].write_data = _full_disk  # between the calls that all ranks make
            found = save(*args, **options)
            if (count > 1 or self.round > 1) and self._due("save"):
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        torch.distributed.checkpoint.save = saved


def _full_disk(*_: Any) -> None:
    raise OSError(28, "No space left on device")


class Troubled:
    """An object of the state whose load may fail."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial

    def state_dict(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Fail if that is planned."""
        self._trial.fault("load")


class _Torn(TorchDispatchMode):
    """Ends a step of an optimizer at the first operation after a parameter has changed."""

    def __init__(self, fault: Fault, step: int) -> None:
        super().__init__()
        self._fault, self._step, self._has_changed = fault, step, False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._has_changed:  # not in that operation itself: its version would not be counted
            if self._fault.is_kill:
                os.kill(os.getpid(), signal.SIGKILL)
            raise PlannedError(f"a fault inside the optimizer's step {self._step}")
        first = args[0] if args else None
        changed = first[0] if isinstance(first, list | tuple) and first else first
        self._has_changed = function._schema.is_mutable and isinstance(changed, torch.nn.Parameter)
        return function(*args, **(kwargs or {}))


# The end


def digest(*objects: Any) -> str:
    """Return a checksum of all tensors and numbers in objects."""
    found = hashlib.sha256()
    for one in objects:
        for leaf in _leaves(one):
            found.update(_as_bytes(leaf))
    return found.hexdigest()[:16]


def _as_bytes(leaf: Any) -> bytes:
    if not isinstance(leaf, torch.Tensor):
        return repr(leaf).encode()
    whole = leaf.full_tensor() if hasattr(leaf, "full_tensor") else leaf
    whole = whole.detach()
    if whole.is_sparse or whole.layout is not torch.strided:
        whole = whole.to_dense()
    content: bytes = whole.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return content


def _leaves(one: Any) -> Iterator[Any]:
    """Yield tensors and numbers, in an order that does not depend on how an object has come to be."""
    if isinstance(one, torch.Tensor | int | float | str | None):
        yield one
        return
    for part in _parts(one):
        yield from _leaves(part)


def _parts(one: Any) -> Iterable[Any]:
    if isinstance(one, torch.nn.Module):
        return [
            *(parameter for _, parameter in one.named_parameters()),
            *(each for _, each in one.named_buffers()),
        ]
    if hasattr(one, "param_groups") and hasattr(one, "state"):
        parameters = [parameter for group in one.param_groups for parameter in group["params"]]
        values = [
            {key: value for key, value in group.items() if key != "params"} for group in one.param_groups
        ]
        return [values, [one.state.get(parameter, {}) for parameter in parameters]]
    if isinstance(one, dict):
        return [one[key] for key in sorted(one, key=str)]
    if isinstance(one, list | tuple):
        return one
    return [one.state_dict()] if hasattr(one, "state_dict") else []


def random_digest() -> str:
    """Return a checksum of the states of random numbers."""
    return digest(torch.get_rng_state(), repr(random.getstate()))


def train(trial: Trial, make: Callable[[Trial], Training]) -> None:
    """Run a program from where it is to its end."""
    training = make(trial)
    state, names = training.state, list(training.state)
    steps: Iterable[int] = range(trial.pace.steps)
    if trial.checkpoints is not None:
        from hpc_elastic.frameworks.torch import Replicated  # noqa: PLC0415 - a bare program knows nothing of it

        trial.hold_saves()
        state["trouble"] = Replicated(Troubled(trial))
        steps = trial.checkpoints().steps(trial.pace.steps, state)
    for step in steps:
        trial.begins(step)
        if step % EVALUATE_EVERY == 0:
            trial.evaluate(training, "evaluation first")
        training.step(step)
        if step % EVALUATE_EVERY == EVALUATE_EVERY - 1:
            trial.evaluate(training, "evaluation")
        trial.fault("between")
    ends = [state[name] for name in names]
    trial.tell(end=digest(*ends, *training.more), random=random_digest())
