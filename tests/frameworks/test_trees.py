"""Objects as trees of named values: names lead back to their values, and values come into a program's own."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
from hpc_elastic.frameworks.torch.trees import (  # noqa: E402
    Entry,
    Filling,
    ModuleNames,
    RefusedStateError,
    global_word,
    has_state,
    leaves,
    path_of,
    rebuilt,
    state_leaves,
    unwrapped,
    wrappers,
)

pytestmark = pytest.mark.torch


class DistributedDataParallel(torch.nn.Module):  # type: ignore[misc]
    """Has the name and the form of PyTorch's wrapper, without its process group."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module


class CheckpointWrapper(torch.nn.Module):  # type: ignore[misc]
    """The same, of a module in another one."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self._checkpoint_wrapped_module = module


class AcceleratedOptimizer:
    """The same, of accelerate."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer


class OfAccelerate(AcceleratedOptimizer):
    """Is one by its base."""


def test_an_object_is_found_in_all_its_wrappers() -> None:
    """By the names of the classes, as none of the libraries is needed; from the outermost one in."""
    inner = torch.nn.Linear(1, 1)
    once = DistributedDataParallel(inner)
    twice = DistributedDataParallel(once)
    assert inner is unwrapped(twice)
    assert inner is unwrapped(inner)
    assert [twice, once, inner] == [*wrappers(twice)]
    optimizer = object()
    assert optimizer is unwrapped(OfAccelerate(optimizer))


def test_an_object_has_a_state_that_gives_and_takes_one() -> None:
    """In its wrapper, too; half of the two is none."""
    half = type("Half", (), {"state_dict": lambda _: {}})()
    whole = type("Whole", (type(half),), {"load_state_dict": lambda _, __: None})()
    assert [True, False, False] == [has_state(whole), has_state(half), has_state(3)]
    assert [True, False] == [has_state(AcceleratedOptimizer(one)) for one in (whole, half)]


def test_an_entry_shows_what_stands_there() -> None:
    """Without its wrapper, and with it; of a place that is gone nothing."""
    inner = torch.nn.Linear(1, 1)
    around = DistributedDataParallel(inner)
    entry = Entry("net", {"net": around}, "net")
    assert (inner, around) == (entry.value, entry.standing)
    gone: list[Any] = [{}, [1]]
    assert [None, None] == [Entry("x", owner, 3).standing for owner in gone]


def test_names_of_tensors_are_those_without_wrappers_inside() -> None:
    """At any depth; a module that has the name of a wrapper's inner one keeps it."""
    deep = torch.nn.Sequential(CheckpointWrapper(CheckpointWrapper(torch.nn.Linear(1, 1))))
    plain = torch.nn.ModuleDict({"_checkpoint_wrapped_module": torch.nn.Linear(1, 1)})
    net = torch.nn.ModuleDict({"a": deep, "b": plain})
    names = ModuleNames(net)
    inside = "_checkpoint_wrapped_module"
    assert "a.0.weight" == names.of(f"a.0.{inside}.{inside}.weight")
    assert f"b.{inside}.bias" == names.of(f"b.{inside}.bias")
    assert ("", "a.0.") == (names.start(""), names.start("a.0"))
    weight = deep[0]._checkpoint_wrapped_module._checkpoint_wrapped_module.weight
    assert "a.0.weight" == names.parameters[id(weight)]
    assert 4 == len(names.parameters)


def test_leaves_of_dicts_have_the_way_to_them_as_names() -> None:
    """The key of a module's extra state may be empty."""
    tree = {"a": 1, "b": {"c": 2, "": 3, "d": {}}}
    found = {entry.name: entry.owner[entry.key] for entry in leaves(tree, "m")}
    assert {"m.a": 1, "m.b.c": 2, "m.b": 3} == found


T = torch.zeros(2)
STATES = [
    {"step": 3, "exp_avg": T},
    {"a.b": T, "": 1, 7: {"x": 2}, "[0]": 4, "(1)": 5, "{": 6},
    {"pair": (T, 1), "list": [T, {"a": T, "b": [1, T]}, 2], "nest": {"deep": {"er": (T, (T,))}}},
    {"plain": [1, 2], "text": "x", "empty": {}, "none": None, "tuple": (1, (2,))},
    [T] * 12,
]


@pytest.mark.parametrize("state", STATES)
def test_a_state_is_built_again_from_its_leaves(state: Any) -> None:
    """Whatever its keys look like; lists of more than ten stay in order."""
    owner: dict[str, Any] = {"p": state}
    found = [*state_leaves(owner, "p", "")]
    assert len({leaf.name for leaf in found}) == len(found)
    again = rebuilt([(path_of(leaf.name), leaf.owner[leaf.key]) for leaf in reversed(found)])
    assert in_order(state) == in_order(again)


