"""Every optimizer of PyTorch, and some from outside: one network, one optimizer."""

from __future__ import annotations

from typing import Any

import torch

from tests.harmless import outside
from tests.harmless.programs import Make, Program, add, program
from tests.harmless.trial import Training, Trial

OPTIM = torch.optim
ROWS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (OPTIM.SGD, {"lr": 0.1}),
    "sgd_momentum": (OPTIM.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "nesterov": True}),
    "adam": (OPTIM.Adam, {"lr": 0.02}),
    "adam_amsgrad": (OPTIM.Adam, {"lr": 0.02, "amsgrad": True}),
    "adam_foreach": (OPTIM.Adam, {"lr": 0.02, "foreach": True}),
    "adam_fused": (OPTIM.Adam, {"lr": 0.02, "fused": True}),
    "adam_tensor_lr": (OPTIM.Adam, {"lr": torch.tensor(0.02), "foreach": False}),
    "adamw": (OPTIM.AdamW, {"lr": 0.02, "weight_decay": 0.2}),
    "adamax": (OPTIM.Adamax, {"lr": 0.02}),
    "nadam": (OPTIM.NAdam, {"lr": 0.02}),
    "radam": (OPTIM.RAdam, {"lr": 0.02}),
    "adadelta": (OPTIM.Adadelta, {"lr": 1.0}),
    "adagrad": (OPTIM.Adagrad, {"lr": 0.05, "initial_accumulator_value": 0.1}),
    "adafactor": (OPTIM.Adafactor, {"lr": 0.05}),
    "asgd": (OPTIM.ASGD, {"lr": 0.05, "t0": 3}),
    "rmsprop": (OPTIM.RMSprop, {"lr": 0.01, "momentum": 0.9, "centered": True, "weight_decay": 0.1}),
    "rprop": (OPTIM.Rprop, {"lr": 0.01}),
    "lion": (outside.Lion, {"lr": 0.01}),
    "lists_in_state": (outside.ListsInState, {"lr": 0.02}),
    "late_keys": (outside.LateKeys, {"lr": 0.05}),
}


def _with(kind: Any, options: dict[str, Any]) -> Make:
    def make(trial: Trial) -> Training:
        net = trial.net()
        given = {key: one.clone() if hasattr(one, "clone") else one for key, one in options.items()}
        optimizer = kind(net.parameters(), **given)

        def step(number: int) -> None:
            trial.descend(optimizer, lambda: net(trial.batch(number)).square().mean())

        return Training({"net": net, "optimizer": optimizer}, step)

    return make


for _name, (_kind, _options) in ROWS.items():
    _shown = ", ".join(
        f"{key}={float(one) if hasattr(one, 'item') else one}" for key, one in _options.items()
    )
    _from = "torch.optim" if _kind.__module__.startswith("torch") else "outside"
    add(Program(_name, "optimizers", f"`{_kind.__name__}({_shown})`, {_from}", _with(_kind, _options)))


@program("optimizers")
def lbfgs(trial: Trial) -> Training:
    """`LBFGS`, torch.optim: each step calls a closure several times."""
    net = trial.net()
    optimizer = OPTIM.LBFGS(net.parameters(), lr=0.1, max_iter=3)

    def step(number: int) -> None:
        def closure() -> Any:
            optimizer.zero_grad()
            loss = net(trial.batch(number)).square().mean()
            trial.fault("forward")
            loss.backward()
            trial.fault("backward")
            return loss

        trial.update(lambda: optimizer.step(closure))

    return Training({"net": net, "optimizer": optimizer}, step)


@program("optimizers")
def sparse_adam(trial: Trial) -> Training:
    """`SparseAdam`, torch.optim: an embedding with sparse gradients."""
    table = torch.nn.Embedding(20, 4, sparse=True)
    optimizer = OPTIM.SparseAdam(table.parameters(), lr=0.05)

    def step(number: int) -> None:
        trial.descend(optimizer, lambda: table(torch.tensor([number, number + 2])).square().sum())

    return Training({"table": table, "optimizer": optimizer}, step)


