"""Checks of the state that a rank keeps when the other one is killed; both may share one GPU."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import torch

from gpu_check_lib.devices import Facts, training
from gpu_check_lib.run import CheckError, all_of
from gpu_check_lib.training import Choices, Job, device_here, digests

KILL_AT = 5
FLAGS = ["--nproc-per-node", "2", "--max-restarts", "1", "--preload", "torch,torch._dynamo"]


def keeps(place: Path) -> Facts:
    """With gloo: the program fails, or hangs behind work on the GPU; the newest whole state is kept."""
    choices: dict[str, Any] = {"kill_at": KILL_AT}
    right = digests(Choices(**choices))
    return all_of(
        {
            "collective fails": lambda: _rescued(place / "fails", {KILL_AT, KILL_AT + 1}, right, **choices),
            "GPU hangs": lambda: _rescued(place / "hangs", {KILL_AT}, right, hang="before", **choices),
        }
    )


def torn(place: Path) -> Facts:
    """A state in the middle of the optimizer's step is refused; the checkpoint counts, here none."""
    choices: dict[str, Any] = {"kill_at": KILL_AT, "hang": "in"}
    return _rescued(place / "in", {0}, digests(Choices(**choices)), **choices)


def nccl(place: Path) -> Facts:
    """With NCCL, which hangs on the GPU when the other rank is gone."""
    choices: dict[str, Any] = {"kill_at": KILL_AT, "backend": "nccl"}
    right = digests(Choices(**choices))
    return all_of(
        {
            "waits in each step": lambda: _rescued(place / "waits", {KILL_AT}, right, **choices),
            "runs ahead": lambda: _rescued(place / "ahead", {KILL_AT}, right, runs_ahead=True, **choices),
        }
    )


def large(place: Path) -> Facts:
    """The same with a state of about 1 GB: the time that the copy takes."""
    width = 6500 if torch.cuda.is_available() else 512
    return _rescued(place / "large", {KILL_AT}, [], kill_at=KILL_AT, hang="before", width=width, steps=7)


def _rescued(place: Path, starts: set[int], right: list[str], **choices: Any) -> Facts:
    """Return from which state the second start goes on.

    Args:
        place: of the run.
        starts: the steps at which it may begin.
        right: the checksums of a training that nothing disturbs, on one rank.
        choices: of the training.

    Raises:
        CheckError: it is another one, or its content is.
    """
    with training(place, FLAGS, **choices) as run:
        first = run.wait_for(2, "first")[1]
        code = run.end()
        told, kept = run.told(), re.findall(r"the state (?:of step|was not).*", run.output())
    step, facts = (
        first["first"],
        {"starts at": first["first"], "exit code": code, "said": kept[:2], **_gap(told)},
    )
    before = [one["digest"] for one in told if one.get("done", one.get("first")) == step and "digest" in one]
    facts["as before the fault"] = before[0] == first["digest"] if len(before) > 1 else None
    facts["as undisturbed"] = (
        right[step] == first["digest"] and right[-1] == told[-1].get("end") if right else None
    )
    if code or step not in starts:
        raise CheckError(f"the second start begins at step {step}, and not {sorted(starts)}: {facts}")
    if facts["as before the fault"] is False or facts["as undisturbed"] is False:
        raise CheckError(f"the state differs from that of step {step}: {facts}")
    return facts


def _gap(told: list[dict[str, Any]]) -> Facts:
    """Return how far the first start came, and the time until the next one had its state."""
    at = [index for index, one in enumerate(told) if "first" in one][1]
    done = [one["done"] for one in told[:at] if "done" in one]
    return {"done before": done[-1], "loaded after [s]": round(told[at]["at"] - told[at - 2]["at"], 2)}


def cost(_: Path) -> Facts:
    """The time that a step takes longer while nothing fails, with 212 tensors."""
    from hpc_elastic.frameworks.torch.memory.layout import Layout  # noqa: PLC0415 - only here
    from hpc_elastic.frameworks.torch.train_state import load_torch  # noqa: PLC0415

    device = device_here()
    job = Job(Choices(), device)
    job.net = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(106))).to(device)
    job.model = job.net
    job.optimizer = torch.optim.AdamW(job.net.parameters(), lr=0.01)
    for parameter in job.net.parameters():
        parameter.grad = torch.ones_like(parameter)
    job.optimizer.step()
    state = {"model": job.net, "optimizer": job.optimizer}
    layout = Layout(load_torch(), state)
    took = []
    for _turn in range(200):
        began = time.perf_counter()
        layout.follows(state)
        layout.note(1)
        layout.mark()
        took.append(time.perf_counter() - began)
    return {"notes of a step [ms]": round(1000 * sorted(took)[len(took) // 2], 3)}
