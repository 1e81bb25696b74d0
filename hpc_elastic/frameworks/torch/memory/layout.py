"""The tensors of a training by the way in which they change, and the content of a state that is kept.

Parameters, states of optimizers and large buffers stay where they are from the end of a step until the next
step of an optimizer: that is proven. Counters of batch norms change before, and are small: they are copied
after each step, also where a program has put another tensor in the place of one. A GPU may be behind its
program: values beside it are copied, and its state is copied on a stream of its own, beside work that hangs.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import is_
from typing import Any

from hpc_elastic.errors import HpcElasticError
from hpc_elastic.frameworks.torch.memory.marks import DeviceMark, HostMark
from hpc_elastic.frameworks.torch.memory.places import Objects, TensorPlace, places_of
from hpc_elastic.frameworks.torch.memory.proof import SAMPLED, Fingerprint, Proof, TensorCopies, spread
from hpc_elastic.frameworks.torch.optimizer_state import has_own_state_dict, steps_by_closure
from hpc_elastic.frameworks.torch.train_state import Replicated, State, Torch, TrainState
from hpc_elastic.frameworks.torch.trees import Entry, ModuleNames
from hpc_elastic.named_tuple import NamedTuple

_SMALL = 1 << 16  # bytes of a tensor that is copied after each step
_SMALL_SUM = 1 << 22  # of all of them
_SUMMED = 1 << 23  # bytes of larger ones of which a checksum is noted; on a GPU, which reads faster:
_SUMMED_GPU = 1 << 30
_STATES = 4096  # tensors in the states of optimizers; of more, a sample is compared


class UnfitStateError(HpcElasticError):
    """A state cannot be rescued."""


class ShardedStateError(UnfitStateError):
    """No rank holds the whole state."""


class Arranged(NamedTuple):
    """The tensors in their places, but for parameters of optimizers, with their proof and their copies.

    Attributes:
        tensors: in the order of their places.
        small: numbers of those that are copied after each step.
        beside: with a state on a GPU, numbers of those that are not there.
        proof: of all others, and of the parameters.
        copies: of the small ones.
        copies_beside: of those beside the GPU.
    """

    tensors: list[Any]
    small: list[int]
    beside: list[int]
    proof: Proof
    copies: TensorCopies
    copies_beside: TensorCopies

    @property
    def is_stale(self) -> bool:
        """Whether tensors have got other memory."""
        return self.proof.is_stale or self.copies.is_stale or self.copies_beside.is_stale


class Whole(NamedTuple):
    """The end of a step: from here on the state is whole until an optimizer begins its next step.

    Attributes:
        step: steps completed.
        groups: by optimizer, the values of its groups of parameters.
        rest: the values of this rank outside modules, optimizers and tensors; pickled.
        arranged: the tensors.
        fingerprint: of those that are not copied.
        small: the bytes of the small ones.
        beside: with a state on a GPU, the bytes of those that are not there.
        values: in the state of optimizers that are no tensors.
    """

    step: int
    groups: dict[str, list[dict[str, Any]]]
    rest: bytes
    arranged: Arranged
    fingerprint: Fingerprint
    small: Any
    beside: Any
    values: list[Any]


class Layout:
    """The tensors of a training, by the way in which they change; made once for the same objects.

    Args:
        lib: PyTorch's modules.
        state: of the training.

    Raises:
        UnfitStateError: not every rank holds the whole state, or it is of a kind that is not known.
    """

    def __init__(self, lib: Torch, state: State) -> None:
        self._lib, self._torch = lib, lib.torch
        train = TrainState(lib, state)
        self.optimizers = [one for one in train.entries if isinstance(one.value, self._torch.optim.Optimizer)]
        for one in self.optimizers:
            if steps_by_closure(one.value) or has_own_state_dict(self._torch.optim.Optimizer, one.value):
                raise UnfitStateError(f"{type(one.value).__name__} has a way of its own")
        found, own = train.parts()
        self.device = self._device_of(found)
        self._stream = None if self.device is None else self._torch.cuda.Stream(self.device)
        self._names = {one.name: self._named(one, train) for one in self.optimizers}
        states = {leaf.name: leaf for one in self.optimizers for leaf in train.optimizer(one).leaves()}
        self._objects = Objects(self._torch, state, train.entries, [leaf.owner for leaf in states.values()])
        self._sort(train.entries, found, states)
        self.is_alike = all(self._is_alike(one) for one in train.entries if one.name in own)

    def _sort(self, entries: Sequence[Entry], found: Mapping[str, Any], states: Mapping[str, Entry]) -> None:
        """Sort the places of all tensors and values by how they change.

        Raises:
            UnfitStateError: a module makes tensors or values for its state alone, or one is no plain tensor.
        """
        torch = self._torch
        if not states.keys() <= found.keys():
            raise UnfitStateError("the optimizer's state has names that it does not have in a checkpoint")
        outside = {name: value for name, value in found.items() if name not in states}
        places = places_of(self._lib, entries, outside)
        places |= {one.name: TensorPlace(*one) for one in entries if isinstance(one.value, torch.Tensor)}
        unplaced = next((name for name in outside if name not in places), None)
        if unplaced is not None:
            raise UnfitStateError(f"{unplaced} is no parameter or buffer of its module")
        places |= {name: TensorPlace(*leaf) for name, leaf in states.items()}
        optimized = {id(parameter) for names in self._names.values() for parameter in names}
        self._stepped = {name: one for name, one in places.items() if id(one.value) in optimized}
        self._parameters = [place.value for place in self._stepped.values()]
        rest = {name: one for name, one in places.items() if name not in self._stepped}
        self._others = {name: one for name, one in rest.items() if isinstance(one.value, torch.Tensor)}
        self._noted = {name: one for name, one in rest.items() if name not in self._others}
        self._rest = [one for one in entries if not isinstance(one.value, self._objects.kinds)]
        self._states = states.keys()
        watched = {*spread([name for name in states if name in self._others], _STATES, SAMPLED)}
        self._late = {
            name: self._others.pop(name) for name in states if name in self._others and name not in watched
        }
        self._late_tensors = [place.value for place in self._late.values()]
        for name, place in (self._stepped | self._others).items():
            if self.device is not None and name in self._stepped and place.value.device != self.device:
                raise UnfitStateError(f"{name} is not on {self.device}")
            if not _is_plain(torch, place.value):
                raise UnfitStateError(f"{name} is a {type(place.value).__name__}, and no plain tensor")
        self._arranged = self._arrange([place.value for place in self._others.values()])

    def _arrange(self, tensors: list[Any]) -> Arranged:
        """Sort the tensors that stand in their places by how they are noted.

        Raises:
            UnfitStateError: a large one is not on the GPU of the others.
        """
        small, beside, proven, summed, total = list[int](), list[int](), list[int](), list[int](), 0
        left = _SUMMED if self.device is None else _SUMMED_GPU
        for number, (name, tensor) in enumerate(zip(self._others, tensors, strict=True)):
            size = tensor.numel() * tensor.element_size()
            if self.device is not None and tensor.device != self.device:
                if size > _SMALL:
                    raise UnfitStateError(f"{name} is large, and not on {self.device}")
                beside.append(number)
            elif name in self._states or size > _SMALL or total + size > _SMALL_SUM:
                proven.append(number)
                if size <= left and self._changes_in_places(name, tensor):
                    summed.append(len(self._stepped) + len(proven) - 1)
                    left -= size
            else:
                small.append(number)
                total += size
        order = [*self._others]
        names = [*self._stepped, *(order[number] for number in proven)]
        proof = Proof(self._torch, names, [*self._parameters, *(tensors[one] for one in proven)], summed)
        copies, more = (
            TensorCopies(self._torch, [tensors[number] for number in numbers]) for numbers in (small, beside)
        )
        return Arranged(tensors, small, beside, proof, copies, more)

    def _changes_in_places(self, name: str, tensor: Any) -> bool:
        """Tell whether a step may change a few elements of a tensor: a buffer, such as a memory bank."""
        return name not in self._states and not isinstance(tensor, self._torch.nn.Parameter)

    def follows(self, state: State) -> bool:
        """Tell whether the objects are those that were laid out; another dict may have them now.

        Raises:
            InputError: it has no names, or one twice.
        """
        if not self._objects.are_in(state):
            entries = {one.name: one for one in TrainState(self._lib, state).entries}
            if not self._objects.are_alike(entries):
                return False
            self._objects.move(state, entries)
            self._rest = [entries[one.name] for one in self._rest]
            for places in (self._stepped, self._others):
                places |= {name: TensorPlace(*entries[name]) for name in places.keys() & entries.keys()}
        return self._objects.are_unchanged()

    def note(self, step: int) -> Whole | None:
        """Note the end of a step; None: another layout is needed."""
        arranged = self._arranged
        try:
            now = [place.owner[place.key] for place in self._others.values()]
        except (KeyError, IndexError):
            return None
        if arranged.is_stale or not all(map(is_, now, arranged.tensors)):
            if not all(map(self._is_of_one_form, now, arranged.tensors)):
                return None
            arranged = self._arranged = self._arrange(now)
        return Whole(
            step,
            {one.name: without_parameters(one.value) for one in self.optimizers},
            pickle.dumps(self.rest()),
            arranged,
            arranged.proof.note(),
            arranged.copies.take(),
            arranged.copies_beside.take(),
            [copy.deepcopy(place.value) for place in self._noted.values()],
        )

    def _is_of_one_form(self, one: Any, before: Any) -> bool:
        if one is before:
            return True
        is_plain = isinstance(one, self._torch.Tensor) and _is_plain(self._torch, one)
        forms = [(it.shape, it.dtype, it.device) for it in (one, before)] if is_plain else [0, 1]
        return bool(forms[0] == forms[1])

    def _named(self, entry: Entry, state: TrainState) -> dict[Any, str]:
        """Return the names of an optimizer's parameters in its module."""
        names = ModuleNames(state.model_of(entry)).parameters()
        return {one: names[one] for group in entry.value.param_groups for one in group["params"]}

    def counted(self, whole: Whole) -> str:
        """Return which tensor was replaced or has counted a change since a step; empty: none has."""
        places = self._stepped | self._late
        for name, tensor in self._live().items():
            if places[name].value is not tensor:
                return f"{name} was replaced by another tensor"
        return whole.arranged.proof.counted(whole.fingerprint)

    def changed(self, whole: Whole, *, is_left: bool) -> str:
        """Return why a state is not shown to be that of its step; empty: it is. Waits for a GPU.

        Args:
            whole: the notes of the step.
            is_left: the program has begun the next step of an optimizer, which a GPU has not come to; then
                `counted` was empty at its beginning.
        """
        counted = "" if is_left else self.counted(whole)
        return counted or whole.arranged.proof.differing(whole.fingerprint)

    def _live(self) -> dict[str, Any]:
        """Return the tensors whose places are not looked at after each step."""
        late = zip(self._late, self._late_tensors, strict=True)
        return {**dict(zip(self._stepped, self._parameters, strict=True)), **dict(late)}

    def content(self, whole: Whole) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the tensors and values of a whole state; tensors that are proven are the training's."""
        arranged = whole.arranged
        others = [*arranged.tensors]
        for numbers, copies, taken in (
            (arranged.small, arranged.copies, whole.small),
            (arranged.beside, arranged.copies_beside, whole.beside),
        ):
            for number, tensor in zip(numbers, copies.tensors(taken), strict=True):
                others[number] = tensor
        tensors = {
            **self._live(),
            **dict(zip(self._others, others, strict=True)),
            **dict(zip(self._noted, whole.values, strict=True)),
        }
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
            if kept[name].dtype.itemsize > 1 and not bool(self._torch.isfinite(kept[name]).all()):
                raise UnfitStateError(f"{name} is not finite")

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

    def rest(self) -> dict[str, Any]:
        """Return the values of this rank outside modules, optimizers and tensors."""
        values = {one.name: one.value for one in self._rest}
        return {
            name: value.state_dict() if hasattr(value, "state_dict") else value
            for name, value in values.items()
        }

    def _groups(self, entry: Entry, values: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the groups of an optimizer's parameters, which are named in them."""
        names = self._names[entry.name]
        return [
            {**group, "params": [names[parameter] for parameter in live["params"]]}
            for group, live in zip(values, entry.value.param_groups, strict=True)
        ]

    def size(self) -> int:
        """Return the size of all tensors [bytes]."""
        tensors = (*self._live().values(), *self._arranged.tensors)
        return sum(one.numel() * one.element_size() for one in tensors)


def _is_plain(torch: Any, tensor: Any) -> bool:
    """Tell whether a tensor is its memory alone: not sparse, quantized or around other tensors."""
    is_inner = type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    return bool(is_inner and tensor.layout == torch.strided and not tensor.is_quantized)


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
