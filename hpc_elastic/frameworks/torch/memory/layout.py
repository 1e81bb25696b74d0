"""The tensors of a training by the way in which they change, and the content of a state that is kept.

Counters of batch norms, schedules and loaders change outside optimizers and are small: they are copied after
each step, also where a program has put another tensor in the place of one. A GPU may be behind its program,
and its state is copied on a stream of its own, beside work that hangs.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hpc_elastic.errors import HpcElasticError
from hpc_elastic.frameworks.torch.memory.marks import DeviceMark, HostMark
from hpc_elastic.frameworks.torch.memory.places import Census, places_of
from hpc_elastic.frameworks.torch.optimizer_state import has_own_state_dict, is_unloadable
from hpc_elastic.frameworks.torch.train_state import (
    Replicated,
    Torch,
    TrainState,
)
from hpc_elastic.frameworks.torch.trees import Entry
from hpc_elastic.named_tuple import NamedTuple

_SMALL = 1 << 16  # bytes of a tensor that is copied after each step
_SMALL_SUM = 1 << 22  # of all of them
_EXTRA = "_extra_state"  # ends the name of the value of a module's get_extra_state


class UnfitStateError(HpcElasticError):
    """A state cannot be rescued."""


class ShardedStateError(UnfitStateError):
    """No rank holds the whole state."""


class Whole(NamedTuple):
    """The end of a step: from here on the state is whole until an optimizer begins its next step.

    Attributes:
        step: steps completed.
        groups: by optimizer, the values of its groups of parameters.
        rest: the values of this rank outside modules, optimizers and tensors; pickled.
        fixed: the large tensors outside optimizers, by name.
        versions: of those, which must not have changed since.
        on_host: with a state on a GPU, the values of it that are not there, by name.
    """

    step: int
    groups: dict[str, list[dict[str, Any]]]
    rest: bytes
    fixed: dict[str, Any]
    versions: list[tuple[int, int]]
    on_host: dict[str, Any]


class Layout:
    """The tensors of a training, by the way in which they change; made once for the same modules.

    Args:
        lib: PyTorch's modules.
        state: of the training.

    Raises:
        UnfitStateError: not every rank holds the whole state, or it is of a kind that is not known.
    """

    def __init__(self, lib: Torch, state: TrainState) -> None:
        self._lib = lib
        self._state = state
        self.optimizers = [one for one in state.entries if isinstance(one.value, lib.torch.optim.Optimizer)]
        for one in self.optimizers:
            if is_unloadable(one.value) or has_own_state_dict(lib.torch.optim.Optimizer, one.value):
                raise UnfitStateError(f"{type(one.value).__name__} has a way of its own")
        found, own = state.parts()
        self._tensors = {name: value for name, value in found.items() if self._is_outside_optimizers(name)}
        self.device = self._device_of(found)
        self._places = places_of(lib, state.entries, self._tensors)
        self._made = self._without_place()
        self._census = Census(lib, state.entries)
        self._stream = None if self.device is None else lib.torch.cuda.Stream(self.device)
        self._names = {one.name: self._named(one) for one in self.optimizers}
        self._stepped = {
            self._module_of(one) + name: parameter
            for one in self.optimizers
            for parameter, name in self._names[one.name].items()
        }
        others = {name: tensor for name, tensor in self._tensors.items() if name not in self._stepped}
        self._now = {name: self._standing(name, tensor) for name, tensor in others.items()}
        small, self._fixed = _by_size(others)
        self._copied = [name for name in small if self._is_here(small[name])]
        self._beside = [name for name in small if name not in self._copied]
        self._states: list[Any] = []  # of the optimizers
        self._known: list[tuple[int, int]] = []
        self._optimized: list[tuple[str, dict[str, Any], str]] = []
        self._copies = [self._tensors[name].detach().clone() for name in self._copied]
        if self._content().keys() != found.keys():
            raise UnfitStateError("the optimizer's state has other names than those that PyTorch gives it")
        self.is_alike = all(self._is_alike(one) for one in state.entries if one.name in own)

    def _without_place(self) -> dict[str, Any]:
        """Return copies of the tensors that modules make for their state, as for quantized weights.

        Raises:
            UnfitStateError: a module gives something else than tensors, or a state of its own.
        """
        whole = {one.name for one in self._state.entries}  # tensors by themselves
        names = [name for name in self._tensors if name not in self._places and name not in whole]
        for name in names:
            is_tensor = isinstance(self._tensors[name], self._lib.torch.Tensor)
            if not is_tensor or _EXTRA in name.split("."):
                raise UnfitStateError(f"{name} is no parameter or buffer of its module")
        return {name: self._tensors[name].detach().clone() for name in names}

    def read(self) -> bool:
        """Read which tensors stand in the modules now; return whether they have those that they had.

        Raises:
            UnfitStateError: a tensor that a module makes for its state is not the same each time.
        """
        made, self._made = self._made, {}
        if made:
            found, _ = self._state.parts()
            for name, before in made.items():
                if not self._lib.torch.equal(found[name], before):
                    raise UnfitStateError(f"{name} changes, and is no parameter or buffer of its module")
        for name, before in self._now.items():
            now = self._standing(name, before)
            if now is not before:
                if now is None or now.shape != before.shape:
                    return False
                self._now[name] = now
        return self._census.is_unchanged()

    def _standing(self, name: str, otherwise: Any) -> Any:
        """Return the tensor that stands in a module now, None without one; `otherwise` if it has no place."""
        return self._places[name].value if name in self._places else otherwise

    def _is_outside_optimizers(self, name: str) -> bool:
        return not any(name.startswith(f"{one.name}.") for one in self.optimizers)

    def _device_of(self, found: dict[str, Any]) -> Any:
        """Return the GPU that the state is on; None for the CPU.

        Raises:
            UnfitStateError: no rank holds the whole state, or it is on devices that are not known.
        """
        devices: dict[Any, str] = {}
        for name, value in found.items():
            if not isinstance(value, self._lib.torch.Tensor):
                continue
            if hasattr(value, "full_tensor"):
                raise ShardedStateError(f"{name} is sharded: no rank holds the whole state")
            devices.setdefault(value.device, name)
        for device, name in devices.items():
            if device.type not in {"cpu", "cuda"}:
                raise UnfitStateError(f"{name} is on {device}: a state there is not rescued")
        gpus = [device for device in devices if device.type == "cuda"]
        if len(gpus) > 1:
            raise UnfitStateError(f"{devices[gpus[1]]} is on {gpus[1]}, and others are on {gpus[0]}")
        return gpus[0] if gpus else None

    def _is_here(self, value: Any) -> bool:
        """Tell whether a value is a tensor on the device of the state."""
        is_tensor = isinstance(value, self._lib.torch.Tensor)
        return is_tensor and (self.device is None or value.device == self.device)

    def mark(self) -> DeviceMark:
        """Return a mark at this place of the work on the state's device.

        Raises:
            UnfitStateError: the work is recorded for later.
        """
        if self.device is None:
            return HostMark()
        cuda = self._lib.torch.cuda
        if cuda.is_current_stream_capturing():
            raise UnfitStateError("an optimizer is captured in a CUDA graph, so its steps are not noticed")
        event = cuda.Event(blocking=True)
        event.record(cuda.current_stream(self.device))
        mark: DeviceMark = event
        return mark

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Have this thread work on a stream of its own, as that of the program may hang."""
        if self.device is None:
            yield
            return
        with self._lib.torch.cuda.device(self.device), self._lib.torch.cuda.stream(self._stream):
            yield

    def on_host(self) -> dict[str, Any]:
        """Return copies of the values beside the GPU: they change while the GPU is not as far."""
        if self.device is None:
            return {}
        states = [one.value.state for one in self.optimizers]
        known = [(id(state), len(state)) for state in states]  # loading puts another one in its place
        if self._known != known:
            self._states, self._known, self._optimized = states, known, self._optimized_on_host()
        found = {name: _noted(self._now[name]) for name in self._beside}
        for name, state, key in self._optimized:
            found[name] = _noted(state[key])
        return found

    def _optimized_on_host(self) -> list[tuple[str, dict[str, Any], str]]:
        """Return name and place of the values that optimizers keep beside the GPU, as counts of steps."""
        return [
            (leaf.name, leaf.owner, leaf.key)
            for one in self.optimizers
            for leaf in self._state.optimizer(one).leaves()
            if not self._is_here(leaf.value)
        ]

    def _named(self, entry: Entry) -> dict[Any, str]:
        """Return the names of an optimizer's parameters in its module, the first ones as in PyTorch."""
        places = dict[int, str]()
        for name, tensor in self._tensors.items():
            if name.startswith(self._module_of(entry)):
                places.setdefault(tensor.data_ptr(), name.removeprefix(self._module_of(entry)))
        parameters = [parameter for group in entry.value.param_groups for parameter in group["params"]]
        if any(parameter.data_ptr() not in places for parameter in parameters):
            raise UnfitStateError(f"a parameter of the optimizer {entry.name!r} is not in its module's state")
        return {parameter: places[parameter.data_ptr()] for parameter in parameters}

    def _module_of(self, entry: Entry) -> str:
        """Return the beginning of the names of an optimizer's parameters."""
        module = self._state.model_of(entry)
        return next(f"{one.name}." for one in self._state.entries if one.value is module)

    def _is_alike(self, entry: Entry) -> bool:
        """Tell by its kind whether the values of an object are the same on all ranks."""
        torch = self._lib.torch
        kinds = (
            torch.optim.Optimizer,
            torch.optim.lr_scheduler.LRScheduler,
            torch.amp.GradScaler,
            Replicated,
        )
        return isinstance(entry.value, kinds)

    def rest(self, state: TrainState) -> dict[str, Any]:
        """Return the values of this rank outside modules, optimizers and tensors."""
        torch = self._lib.torch
        kinds = torch.nn.Module | torch.optim.Optimizer | torch.Tensor
        values = {one.name: one.value for one in state.entries if not isinstance(one.value, kinds)}
        return {
            name: value.state_dict() if hasattr(value, "state_dict") else value
            for name, value in values.items()
        }

    def note(self) -> tuple[dict[str, Any], list[tuple[int, int]]]:
        """Copy the small tensors outside optimizers; return the large ones, and their versions."""
        with self._lib.torch.no_grad():
            if self._copies:
                self._lib.torch._foreach_copy_(self._copies, [self._now[name] for name in self._copied])
        fixed = {name: self._now[name] for name in self._fixed}
        return fixed, versions(fixed.values())

    def content(self, whole: Whole) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the tensors and values of a whole state; the tensors are the training's.

        Raises:
            UnfitStateError: parameters lie elsewhere than before, or a value beside the GPU was not noted.
        """
        for name, parameter in self._stepped.items():
            there = self._standing(name, parameter)
            at = self._tensors[name].data_ptr()
            if there is None or there.data_ptr() != at or parameter.data_ptr() != at:
                raise UnfitStateError(f"{name} was replaced by another tensor")
        fixed = {name: tensor.detach() for name, tensor in whole.fixed.items()}
        tensors = {**self._content(), **fixed, **dict(zip(self._copied, self._copies, strict=True))}
        for name, noted in whole.on_host.items():
            is_number = hasattr(tensors[name], "dim") and not hasattr(noted, "dim")
            tensors[name] = self._lib.torch.full_like(tensors[name], noted) if is_number else noted
        for name, value in tensors.items() if self.device is not None else ():
            if not self._is_here(value) and name not in whole.on_host and name not in self._fixed:
                raise UnfitStateError(f"{name} is not on {self.device}")
        own = {one.name: self._groups(one, whole.groups[one.name]) for one in self.optimizers}
        return tensors, {**own, **pickle.loads(whole.rest)}  # noqa: S301 - of this process

    def check(self, kept: Mapping[str, Any]) -> None:
        """Refuse a state that a training cannot go on from.

        Args:
            kept: tensors by name.

        Raises:
            UnfitStateError: parameters are not finite.
        """
        for name in self._stepped:
            if kept[name].dtype.itemsize > 1 and not bool(self._lib.torch.isfinite(kept[name]).all()):
                raise UnfitStateError(f"{name} is not finite")

    def _groups(self, entry: Entry, values: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the groups of an optimizer's parameters, which are named in them."""
        names = self._names[entry.name]
        return [
            {**group, "params": [names[parameter] for parameter in live["params"]]}
            for group, live in zip(values, entry.value.param_groups, strict=True)
        ]

    def size(self) -> int:
        """Return the size of all tensors [bytes]."""
        return sum(map(_size, self._content().values()))

    def _content(self) -> dict[str, Any]:
        """Return all tensors by name, with the state of optimizers as it is now."""
        found = dict(self._tensors)
        for entry in self.optimizers:
            found.update((leaf.name, leaf.value) for leaf in self._state.optimizer(entry).leaves())
        return found


