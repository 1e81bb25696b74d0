"""Kinds of modules: tied, parametrized, compiled, with buffers that change in a forward pass."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from tests.harmless.programs import Make, Program, add, program
from tests.harmless.trial import Training, Trial

OPTIM = torch.optim


def _plain(make_net: Any, shape: tuple[int, ...] = (8, 6)) -> Make:
    def make(trial: Trial) -> Training:
        net = make_net()
        optimizer = OPTIM.AdamW(net.parameters(), lr=0.02)

        def step(number: int) -> None:
            def loss() -> Any:
                found = net(trial.batch(number, *shape))
                return (found[0] if isinstance(found, tuple) else found).square().mean()

            trial.descend(optimizer, loss)

        return Training({"net": net, "optimizer": optimizer}, step)

    return make


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)
        self.last.weight = self.first.weight

    def forward(self, x: Any) -> Any:
        """Return the output."""
        return self.last(torch.tanh(self.first(x)))


class Shared(nn.Module):
    """One layer at two places."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.Linear(6, 6)
        self.net = nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(6, 2))

    def forward(self, x: Any) -> Any:
        """Return the output."""
        return self.net(x)


class Transposed(nn.Module):
    """A parameter that is a view of another one's memory."""

    def __init__(self) -> None:
        super().__init__()
        memory = torch.randn(6, 6) * 0.3
        self.weight = nn.Parameter(memory)
        self.view = nn.Parameter(memory.T[:3])

    def forward(self, x: Any) -> Any:
        """Return the output."""
        return x @ self.weight + (x @ self.view.T).sum()


class Extra(nn.Module):
    """Has a `get_extra_state` that changes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(6, 2), 0

    def forward(self, x: Any) -> Any:
        """Return the output."""
        self.calls += 1
        return self.layer(x) * (1 + 0.01 * self.calls)

    def get_extra_state(self) -> Any:
        """Return it."""
        return {"calls": self.calls}

    def set_extra_state(self, state: Any) -> None:
        """Set it."""
        self.calls = state["calls"]


class Hidden(nn.Module):
    """Has a buffer that is not persistent and is computed anew."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 2)
        self.register_buffer("mask", torch.ones(6), persistent=False)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x: Any) -> Any:
        """Return the output."""
        self.steps += 1
        return self.layer(x * self.mask) / self.steps.sqrt()


class Queue(nn.Module):
    """A queue of keys that a forward pass writes into, as of MoCo."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(6, 5)
        self.register_buffer("queue", torch.zeros(size, 5))
        self.register_buffer("at", torch.zeros(1, dtype=torch.long))

    def forward(self, x: Any) -> Any:
        """Return the output."""
        keys = self.encoder(x)
        found = keys @ self.queue.clone().T
        place = int(self.at)
        self.queue[place : place + len(x)] = keys.detach()
        self.at[0] = (place + len(x)) % (len(self.queue) - len(x))
        return torch.cat([found, keys], 1)


class Codebook(nn.Module):
    """A codebook that follows its inputs, as of VQ-VAE."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(6, 5)
        self.register_buffer("codes", torch.randn(size, 5))

    def forward(self, x: Any) -> Any:
        """Return the output."""
        z = self.encoder(x)
        nearest = torch.cdist(z.detach(), self.codes).argmin(1)
        found = self.codes[nearest]
        if self.training:
            self.codes.index_add_(0, nearest, 0.1 * (z.detach() - found))
        return z - found.detach()


class Bank(nn.Module):
    """A bank of the newest features of each sample, of which a forward pass changes a few rows."""

    def __init__(self, put: Any, *, is_parameter: bool = False) -> None:
        super().__init__()
        self.encoder, self.put = nn.Linear(6, 5), put
        if is_parameter:
            self.bank = nn.Parameter(torch.zeros(6000, 5), requires_grad=False)
        else:
            self.register_buffer("bank", torch.zeros(6000, 5))

    def forward(self, x: Any) -> Any:
        """Return the output."""
        features = self.encoder(x)
        rows = (x[:, 0].abs() * 1000).long() + 1000
        found = features * (1 + self.bank[rows])
        with torch.no_grad():
            self.put(self.bank, rows, 0.5 * self.bank[rows] + features.detach())
        return found


def _put(bank: Any, rows: Any, values: Any) -> None:
    bank.index_copy_(0, rows, values)


def _put_data(bank: Any, rows: Any, values: Any) -> None:
    bank.data.index_copy_(0, rows, values)


