"""Averaged weights, weights that are swapped or merged for an evaluation, and their ways back."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from tests.harmless.programs import program
from tests.harmless.trial import Training, Trial

OPTIM = torch.optim


def _objects(trial: Trial, width: int = 6) -> tuple[Any, Any, Any]:
    net = trial.net(width)
    ema = copy.deepcopy(net).requires_grad_(requires_grad=False)
    return net, ema, OPTIM.Adam(net.parameters(), lr=0.02)


def _follow(ema: Any, net: Any) -> None:
    with torch.no_grad():
        for one, other in zip(ema.parameters(), net.parameters(), strict=True):
            one.lerp_(other, 0.1)


def _ema(trial: Trial, evaluate_with: Any, width: int = 6) -> Training:
    net, ema, optimizer = _objects(trial, width)

    def step(number: int) -> None:
        trial.descend(optimizer, lambda: net(trial.batch(number)).square().mean())
        _follow(ema, net)

    def evaluate(number: int) -> None:
        evaluate_with(net, ema)

    return Training({"net": net, "ema": ema, "optimizer": optimizer}, step, evaluate)


@program("averaged weights")
def ema_data(trial: Trial) -> Training:
    """EMA copied in and out with `p.data.copy_`, as by torch_ema."""

    def evaluate(net: Any, ema: Any) -> None:
        kept = [one.detach().clone() for one in net.parameters()]
        for one, other in zip(net.parameters(), ema.parameters(), strict=True):
            one.data.copy_(other.data)
        trial.fault("evaluation")
        for one, before in zip(net.parameters(), kept, strict=True):
            one.data.copy_(before)

    return _ema(trial, evaluate)


@program("averaged weights")
def ema_data_large(trial: Trial) -> Training:
    """EMA copied in and out with `p.data.copy_`, for tensors over 64 kB."""

    def evaluate(net: Any, ema: Any) -> None:
        kept = [one.detach().clone() for one in net.parameters()]
        for one, other in zip(net.parameters(), ema.parameters(), strict=True):
            one.data.copy_(other.data)
        trial.fault("evaluation")
        for one, before in zip(net.parameters(), kept, strict=True):
            one.data.copy_(before)

    return _ema(trial, evaluate, 4000)


@program("averaged weights")
def ema_no_grad(trial: Trial) -> Training:
    """EMA copied in and out with `copy_` below `no_grad`, as by diffusers."""

    def evaluate(net: Any, ema: Any) -> None:
        with torch.no_grad():
            kept = [one.clone() for one in net.parameters()]
            for one, other in zip(net.parameters(), ema.parameters(), strict=True):
                one.copy_(other)
            trial.fault("evaluation")
            for one, before in zip(net.parameters(), kept, strict=True):
                one.copy_(before)

    return _ema(trial, evaluate)


@program("averaged weights")
def ema_state_dict(trial: Trial) -> Training:
    """EMA swapped in with `load_state_dict`."""

    def evaluate(net: Any, ema: Any) -> None:
        kept = copy.deepcopy(net.state_dict())
        net.load_state_dict(ema.state_dict())
        trial.fault("evaluation")
        net.load_state_dict(kept)

    return _ema(trial, evaluate)


@program("averaged weights")
def ema_pointers(trial: Trial) -> Training:
    """EMA swapped in by exchanging `p.data`."""

    def evaluate(net: Any, ema: Any) -> None:
        def exchange() -> None:
            for one, other in zip(net.parameters(), ema.parameters(), strict=True):
                one.data, other.data = other.data, one.data

        exchange()
        trial.fault("evaluation")
        exchange()

    return _ema(trial, evaluate)


@program("averaged weights")
def ema_module(trial: Trial) -> Training:
    """EMA as a module of its own, which is evaluated where it is."""

    def evaluate(net: Any, ema: Any) -> None:
        with torch.no_grad():
            ema(trial.batch(0))
        trial.fault("evaluation")

    return _ema(trial, evaluate)


@program("averaged weights")
def averaged_model(trial: Trial) -> Training:
    """`AveragedModel` with `get_ema_multi_avg_fn`, of PyTorch."""
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn  # noqa: PLC0415

    net = trial.net()
    ema = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = OPTIM.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def step(number: int) -> None:
        trial.descend(optimizer, lambda: net(trial.batch(number)).square().mean())
        ema.update_parameters(net)

    return Training({"net": net, "ema": ema, "optimizer": optimizer}, step)


@program("averaged weights")
def swa(trial: Trial) -> Training:
    """SWA from step 5 on, with `SWALR`; batch norms are updated in each evaluation."""
    from torch.optim.swa_utils import SWALR, AveragedModel, update_bn  # noqa: PLC0415

    net = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    averaged = AveragedModel(net)
    optimizer = OPTIM.SGD(net.parameters(), lr=0.1, momentum=0.9)
    schedule = SWALR(optimizer, swa_lr=0.05, anneal_epochs=3)

    def step(number: int) -> None:
        trial.descend(optimizer, lambda: net(trial.batch(number)).square().mean())
        if number >= 5:
            averaged.update_parameters(net)
            schedule.step()

    def evaluate(number: int) -> None:
        update_bn([trial.batch(one) for one in range(3)], averaged)
        trial.fault("evaluation")

    state = {"net": net, "averaged": averaged, "optimizer": optimizer, "schedule": schedule}
    return Training(state, step, evaluate)


@program("averaged weights")
def lookahead_by_hand(trial: Trial) -> Training:
    """Slow weights as tensors of the state, which every fourth step goes back to."""
    net = trial.net()
    optimizer = OPTIM.SGD(net.parameters(), lr=0.2, momentum=0.9)
    slow = {name.replace(".", "_"): one.detach().clone() for name, one in net.named_parameters()}

    def step(number: int) -> None:
        trial.descend(optimizer, lambda: net(trial.batch(number)).square().mean())
        if number % 4 == 3:
            with torch.no_grad():
                for one, anchor in zip(net.parameters(), slow.values(), strict=True):
                    anchor.lerp_(one, 0.5)
                    one.copy_(anchor)

    return Training({"net": net, "optimizer": optimizer, "slow": slow}, step)


class LoraLinear(nn.Module):
    """A frozen layer with two small factors, which can be merged into it."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.base = nn.Linear(size, size)
        self.base.requires_grad_(requires_grad=False)
        self.down, self.up = nn.Linear(size, 2, bias=False), nn.Linear(2, size, bias=False)
        self.is_merged = False

    def merge(self, sign: int) -> None:
        """Add or subtract the factors."""
        self.base.weight.data += sign * (self.up.weight @ self.down.weight).detach()
        self.is_merged = sign > 0

    def forward(self, x: Any) -> Any:
        """Return the output."""
        return self.base(x) if self.is_merged else self.base(x) + self.up(self.down(x))


