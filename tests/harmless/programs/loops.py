"""Loops of several optimizers or of none, schedules, mixed precision, accumulation, phases, randomness."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import torch
from torch import nn

from tests.harmless.programs import program
from tests.harmless.trial import Training, Trial

OPTIM = torch.optim


@program("several optimizers")
def gan(trial: Trial) -> Training:
    """A GAN: both optimizers step in each step."""
    judge, maker = trial.net(), trial.net(out=6)
    first, second = OPTIM.Adam(judge.parameters(), lr=0.02), OPTIM.Adam(maker.parameters(), lr=0.02)

    def step(number: int) -> None:
        noise = trial.batch(number)
        trial.descend(first, lambda: judge(maker(noise).detach()).square().mean())
        second.zero_grad()
        (judge(maker(noise)) - 1).square().mean().backward()
        second.step()

    return Training({"judge": judge, "maker": maker, "first": first, "second": second}, step)


def _critics(kind: Any, trial: Trial, **options: Any) -> Training:
    judge, maker = trial.net(), trial.net(out=6)
    first, second = OPTIM.Adam(judge.parameters(), lr=0.02), kind(maker.parameters(), **options)

    def step(number: int) -> None:
        noise = trial.batch(number)
        trial.descend(first, lambda: judge(maker(noise).detach()).square().mean())
        if number % 5 == 4:
            second.zero_grad()
            (judge(maker(noise)) - 1).square().mean().backward()
            second.step()
            second.zero_grad()

    return Training({"judge": judge, "maker": maker, "first": first, "second": second}, step)


@program("several optimizers")
def n_critic(trial: Trial) -> Training:
    """n_critic = 5: the second optimizer (`RMSprop` with decay) steps first in the fifth step."""
    return _critics(OPTIM.RMSprop, trial, lr=0.02, momentum=0.9, weight_decay=0.1)


@program("several optimizers")
def n_critic_adam(trial: Trial) -> Training:
    """n_critic = 5 with `Adam`."""
    return _critics(OPTIM.Adam, trial, lr=0.02)


@program("several optimizers")
def n_critic_sgd(trial: Trial) -> Training:
    """n_critic = 5 with `SGD`, momentum and decay."""
    return _critics(OPTIM.SGD, trial, lr=0.1, momentum=0.9, weight_decay=0.1)


@program("several optimizers")
def phases(trial: Trial) -> Training:
    """Two phases of one network: the optimizer of the second one steps first in step 7."""
    net = trial.net()
    warm, main = OPTIM.SGD(net.parameters(), lr=0.1, momentum=0.9), OPTIM.AdamW(net.parameters(), lr=0.02)

    def step(number: int) -> None:
        trial.descend(warm if number < 7 else main, lambda: net(trial.batch(number)).square().mean())

    return Training({"net": net, "warm": warm, "main": main}, step)


@program("several optimizers")
def many_optimizers(trial: Trial) -> Training:
    """One optimizer for each of twelve layers, which step in turns."""
    net = nn.ModuleList(nn.Linear(6, 6) for _ in range(12))
    optimizers = {str(number): OPTIM.Adam(one.parameters(), lr=0.02) for number, one in enumerate(net)}

    def loss(number: int) -> Any:
        found = trial.batch(number)
        for layer in net:
            found = torch.tanh(layer(found))
        return found.square().mean()

    def step(number: int) -> None:
        for one in optimizers.values():
            one.zero_grad()
        trial.descend(optimizers[str(number % 12)], lambda: loss(number))

    return Training({"net": net, "optimizers": optimizers}, step)


@program("several optimizers")
def fused_backward(trial: Trial) -> Training:
    """An optimizer for each parameter, which steps inside the backward pass."""
    net = trial.net()
    optimizers = {one: OPTIM.SGD([one], lr=0.1, momentum=0.9) for one in net.parameters()}

    def hook(parameter: Any) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for one in net.parameters():
        one.register_post_accumulate_grad_hook(hook)

    def step(number: int) -> None:
        trial.backward(lambda: net(trial.batch(number)).square().mean())

    named = {f"optimizer{number}": one for number, one in enumerate(optimizers.values())}
    return Training({"net": net, **named}, step)


@program("several optimizers")
def actor_critic(trial: Trial) -> Training:
    """An actor, a critic and a slow copy of the critic, as of off-policy learning."""
    actor, critic, slow = trial.net(out=6), trial.net(out=1), trial.net(out=1)
    slow.load_state_dict(critic.state_dict())
    of_critic, of_actor = OPTIM.Adam(critic.parameters(), lr=0.02), OPTIM.Adam(actor.parameters(), lr=0.02)

    def step(number: int) -> None:
        seen = trial.batch(number)
        wanted = 0.9 * slow(actor(seen)).detach() + 0.1
        trial.descend(of_critic, lambda: (critic(seen) - wanted).square().mean())
        if number % 2 == 1:
            trial.descend(of_actor, lambda: -critic(actor(seen)).mean())
        with torch.no_grad():
            for one, other in zip(slow.parameters(), critic.parameters(), strict=True):
                one.lerp_(other, 0.05)

    state = {"actor": actor, "critic": critic, "slow": slow, "of_critic": of_critic, "of_actor": of_actor}
    return Training(state, step)


@program("parameters that change their part")
def frozen(trial: Trial) -> Training:
    """A frozen first layer."""
    net = trial.net()
    net[0].requires_grad_(requires_grad=False)
    optimizer = OPTIM.AdamW([one for one in net.parameters() if one.requires_grad], lr=0.02)

    def step(number: int) -> None:
        trial.descend(optimizer, lambda: net(trial.batch(number)).square().mean())

    return Training({"net": net, "optimizer": optimizer}, step)


@program("parameters that change their part")
def unfreezing(trial: Trial) -> Training:
    """All parameters are in the optimizer; the first layer has gradients from step 6 on."""
    net = trial.net()
    optimizer = OPTIM.AdamW(net.parameters(), lr=0.02)

    def step(number: int) -> None:
        net[0].requires_grad_(requires_grad=number >= 6)
        trial.descend(optimizer, lambda: net(trial.batch(number)).square().mean())

    return Training({"net": net, "optimizer": optimizer}, step)


@program("parameters that change their part")
def freezing(trial: Trial) -> Training:
    """The first layer has no gradients from step 6 on; its optimizer state stays."""
    net = trial.net()
    optimizer = OPTIM.AdamW(net.parameters(), lr=0.02)

    def step(number: int) -> None:
        net[0].requires_grad_(requires_grad=number < 6)
        trial.descend(optimizer, lambda: net(trial.batch(number)).square().mean())

    return Training({"net": net, "optimizer": optimizer}, step)


@program("parameters that change their part")
def groups(trial: Trial) -> Training:
    """Two groups of parameters with a decay and a learning rate of their own."""
    net = trial.net()
    decayed = {"params": [one for one in net.parameters() if one.dim() > 1], "weight_decay": 0.2}
    others = {"params": [one for one in net.parameters() if one.dim() == 1], "lr": 0.05, "weight_decay": 0.0}
    optimizer = OPTIM.AdamW([decayed, others], lr=0.02)

    def step(number: int) -> None:
        trial.descend(optimizer, lambda: net(trial.batch(number)).square().mean())

    return Training({"net": net, "optimizer": optimizer}, step)


@program("parameters that change their part")
def unused_parameter(trial: Trial) -> Training:
    """A layer that no step uses: its parameters never have a state."""
    net = nn.ModuleDict({"used": trial.net(), "unused": nn.Linear(3, 3)})
    optimizer = OPTIM.AdamW(net.parameters(), lr=0.02)

    def step(number: int) -> None:
        trial.descend(optimizer, lambda: net["used"](trial.batch(number)).square().mean())

    return Training({"net": net, "optimizer": optimizer}, step)


@program("loops")
def first_step_late(trial: Trial) -> Training:
    """The only optimizer steps first in step 5; before that batch norm alone is warmed up."""
    net = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    optimizer = OPTIM.AdamW(net.parameters(), lr=0.02, weight_decay=0.2)

    def step(number: int) -> None:
        if number >= 5:
            trial.descend(optimizer, lambda: net(trial.batch(number)).square().mean())
        else:
            net(trial.batch(number))

    return Training({"net": net, "optimizer": optimizer}, step)


def _scaled(trial: Trial, start: float) -> Training:
    net = trial.net()
    optimizer = OPTIM.AdamW(net.parameters(), lr=0.02)
    scaler = torch.amp.GradScaler("cpu", init_scale=start, growth_interval=3)

    def step(number: int) -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = net(trial.batch(number)).float().square().mean()
        if number == 0 and start > 2**100:
            loss = loss * 1e30  # its gradients are infinite: the scaler skips this step
        trial.fault("forward")
        scaler.scale(loss).backward()
        trial.fault("backward")
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        trial.update(lambda: scaler.step(optimizer))
        scaler.update()

    return Training({"net": net, "optimizer": optimizer, "scaler": scaler}, step)


@program("loops")
def grad_scaler(trial: Trial) -> Training:
    """Mixed precision with a `GradScaler` and clipping."""
    return _scaled(trial, 2.0**10)


@program("loops")
def grad_scaler_skips(trial: Trial) -> Training:
    """Mixed precision whose first step the `GradScaler` skips."""
    return _scaled(trial, 2.0**120)


@program("loops")
def accumulation(trial: Trial) -> Training:
    """Gradients of three batches for each step."""
    net = trial.net()
    optimizer = OPTIM.AdamW(net.parameters(), lr=0.02)

    def loss(number: int) -> Any:
        return net(trial.batch(number)).square().mean()

    def step(number: int) -> None:
        optimizer.zero_grad()
        for part in range(3):
            trial.backward(partial(loss, number * 3 + part))
        trial.update(optimizer.step)

    return Training({"net": net, "optimizer": optimizer}, step)


@program("loops")
def accumulation_over_steps(trial: Trial) -> Training:
    """Gradients of two steps of the loop; they are a tensor of the state."""
    net = trial.net()
    optimizer = OPTIM.SGD(net.parameters(), lr=0.1, momentum=0.9)
    gradients = {str(number): torch.zeros_like(one) for number, one in enumerate(net.parameters())}

    def step(number: int) -> None:
        optimizer.zero_grad()
        trial.backward(lambda: net(trial.batch(number)).square().mean())
        for one, sums in zip(net.parameters(), gradients.values(), strict=True):
            sums.add_(one.grad)
        if number % 2:
            for one, sums in zip(net.parameters(), gradients.values(), strict=True):
                one.grad = sums.clone()
                sums.zero_()
            trial.update(optimizer.step)

    return Training({"net": net, "optimizer": optimizer, "gradients": gradients}, step)


@program("loops")
def grad_checkpointing(trial: Trial) -> Training:
    """Activations are computed again in the backward pass, with dropout."""
    from torch.utils.checkpoint import checkpoint  # noqa: PLC0415 - of this program alone

    first, last = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3)), nn.Linear(8, 2)
    net = nn.ModuleList([first, last])
    optimizer = OPTIM.Adam(net.parameters(), lr=0.02)

    def step(number: int) -> None:
        torch.manual_seed(number)
        trial.descend(
            optimizer,
            lambda: last(checkpoint(first, trial.batch(number), use_reentrant=False)).square().mean(),
        )

    return Training({"net": net, "optimizer": optimizer}, step)


@program("loops")
def clipping(trial: Trial) -> Training:
    """Gradients are clipped by their norm."""
    net = trial.net()
    optimizer = OPTIM.SGD(net.parameters(), lr=0.3, momentum=0.9)

    def update() -> None:
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        optimizer.step()

    def step(number: int) -> None:
        trial.descend(optimizer, lambda: net(trial.batch(number)).square().mean(), update=update)

    return Training({"net": net, "optimizer": optimizer}, step)


@program("loops")
def schedules(trial: Trial) -> Training:
    """A warm-up and a cosine in one schedule."""
    net = trial.net()
    optimizer = OPTIM.SGD(net.parameters(), lr=0.2, momentum=0.9)
    lr = OPTIM.lr_scheduler
    warm, cosine = lr.LinearLR(optimizer, 0.1, total_iters=4), lr.CosineAnnealingLR(optimizer, 10)
    schedule = lr.SequentialLR(optimizer, [warm, cosine], milestones=[4])

    def step(number: int) -> None:
        trial.descend(optimizer, lambda: net(trial.batch(number)).square().mean())
        schedule.step()

    return Training({"net": net, "optimizer": optimizer, "schedule": schedule}, step)


@program("loops")
def one_cycle(trial: Trial) -> Training:
    """`OneCycleLR`, which changes the momentum too."""
    net = trial.net()
    optimizer = OPTIM.AdamW(net.parameters(), lr=0.02)
    schedule = OPTIM.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=20)

    def step(number: int) -> None:
        trial.descend(optimizer, lambda: net(trial.batch(number)).square().mean())
        schedule.step()

    return Training({"net": net, "optimizer": optimizer, "schedule": schedule}, step)


@program("loops")
def plateau(trial: Trial) -> Training:
    """`ReduceLROnPlateau`, with the best loss and counters of the program's own."""
    net = trial.net()
    optimizer = OPTIM.SGD(net.parameters(), lr=0.5)
    schedule = OPTIM.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
    best: dict[str, Any] = {"loss": 1e9, "at": -1, "seen": [0]}

    def step(number: int) -> None:
        trial.descend(optimizer, lambda: net(trial.batch(number)).square().mean())
        with torch.no_grad():
            loss = float(net(trial.batch(number)).square().mean())
        schedule.step(loss)
        best["seen"] = [*best["seen"][-3:], number]
        if loss < best["loss"]:
            best["loss"], best["at"] = loss, number

    return Training(
        {"net": net, "optimizer": optimizer, "schedule": schedule, "best": best}, step, None, [best]
    )


