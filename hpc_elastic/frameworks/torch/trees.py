"""Objects of a training as trees of named values: names without wrappers, and values in a program's own."""

from __future__ import annotations

import ast
import pickle
import re
from collections import deque
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache
from typing import Any

from hpc_elastic.errors import InputError
from hpc_elastic.named_tuple import NamedTuple

WHERE = "hpc_elastic.frameworks.torch.Checkpoints"
OWN = "own."  # begins the names of values of one rank: its number follows
_WRAPPED = {  # of PyTorch, Lightning Fabric and accelerate
    "DistributedDataParallel": "module",  # PyTorch loads no module with two names in it
    "OptimizedModule": "_orig_mod",  # the same
    "_FabricModule": "_forward_module",
    "_FabricOptimizer": "optimizer",
    "_FabricDataLoader": "_dataloader",
    "AcceleratedOptimizer": "optimizer",
    "AcceleratedScheduler": "scheduler",
}
_INSIDE = {  # modules around one of another module's, whose names its states do not have
    "DistributedDataParallel": "module",
    "OptimizedModule": "_orig_mod",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
}
_PLAIN = re.compile(r"[^.\[\](){}]+")
_WORD = re.compile(r"\.\{(.*?)\}|\.([^.\[\](){}]+)|\[(\d+)\]|\((\d+)\)")
Path = tuple[
    tuple[str, Any], ...
]  # words: the kind of collection (".": dict, "[": list, "(": tuple), and the key


class RefusedStateError(InputError):
    """A state cannot be saved or loaded, and each start of the same program would find the same."""


def unwrapped(value: Any) -> Any:
    """Return the object in wrappers, which have other names for tensors, no hooks or no state."""
    name = _name_inside(value)
    return value if name is None else unwrapped(getattr(value, name))


def wrappers(value: Any) -> Iterator[Any]:
    """Yield an object and those in it, from its outermost wrapper to itself."""
    yield value
    name = _name_inside(value)
    if name is not None:
        yield from wrappers(getattr(value, name))


def _name_inside(value: Any, *, in_modules: bool = False) -> str | None:
    kind: Any = type(value)
    return _name_in_kind(kind, in_modules=in_modules)


@lru_cache(maxsize=1024)
def _name_in_kind(kind: Any, *, in_modules: bool) -> str | None:
    wrappers = _INSIDE if in_modules else _WRAPPED
    return next((wrappers[one.__name__] for one in kind.__mro__ if one.__name__ in wrappers), None)


def has_state(value: Any) -> bool:
    """Tell whether an object, without its wrapper, gives and takes its state."""
    value = unwrapped(value)
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


class Entry(NamedTuple):
    """One object of the state: `owner[key]`, by a name that no other has."""

    name: str
    owner: Any
    key: Any

    @property
    def value(self) -> Any:
        """The object, without a wrapper."""
        return unwrapped(self.owner[self.key])

    @property
    def standing(self) -> Any:
        """The object that stands there at this moment, in its wrapper; None: there is none."""
        try:
            return self.owner[self.key]
        except (KeyError, IndexError):
            return None


class ModuleNames:
    """The names that tensors have in a module without those of wrappers in it.

    Args:
        module: the outermost one, without a wrapper.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        self._known: dict[str, tuple[Any, str]] = {"": (module, "")}

    def of(self, name: str) -> str:
        """Return the name of a tensor, given the one in the module's state."""
        before, _, last = name.rpartition(".")
        return f"{self.start(before)}{last}"

    def start(self, name: str) -> str:
        """Return the beginning of the names in a module inside, given its name with wrappers."""
        return (self._known.get(name) or self._place(name))[1]

    def _place(self, name: str) -> tuple[Any, str]:
        """Return the module of a name, None without one, and the beginning of the names in it."""
        if name not in self._known:
            before, _, last = name.rpartition(".")
            module, start = self._place(before)
            inside = _name_inside(module, in_modules=True)
            while inside is not None and last not in module._modules:  # noqa: SLF001 - PyTorch's
                module = module._modules[inside]  # noqa: SLF001 - its state has no such name either
                inside = _name_inside(module, in_modules=True)
            inner = None if module is None else module._modules.get(last)  # noqa: SLF001
            self._known[name] = inner, start if inside == last else f"{start}{last}."
        return self._known[name]

    @cached_property
    def parameters(self) -> dict[int, str]:
        """The names of the parameters by their identity; one with several names has its first."""
        return {id(parameter): self.of(name) for name, parameter in self._module.named_parameters()}


def leaves(tree: dict[str, Any], name: str) -> Iterator[Entry]:
    """Yield the leaves of a tree of dicts, named by the way to them."""
    for key, value in tree.items():
        inner = f"{name}.{key}" if key != "" else name
        if isinstance(value, dict):
            yield from leaves(value, inner)
        else:
            yield Entry(inner, tree, key)


