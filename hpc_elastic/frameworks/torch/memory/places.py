"""The places of tensors in modules: a program may put another tensor there in any step.

A buffer that is assigned in `forward`, as in ``self.mean = 0.9 * self.mean + 0.1 * x.mean()``, is another
tensor after each step. PyTorch's states have the tensors of one moment, by names without those of wrappers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from hpc_elastic.frameworks.torch.train_state import State, TrainState
from hpc_elastic.frameworks.torch.trees import Entry


def places_in(train: TrainState, module: Entry, tensors: Mapping[str, Any]) -> dict[str, Entry]:
    """Return the places of tensors, by name; those that a module has made for its state alone have none."""
    found, names = dict[str, Entry](), train.names(module.value)
    for way, inner in module.value.named_modules(remove_duplicate=False):
        start = f"{module.name}.{names.start(way)}"
        for owner in (inner._parameters, inner._buffers):  # noqa: SLF001 - PyTorch's, there is no other way
            for key, value in owner.items():
                name = f"{start}{key}"
                if name in tensors and _is_same(value, tensors[name]):
                    found[name] = Entry(name, owner, key)
    return found


def _is_same(one: Any, other: Any) -> bool:
    """Tell whether two tensors are one, as a hook may give a state another one in its place."""
    if one is other or one is None or not hasattr(other, "data_ptr") or one.layout != other.layout:
        return one is other
    is_of_one_form = one.shape == other.shape and one.dtype == other.dtype
    return is_of_one_form and (str(one.layout) != "torch.strided" or one.data_ptr() == other.data_ptr())


class Objects:
    """The objects of a training, and all that holds their tensors, as they were when they were laid out."""

    def __init__(self, torch: Any, state: State, entries: Sequence[Entry], owners: Iterable[Any]) -> None:
        self.kinds = (torch.nn.Module, torch.optim.Optimizer, torch.Tensor)
        self._live = {one.name: one.value for one in entries if isinstance(one.value, self.kinds[:2])}
        self._kinds_of = {one.name: self._kind_of(one) for one in entries}
        modules = [one for one in self._live.values() if isinstance(one, torch.nn.Module)]
        self._optimizers = [one for one in self._live.values() if isinstance(one, torch.optim.Optimizer)]
        collections = [
            owner
            for module in modules
            for inner in module.modules()
            for owner in (inner._parameters, inner._buffers, inner._modules)  # noqa: SLF001 - PyTorch's
        ]
        self._empty = [(owner, key) for owner in collections for key in owner if owner[key] is None]
        groups = [group["params"] for one in self._optimizers for group in one.param_groups]
        states = {id(owner): owner for owner in owners}.values()
        self._collections = [*collections, *groups, *states, *(item for one in self._held() for item in one)]
        self._sizes = [*map(len, self._collections)]
        self._held_before = self._held()
        self.move(state, {one.name: one for one in entries})

    def _held(self) -> list[tuple[Any, Any]]:
        """Return states and groups of optimizers: loading puts others in their places."""
        return [(one.state, one.param_groups) for one in self._optimizers]

    def move(self, state: State, entries: Mapping[str, Entry]) -> None:
        """Take note of the dict that has the objects now."""
        self._state = state
        owners = {id(one.owner): one.owner for one in entries.values()}
        self._dicts = [*_inner(state, owners.keys())]
        self._counts = [*map(len, owners.values())]
        self._owners = [*owners.values()]
        places = [one for one in entries.values() if not isinstance(one.value, self.kinds[2])]
        self._raw = [(one.owner, one.key, one.owner[one.key], one.name in self._live) for one in places]

    def are_in(self, state: State) -> bool:
        """Tell whether the dict has the same objects at the same places, but for tensors and values."""
        return (
            state is self._state
            and [*map(len, self._owners)] == self._counts
            and all(owner.get(key) is inner for owner, key, inner in self._dicts)
            and all(
                owner.get(key) is one or (not is_live and type(owner.get(key)) is type(one))
                for owner, key, one, is_live in self._raw
            )
        )

    def are_alike(self, entries: Mapping[str, Entry]) -> bool:
        """Tell whether the objects by name are those that they were."""
        kinds = {one.name: self._kind_of(one) for one in entries.values()}
        return kinds == self._kinds_of and all(entries[name].value is one for name, one in self._live.items())

    def _kind_of(self, entry: Entry) -> list[bool]:
        return [isinstance(entry.value, kind) for kind in self.kinds]

    def are_unchanged(self) -> bool:
        """Tell whether objects hold as many tensors as before."""
        held = zip(self._held(), self._held_before, strict=True)
        return (
            [*map(len, self._collections)] == self._sizes
            and all(now[0] is then[0] and now[1] is then[1] for now, then in held)
            and all(owner.get(key) is None for owner, key in self._empty)
        )


def _inner(state: Any, owners: Collection[int]) -> Iterator[tuple[Any, Any, Any]]:
    """Yield the places of dicts in a dict that have objects in them."""
    for key, value in state.items():
        inside = [*_inner(value, owners)] if isinstance(value, dict) else []
        if inside or id(value) in owners:
            yield state, key, value
            yield from inside