@program("loops")
def lr_by_hand(trial: Trial) -> Training:
    """The learning rate is written into the groups, after the optimizer's step, and used in the next."""
    net = trial.net()
    optimizer = OPTIM.Adam(net.parameters(), lr=0.02)

    def step(number: int) -> None:
        trial.descend(optimizer, lambda: net(trial.batch(number)).square().mean())
        for group in optimizer.param_groups:
            group["lr"] *= 0.9

    return Training({"net": net, "optimizer": optimizer}, step)


@program("updates without an optimizer")
def manual_data(trial: Trial) -> Training:
    """`p.data -= lr * p.grad`."""
    return _manual(trial, lambda one: _subtract(one.data, one.grad))


@program("updates without an optimizer")
def manual_data_large(trial: Trial) -> Training:
    """`p.data -= lr * p.grad` for a tensor of 160 kB."""
    return _manual(trial, lambda one: _subtract(one.data, one.grad), 20_000)


@program("updates without an optimizer")
def manual_no_grad(trial: Trial) -> Training:
    """`p -= lr * p.grad` below `no_grad`."""
    return _manual(trial, lambda one: _subtract(one, one.grad))


@program("updates without an optimizer")
def manual_no_grad_large(trial: Trial) -> Training:
    """`p -= lr * p.grad` below `no_grad` for a tensor of 160 kB."""
    return _manual(trial, lambda one: _subtract(one, one.grad), 20_000)