def in_order(value: Any) -> Any:
    """Return a value whose dicts and tensors are lists, so that two can be compared."""
    if isinstance(value, dict):
        return ["dict", *sorted(([key, in_order(one)] for key, one in value.items()), key=repr)]
    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(in_order, value)]
    return value.tolist() if isinstance(value, torch.Tensor) else value


def test_collections_without_tensors_are_values() -> None:
    """They are pickled whole; an empty dict is one, too."""
    state = {"l": [1, [2]], "t": (1,), "d": {}, "deep": [{"a": [T]}]}
    assert {"s.l", "s.t", "s.d", "s.deep[0].a[0]"} == {leaf.name for leaf in state_leaves({0: state}, 0, "s")}


@pytest.mark.parametrize("key", ["a}", "}", 1.5, None, ("a", 1), T])
def test_a_key_that_no_name_can_have_is_refused(key: Any) -> None:
    """It is shown, with the name before it."""
    with pytest.raises(RefusedStateError, match=r"o.state.w has the key .*no number or text without braces"):
        list(state_leaves({0: {key: T}}, 0, "o.state.w"))


@pytest.mark.parametrize("key", ["count", "a.b", 3])
def test_a_value_of_no_parameter_has_its_key_in_braces(key: Any) -> None:
    """So it is taken for no parameter's name."""
    word = global_word(key, "o")
    assert word == f"{{{key!r}}}"
    assert ((".", key),) == path_of(f".{word}")


class Array:
    """Has form and content as arrays of NumPy's; one may be read alone."""

    def __init__(self, *values: float, writeable: bool = True) -> None:
        self.values, self.shape, self.dtype = [*values], (len(values),), "f8"
        self.flags = type("Flags", (), {"writeable": writeable})

    def __setitem__(self, at: Any, other: Array) -> None:
        assert at is ...
        self.values = [*other.values]


@pytest.mark.parametrize(
    ("own", "value", "shown"),
    [
        ({"a": 1, "b": 2}, {"b": 3, "c": 4}, {"b": 3, "c": 4}),
        ([1, 2, 3], [4], [4]),
        ([], [1, 2], [1, 2]),
        ({1, 2}, {3}, {3}),
        (deque([1], maxlen=2), deque([2, 3], maxlen=2), deque([2, 3], maxlen=2)),
        (bytearray(b"ab"), bytearray(b"c"), bytearray(b"c")),
    ],
)
def test_collections_keep_their_identity(own: Any, value: Any, shown: Any) -> None:
    """And have the content that was loaded, in its order."""
    assert own is Filling().filled(own, value)
    assert (type(shown), str(shown)) == (type(own), str(own))


def test_tensors_and_arrays_of_one_form_keep_their_identity() -> None:
    """Their content is copied; a parameter may be one."""
    own = torch.nn.Parameter(torch.zeros(2))
    assert own is Filling().filled(own, torch.nn.Parameter(torch.ones(2)))
    assert [1.0, 1.0] == own.tolist()
    array = Array(0.0, 0.0)
    assert array is Filling().filled(array, Array(1.0, 2.0))
    assert [1.0, 2.0] == array.values


@pytest.mark.parametrize(
    ("own", "value"),
    [
        (torch.zeros(2), torch.zeros(3)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (Array(0.0), Array(1.0, 2.0)),
        (Array(0.0, writeable=False), Array(1.0)),
        ({1}, frozenset({2})),
        ({"a": 1}, [1]),
        ([1], (2,)),
        (bytearray(b"a"), b"b"),
        (1, 2),
        (None, {"a": 1}),
    ],
)
def test_what_cannot_be_filled_is_replaced(own: Any, value: Any) -> None:
    """By the value itself; the old object stays as it was."""
    before = str(own)
    assert value is Filling().filled(own, value)
    assert before == str(own)


def test_objects_inside_are_filled_too() -> None:
    """By key and by place; those that are new are the loaded ones."""
    inner, row, lone = {"x": 1}, [1], [9]
    own: dict[str, Any] = {"inner": inner, "rows": [row, lone]}
    new = [7]
    Filling().filled(own, {"inner": {"x": 2}, "rows": [[3]], "new": new})
    assert {"inner": {"x": 2}, "rows": [[3]], "new": [7]} == own
    assert (inner, row, new) == (own["inner"], own["rows"][0], own["new"])
    assert inner is own["inner"]
    assert row is own["rows"][0]
    assert new is own["new"]
    assert [9] == lone


def test_an_object_at_two_places_is_filled_once() -> None:
    """The second place has it if its value is the same, else the value itself."""
    filling, own, first = Filling(), [0], [1]
    assert own is filling.filled(own, first)
    assert own is filling.filled(own, first)
    assert own is filling.filled(own, [1])
    other = [2]
    assert other is filling.filled(own, other)
    assert [1] == own
