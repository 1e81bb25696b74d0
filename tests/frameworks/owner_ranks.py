"""What the ranks do in tests/frameworks/test_owners.py; loaded by tests/frameworks/ranks.py alone."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist

from hpc_elastic import worker
from hpc_elastic.errors import InputError
from hpc_elastic.frameworks.torch import Checkpoints


def retry() -> list[list[int]]:
    """Save at step 2 alone; return the steps at which saves have begun, and what is complete."""
    checkpoints = Checkpoints(every=2, keep=9)
    state, begun = {"x": torch.zeros(2)}, list[int]()
    checkpoints.load(state)
    for step in (1, 2, 3):
        checkpoints.done(step, state)
        if checkpoints._since not in (0, *begun):
            begun.append(checkpoints._since)
        checkpoints._background.join(60.0)
        dist.barrier()
    checkpoints.wait()
    return [begun, [saved.step for saved in checkpoints.all()]]


def two_objects(directory: str) -> list[Any]:
    """Load a student and a teacher, and save each at a step of its own; return steps and weights."""
    made = {"student": (5, 1.0), "teacher": (7, 2.0)}
    steps, weights = [], []
    for name, (step, weight) in made.items():
        own = Checkpoints(directory, name=name, every=None)
        tensor = torch.zeros(1)
        steps.append(own.load({"x": tensor}))
        if not steps[-1]:
            tensor.fill_(weight)
            own.save(step, {"x": tensor})
            own.wait()
        weights.append(tensor.item())
        _kept.append(own)
    return [*steps, *weights]


_kept: list[Checkpoints] = []


def two_of_one_name() -> None:
    """Make two objects without a name, each with a directory of its own."""
    _kept.extend([Checkpoints("a"), Checkpoints("b")])


def epochs(directory: str) -> list[Any]:
    """Count steps anew in the second epoch, then go back on purpose; return the error and the saves."""
    checkpoints = Checkpoints(directory, every=1)
    state, error = {"x": torch.zeros(1)}, ""
    checkpoints.load(state)
    try:
        for step in (1, 2, 3, 1):
            checkpoints.done(step, state)
    except InputError as wrong:
        error = str(wrong)
    worker.tick(3)
    checkpoints.wait()
    newest = checkpoints.latest()
    worker.resumed(1)
    checkpoints.done(2, state)
    checkpoints.wait()
    names = [os.path.basename(saved.path) for saved in checkpoints.all()]
    return [error, newest.step if newest else None, newest and os.path.basename(newest.path), names[0]]


def saved_twice() -> list[Any]:
    """Save one step by two objects, one after the other; return the complete checkpoints after each."""
    found, state = [], {"x": torch.zeros(1)}
    for _ in (1, 2):
        checkpoints = Checkpoints(every=None)
        checkpoints.load(state)
        checkpoints._saved = None  # as if it had loaded another one
        checkpoints.save(5, state)
        checkpoints.wait()
        found.append([saved.step for saved in checkpoints.all()])
        checkpoints._end_memory()
    return found


def gone_back(steps: int, is_back: bool) -> int:
    """Go on from the newest state, make copies in memory, and go back to step 2; return where it began."""
    state = {"x": torch.zeros(1)}
    checkpoints = Checkpoints(every=None)
    start = checkpoints.load(state)
    _copied(checkpoints, state, steps)
    if is_back:
        worker.resumed(2)
        checkpoints.done(3, state)
    return start


def saved_and_copied(saves: list[int], copies: list[int]) -> list[Any]:
    """Go on from the newest state, save some steps and copy some into memory; return what was loaded."""
    state = {"x": torch.zeros(1)}
    checkpoints = Checkpoints(every=None)
    found = [checkpoints.load(state), state["x"].item()]
    assert checkpoints._memory is not None
    memory = checkpoints._memory.copies
    assert memory is not None
    for step in range(found[0] + 1, max([0, *saves, *copies]) + 1):
        state["x"].fill_(step)
        memory._next = step if {step, step + 1} & {*copies} else step + 2
        checkpoints.done(step, state)
        memory._background.join(60.0)
        if step in saves:
            checkpoints.save(step, state)
            checkpoints.wait()
    return found


def one_after_the_other() -> list[Any]:
    """Train by two objects, one after the other; return where each begins, and whether it has memory."""
    found = []
    for name, steps in (("first", 0), ("second", 10)):
        state = {"x": torch.zeros(1)}
        checkpoints = Checkpoints(every=None, name=name)
        found.append([checkpoints.load(state), checkpoints._memory is not None])
        _copied(checkpoints, state, steps)
        checkpoints._end_memory()
    return found


def _copied(checkpoints: Checkpoints, state: dict[str, Any], steps: int) -> None:
    """Make steps until there is a copy in memory, at the least so many."""
    for step in range(1, steps + 1):
        checkpoints.done(step, state)
        copies = checkpoints._memory and checkpoints._memory.copies
        if copies:
            copies._background.join(60.0)
            copies._next = 0
