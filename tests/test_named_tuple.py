"""The base class of this package's facts: as that of `typing`, which it is compared with."""

from __future__ import annotations

import copy
import inspect
import pickle
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import pytest

from hpc_elastic import named_tuple

PACKAGE = Path(named_tuple.__file__).parent


class Node(named_tuple.NamedTuple):
    """A node."""

    name: str
    gpus: int = 8
    tags: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """Its name, and its number of GPUs."""
        return f"{self.name}:{self.gpus}"


class TheirNode(NamedTuple):
    """The same of `typing`."""

    name: str
    gpus: int = 8
    tags: tuple[str, ...] = ()


class Nothing(named_tuple.NamedTuple):
    """No fields."""


class Spare(Node):
    """A class that derives from one with fields."""

    def __new__(cls, name: str) -> Spare:  # noqa: PYI034 - typing.Self needs Python 3.11
        """Take no number of GPUs."""
        return super().__new__(cls, name, gpus=0)


def outcome(call: Any) -> Any:
    """Return what a call returns, or the type of its error."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - that is compared
        return type(error)


@pytest.mark.parametrize(
    "use",
    [
        lambda kind: kind("a"),
        lambda kind: kind("a", 2, tags=("x",)),
        lambda kind: kind(gpus=1, name="a"),
        lambda kind: kind(),
        lambda kind: kind("a", nodes=1),
        lambda kind: kind("a", 1, (), 4),
        lambda kind: kind("a")._replace(gpus=3),
        lambda kind: kind._make(["a", 1, ()]),
        lambda kind: kind._make(["a"]),
        lambda kind: kind("a")._asdict(),
        lambda kind: kind("a") == ("a", 8, ()),
        lambda kind: hash(kind("a")),
        lambda kind: repr(kind("a", 3)).removeprefix("Their"),
        lambda kind: setattr(kind("a"), "gpus", 3),
        lambda kind: setattr(kind("a"), "new", 3),
        lambda kind: pickle.loads(pickle.dumps(kind("a", 3))),  # noqa: S301 - its own
        lambda kind: copy.deepcopy(kind("a", 3)),
        lambda kind: (kind._fields, kind._field_defaults, kind.__match_args__),
        get_type_hints,
        lambda kind: list(inspect.signature(kind).parameters),
        lambda kind: kind.__doc__ is None,
        lambda kind: kind._make(iter(["a", 1, ()])),
    ],
    ids=map(str, count()),
)
def test_a_class_is_as_that_of_typing(use: Any) -> None:
    """It gives the same values and the same types of errors."""
    assert outcome(lambda: use(TheirNode)) == outcome(lambda: use(Node))


def test_a_class_has_methods_and_heirs() -> None:
    """And may have no fields at all."""
    assert ("a:8", "b:0", ()) == (Node("a").shown, Spare("b").shown, Nothing())
    with pytest.raises(TypeError, match=r"Node\.__new__\(\) missing 1 required positional argument: 'name'"):
        Node()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="Node has no fields"):  # as that of Python 3.13
        Node("a")._replace(nodes=3)  # type: ignore[call-arg]
    assert not Nothing.__annotations__
    match Node("c", 2):
        case Node(name, gpus):
            assert ("c", 2) == (name, gpus)


def test_each_module_with_fields_leaves_annotations_texts() -> None:
    """Python 3.14 would keep them elsewhere."""
    users = [path for path in PACKAGE.rglob("*.py") if "import NamedTuple\n" in path.read_text("utf-8")]
    assert len(users) > 1
    for path in users:
        assert "\nfrom __future__ import annotations\n" in path.read_text("utf-8"), path
