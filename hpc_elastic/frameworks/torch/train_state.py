"""The objects of a training in a checkpoint, and their way back.

Modules, optimizers and tensors become tensors with names, which ``torch.distributed.checkpoint`` saves in
parts and loads onto any number of ranks. All else (schedulers, loaders, numbers) is small and belongs to its
rank: it is pickled, and comes back as it was on the same number of ranks. On another number it comes back if
it was alike on all ranks, or if `Resharded` tells how.
"""

from __future__ import annotations

import importlib
import io
import logging
import os
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

from hpc_elastic.errors import InputError
from hpc_elastic.frameworks.torch.optimizer_state import (
    OptimizerState,
    check_module,
    check_optimizer,
    check_tensors,
    check_value,
    given_state,
    has_own_state_dict,
)
from hpc_elastic.frameworks.torch.trees import (
    OWN,
    WHERE,
    Entry,
    Filling,
    ModuleNames,
    RefusedStateError,
    has_state,
    leaves,
    wrappers,
)
from hpc_elastic.named_tuple import NamedTuple

logger = logging.getLogger(__name__)

_SHOWN = 3  # differences in an error
_SAMPLED = 256  # parameters whose states are compared between ranks
_FIX = (
    "load it into the model, optimizers and dtypes that it was saved from, or begin a new run; "
    "without a run: give another directory"
)
State = MutableMapping[str, Any]


class Torch(NamedTuple):
    """The modules of PyTorch that checkpoints need."""

    torch: Any
    distributed: Any
    checkpoint: Any
    stager: Any


def load_torch() -> Torch:
    """Return PyTorch's modules.

    Raises:
        InputError: PyTorch is not installed.
    """
    try:
        torch = importlib.import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise InputError("PyTorch is not installed", where=WHERE, fix="pip install torch") from None
    names = ("", ".checkpoint", ".checkpoint._state_dict_stager")
    return Torch(torch, *(importlib.import_module(f"torch.distributed{name}") for name in names))


