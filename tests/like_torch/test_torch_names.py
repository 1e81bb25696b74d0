"""Every module of torch's elastic packages, and every public name in it, is here and is called as there."""

from __future__ import annotations

import inspect
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from tests.like_torch import torch_names
from tests.like_torch.torch_names import DIFFERS, Difference

TORCHS = torch_names.modules()
needs_torch = pytest.mark.skipif(not TORCHS, reason="could not find torch")


@needs_torch
@pytest.mark.torch
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "module",
    [name for name in TORCHS if name not in DIFFERS] or ["torch"],
    ids=lambda name: name or "hpc_elastic",
)
def test_nothing_is_missing(module: str) -> None:
    """Only what the table of differences names, with its reason, is not as in torch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = list(torch_names.differences(module))
    assert [] == [one for one in found if one.where not in DIFFERS]


@needs_torch
@pytest.mark.torch
@pytest.mark.timeout(180)
def test_every_difference_is_still_one() -> None:
    """The table names no module that torch has not, and nothing that has become the same."""
    modules = {where.partition(":")[0] for where in DIFFERS}
    assert set() == modules - set(TORCHS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {one.where for name in modules for one in torch_names.differences(name)}
    assert set() == set(DIFFERS) - found - modules


@needs_torch
@pytest.mark.torch
def test_all_packages_are_looked_at() -> None:
    """The list of modules is not empty by mistake."""
    assert {"", "agent.server.api", "launcher.api", "run", "argparse_util", "utils.data"} <= set(TORCHS)
    assert len(TORCHS) > 40


def test_every_difference_has_a_reason() -> None:
    """A reason is a sentence that a reader of the documentation understands."""
    assert {} == {where: why for where, why in DIFFERS.items() if len(why.split()) < 5}


def _torchs(a: int, b: int = 2, *, c: str = "") -> None:
    """Be called."""


def _same(a: int, b: int = 2, c: str | None = None, d: int = 4) -> None:
    """Be called with one more."""


def _optional(a: int = 0, b: int = 2, *, c: str = "") -> None:
    """Be called with nothing."""


def _other_default(a: int, b: int = 3, *, c: str = "") -> None:
    """Mean something else by the same call."""


def _other_order(b: int, a: int = 2, *, c: str = "") -> None:
    """Take them the other way round."""


def _one_less(a: int, b: int = 2) -> None:
    """Take fewer."""


def _one_more(a: int, b: int, c: str, d: int) -> None:
    """Need more."""


def _by_name(*, a: int, b: int = 2, c: str = "") -> None:
    """Take none by position."""


@pytest.mark.parametrize(
    ("ours", "fits"),
    [
        (_torchs, True), (_same, True), (_optional, True), (_other_default, False), (_other_order, False),
        (_one_less, False), (_one_more, False), (_by_name, False),
    ],
)  # fmt: skip
def test_what_counts_as_the_same_call(ours: Any, fits: bool) -> None:
    """More may be passed and less need be; names, order and defaults stay."""
    assert fits == (not list(torch_names._compare_signatures("f", _torchs, ours)))


def test_constants_are_compared() -> None:
    """A number or a text is the same or a difference."""
    assert [Difference("a", "is 2, not 1")] == list(torch_names._compare("a", 1, 2))
    assert [] == list(torch_names._compare("a", "x", "x"))


def test_what_a_module_offers() -> None:
    """`__all__` decides; without it, what stands in the module and has no underscore."""
    assert ["b"] == torch_names.public_names(SimpleNamespace(__all__=["b"]))
    offered = torch_names.public_names(inspect.getmodule(test_what_a_module_offers))
    assert {"TORCHS", "needs_torch"} < set(offered)
    assert not {"pytest", "Difference", "_torchs"} & set(offered)
