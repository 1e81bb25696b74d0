"""Optimizers in the idioms of libraries that are not PyTorch's, reduced to what concerns their state."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch


class Lion(torch.optim.Optimizer):
    """Steps of one size by the sign of an interpolated momentum."""

    def __init__(self, params: Any, lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.99)})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """Make one."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                mean = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.add_(torch.sign(mean.lerp(p.grad, 1 - group["betas"][0])), alpha=-group["lr"])
                mean.lerp_(p.grad, 1 - group["betas"][1])


class ListsInState(torch.optim.Optimizer):
    """Keeps one preconditioner for each dimension in a list, as SOAP and PSGD-Kron do.

    The first step makes the state alone and updates nothing.
    """

    def __init__(self, params: Any, lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """Make one."""
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if p.grad is None:
                    continue
                if "GG" not in state:
                    state["step"] = 0
                    state["GG"] = [torch.eye(size) for size in p.shape]
                    continue
                state["step"] += 1
                for number, matrix in enumerate(state["GG"]):
                    rest = [one for one in range(p.dim()) if one != number]
                    matrix.lerp_(torch.tensordot(p.grad, p.grad, dims=(rest, rest)), 0.1)
                found = p.grad
                for matrix in state["GG"]:
                    inverse = torch.linalg.inv(matrix + torch.eye(len(matrix)))
                    found = torch.tensordot(found, inverse, dims=([0], [0]))
                p.add_(found, alpha=-group["lr"])


class LateKeys(torch.optim.Optimizer):
    """Makes a second buffer after some steps, as Shampoo makes its first preconditioner."""

    def __init__(self, params: Any, lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """Make one."""
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["step"] = state.get("step", 0) + 1
                if state["step"] >= 3:
                    state.setdefault("late", torch.zeros_like(p)).lerp_(p.grad, 0.5)
                p.add_(state.get("late", p.grad), alpha=-group["lr"])


class Lookahead(torch.optim.Optimizer):
    """Slow weights beside another optimizer; like that of timm it never calls `Optimizer.__init__`."""

    def __init__(self, base: Any, every: int = 3) -> None:
        for name in ("step", "state_dict", "load_state_dict"):
            setattr(self, f"_optimizer_{name}_pre_hooks", {})
            setattr(self, f"_optimizer_{name}_post_hooks", {})
        self._base, self._every, self._steps = base, every, 0
        self.defaults, self.param_groups = base.defaults, base.param_groups
        self.state: Any = defaultdict(dict)

    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """Make one of the other optimizer, and every third time one of the slow weights."""
        for group in self.param_groups:
            group.setdefault("lookahead_step", 0)
        self._base.step(closure)
        for group in self.param_groups:
            group["lookahead_step"] += 1
            for p in group["params"]:
                slow = self._base.state[p].setdefault("slow", p.detach().clone())
                if group["lookahead_step"] % self._every == 0:
                    slow.add_(p.data - slow, alpha=0.5)
                    p.data.copy_(slow)

    def state_dict(self) -> dict[str, Any]:
        """Return that of the other optimizer."""
        found: dict[str, Any] = self._base.state_dict()
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load it there."""
        self._base.load_state_dict(state_dict)
        self.param_groups = self._base.param_groups


class ScheduleFree(torch.optim.Optimizer):
    """SGD whose parameters are other points in training and in evaluation, as of schedulefree."""

    def __init__(self, params: Any, lr: float = 0.05, beta: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "beta": beta, "k": 0, "train_mode": True})

    @torch.no_grad()
    def _switch(self, *, training: bool) -> None:
        for group in self.param_groups:
            if group["train_mode"] is not training:
                weight = 1 - group["beta"] if training else 1 - 1 / group["beta"]
                for p in group["params"]:
                    if "z" in self.state[p]:
                        p.lerp_(self.state[p]["z"], weight)
                group["train_mode"] = training

    def eval(self) -> None:
        """Put the averaged point into the parameters."""
        self._switch(training=False)

    def train(self) -> None:
        """Put the point of the training back."""
        self._switch(training=True)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """Make one."""
        for group in self.param_groups:
            group["k"] += 1
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "z" not in state:
                    state["z"] = p.detach().clone()
                p.lerp_(state["z"], 1 / group["k"])
                p.add_(p.grad, alpha=group["lr"] * (group["beta"] * (1 - 1 / group["k"]) - 1))
                state["z"].sub_(p.grad, alpha=group["lr"])


class SAM(torch.optim.Optimizer):
    """Goes up to the worst near point, and steps by the gradients there."""

    def __init__(self, params: Any, base: Any, rho: float = 0.05, **defaults: Any) -> None:
        super().__init__(params, {"rho": rho, **defaults})
        groups: Any = self.param_groups
        self.base = base(groups, **defaults)
        self.param_groups: Any = self.base.param_groups
        self.state = self.base.state
        self._moved: dict[Any, Any] = {}

    @torch.no_grad()
    def first_step(self) -> None:
        """Go up."""
        every = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = math.sqrt(sum(float(p.grad.norm()) ** 2 for p in every)) + 1e-12
        for p in every:
            self._moved[p] = p.grad * (self.param_groups[0]["rho"] / norm)
            p.add_(self._moved[p])

    @torch.no_grad()
    def second_step(self) -> None:
        """Go back, and make the step of the other optimizer."""
        for p, moved in self._moved.items():
            p.sub_(moved)
        self.base.step()

    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """Make both."""
        assert closure is not None
        with torch.enable_grad():
            self.first_step()
            closure()
            self.second_step()
