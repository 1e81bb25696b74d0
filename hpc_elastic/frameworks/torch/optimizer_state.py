"""The state of an optimizer, read from it as it is and named by the parameters of its module; refusals.

PyTorch's own way to read it makes a step while it is empty. Nothing here steps an optimizer, makes a state
in order to read it, or touches a gradient.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from hpc_elastic import worker
from hpc_elastic.errors import UnfitFileError
from hpc_elastic.frameworks.torch.trees import (
    WHERE,
    Entry,
    Filling,
    Path,
    RefusedStateError,
    global_word,
    has_state,
    path_of,
    rebuilt,
    state_leaves,
)

_SHOWN = 3  # names of a group in an error
_FIX = "make the optimizer, and change its groups, as in the training that has saved it, before it is loaded"


def has_own_state_dict(base: Any, optimizer: Any) -> bool:
    """Tell whether an optimizer gives its state in a way of its own, in which more may be."""
    hooks = ("_optimizer_state_dict_pre_hooks", "_optimizer_state_dict_post_hooks")
    return type(optimizer).state_dict is not base.state_dict or any(
        getattr(optimizer, name, None) for name in hooks
    )


def steps_by_closure(optimizer: Any) -> bool:
    """Tell whether an optimizer changes parameters before its closure has returned for the last time."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is closure.empty


