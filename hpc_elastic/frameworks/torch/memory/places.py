"""The places of tensors in modules: a program may put another tensor there in any step.

A buffer that is assigned in `forward`, as in ``self.mean = 0.9 * self.mean + 0.1 * x.mean()``, is another
tensor after each step. PyTorch's states have the tensors of one moment, by names without those of wrappers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hpc_elastic.frameworks.torch.train_state import Torch
from hpc_elastic.frameworks.torch.trees import Entry
from hpc_elastic.named_tuple import NamedTuple


class TensorPlace(NamedTuple):
    """The place of a tensor.

    Attributes:
        name: the way to it in its module, with wrappers.
        owner: the tensors by key, of one module inside.
        key: of the tensor.
    """

    name: str
    owner: Mapping[str, Any]
    key: str

    @property
    def value(self) -> Any:
        """The tensor that stands there now; None without one."""
        return self.owner.get(self.key)


def places_of(lib: Torch, entries: Iterable[Entry], tensors: Mapping[str, Any]) -> dict[str, TensorPlace]:
    """Return the places of tensors, by name; those that a module has made for its state alone have none.

    Args:
        lib: PyTorch's modules.
        entries: the objects of the state.
        tensors: of the modules, by the names that PyTorch's states give them.
    """
    found: dict[str, TensorPlace] = {}
    for entry in entries:
        if not isinstance(entry.value, lib.torch.nn.Module):
            continue
        there: dict[tuple[Any, ...], list[TensorPlace]] = {}
        for place in filter(_has_tensor, _places(entry.value)):
            there.setdefault(_memory(place.value), []).append(place)
        start = f"{entry.name}."
        for name in [one for one in tensors if one.startswith(start)]:
            chosen = _chosen(there.get(_memory(tensors[name]), []), name.removeprefix(start))
            if chosen is not None:
                found[name] = chosen
    return found


def _places(module: Any) -> Iterator[TensorPlace]:
    for name, inner in module.named_modules(remove_duplicate=False):
        for owner in (inner._parameters, inner._buffers):  # noqa: SLF001 - PyTorch's, there is no other way
            for key in owner:
                yield TensorPlace(f"{name}.{key}" if name else key, owner, key)


def _has_tensor(place: TensorPlace) -> bool:
    return place.value is not None


def _memory(value: Any) -> tuple[Any, ...]:
    """Return the same for two tensors of one memory."""
    if not hasattr(value, "data_ptr"):
        return ()
    return value.data_ptr(), value.dtype, value.shape, value.stride()


def _chosen(places: list[TensorPlace], name: str) -> TensorPlace | None:
    """Return the place of a name among those of one memory, as tied weights have several."""
    parts = name.split(".")
    fit = [place for place in places if _is_within(parts, place.name.split("."))]
    if fit:
        return min(fit, key=lambda place: len(place.name))
    return places[0] if len(places) == 1 else None  # a hook has renamed it


def _is_within(parts: list[str], of: list[str]) -> bool:
    """Tell whether a name is another one without the names of some wrappers."""
    left = iter(of)
    return all(part in left for part in parts)


class Census:
    """The number of tensors and modules in modules: a state has other names when it changes.

    Args:
        lib: PyTorch's modules.
        entries: the objects of the state.
    """

    def __init__(self, lib: Torch, entries: Iterable[Entry]) -> None:
        modules = [one.value for one in entries if isinstance(one.value, lib.torch.nn.Module)]
        self._collections = [
            owner
            for module in modules
            for inner in module.modules()
            for owner in (inner._parameters, inner._buffers, inner._modules)  # noqa: SLF001 - PyTorch's
        ]
        self._sizes = [*map(len, self._collections)]
        self._empty = [place for module in modules for place in _places(module) if place.value is None]

    def is_unchanged(self) -> bool:
        """Tell whether there are as many as before."""
        return [*map(len, self._collections)] == self._sizes and not any(map(_has_tensor, self._empty))
