"""The tensors of a training by the way in which they change, and the content of a state that is kept.

Parameters, states of optimizers and large buffers stay where they are from the end of a step until the next
step of an optimizer: that is proven. Counters of batch norms change before, and are small: they are copied
after each step, also where a program has put another tensor in the place of one. A GPU may be behind its
program: values beside it are copied, and its state is copied on a stream of its own, beside work that hangs.

A program may put another tensor in a place of a module in any step: a buffer that is assigned in `forward`,
as in ``self.mean = 0.9 * self.mean + 0.1 * x.mean()``, is another one after each. So places are noted.
"""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from operator import getitem, is_
from typing import Any

from hpc_elastic.errors import HpcElasticError
from hpc_elastic.frameworks.torch.memory.proof import (
    SAMPLED,
    DeviceMark,
    Fingerprint,
    HostMark,
    Proof,
    TensorCopies,
    spread,
)
from hpc_elastic.frameworks.torch.optimizer_state import has_own_state_dict, steps_by_closure
from hpc_elastic.frameworks.torch.train_state import Replicated, State, Torch, TrainState, is_cut
from hpc_elastic.frameworks.torch.trees import Entry
from hpc_elastic.named_tuple import NamedTuple

_SMALL = 1 << 16  # bytes of a tensor that is copied after each step
_SMALL_SUM = 1 << 22  # of all of them
_SUMMED = 1 << 23  # bytes of larger ones of which a checksum is noted; on a GPU, which reads faster:
_SUMMED_GPU = 1 << 30
_STATES = 4096  # tensors in the states of optimizers; of more, a sample is compared
_LOOKED_AT = 4096  # collections of tensors, after each step; of more, others after the next one


