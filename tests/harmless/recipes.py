"""Programs that are put together from idioms, as a generator draws them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tests.harmless.trial import Training, Trial

OPTIMIZERS: Mapping[str, Mapping[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1},
    "Adam": {"lr": 0.02},
    "AdamW": {"lr": 0.02, "weight_decay": 0.2, "foreach": True},
    "RMSprop": {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.1},
    "NAdam": {"lr": 0.02},
    "Adagrad": {"lr": 0.05},
    "Lion": {"lr": 0.01},
    "ScheduleFree": {"lr": 0.05},
}
SCHEDULES: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "StepLR": {"step_size": 3},
    "ExponentialLR": {"gamma": 0.9},
    "CosineAnnealingLR": {"T_max": 9},
}
BODIES = ("plain", "batch norm", "tied", "queue", "dropout by step")
AVERAGES = ("none", "module", "AveragedModel")
EVALUATIONS = ("none", "data", "no_grad", "state_dict", "exchange", "noise")


class Recipe(NamedTuple):
    """A program.

    Attributes:
        optimizers: one for each part of the network.
        every: the optimizers after the first step in each step of this number alone.
        schedule: of the first one.
        body: the kind of network.
        average: of the weights.
        evaluation: how weights are exchanged for an evaluation.
        width: of the hidden layer.
        frozen_until: the step until which the first layer has no gradients.
        accumulates: batches for each step.
    """

    optimizers: tuple[str, ...]
    every: int = 1
    schedule: str = "none"
    body: str = "plain"
    average: str = "none"
    evaluation: str = "none"
    width: int = 6
    frozen_until: int = 0
    accumulates: int = 1


def make(recipe: Recipe) -> Callable[[Trial], Training]:
    """Return the function that makes the program's objects."""
    return lambda trial: _Made(recipe, trial).training()


class _Made:
    def __init__(self, recipe: Recipe, trial: Trial) -> None:
        import torch  # noqa: PLC0415 - the names above are needed without it

        self.torch, self.recipe, self.trial = torch, recipe, trial
        self.net = _body(torch, recipe)
        self.heads = torch.nn.ModuleList(torch.nn.Linear(4, 2) for _ in recipe.optimizers[1:])
        self.model = torch.nn.ModuleDict({"net": self.net, "heads": self.heads})
        parts = [self.net, *self.heads]
        self.optimizers = [
            _optimizer(torch, name, part.parameters())
            for name, part in zip(recipe.optimizers, parts, strict=True)
        ]
        self.schedule = _schedule(torch, recipe, self.optimizers[0])
        self.average = _average(torch, recipe, self.model)

    def training(self) -> Training:
        """Return the objects."""
        from tests.harmless.trial import Training  # noqa: PLC0415 - loads PyTorch

        state: dict[str, Any] = {"model": self.model}
        state["optimizers"] = {f"o{number}": one for number, one in enumerate(self.optimizers)}
        if self.schedule is not None:
            state["schedule"] = self.schedule
        if self.average is not None:
            state["average"] = self.average
        return Training(state, self.step, self.evaluate)

    def loss(self, number: int) -> Any:
        """Return that of a batch."""
        found = self.net(self.trial.batch(number))
        return found.square().mean() + sum((head(found) - 1).square().mean() for head in self.heads)

    def step(self, number: int) -> None:
        """Make a step."""
        self.torch.manual_seed(number)
        next(self.net.children()).requires_grad_(requires_grad=number >= self.recipe.frozen_until)
        due = self.optimizers if number % self.recipe.every == self.recipe.every - 1 else self.optimizers[:1]
        for one in self.optimizers:
            one.zero_grad()
        for part in range(self.recipe.accumulates):
            self.trial.backward(partial(self.loss, number * 3 + part))
        self.trial.update(lambda: [one.step() for one in due])
        if self.schedule is not None:
            self.schedule.step()
        if self.recipe.average == "AveragedModel":
            self.average.update_parameters(self.model)
        elif self.average is not None:
            with self.torch.no_grad():
                for one, other in zip(self.average.parameters(), self.model.parameters(), strict=True):
                    one.lerp_(other, 0.1)

    def evaluate(self, number: int) -> None:
        """Evaluate, with weights that are exchanged for it."""
        how = self.recipe.evaluation
        generator = self.torch.Generator().manual_seed(number)
        parameters = list(self.model.parameters())
        others = [one.detach() + 0.1 * self.torch.randn(one.shape, generator=generator) for one in parameters]
        for one in self.optimizers:
            if hasattr(one, "eval"):
                one.eval()
        kept = copy.deepcopy(self.model.state_dict())
        pointers = [one.data for one in parameters]
        self._put(how, parameters, others)
        self.trial.fault("evaluation")
        if how == "exchange":
            for one, before in zip(parameters, pointers, strict=True):
                one.data = before
        elif how != "none":
            self.model.load_state_dict(kept)
        for one in self.optimizers:
            if hasattr(one, "train"):
                one.train()

    def _put(self, how: str, parameters: list[Any], others: list[Any]) -> None:
        if how == "state_dict":
            names = [name for name, _ in self.model.named_parameters()]
            self.model.load_state_dict({**self.model.state_dict(), **dict(zip(names, others, strict=True))})
            return
        for one, other in zip(parameters, others, strict=True):
            if how == "data":
                one.data.copy_(other)
            elif how == "exchange":
                one.data = other
            elif how in {"no_grad", "noise"}:
                with self.torch.no_grad():
                    one.copy_(other) if how == "no_grad" else one.add_(other)


def _body(torch: Any, recipe: Recipe) -> Any:
    nn, width = torch.nn, recipe.width
    first, last = nn.Linear(6, width), nn.Linear(width, 4)
    if recipe.body == "batch norm":
        return nn.Sequential(first, nn.BatchNorm1d(width), last)
    if recipe.body == "dropout by step":
        return nn.Sequential(first, nn.Dropout(0.3), last)
    if recipe.body == "tied":
        middle, other = nn.Linear(width, 6, bias=False), nn.Linear(6, width, bias=False)
        middle.weight = nn.Parameter(first.weight.detach().T.clone())
        other.weight = first.weight
        return nn.Sequential(first, middle, other, last)
    if recipe.body == "queue":
        from tests.harmless.programs.modules import Queue  # noqa: PLC0415 - loads PyTorch

        size = max(width, 20)
        return nn.Sequential(nn.Linear(6, 6), Queue(size), nn.Linear(size + 5, 4))
    return nn.Sequential(first, nn.Tanh(), last)


def _optimizer(torch: Any, name: str, parameters: Any) -> Any:
    from tests.harmless import outside  # noqa: PLC0415 - loads PyTorch

    kind = getattr(torch.optim, name, None) or getattr(outside, name)
    return kind(parameters, **OPTIMIZERS[name])


def _schedule(torch: Any, recipe: Recipe, optimizer: Any) -> Any:
    if recipe.schedule == "none":
        return None
    return getattr(torch.optim.lr_scheduler, recipe.schedule)(optimizer, **SCHEDULES[recipe.schedule])


def _average(torch: Any, recipe: Recipe, model: Any) -> Any:
    if recipe.average == "none":
        return None
    if recipe.average == "AveragedModel":
        return torch.optim.swa_utils.AveragedModel(model)
    return copy.deepcopy(model).requires_grad_(requires_grad=False)