def _lora(trial: Trial, size: int) -> Training:
    net = nn.Sequential(nn.Linear(6, size), LoraLinear(size), nn.Linear(size, 2))
    layer: Any = net[1]
    optimizer = OPTIM.AdamW([one for one in net.parameters() if one.requires_grad], lr=0.02)

    def step(number: int) -> None:
        trial.descend(optimizer, lambda: net(trial.batch(number)).square().mean())

    def evaluate(number: int) -> None:
        kept = layer.base.weight.detach().clone()
        layer.merge(1)
        trial.fault("evaluation")
        layer.merge(-1)
        layer.base.weight.data.copy_(kept)  # else the last bits are others after it

    return Training({"net": net, "optimizer": optimizer}, step, evaluate)


@program("averaged weights")
def lora(trial: Trial) -> Training:
    """LoRA, merged into the frozen layer for an evaluation."""
    return _lora(trial, 8)


@program("averaged weights")
def lora_large(trial: Trial) -> Training:
    """LoRA, merged into a frozen layer of 160 kB for an evaluation."""
    return _lora(trial, 200)


@program("averaged weights")
def eval_noise(trial: Trial) -> Training:
    """Weights are perturbed with noise for an evaluation, and put back."""
    net = trial.net()
    optimizer = OPTIM.Adam(net.parameters(), lr=0.02)

    def step(number: int) -> None:
        trial.descend(optimizer, lambda: net(trial.batch(number)).square().mean())

    def evaluate(number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        with torch.no_grad():
            kept = [one.clone() for one in net.parameters()]
            for one in net.parameters():
                one.add_(torch.randn(one.shape, generator=generator), alpha=0.1)
            trial.fault("evaluation")
            for one, before in zip(net.parameters(), kept, strict=True):
                one.copy_(before)

    return Training({"net": net, "optimizer": optimizer}, step, evaluate)


@program("averaged weights")
def eval_half(trial: Trial) -> Training:
    """The module is cast to bfloat16 for an evaluation, and gets its parameters back."""
    net = trial.net()
    optimizer = OPTIM.Adam(net.parameters(), lr=0.02)

    def step(number: int) -> None:
        trial.descend(optimizer, lambda: net(trial.batch(number)).square().mean())

    def evaluate(number: int) -> None:
        kept = [one.data for one in net.parameters()]
        net.to(torch.bfloat16)
        trial.fault("evaluation")
        for one, before in zip(net.parameters(), kept, strict=True):
            one.data = before

    return Training({"net": net, "optimizer": optimizer}, step, evaluate)


@program("averaged weights")
def prune_in_evaluation(trial: Trial) -> Training:
    """Small weights are set to zero by `p.data[mask] = 0` for an evaluation, and put back."""
    net = trial.net()
    optimizer = OPTIM.Adam(net.parameters(), lr=0.02)

    def step(number: int) -> None:
        trial.descend(optimizer, lambda: net(trial.batch(number)).square().mean())

    def evaluate(number: int) -> None:
        kept = [one.detach().clone() for one in net.parameters()]
        for one in net.parameters():
            one.data[one.data.abs() < one.data.abs().median()] = 0
        trial.fault("evaluation")
        for one, before in zip(net.parameters(), kept, strict=True):
            one.data.copy_(before)

    return Training({"net": net, "optimizer": optimizer}, step, evaluate)
