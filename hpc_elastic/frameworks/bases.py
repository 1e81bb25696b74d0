"""Classes whose base is a framework's, loaded with the first object; checks of the Trainers given to them."""

from __future__ import annotations

import functools
from typing import Any

from hpc_elastic.errors import InputError


def become(made: object, base: type) -> None:
    """Have an object be a `base` as well, whose methods stand in for those that its own class lacks."""
    kind: Any = type(made)
    made.__class__ = _with_base(kind, base)


@functools.cache
def _with_base(kind: type, base: type) -> type:
    if issubclass(kind, base):
        return kind
    words = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind, base), words)


def check_trainer(callback: object, trainer: object, callbacks: object) -> None:
    """Make sure that a callback is one of those of a Trainer, which otherwise would not stop when asked.

    Args:
        callback: the callback.
        trainer: given as the Trainer.
        callbacks: its callbacks; None: it has none, so it is no Trainer.

    Raises:
        InputError: it is not, or that is no Trainer.
    """
    name = type(callback).__name__
    where = f"{name}.newest"
    if not isinstance(callbacks, list):
        raise InputError(
            f"{type(trainer).__name__} is no Trainer",
            where=where,
            fix="give the Trainer that has this callback: elastic.newest(trainer)",
        )
    if not any(one is callback for one in callbacks):
        raise InputError(
            "the Trainer does not have this callback, so it would not stop when that is requested",
            where=where,
            fix=f"elastic = {name}(...), then Trainer(..., callbacks=[..., elastic])",
        )


def check_same_trainer(callback: object, *, is_same: bool) -> None:
    """Make sure that the Trainer that begins is the one whose state is to be kept.

    Args:
        callback: the callback.
        is_same: whether it is.

    Raises:
        InputError: it is another one.
    """
    if not is_same:
        raise InputError(
            "the Trainer that begins is not the one that was given",
            where=f"{type(callback).__name__}.newest",
            fix="give it the Trainer that is to train, right before its training begins",
        )