@program("updates without an optimizer")
def manual_set_data(trial: Trial) -> Training:
    """`p.data = p.data - lr * p.grad`: new memory in each step."""
    return _manual(trial, lambda one: setattr(one, "data", one.data - 0.3 * one.grad), 20_000)


def _subtract(one: Any, gradient: Any) -> None:
    one.sub_(0.3 * gradient)


def _manual(trial: Trial, update: Any, rows: int = 10) -> Training:
    net = nn.Sequential(nn.Embedding(rows, 2), nn.Linear(2, 2))

    def step(number: int) -> None:
        net.zero_grad()
        trial.backward(lambda: net(torch.arange(number % 5, 10)).square().mean())

        def every() -> None:
            with torch.no_grad():
                for one in net.parameters():
                    update(one)

        trial.update(every)

    return Training({"net": net}, step)


@program("updates without an optimizer")
def tensors_alone(trial: Trial) -> Training:
    """A regression with two tensors, no module and no optimizer."""
    weight, bias = torch.zeros(6, 2), torch.zeros(2)

    def step(number: int) -> None:
        seen = trial.batch(number)
        off = seen @ weight + bias - seen[:, :2]
        trial.fault("forward")
        weight.sub_(0.1 * seen.T @ off / len(seen))
        trial.fault("backward")
        bias.sub_(0.1 * off.mean(0))

    return Training({"weight": weight, "bias": bias}, step)


