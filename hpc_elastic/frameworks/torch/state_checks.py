"""Refusals of objects that cannot be saved and loaded: before the first step, or when they come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from hpc_elastic import worker
from hpc_elastic.errors import UnfitFileError
from hpc_elastic.frameworks.torch.optimizer_state import has_own_state_dict
from hpc_elastic.frameworks.torch.trees import WHERE, Entry, RefusedStateError, has_state


@contextmanager
def ending_the_run() -> Iterator[None]:
    """End the run at a refusal, as no restart helps."""
    try:
        yield
    except (RefusedStateError, UnfitFileError) as error:
        if worker.attached():
            worker.give_up(error.message if isinstance(error, RefusedStateError) else str(error))
        raise


def check_value(entry: Entry) -> None:
    """Refuse a class or a list if its state, or that of a part of it, would get lost.

    Raises:
        RefusedStateError: names it.
    """
    value = entry.value
    if isinstance(value, type):
        if has_state(value):
            raise RefusedStateError(
                f"{entry.name!r} is the class {value.__name__}, which has no state of its own",
                where=WHERE,
                fix="give the object that the training uses",
            )
    elif any(map(has_state, value)):  # pickle would load copies of them, which the training does not use
        raise RefusedStateError(
            f"{entry.name!r} is a {type(value).__name__} with modules or other objects that have a state; "
            "those are loaded in dicts only",
            where=WHERE,
            fix=f'give each one a name: {{{entry.name!r}: {{"first": ..., "second": ...}}}}',
        )


def check_module(entry: Entry) -> None:
    """Refuse a module that is cut into parts of no parameter.

    Raises:
        RefusedStateError: names it.
    """
    if any(type(one).__name__ == "FullyShardedDataParallel" for one in entry.value.modules()):
        raise RefusedStateError(
            f"{entry.name!r} has a FullyShardedDataParallel in it",
            where=WHERE,
            fix="cut it into parts by torch.distributed.fsdp.fully_shard (FSDP2)",
        )


def check_optimizer(torch: Any, entry: Entry, objects: Sequence[Any]) -> None:
    """Refuse an optimizer around another one whose state is in none of the objects.

    Raises:
        RefusedStateError: names it.
    """
    optimizer, known = entry.value, set(map(id, objects))
    if has_own_state_dict(torch.optim.Optimizer, optimizer):
        return
    for name, inner in vars(optimizer).items():
        is_one = isinstance(inner, torch.optim.Optimizer) and inner.state is not optimizer.state
        if is_one and id(inner) not in known:
            raise RefusedStateError(
                f"the optimizer {entry.name!r} is around another one, {name}, whose state is not in its own",
                where=WHERE,
                fix=f'give both: {{"{entry.name}": optimizer, "inner": optimizer.{name}}}',
            )


def given_state(entry: Entry) -> Any:
    """Return the state of an optimizer that gives it in its own way.

    Raises:
        RefusedStateError: it does not give it.
    """
    try:
        return entry.value.state_dict()
    except Exception as error:
        raise RefusedStateError(
            f"{type(entry.value).__name__} does not give the state of {entry.name!r}: {error}",
            where=WHERE,
            fix="use an optimizer whose state each rank has as a whole, or FSDP2",
        ) from error


def check_tensors(torch: Any, saved: Mapping[str, Any]) -> None:
    """Refuse tensors of a kind that is not saved, or not loaded.

    Raises:
        RefusedStateError: names the first one.
    """
    for name, value in saved.items():
        for tensor in _tensors_in(torch, value):
            reason = _unfit(torch, tensor)
            if reason:
                raise RefusedStateError(
                    f"{name} is {reason}, and cannot be saved and loaded",
                    where=WHERE,
                    fix="make a plain tensor of it before, or leave it out of the state",
                )


def _tensors_in(torch: Any, value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors_in(torch, one)


def _unfit(torch: Any, value: Any) -> str:
    """Return the kind of a tensor that is not saved, or not loaded in place; empty: it is of none."""
    if torch.nn.parameter.is_lazy(value):
        return "lazy: it has no size before the first batch"
    if value.is_nested or value.layout is not torch.strided:
        return f"of the layout {'nested' if value.is_nested else str(value.layout).removeprefix('torch.')}"
    if value.is_quantized:
        return "quantized"
    if value.device.type == "meta":
        return "on the device meta: it has no content"
    if any(step == 0 and size > 1 for step, size in zip(value.stride(), value.shape, strict=True)):
        return "expanded: several of its elements are one"
    return ""