class _Wrapper:
    """An object in `state` that `load` treats otherwise.

    Raises:
        InputError: it has no state.
    """

    def __init__(self, wrapped: Any) -> None:
        wrapper = type(self).__name__
        if isinstance(wrapped, type) or not has_state(wrapped):
            shown = f"the class {wrapped.__name__}" if isinstance(wrapped, type) else f"{wrapped!r:.60}"
            raise InputError(
                f"{shown} is no object with state_dict and load_state_dict",
                where=f"hpc_elastic.frameworks.torch.{wrapper}",
                fix=f"a value needs no {wrapper} if it is the same on all ranks: give it as it is",
            )
        self._wrapped = wrapped

    def state_dict(self) -> Any:
        """Return the object's state."""
        return self._wrapped.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Give the object a state."""
        self._wrapped.load_state_dict(state)


class Resharded(_Wrapper):
    """An object of which each rank has a state of its own, and the way to load it on another number of ranks.

    Args:
        wrapped: has `state_dict` and `load_state_dict`.
        reshard: called with the states of all ranks that have saved; returns this rank's state.

    Raises:
        InputError: `wrapped` has no state, or `reshard` is no function.
    """

    def __init__(self, wrapped: Any, reshard: Callable[[Sequence[Any]], Any]) -> None:
        super().__init__(wrapped)
        if not callable(reshard):
            raise InputError(
                f"reshard is {reshard!r:.60}",
                where=f"hpc_elastic.frameworks.torch.{type(self).__name__}",
                fix="give a function of the states of all ranks that have saved, which returns this rank's",
            )
        self.reshard = reshard


class Replicated(_Wrapper):
    """An object whose state is the same on all ranks: that of any rank is loaded, also by another number.

    So a fault may take away ranks with their nodes, and the states of others still hold it.

    Args:
        wrapped: has `state_dict` and `load_state_dict`.

    Raises:
        InputError: it has no state.
    """


class Source(Protocol):
    """A saved state; all ranks make the same calls."""

    @property
    def name(self) -> str:
        """Its place, for people."""

    def stored(self) -> Mapping[str, Any]:
        """Return for each tensor, by name, its size and dtype."""

    def owns(self) -> bytes | list[bytes]:
        """Return the values of this rank; those of all ranks that have saved, if their number is another."""

    def fill(self, loaded: dict[str, Any]) -> None:
        """Give tensors, by name, their saved content.

        Raises:
            InputError: they do not fit; nothing is changed.
        """


class TrainState:
    """The objects of one training, by their names.

    Args:
        state: modules, optimizers, tensors, objects with `state_dict` and `load_state_dict`, and values that
            pickle can save; dicts of them.

    Raises:
        RefusedStateError: two objects have one name, or none has.
    """

    def __init__(self, lib: Torch, state: State) -> None:
        if not isinstance(state, MutableMapping):
            raise RefusedStateError(
                f"the state is a {type(state).__name__}, in place of a dict with a name for each object",
                where=WHERE,
                fix='write {"model": model, "optimizer": optimizer}',
            )
        self._lib = lib
        self._names: dict[int, ModuleNames] = {}  # of modules, by identity
        self._read: dict[str, OptimizerState] = {}
        self.entries = list(self._objects(state, ""))
        for name, count in Counter(entry.name for entry in self.entries).items():
            if count > 1:
                raise _same_name(name)
            if f"{name}.".startswith(OWN):
                raise RefusedStateError(
                    f"an object of the state has the name {name!r}, which values of single ranks have",
                    where=WHERE,
                    fix="rename it",
                )

    def _objects(self, state: State, prefix: str) -> Iterator[Entry]:
        """Yield all objects; a dict with live ones in it is gone through, another one is a value."""
        for key, value in state.items():
            name = f"{prefix}{key}"
            if isinstance(value, dict) and self._is_live(value):
                yield from self._objects(value, f"{name}.")
            else:
                yield Entry(name, state, key)

    def _is_live(self, value: Any) -> bool:
        if isinstance(value, dict):
            return any(map(self._is_live, value.values()))
        return isinstance(value, self._lib.torch.Tensor) or has_state(value)

    def check(self) -> None:
        """Refuse a state that no save takes, or of which a resume would not load all.

        The state is laid out as for a save, and nothing is changed. Loaders and other objects of a program
        are not asked for their states yet, as they may begin to read data for them.

        Raises:
            RefusedStateError: names the object, and the way out.
        """
        values: dict[str, Any] = {}
        for entry in self.entries:
            value = entry.value
            if isinstance(value, type | list | tuple):
                check_value(entry)
            if isinstance(value, self._lib.torch.nn.Module):
                check_module(entry)
            if isinstance(value, self._lib.torch.optim.Optimizer):
                check_optimizer(self._lib.torch, entry, [one.value for one in self.entries])
            if isinstance(value, self._lib.torch.optim.Optimizer) and not self.is_read(entry):
                values[entry.name] = given_state(entry)
            elif not self._is_live(value):
                values[entry.name] = value
        check_tensors(self._lib.torch, self._tensors())
        if values:
            unpickled(self._lib, self._pickled(values))

    def content(self, rank: int) -> dict[str, Any]:
        """Return the part of this rank; its tensors are those of the training.

        Raises:
            RefusedStateError: as by `check`, for values that have come since.
        """
        saved, own = self.parts()
        check_tensors(self._lib.torch, saved)
        tensor = self._lib.torch.Tensor
        found = {name: _resolved(one) if isinstance(one, tensor) else one for name, one in saved.items()}
        order = {f"{OWN}names": pickle.dumps([*found])} if rank == 0 else {}  # files have no order
        return {**found, **order, f"{OWN}{rank}": self._pickled(own)}

    def _pickled(self, own: dict[str, Any], of: str = "") -> bytes:
        """Return values as bytes; an error names the first that pickle refuses."""
        try:
            return pickled(self._lib, own)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            for name, value in own.items() if not of else ():
                self._pickled({name: value}, of=f"{name!r}: ")
            raise RefusedStateError(
                f"pickle cannot save a value of this rank: {of}{error}",
                where=WHERE,
                fix="leave it out, or give an object whose state_dict has numbers, texts and tensors",
            ) from error

    def parts(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the tensors of the training by their names, and the values that belong to this rank.

        Raises:
            RefusedStateError: two objects give a tensor the same name, or one has no name.
        """
        own: dict[str, Any] = {}
        for entry in self.entries:
            value = entry.value
            if self.is_read(entry):
                own[entry.name] = self.optimizer(entry).groups()
            elif not isinstance(value, (self._lib.torch.nn.Module, self._lib.torch.Tensor)):
                own[entry.name] = value.state_dict() if has_state(value) else value
        return self._tensors(), own

    def _tensors(self) -> dict[str, Any]:
        return {leaf.name: leaf.owner[leaf.key] for leaves in self.leaves().values() for leaf in leaves}

    def leaves(self, *, as_they_are: bool = False) -> dict[str, list[Entry]]:
        """Return the tensors, and other values beside them, by the names of their objects.

        Args:
            as_they_are: those of modules are the parameters themselves.

        Raises:
            RefusedStateError: as by `parts`.
        """
        found = {
            entry.name: [*self.optimizer(entry).leaves()]
            if self.is_read(entry)
            else self._tree(entry, as_they_are=as_they_are)[1]
            for entry in self.entries
        }
        names = [leaf.name for leaves in found.values() for leaf in leaves]
        if len({*names}) < len(names):
            raise _same_name(Counter(names).most_common(1)[0][0])
        return found

    def _tree(self, entry: Entry, *, as_they_are: bool = False) -> tuple[Any, list[Entry]]:
        """Return the tree from which a module or a tensor is loaded, and the values in it by name."""
        value = entry.value
        if isinstance(value, self._lib.torch.Tensor):
            return {}, [entry]
        if not isinstance(value, self._lib.torch.nn.Module):
            return {}, []
        with self._lib.torch.no_grad():
            tree = value.state_dict(keep_vars=as_they_are)
        names, found = self.names(value), list[Entry]()
        for key, one in tree.items():
            name = f"{entry.name}.{names.of(key)}"
            found += leaves(one, name) if isinstance(one, dict) else [Entry(name, tree, key)]
        return tree, found

    def replicated(self) -> Iterator[tuple[str, Any, bool | None]]:
        """Yield parameters, saved buffers, some states of optimizers, and tensors, if they are in no parts.

        By name, with whether DDP gives all ranks those of rank 0; None: it is no buffer.

        Raises:
            RefusedStateError: as by `optimizer` and its leaves.
        """
        torch = self._lib.torch
        for entry in self.entries:
            found: Iterable[tuple[str, Any, bool | None]] = ()
            if self.is_read(entry):
                found = ((leaf.name, leaf.value, None) for leaf in self.optimizer(entry).leaves(_SAMPLED))
            elif isinstance(entry.value, torch.nn.Module):
                found = self._members(entry)
            elif isinstance(entry.value, torch.Tensor):
                found = [(entry.name, entry.value, None)]
            yield from (one for one in found if isinstance(one[1], torch.Tensor) and not is_cut(one[1]))

    def _members(self, entry: Entry) -> Iterator[tuple[str, Any, bool | None]]:
        """Yield the parameters and saved buffers of a module as `replicated`."""
        kind = self._lib.torch.nn.parallel.DistributedDataParallel
        around = wrappers(entry.owner[entry.key])
        is_sent = any(isinstance(one, kind) and one.broadcast_buffers for one in around)
        names = self.names(entry.value)
        for way, inner in entry.value.named_modules(remove_duplicate=False):
            start = f"{entry.name}.{names.start(way)}"
            for key, one in inner._parameters.items():  # noqa: SLF001 - PyTorch's, as the names of those below
                yield f"{start}{key}", one, None
            for key, one in inner._buffers.items():  # noqa: SLF001
                if key not in inner._non_persistent_buffers_set:  # noqa: SLF001
                    yield f"{start}{key}", one, is_sent

    def is_read(self, entry: Entry) -> bool:
        """Tell whether an object is an optimizer that keeps its state where PyTorch's do."""
        base, value = self._lib.torch.optim.Optimizer, entry.value
        return isinstance(value, base) and not has_own_state_dict(base, value)

    def optimizer(self, entry: Entry) -> OptimizerState:
        """Return the state of an optimizer.

        Raises:
            RefusedStateError: no module of the state has all of its parameters.
        """
        if entry.name not in self._read:
            names = self._parameters_of(entry)
            self._read[entry.name] = OptimizerState(self._lib.torch, entry.name, entry.value, names)
        return self._read[entry.name]

    def names(self, module: Any) -> ModuleNames:
        """Return the names of tensors in a module of the state."""
        return self._names.setdefault(id(module), ModuleNames(module))

    def _parameters_of(self, entry: Entry) -> dict[int, str]:
        """Return the names of the parameters of the module that an optimizer updates."""
        ids = {id(parameter) for group in entry.value.param_groups for parameter in group["params"]}
        for other in self.entries:
            if isinstance(other.value, self._lib.torch.nn.Module):
                names = self.names(other.value).parameters
                if ids <= names.keys():
                    return names
        raise RefusedStateError(
            f"no module of the state has all parameters of the optimizer {entry.name!r}",
            where=WHERE,
            fix='give both: {"model": model, "optimizer": optimizer}',
        )

    def load(self, source: Source) -> None:
        """Give all objects a saved state; nothing is changed if it does not fit.

        Raises:
            RefusedStateError: it is of another model, dtype or optimizer.
            InputError: the states of single ranks cannot be loaded by as many as there are.
        """
        stored = source.stored()
        forms = {name: _form(record) for name, record in stored.items()}
        trees, found = dict[str, Any](), dict[str, Entry]()
        for entry in self.entries:
            tree, named = self._tree(entry)
            if self.is_read(entry):
                tree = self.optimizer(entry).template(forms)
                named = [Entry(name, tree, name) for name in tree]
            trees[entry.name] = tree
            found.update((leaf.name, leaf) for leaf in named)
        self._compare(source.name, found, stored)
        own = self._own(source)
        self._compare_values(source.name, own)
        for entry in filter(self.is_read, self.entries):
            own[entry.name] = self.optimizer(entry).matched(own[entry.name], source.name)
        loaded = {name: leaf.value for name, leaf in found.items()}
        source.fill(loaded)
        for name, leaf in found.items():
            leaf.owner[leaf.key] = loaded[name]
        filling = Filling()
        with self._lib.torch.no_grad():
            for entry in self.entries:
                self._set(entry, trees[entry.name], own, filling)

    def _compare(self, path: str, found: dict[str, Entry], stored: Mapping[str, Any]) -> None:
        """Refuse a checkpoint that is not one of these objects.

        Raises:
            RefusedStateError: names the first differences.
        """
        there = {name: _shape(kind) for name, kind in stored.items() if not name.startswith(OWN)}
        here = {name: _shape(leaf.value) for name, leaf in found.items()}
        names = sorted(there.keys() | here.keys())
        wrong = [
            f"{name} is {there.get(name, 'absent')} in it and {here.get(name, 'absent')} here"
            for name in names
            if there.get(name) != here.get(name)
        ]
        if wrong:
            raise RefusedStateError(
                f"{len(wrong)} of {len(names)} tensors differ from those in the checkpoint {path}: "
                f"{'; '.join(wrong[:_SHOWN])}{'; ...' if len(wrong) > _SHOWN else ''}",
                where=WHERE,
                fix=_FIX,
            )

    def _compare_values(self, path: str, own: Mapping[str, Any]) -> None:
        """Refuse an optimizer that is not in the checkpoint, and tell of other objects that are not.

        Raises:
            RefusedStateError: an optimizer is not in it; one without tensors shows no other difference.
        """
        tensors = (self._lib.torch.nn.Module, self._lib.torch.Tensor)
        absent = [one for one in self.entries if not isinstance(one.value, tensors) and one.name not in own]
        more = sorted(own.keys() - {entry.name for entry in self.entries})
        told = [f"it has no {entry.name!r}" for entry in absent]
        told += [f"the state has no {name!r}" for name in more]
        if any(isinstance(one.value, self._lib.torch.optim.Optimizer) for one in absent):
            raise RefusedStateError(
                f"the state has other optimizers than the checkpoint {path}: {', '.join(told)}",
                where=WHERE,
                fix=f"give each object the name that it had, or {_FIX}",
            )
        if told and os.environ.get("RANK", "0") == "0":
            logger.warning(
                "%s: the state has other objects than the checkpoint %s: %s\n"
                "  an object that is not in the checkpoint begins anew",
                *(WHERE, path, ", ".join(told)),
            )

    def _own(self, source: Source) -> dict[str, Any]:
        """Return the values that belong to this rank.

        Raises:
            InputError: the ranks have saved different states, and no rule makes those of other ranks of them.
        """
        found = source.owns()
        if isinstance(found, bytes):
            mine: dict[str, Any] = unpickled(self._lib, found)
            return mine
        owns = [unpickled(self._lib, data) for data in found]
        return {
            entry.name: self._for_others(entry, source.name, owns)
            for entry in self.entries
            if entry.name in owns[0]
        }

    def _for_others(self, entry: Entry, path: str, owns: list[dict[str, Any]]) -> Any:
        states = [own[entry.name] for own in owns]
        if isinstance(entry.value, Resharded):
            return entry.value.reshard(states)
        if isinstance(entry.value, Replicated) or all(self._alike(states[0], state) for state in states[1:]):
            return states[0]
        raise InputError(
            f"{entry.name!r} was not the same on the {len(owns)} ranks that have saved the checkpoint "
            f"{path}, and now there is another number of ranks",
            where=WHERE,
            fix=f"say how its states come together: {{{entry.name!r}: Resharded({entry.name}, reshard)}}",
        )

    def _alike(self, one: Any, other: Any) -> bool:
        """Tell whether two states are the same; arrays and tensors by their content, to the last bit."""
        if type(one) is not type(other):
            return False
        if isinstance(one, dict):
            return one.keys() == other.keys() and all(self._alike(one[key], other[key]) for key in one)
        if isinstance(one, list | tuple):
            return len(one) == len(other) and all(map(self._alike, one, other))
        is_tensor = isinstance(one, self._lib.torch.Tensor)
        if is_tensor or hasattr(one, "tobytes"):  # NumPy's
            if (one.dtype, one.shape) != (other.dtype, other.shape):
                return False
            one, other = map(self._content_of, (one, other))
        return bool(one == other or (one != one and other != other))  # noqa: PLR0124 - not a number

    def _content_of(self, value: Any) -> Any:
        """Return the content of a tensor or an array, to be compared."""
        if hasattr(value, "tobytes"):
            return value.tolist() if value.dtype.hasobject else value.tobytes()
        return bytes(value.detach().cpu().contiguous().reshape(-1).view(self._lib.torch.uint8).numpy())

    def _set(self, entry: Entry, tree: dict[str, Any], own: dict[str, Any], filling: Filling) -> None:
        value = entry.value
        if isinstance(value, self._lib.torch.nn.Module):
            value.load_state_dict(tree)
        elif self.is_read(entry):
            self.optimizer(entry).set(tree, own[entry.name], filling)
        elif isinstance(value, self._lib.torch.Tensor) or entry.name not in own:
            pass  # loaded in place, or it begins anew
        elif has_state(value):
            value.load_state_dict(own[entry.name])
        else:
            entry.owner[entry.key] = filling.filled(value, own[entry.name])