@program("updates without an optimizer")
def functional(trial: Trial) -> Training:
    """`torch.func`: parameters in a dict are other tensors after each step."""
    net = trial.net()
    weights = {name: one.detach().clone() for name, one in net.named_parameters()}
    state = {"weights": weights}

    def loss(given: Any, number: int) -> Any:
        return torch.func.functional_call(net, given, (trial.batch(number),)).square().mean()

    def step(number: int) -> None:
        trial.fault("forward")
        gradients = torch.func.grad(loss)(state["weights"], number)
        trial.fault("backward")
        state["weights"] = {name: one - 0.1 * gradients[name] for name, one in state["weights"].items()}

    return Training(state, step)


class Randomness:
    """The states of random numbers, as an object of the state."""

    def state_dict(self) -> dict[str, Any]:
        """Return them."""
        return {"torch": torch.get_rng_state(), "python": random.getstate()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set them."""
        torch.set_rng_state(state["torch"])
        random.setstate(state["python"])


@program("random numbers")
def dropout(trial: Trial) -> Training:
    """Dropout, with the states of random numbers in the state."""
    net = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.4), nn.Linear(16, 2))
    optimizer = OPTIM.Adam(net.parameters(), lr=0.02)

    def step(number: int) -> None:
        trial.descend(optimizer, lambda: net(trial.batch(number) * random.random()).square().mean())

    return Training({"net": net, "optimizer": optimizer, "randomness": Randomness()}, step)


@program("random numbers")
def noise_generator(trial: Trial) -> Training:
    """Gradient noise from a generator whose state is in the state."""
    net, generator = trial.net(), torch.Generator().manual_seed(1)
    optimizer = OPTIM.SGD(net.parameters(), lr=0.1)

    class Noise:
        def state_dict(self) -> dict[str, Any]:
            return {"state": generator.get_state()}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            generator.set_state(state["state"])

    def update() -> None:
        for one in net.parameters():
            one.grad += torch.randn(one.shape, generator=generator) * 0.1
        optimizer.step()

    def step(number: int) -> None:
        trial.descend(optimizer, lambda: net(trial.batch(number)).square().mean(), update=update)

    return Training({"net": net, "optimizer": optimizer, "noise": Noise()}, step)


@program("data")
def loader_workers(trial: Trial) -> Training:
    """A `DataLoader` with two workers for each step's data."""
    net = trial.net()
    optimizer = OPTIM.Adam(net.parameters(), lr=0.02)
    data = [trial.batch(number, 6) for number in range(40)]

    def step(number: int) -> None:
        if number % 3:
            seen = torch.stack(data[number : number + 4])
        else:
            generator = torch.Generator().manual_seed(number)
            loader = torch.utils.data.DataLoader(
                data, batch_size=40, num_workers=2, shuffle=True, generator=generator
            )
            (seen,) = loader
        trial.descend(optimizer, lambda: net(seen).square().mean())

    return Training({"net": net, "optimizer": optimizer}, step)


@program("data")
def loader_state(trial: Trial) -> Training:
    """An iterator with a place of its own, which is in the state."""

    class Loader:
        place, order = 0, list(range(11))

        def __next__(self) -> Any:
            if self.place % 11 == 0:
                self.order = torch.randperm(11, generator=torch.Generator().manual_seed(self.place)).tolist()
            self.place += 1
            return trial.batch(self.order[(self.place - 1) % 11])

        def state_dict(self) -> dict[str, Any]:
            return {"place": self.place, "order": list(self.order)}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.place, self.order = state["place"], list(state["order"])

    net, loader = trial.net(), Loader()
    optimizer = OPTIM.Adam(net.parameters(), lr=0.02)

    def step(number: int) -> None:
        seen = next(loader)
        trial.descend(optimizer, lambda: net(seen).square().mean())

    return Training({"net": net, "optimizer": optimizer, "loader": loader}, step)


@program("data")
def counters(trial: Trial) -> Training:
    """Plain numbers, a list and a nested dict of the program's own, which it changes in place."""
    net = trial.net()
    optimizer = OPTIM.SGD(net.parameters(), lr=0.1, momentum=0.9)
    progress: dict[str, Any] = {"samples": 0, "epoch": {"number": 0}, "curve": [0.0]}

    def step(number: int) -> None:
        progress["samples"] += 8
        progress["epoch"]["number"] = progress["samples"] // 40
        factor = 1 + 0.1 * progress["epoch"]["number"] + 0.01 * len(progress["curve"])
        trial.descend(optimizer, lambda: factor * net(trial.batch(number)).square().mean())
        progress["curve"].append(float(number))

    return Training({"net": net, "optimizer": optimizer, "progress": progress}, step, None, [progress])