class OptimizerState:
    """The state of one optimizer, by the names of its parameters."""

    def __init__(self, torch: Any, name: str, optimizer: Any, names: Mapping[int, str]) -> None:
        self._torch, self._name, self._optimizer = torch, name, optimizer
        self._groups = [
            (group, [names[id(one)] for one in group["params"]]) for group in optimizer.param_groups
        ]
        self._known = names
        self._start = f"{name}.state."

    @cached_property
    def _places(self) -> dict[str, tuple[Any, dict[str, Any]]]:
        """The parameters by name, each with its group."""
        return {
            name: (one, group)
            for group, names in self._groups
            for name, one in zip(names, group["params"], strict=True)
        }

    def leaves(self, most: int | None = None) -> Iterator[Entry]:
        """Yield the values of the state, by name.

        Args:
            most: about so many parameters are enough, spread evenly; None: all.

        Raises:
            RefusedStateError: a value belongs to a tensor that is no parameter of the module, or has no name.
        """
        state = self._optimizer.state
        for key, value in [*state.items()][:: 1 if most is None else max(1, len(state) // most)]:
            if isinstance(value, dict) and not value:
                continue  # none was made yet
            for leaf in state_leaves(state, key, f"{self._start}{self._owner(key)}"):
                self._check_parts(leaf, key)
                yield leaf

    def _check_parts(self, leaf: Entry, key: Any) -> None:
        """Refuse a tensor that is cut in another way than its parameter: the next start knows no such way."""
        value = leaf.owner[leaf.key]
        if not hasattr(value, "placements"):
            return
        if getattr(key, "placements", None) != value.placements or key.shape != value.shape:
            raise RefusedStateError(
                f"{leaf.name} is cut into other parts than its parameter",
                where=WHERE,
                fix=f"leave out {self._name!r}, which then begins anew at each start",
            )

    def _owner(self, key: Any) -> str:
        if not isinstance(key, self._torch.Tensor):
            return global_word(key, self._name)
        if id(key) not in self._known:
            raise RefusedStateError(
                f"the optimizer {self._name!r} has a state of a tensor that is no parameter of its module",
                where=WHERE,
                fix="remove it from there, or leave out the optimizer, which then begins anew",
            )
        return self._known[id(key)]

    def groups(self) -> list[dict[str, Any]]:
        """Return the values of the groups of parameters, which are named in them."""
        return self.named(self._optimizer.param_groups)

    def named(self, groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return groups of parameters with the names of those in their places."""
        return [{**group, "params": [self._known[id(one)] for one in group["params"]]} for group in groups]

    def template(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tensors that a saved state is to fill: the optimizer's, and new ones where it has none.

        Args:
            stored: by name, the size and dtype of a tensor; None for another value.
        """
        here = {leaf.name: leaf.value for leaf in self.leaves()}
        there = {name: form for name, form in stored.items() if name.startswith(self._start)}
        if self._is_of_another_kind(here, there):
            return here
        found = dict[str, Any]()
        for name, form in there.items():
            owner, path = self._split(name)
            if owner is None:
                continue
            value = here.get(name)
            if form is None:
                found[name] = None
            else:
                found[name] = value if hasattr(value, "untyped_storage") else self._new(owner, path, form)
        return found

    def _is_of_another_kind(self, here: Mapping[str, Any], there: Mapping[str, Any]) -> bool:
        """Tell whether the same parameters have values of other names; some may be made late."""
        mine, others = self._keys(here), self._keys(there)
        return any(
            owner in others and not (keys <= others[owner] or others[owner] <= keys)
            for owner, keys in mine.items()
        )

    def _keys(self, names: Mapping[str, Any]) -> dict[Any, set[Any]]:
        found: dict[Any, set[Any]] = {}
        for name in names:
            owner, path = self._split(name)
            found.setdefault(owner, set()).update(path[:1])
        return found

    def _split(self, name: str) -> tuple[Any, Path]:
        """Return the key of a value's owner in the state, None if it is unknown, and the way to the value."""
        rest = name.removeprefix(self._start)
        if rest.startswith("{"):
            words = path_of(f".{rest}")
            return words[0][1], words[1:]
        end = len(rest)
        while end > 0 and rest[:end] not in self._places:
            end = max(rest.rfind(mark, 0, end) for mark in ".[(")
        return (self._places[rest[:end]][0], path_of(rest[end:])) if end > 0 else (None, ())

    def _new(self, owner: Any, path: Path, form: tuple[Any, Any]) -> Any:
        """Return a tensor to be filled, on the device on which PyTorch would load it.

        One as large as its parameter is cut into parts as that is.
        """
        torch, (size, dtype) = self._torch, form
        if not isinstance(owner, torch.Tensor):
            return torch.empty(size, dtype=dtype)
        _, group = self._places[self._known[id(owner)]]
        is_on_gpu = group.get("capturable") or group.get("fused")
        if path and path[0][1] == "step" and not is_on_gpu:
            return torch.empty(size, dtype=dtype)
        if tuple(size) == tuple(owner.shape):
            return torch.empty_like(owner, dtype=dtype, requires_grad=False)
        return torch.empty(size, dtype=dtype, device=owner.device)

    def matched(self, groups: object, path: str) -> list[dict[str, Any]]:
        """Return the saved groups in the order of the optimizer's.

        Raises:
            RefusedStateError: they have other parameters, or values of another optimizer.
        """
        saved = list(groups) if isinstance(groups, list) else []
        there, found = saved, []
        for group, names in self._groups:
            mine = next((one for one in there if sorted(one["params"]) == sorted(names)), None)
            if mine is not None:
                self._check_values(group, mine, path)
                found.append(mine)
                there = [one for one in there if one is not mine]
        if there or len(found) != len(self._groups):
            raise RefusedStateError(
                f"the optimizer {self._name!r} has other groups of parameters than in {path}: "
                f"{_shown(names for _, names in self._groups)} here, "
                f"{_shown(one['params'] for one in saved)} in it",
                where=WHERE,
                fix=_FIX,
            )
        return found

    def _check_values(self, group: Mapping[str, Any], saved: Mapping[str, Any], path: str) -> None:
        """Refuse a group of another optimizer: each has values that the other one has not."""
        lacks, more = sorted(group.keys() - saved.keys()), sorted(saved.keys() - group.keys())
        if lacks and more:
            raise RefusedStateError(
                f"the optimizer {self._name!r} is of another kind than in {path}: its groups have "
                f"{', '.join(lacks)} here, {', '.join(more)} in it",
                where=WHERE,
                fix=_FIX,
            )

    def set(self, found: Mapping[str, Any], groups: Sequence[Mapping[str, Any]], filling: Filling) -> None:
        """Give the optimizer a state."""
        trees: dict[Any, list[tuple[Path, Any]]] = {}
        for name, value in found.items():
            owner, path = self._split(name)
            trees.setdefault(owner, []).append((path, value))
        state = self._optimizer.state
        for owner in [one for one in state if one not in trees]:
            del state[owner]
        for owner, values in trees.items():
            state[owner] = filling.filled(state.get(owner), rebuilt(values))
        for (group, _), saved in zip(self._groups, groups, strict=True):
            for key in saved.keys() - {"params"}:
                group[key] = filling.filled(group.get(key), saved[key])


def _shown(groups: Any) -> str:
    """Return the first names of groups of parameters."""
    texts = [f"[{', '.join(names[:_SHOWN])}{', ...' * (len(names) > _SHOWN)}]" for names in map(list, groups)]
    return f"{len(texts)} ({', '.join(texts[:_SHOWN])}{', ...' * (len(texts) > _SHOWN)})"


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