def state_leaves(owner: Any, key: Any, name: str) -> Iterator[Entry]:
    """Yield the leaves of one value in an optimizer's state, by names from which it is built again.

    Dicts are gone through, and lists and tuples with tensors in them.

    Raises:
        RefusedStateError: a key is of a kind that no name can have.
    """
    value = owner[key]
    if isinstance(value, dict) and value:
        for inner in value:
            yield from state_leaves(value, inner, f"{name}.{_word(inner, name)}")
    elif type(value) in {list, tuple} and _has_tensor(value):
        kind = "[%d]" if isinstance(value, list) else "(%d)"
        for number in range(len(value)):
            yield from state_leaves(value, number, name + kind % number)
    else:
        yield Entry(name, owner, key)


def _has_tensor(value: Any) -> bool:
    if isinstance(value, dict | list | tuple):
        return any(map(_has_tensor, value.values() if isinstance(value, dict) else value))
    return hasattr(value, "untyped_storage")


def _word(key: Any, name: str) -> str:
    """Return a key as a part of a name, in braces unless it is a simple text.

    Raises:
        RefusedStateError: it is no number and no text, or has braces in it.
    """
    if isinstance(key, str) and _PLAIN.fullmatch(key):
        return key
    if not isinstance(key, str | int) or "}" in str(key):
        raise RefusedStateError(
            f"{name} has the key {key!r:.60}, which is no number or text without braces",
            where=WHERE,
            fix="give the optimizer's state other keys, or leave the optimizer out: then it begins anew",
        )
    return f"{{{key!r}}}"


def global_word(key: Any, name: str) -> str:
    """Return the name of a value in an optimizer's state that belongs to no parameter.

    Raises:
        RefusedStateError: as by `state_leaves`.
    """
    word = _word(key, name)
    return word if word.startswith("{") else f"{{{key!r}}}"


def path_of(name: str) -> Path:
    """Return the words of a name that `state_leaves` has given; those that are no such words are left out."""
    return tuple(
        (".", ast.literal_eval(match[1]) if match[1] is not None else match[2])
        if match[0].startswith(".")
        else (match[0][0], int(match[3] or match[4]))
        for match in _WORD.finditer(name)
    )


def rebuilt(values: Iterable[tuple[Path, Any]]) -> Any:
    """Return the value whose leaves are given."""
    inner: dict[tuple[str, Any], list[tuple[Path, Any]]] = {}
    for path, value in values:
        if not path:
            return value
        inner.setdefault(path[0], []).append((path[1:], value))
    found = {key: rebuilt(rest) for (_, key), rest in inner.items()}
    kind = next(iter(inner))[0]
    if kind == ".":
        return found
    in_order = [found[number] for number in sorted(found)]
    return in_order if kind == "[" else tuple(in_order)


class Filling:
    """Fills a program's own objects with values that were loaded.

    Dicts, lists, sets, queues, arrays and tensors keep their identity, as a program may have other names for
    them. One that stands at several places, as a learning rate of all groups may, is filled once: values that
    differ by then are objects of their own.
    """

    def __init__(self) -> None:
        self._filled: dict[int, tuple[Any, Any]] = {}  # by identity: the object and its value

    def filled(self, own: Any, value: Any) -> Any:
        """Return an object with the content of a value; the value itself if it is of another kind."""
        if own is value or not _can_be_filled(own, value):
            return value
        if id(own) in self._filled:
            return own if _is_same(self._filled[id(own)][1], value) else value
        self._filled[id(own)] = own, value
        if isinstance(own, dict):
            content = {key: self.filled(own.get(key), one) for key, one in value.items()}
            own.clear()
            own.update(content)
        elif isinstance(own, list):
            before = [*own, *[None] * len(value)]
            own[:] = [self.filled(before[number], one) for number, one in enumerate(value)]
        elif isinstance(own, set | deque | bytearray):
            own.clear()
            (own.update if isinstance(own, set) else own.extend)(value)
        elif hasattr(own, "untyped_storage"):
            own.detach().copy_(value)
        else:
            own[...] = value
        return own


def _is_same(one: Any, other: Any) -> bool:
    """Tell whether two values that were loaded have the same content."""
    return one is other or pickle.dumps(one) == pickle.dumps(other)


def _can_be_filled(own: Any, value: Any) -> bool:
    if any(isinstance(own, kind) and isinstance(value, kind) for kind in (dict, list)):
        return True
    is_of_one_kind = isinstance(own, set | deque | bytearray) and type(own) is type(value)
    return is_of_one_kind or _is_of_one_form(own, value)


def _is_of_one_form(own: Any, value: Any) -> bool:
    """Tell whether both are tensors, or arrays of NumPy's, of one form."""
    if type(own) is not type(value) or not hasattr(own, "shape") or not hasattr(own, "dtype"):
        return False
    is_kept = hasattr(own, "untyped_storage") or (hasattr(own, "flags") and own.flags.writeable)
    return is_kept and bool((own.shape, own.dtype) == (value.shape, value.dtype))