@program("optimizers")
def muon(trial: Trial) -> Training:
    """`Muon` for matrices and `AdamW` for the rest, torch.optim."""
    net = trial.net()
    matrices = [one for one in net.parameters() if one.dim() == 2]
    muon_, adamw = (
        OPTIM.Muon(matrices, lr=0.02),
        OPTIM.AdamW([one for one in net.parameters() if one.dim() < 2]),
    )

    def step(number: int) -> None:
        adamw.zero_grad()

        def both() -> None:
            muon_.step()
            adamw.step()

        trial.descend(muon_, lambda: net(trial.batch(number)).square().mean(), update=both)

    return Training({"net": net, "muon": muon_, "adamw": adamw}, step)


@program("optimizers")
def adam_capturable(trial: Trial) -> Training:
    """`Adam` whose state of steps is set by hand before the first one, as warm starts do."""
    net = trial.net()
    optimizer = OPTIM.Adam(net.parameters(), lr=0.02)
    for one in net.parameters():
        optimizer.state[one] = {
            "step": torch.tensor(100.0),
            "exp_avg": torch.zeros_like(one),
            "exp_avg_sq": torch.ones_like(one),
        }

    def step(number: int) -> None:
        trial.descend(optimizer, lambda: net(trial.batch(number)).square().mean())

    return Training({"net": net, "optimizer": optimizer}, step)


@program("optimizers")
def lookahead(trial: Trial) -> Training:
    """Lookahead around `SGD`, outside: it never calls `Optimizer.__init__`."""
    net = trial.net(200)
    optimizer = outside.Lookahead(OPTIM.SGD(net.parameters(), lr=0.1, momentum=0.9))

    def step(number: int) -> None:
        trial.descend(optimizer, lambda: net(trial.batch(number)).square().mean())

    return Training({"net": net, "optimizer": optimizer}, step)


@program("optimizers")
def lookahead_base(trial: Trial) -> Training:
    """Lookahead, outside: the state has the optimizer in it, which PyTorch's hooks know."""
    net = trial.net(200)
    base = OPTIM.SGD(net.parameters(), lr=0.1, momentum=0.9)
    optimizer = outside.Lookahead(base)

    def step(number: int) -> None:
        trial.descend(optimizer, lambda: net(trial.batch(number)).square().mean())

    return Training({"net": net, "optimizer": base}, step)


@program("optimizers")
def schedule_free(trial: Trial) -> Training:
    """Schedule-free SGD, outside: an evaluation puts averaged weights into the parameters."""
    net = trial.net()
    optimizer = outside.ScheduleFree(net.parameters())

    def step(number: int) -> None:
        trial.descend(optimizer, lambda: net(trial.batch(number)).square().mean())

    def evaluate(number: int) -> None:
        optimizer.eval()
        trial.fault("evaluation")
        optimizer.train()

    return Training({"net": net, "optimizer": optimizer}, step, evaluate)


@program("optimizers")
def sam(trial: Trial) -> Training:
    """SAM, outside: the parameters are moved before the second pass, and moved back."""
    net = trial.net()
    optimizer = outside.SAM(net.parameters(), OPTIM.SGD, lr=0.1, momentum=0.9)

    def step(number: int) -> None:
        def loss() -> Any:
            return net(trial.batch(number)).square().mean()

        optimizer.zero_grad()
        loss().backward()
        optimizer.first_step()
        optimizer.zero_grad()
        trial.backward(loss)
        trial.update(optimizer.second_step)

    return Training({"net": net, "optimizer": optimizer.base}, step)


@program("optimizers")
def sam_closure(trial: Trial) -> Training:
    """SAM, outside: one step with a closure."""
    net = trial.net()
    optimizer = outside.SAM(net.parameters(), OPTIM.AdamW, lr=0.02)

    def step(number: int) -> None:
        def closure() -> None:
            optimizer.zero_grad()
            trial.backward(lambda: net(trial.batch(number)).square().mean())

        closure()
        trial.update(lambda: optimizer.step(closure))

    return Training({"net": net, "optimizer": optimizer}, step)
