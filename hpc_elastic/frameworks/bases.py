"""Classes whose base is a framework's, loaded with the first object; checks of the Trainers given to them.

A program may train several times. The checkpoints of each training have a name of their own then: a start
after a fault goes through the program from its beginning, and the first training would be given the state of
the second one.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

from hpc_elastic import worker
from hpc_elastic.errors import InputError
from hpc_elastic.named_tuple import NamedTuple


class _Training(NamedTuple):
    """A training of this process.

    Attributes:
        trainer: a weak reference to the Trainer; None: it has not asked for its newest checkpoint.
        step: the newest one.
    """

    trainer: Any = None
    step: int = 0


_trainings: dict[str, _Training] = {}  # by the name of their checkpoints


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


def note_step(name: str, step: int) -> None:
    """Take note of a step of the training whose checkpoints have a name."""
    _trainings[name] = _trainings.get(name, _Training())._replace(step=step)


def has_several() -> bool:
    """Tell whether this process has had trainings of several names."""
    return len(_trainings) > 1


def check_first(callback: object, name: str, trainer: object) -> None:
    """Refuse to look for the checkpoint of a Trainer where another one has trained under its name.

    Args:
        callback: of the Trainer.
        name: of its checkpoints.
        trainer: the Trainer.

    Raises:
        InputError: it has.
    """
    before = _trainings.get(name, _Training())
    _trainings[name] = before._replace(trainer=weakref.ref(trainer))
    if before.step and (before.trainer is None or before.trainer() is not trainer):
        raise _same_name(callback, "another Trainer has", before.step)


def check_begin(callback: object, name: str, step: int) -> None:
    """Refuse a training that begins anew where another one had checkpoints of its name.

    Args:
        callback: of its Trainer.
        name: of its checkpoints.
        step: at which it begins.

    Raises:
        InputError: it does.
    """
    reached = _trainings.get(name, _Training()).step
    if worker.run_dir() is None or step >= reached:
        return
    saved = worker.latest_checkpoint(name)
    if saved is None or step < saved.step:
        raise _same_name(callback, f"a training begins at step {step}, and another one has", reached)


def _same_name(callback: object, what: str, reached: int) -> InputError:
    kind = type(callback).__name__
    return InputError(
        f"{what} come to step {reached} in this program: a start could not tell their checkpoints apart",
        where=kind,
        fix=f'give each training a Trainer and a callback of its own: {kind}(name="first"), '
        f'{kind}(name="second"); to go on with one, give its Trainer the path of newest() again',
    )