def versions(tensors: Iterable[Any]) -> list[tuple[int, int]]:
    """Return numbers that are others when tensors have changed, or got other memory."""
    return [(one._version, one.data_ptr()) for one in tensors]  # noqa: SLF001 - PyTorch's, for this


def _by_size(tensors: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the tensors that are small enough to be copied after each step, and the others."""
    small, large, total = dict[str, Any](), dict[str, Any](), 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size() if hasattr(tensor, "numel") else _SMALL + 1
        if size > _SMALL or total + size > _SMALL_SUM:
            large[name] = tensor
        else:
            small[name], total = tensor, total + size
    return small, large


def _noted(value: Any) -> Any:
    """Return a copy of a tensor or value; the number in a tensor without dimensions, which is faster."""
    if not hasattr(value, "dim"):
        return copy.deepcopy(value)
    return value.clone() if value.dim() else value.item()


def _size(value: Any) -> int:
    return value.numel() * value.element_size() if hasattr(value, "element_size") else 0


def without_parameters(optimizer: Any) -> list[dict[str, Any]]:
    """Return copies of the values of an optimizer's groups of parameters."""
    return [
        {
            key: value.clone() if hasattr(value, "clone") else value
            for key, value in group.items()
            if key != "params"
        }
        for group in optimizer.param_groups
    ]