class Experts(nn.Module):
    """Four experts, of which a step uses one: the others have no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(6, 2) for _ in range(4))

    def forward(self, x: Any) -> Any:
        """Return the output."""
        return self.experts[int(x[0, 0].abs() * 10) % 4](x)


def _lstm() -> Any:
    return nn.LSTM(6, 5, batch_first=True)


def _parametrized() -> Any:
    net = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 2))
    nn.utils.parametrizations.weight_norm(net[0])
    nn.utils.parametrizations.orthogonal(net[1])
    return net


def _normed() -> Any:
    return nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6, momentum=None), nn.Linear(6, 2))


def _mixed_types() -> Any:
    class Cast(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.to(torch.bfloat16)

    class Back(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.double()

    return nn.Sequential(
        Cast(), nn.Linear(6, 6, dtype=torch.bfloat16), Back(), nn.Linear(6, 2, dtype=torch.double)
    )


def _complex() -> Any:
    class Complex(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 3, dtype=torch.cfloat))

        def forward(self, x: Any) -> Any:
            return (x.to(torch.cfloat) @ self.weight).abs()

    return Complex()


def _empty() -> Any:
    net = nn.Sequential(nn.Linear(6, 2))
    net.register_parameter("none", nn.Parameter(torch.zeros(0, 3)))
    net.register_parameter("scalar", nn.Parameter(torch.tensor(1.0)))
    return net


for _name, _title, _net in (
    ("batch_norm", "Batch norms with a cumulative average", _normed),
    ("tied", "Two layers with one weight", Tied),
    ("shared", "One layer at two places", Shared),
    ("views", "Two parameters in one memory, one of them transposed", Transposed),
    ("extra_state", "A module with `get_extra_state`", Extra),
    ("hidden_buffer", "A buffer that is not persistent, and a counter", Hidden),
    ("moco", "A queue of 1.6 kB that each forward pass changes, as of MoCo", lambda: Queue(80)),
    ("moco_large", "A queue of 80 kB that each forward pass changes", lambda: Queue(4000)),
    ("codebook", "A codebook of 400 bytes that follows its inputs, as of VQ-VAE", lambda: Codebook(20)),
    ("codebook_large", "A codebook of 80 kB that follows its inputs", lambda: Codebook(4000)),
    ("memory_bank", "A bank of 120 kB, of which each forward pass changes a few rows", lambda: Bank(_put)),
    ("memory_bank_parameter", "The same as a frozen parameter", lambda: Bank(_put, is_parameter=True)),
    ("memory_bank_data", "A bank as a buffer that changes through `.data`", lambda: Bank(_put_data)),
    ("experts", "Four experts, of which each step uses one", Experts),
    ("parametrized", "`weight_norm` and `orthogonal` parametrizations", _parametrized),
    ("mixed_types", "Parameters in bfloat16 and in float64", _mixed_types),
    ("complex_weights", "Complex parameters", _complex),
    ("empty_parameter", "Parameters without elements and without dimensions", _empty),
):
    add(Program(_name, "modules", _title, _plain(_net)))
add(Program("lstm", "modules", "An LSTM", _plain(_lstm, (4, 3, 6))))


@program("modules")
def compiled(trial: Trial) -> Training:
    """A compiled network (eager backend); the state has the wrapper."""
    net = torch.compile(trial.net(), backend="eager")
    optimizer = OPTIM.AdamW(net.parameters(), lr=0.02)

    def step(number: int) -> None:
        trial.descend(optimizer, lambda: net(trial.batch(number)).square().mean())

    return Training({"net": net, "optimizer": optimizer}, step)


@program("modules")
def replaced_layer(trial: Trial) -> Training:
    """The head is another module of the same shape from step 4 on, in the same optimizer's groups."""
    net = trial.net()
    optimizer = OPTIM.SGD(net.parameters(), lr=0.1)

    def step(number: int) -> None:
        if number == 4:
            net[2] = copy.deepcopy(net[2])
            with torch.no_grad():
                net[2].weight.mul_(0.5)
            optimizer.param_groups[0]["params"][-2:] = net[2].parameters()
        trial.descend(optimizer, lambda: net(trial.batch(number)).square().mean())

    return Training({"net": net, "optimizer": optimizer}, step)


@program("modules")
def copied_target(trial: Trial) -> Training:
    """A target network, in the place of which each second step puts a new copy, as in Q-learning."""
    nets = nn.ModuleDict({"online": trial.net(), "target": trial.net().requires_grad_(requires_grad=False)})
    optimizer = OPTIM.Adam(nets["online"].parameters(), lr=0.02)

    def step(number: int) -> None:
        def loss() -> Any:
            batch = trial.batch(number)
            return (nets["online"](batch) - nets["target"](batch) - 1.0).square().mean()

        trial.descend(optimizer, loss)
        if number % 2 == 0:
            nets["target"] = copy.deepcopy(nets["online"]).requires_grad_(requires_grad=False)

    return Training({"nets": nets, "optimizer": optimizer}, step)


@program("modules")
def spectral_norm(trial: Trial) -> Training:
    """`spectral_norm`, whose vectors change in each forward pass of a training."""
    net = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)), nn.Linear(6, 2))
    optimizer = OPTIM.Adam(net.parameters(), lr=0.02)

    def step(number: int) -> None:
        trial.descend(optimizer, lambda: net(trial.batch(number)).square().mean())

    def evaluate(number: int) -> None:
        net.eval()
        with torch.no_grad():
            net(trial.batch(number))
        trial.fault("evaluation")
        net.train()

    return Training({"net": net, "optimizer": optimizer}, step, evaluate)


@program("modules")
def large(trial: Trial) -> Training:
    """Parameters of 320 kB, as large ones have other rules."""
    net = trial.net(8000)
    optimizer = OPTIM.AdamW(net.parameters(), lr=0.02)

    def step(number: int) -> None:
        trial.descend(optimizer, lambda: net(trial.batch(number)).square().mean())

    return Training({"net": net, "optimizer": optimizer}, step)


@program("modules")
def constant_tensors(trial: Trial) -> Training:
    """Large tensors of the state that change in one element, far from the beginning."""
    net, table = trial.net(), torch.zeros(40_000)
    optimizer = OPTIM.SGD(net.parameters(), lr=0.1)

    def step(number: int) -> None:
        table.data[30_000 + number] = number + 1.0
        trial.descend(
            optimizer, lambda: (net(trial.batch(number)) * (1 + 0.001 * table.sum())).square().mean()
        )

    return Training({"net": net, "optimizer": optimizer, "table": table}, step)