@contextmanager
def without_collections() -> Iterator[None]:
    """Have no garbage be looked for while very many small objects are made: each look visits all of them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class UnfitStateError(HpcElasticError):
    """A state cannot be rescued."""


class ShardedStateError(UnfitStateError):
    """No rank holds the whole state."""


class Arranged(NamedTuple):
    """The tensors in their places, but for parameters of optimizers, with their proof and their copies."""

    tensors: list[Any]  # in the order of their places
    small: list[int]  # numbers of those that are copied after each step
    proof: Proof  # of all others, and of the parameters
    copies: TensorCopies  # of the small ones


class Whole(NamedTuple):
    """The end of a step: from here on the state is whole until an optimizer begins its next step."""

    step: int  # steps completed
    groups: dict[str, list[dict[str, Any]]]  # by optimizer, its groups of parameters with the values of then
    rest: bytes  # the values of this rank outside modules, optimizers and tensors; pickled
    arranged: Arranged  # the tensors
    fingerprint: Fingerprint  # of those that are not copied
    small: Any  # the bytes of the small ones
    values: list[Any]  # in the state of optimizers that are no tensors


class Layout:
    """The tensors of a training, by the way in which they change; made once for the same objects.

    Raises:
        UnfitStateError: not every rank holds the whole state, or it is of a kind that is not known.
    """

    def __init__(self, lib: Torch, state: State) -> None:
        self._lib, self._torch = lib, lib.torch
        train = TrainState(lib, state)
        entries = train.entries
        self.optimizers = [one for one in entries if isinstance(one.value, self._torch.optim.Optimizer)]
        for one in self.optimizers:
            if steps_by_closure(one.value) or has_own_state_dict(self._torch.optim.Optimizer, one.value):
                raise UnfitStateError(f"{type(one.value).__name__} has a way of its own")
        leaves = train.leaves(as_they_are=True)
        places = {leaf.name: leaf for those in leaves.values() for leaf in those}
        self.device = self._device_of(places.values())
        self._stream = None if self.device is None else self._torch.cuda.Stream(self.device)
        self._read = {one.name: train.optimizer(one) for one in self.optimizers}
        states = [leaf for name in self._read for leaf in leaves[name]]
        self._objects = Objects(self._torch, entries, [leaf.owner for leaf in states])
        self._rest = [one for one in entries if not isinstance(one.value, self._objects.kinds)]
        self.is_alike = all(map(self._is_alike, self._rest))
        for one in entries:
            if isinstance(one.value, self._torch.nn.Module):
                places |= self._placed(train, one, leaves[one.name])
        self._states = frozenset(leaf.name for leaf in states)
        self._sort(places, [leaf.name for leaf in states])

    def _placed(self, train: TrainState, module: Entry, leaves: Sequence[Entry]) -> dict[str, Entry]:
        """Return the places of a module's tensors in itself.

        Raises:
            UnfitStateError: it makes tensors or values for its state alone.
        """
        found = places_in(train, module, {name: owner[key] for name, owner, key in leaves})
        unplaced = next((leaf.name for leaf in leaves if leaf.name not in found), "")
        if unplaced:
            raise UnfitStateError(f"{unplaced} is no parameter or buffer of its module")
        return found

    def _sort(self, places: Mapping[str, Entry], states: Sequence[str]) -> None:
        """Sort the places of all tensors and values by how they change.

        Raises:
            UnfitStateError: one is no plain tensor, or not on the GPU of the others.
        """
        groups = [group["params"] for one in self.optimizers for group in one.value.param_groups]
        optimized = {id(parameter) for group in groups for parameter in group}
        values = {name: owner[key] for name, (_, owner, key) in places.items()}
        late = self._uncompared({name: values[name] for name in states})
        self._stepped, self._noted, self._late, self._others = (dict[str, Entry]() for _ in range(4))
        for name, place in places.items():
            kind = self._late if name in late else self._others
            if id(values[name]) in optimized:
                kind = self._stepped
            elif not isinstance(values[name], self._torch.Tensor):
                kind = self._noted
            kind[name] = place
        self._live = {name: values[name] for name in (*self._stepped, *self._late)}
        for name in self._stepped if self.device is not None else ():
            if values[name].device != self.device:
                raise UnfitStateError(f"{name} is not on {self.device}")
        for name in (*self._stepped, *self._others):
            if not _is_plain(self._torch, values[name]):
                raise UnfitStateError(f"{name} is a {type(values[name]).__name__}, and no plain tensor")
        self._find_others()
        self._arranged = self._arrange([values[name] for name in self._others])

    def _find_others(self) -> None:
        """Note where the other tensors stand, to be looked up in one call."""
        places = self._others.values()
        self._owners, self._keys = [one.owner for one in places], [one.key for one in places]

    def _uncompared(self, states: Mapping[str, Any]) -> set[str]:
        """Return which states of optimizers are not compared, as there are too many.

        None beside a GPU, ahead of which a program counts them (the steps of Adam): they are copied.
        """
        names = [name for name, one in states.items() if isinstance(one, self._torch.Tensor)]
        if self.device is not None:
            names = [name for name in names if states[name].device == self.device]
        return {*names} - {*spread(names, _STATES, SAMPLED)}

    def _arrange(self, tensors: list[Any]) -> Arranged:
        """Sort the tensors that stand in their places by how they are noted.

        Raises:
            UnfitStateError: a large one is not on the GPU of the others.
        """
        small, summed, total = list[int](), list[int](), 0
        left = _SUMMED if self.device is None else _SUMMED_GPU
        proven = {name: self._live[name] for name in self._stepped}
        for number, (name, tensor) in enumerate(zip(self._others, tensors, strict=True)):
            size = tensor.nbytes
            is_beside = self.device is not None and tensor.device != self.device
            if is_beside and size > _SMALL:
                raise UnfitStateError(f"{name} is large, and not on {self.device}")
            if is_beside or not (name in self._states or size > _SMALL or total + size > _SMALL_SUM):
                small.append(number)
                total += size
                continue
            if size <= left and self._changes_in_places(name, tensor):
                summed.append(len(proven))
                left -= size
            proven[name] = tensor
        copies = TensorCopies(self._torch, [tensors[number] for number in small])
        return Arranged(tensors, small, Proof(self._torch, [*proven], [*proven.values()], summed), copies)

    def _changes_in_places(self, name: str, tensor: Any) -> bool:
        """Tell whether a step may change a few elements of a tensor: a buffer, such as a memory bank."""
        return name not in self._states and not isinstance(tensor, self._torch.nn.Parameter)

    def follows(self, state: State) -> bool:
        """Tell whether the objects are those that were laid out; another dict may have them now.

        Raises:
            InputError: it has no names, or one twice.
        """
        entries = {one.name: one for one in TrainState(self._lib, state).entries}
        if not self._objects.are_alike(entries.values()):
            return False
        self._rest = [entries[one.name] for one in self._rest]
        self.is_alike = all(map(self._is_alike, self._rest))
        moved = {name: one for name, one in entries.items() if self._is_moved(one)}
        if moved:
            for places in (self._stepped, self._others):
                places |= {name: moved[name] for name in places.keys() & moved.keys()}
            self._find_others()
        return self._objects.are_unchanged()

    def _is_moved(self, entry: Entry) -> bool:
        """Tell whether a tensor of the state, which is in no module, is in another dict now."""
        place = self._stepped.get(entry.name) or self._others.get(entry.name)
        return place is not None and place.owner is not entry.owner

    def note(self, step: int) -> Whole | None:
        """Note the end of a step; None: another layout is needed."""
        arranged, small = self._arranged, None
        try:
            is_same = all(map(is_, map(getitem, self._owners, self._keys), arranged.tensors))
            if is_same and not arranged.proof.is_stale:
                with suppress(RuntimeError):
                    small = arranged.copies.take()
            if small is None:
                now = [*map(getitem, self._owners, self._keys)]
                if not all(map(self._is_of_one_form, now, arranged.tensors)):
                    return None
                arranged = self._arranged = self._arrange(now)
                small = arranged.copies.take()
        except (KeyError, IndexError):
            return None
        return Whole(
            step,
            {one.name: [*map(_copied, one.value.param_groups)] for one in self.optimizers},
            pickle.dumps(self.rest()),
            arranged,
            arranged.proof.note(),
            small,
            [copy.deepcopy(place.standing) for place in self._noted.values()],
        )

    def _is_of_one_form(self, one: Any, before: Any) -> bool:
        if one is before:
            return True
        is_plain = isinstance(one, self._torch.Tensor) and _is_plain(self._torch, one)
        forms = [(it.shape, it.dtype, it.device) for it in (one, before)] if is_plain else [0, 1]
        return bool(forms[0] == forms[1])

    def counted(self, whole: Whole) -> str:
        """Return which tensor was replaced or has counted a change since a step; empty: none has."""
        places = self._stepped | self._late
        for name, tensor in self._live.items():
            if places[name].standing is not tensor:
                return f"{name} was replaced by another tensor"
        if not self._objects.others_are_unchanged():
            return "a module or an optimizer has got or lost modules or tensors"
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

    def content(self, whole: Whole) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the tensors and values of a whole state; tensors that are proven are the training's."""
        arranged = whole.arranged
        others = [*arranged.tensors]
        for number, tensor in zip(arranged.small, arranged.copies.tensors(whole.small), strict=True):
            others[number] = tensor
        tensors = {
            **self._live,
            **dict(zip(self._others, others, strict=True)),
            **dict(zip(self._noted, whole.values, strict=True)),
        }
        groups = {name: self._read[name].named(values) for name, values in whole.groups.items()}
        return tensors, {**groups, **pickle.loads(whole.rest)}  # noqa: S301 - of this process

    def check(self, kept: Mapping[str, Any]) -> None:
        """Refuse a state that a training cannot go on from.

        Raises:
            UnfitStateError: parameters are not finite.
        """
        for name in self._stepped:
            if kept[name].dtype.itemsize > 1 and not bool(self._torch.isfinite(kept[name]).all()):
                raise UnfitStateError(f"{name} is not finite")

    def _device_of(self, leaves: Iterable[Entry]) -> Any:
        """Return the GPU that the state is on; None for the CPU.

        Raises:
            UnfitStateError: no rank holds the whole state, or it is on devices that are not known.
        """
        tensors = {name: owner[key] for name, owner, key in leaves}
        devices: dict[Any, str] = {}
        for name, one in tensors.items():
            if is_cut(one):
                raise ShardedStateError(f"{name} is sharded: no rank holds the whole state")
            if isinstance(one, self._torch.Tensor) and not one.is_cpu:
                devices.setdefault(one.device, name)
        for device, name in devices.items():
            if device.type != "cuda":
                raise UnfitStateError(f"{name} is on {device}: a state there is not rescued")
        gpus = [*devices]
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
        torch = self._torch
        return isinstance(
            entry.value, (torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler, Replicated)
        )

    def rest(self) -> dict[str, Any]:
        """Return the values of this rank outside modules, optimizers and tensors."""
        values = ((one.name, one.value) for one in self._rest)
        return {name: one.state_dict() if hasattr(one, "state_dict") else one for name, one in values}

    def size(self) -> int:
        """Return the size of all tensors [bytes]."""
        return sum(one.nbytes for one in (*self._live.values(), *self._arranged.tensors))