def is_cut(value: Any) -> bool:
    """Tell whether a tensor is a part of one that is cut over ranks."""
    kind: Any = type(value)
    return _is_kind_cut(kind)


@lru_cache(maxsize=64)
def _is_kind_cut(kind: Any) -> bool:
    return hasattr(kind, "to_local")


def pickled(lib: Torch, value: Any) -> bytes:
    """Return values as bytes."""
    buffer = io.BytesIO()
    lib.torch.save(value, buffer)
    return buffer.getvalue()


def unpickled(lib: Torch, data: bytes) -> Any:
    """Return the values in bytes, their tensors on the CPU."""
    return lib.torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)


def _same_name(name: str) -> RefusedStateError:
    return RefusedStateError(
        f"two objects of the state have the name {name!r}", where=WHERE, fix="rename one"
    )


def _resolved(value: Any) -> Any:
    """Return a tensor whose memory has its values: that of a conjugate or negative view has others."""
    return value.resolve_conj().resolve_neg() if value.is_conj() or value.is_neg() else value


def _form(value: Any) -> tuple[Any, Any] | None:
    """Return size and dtype of a tensor, or of one that a record stands for; None: it is no tensor."""
    if hasattr(value, "properties"):  # the record
        return value.size, value.properties.dtype
    if callable(getattr(value, "size", None)) and hasattr(value, "dtype"):
        return value.size(), value.dtype
    return None


def _shape(value: Any) -> str:
    """Return the form of a tensor, for people."""
    form = _form(value)
    return "no tensor" if form is None else f"{list(form[0])} {str(form[1]).removeprefix('torch.')}"