def _copied(group: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a group of parameters as they are now."""
    return {key: one.detach().clone() if hasattr(one, "detach") else one for key, one in group.items()}


def _is_plain(torch: Any, tensor: Any) -> bool:
    """Tell whether a tensor is its memory alone: not sparse, quantized or around other tensors."""
    is_inner = type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    return bool(is_inner and tensor.layout == torch.strided and not tensor.is_quantized)


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

    def __init__(self, torch: Any, entries: Sequence[Entry], owners: Iterable[Any]) -> None:
        self.kinds = (torch.nn.Module, torch.optim.Optimizer, torch.Tensor)
        self._kept = values = [one.value for one in entries]  # so no other object gets the identity of one
        self._are = {one.name: self._what_is(one) for one in entries}
        modules = [one for one in values if isinstance(one, torch.nn.Module)]
        self._optimizers = [one for one in values if isinstance(one, torch.optim.Optimizer)]
        inner = [inside for module in modules for inside in module.modules()]
        members = [owner for one in inner for owner in (one._parameters, one._buffers)]  # noqa: SLF001
        modules_of = [one._modules for one in inner]  # noqa: SLF001 - PyTorch's, as those above
        groups = [group["params"] for one in self._optimizers for group in one.param_groups]
        states = {id(owner): owner for owner in owners}.values()
        self._held_before = self._held()
        held = (item for one in self._held_before for item in one)
        self._empty = [(owner, key) for owner in members for key, one in owner.items() if one is None]
        self._parts = _parts(
            [*members, *modules_of, *groups, *states, *held],
            [(owner, *item) for owner in modules_of for item in owner.items()],
        )
        self._turn = 0  # the part that is looked at next

    def _held(self) -> list[tuple[Any, Any]]:
        """Return states and groups of optimizers: loading puts others in their places."""
        return [(one.state, one.param_groups) for one in self._optimizers]

    def are_alike(self, entries: Iterable[Entry]) -> bool:
        """Tell whether the objects by name are those that they were; tensors and values may be others."""
        return {one.name: self._what_is(one) for one in entries} == self._are

    def _what_is(self, entry: Entry) -> Any:
        """Return the identity of a module or an optimizer; of another object whether it is a tensor."""
        value = entry.value
        return id(value) if isinstance(value, self.kinds[:2]) else isinstance(value, self.kinds[2])

    def are_unchanged(self) -> bool:
        """Tell whether objects hold the same modules and as many tensors as before.

        A part of very many is looked at, and the next part by the next call.
        """
        part, self._turn = self._parts[self._turn], (self._turn + 1) % len(self._parts)
        held = zip(self._held(), self._held_before, strict=True)
        return (
            part.is_unchanged()
            and all(now[0] is then[0] and now[1] is then[1] for now, then in held)
            and all(owner.get(key) is None for owner, key in self._empty)
        )

    def others_are_unchanged(self) -> bool:
        """Tell the same of the modules and tensors that one call of `are_unchanged` does not look at."""
        return len(self._parts) == 1 or all(part.is_unchanged() for part in self._parts)


class _Part(NamedTuple):
    """Collections of a training's objects, and modules in them, as they were."""

    collections: Sequence[Any]
    sizes: Sequence[int]
    owners: Sequence[Any]  # of modules
    keys: Sequence[Any]
    modules: Sequence[Any]

    def is_unchanged(self) -> bool:
        """Tell whether they are as they were."""
        if [*map(len, self.collections)] != self.sizes:
            return False
        try:
            return all(map(is_, map(getitem, self.owners, self.keys), self.modules))
        except KeyError:
            return False


def _parts(collections: Sequence[Any], modules: Sequence[tuple[Any, Any, Any]]) -> list[_Part]:
    """Return collections, and modules with their places, in parts that are looked at by one call each."""
    found = []
    for begin in range(0, max(len(collections), len(modules), 1), _LOOKED_AT):
        some, places = (those[begin : begin + _LOOKED_AT] for those in (collections, modules))
        found.append(_Part(some, [*map(len, some)], *([place[at] for place in places] for at in range(3))))
    return found
