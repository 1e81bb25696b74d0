"""Values of one name that differ between ranks: they are found, named, and written apart."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
from hpc_elastic.frameworks.torch.rank_groups import (  # noqa: E402
    RankGroups,
    differing,
    digests,
    own_parameter,
    parted,
)
from hpc_elastic.frameworks.torch.train_state import load_torch, unpickled  # noqa: E402
from tests.frameworks.thread_ranks import on_ranks  # noqa: E402

pytestmark = pytest.mark.torch
LIB = load_torch()


def groups(dist: Any, rank: int) -> RankGroups:
    """Return the process groups of a rank."""
    return RankGroups(rank, dist.get_world_size(), dist, dist.group.WORLD, dist.group.WORLD)


def found(size: int, *contents: dict[str, Any]) -> list[set[str]]:
    """Return the names that each rank finds to differ; the last content is that of all further ranks."""

    def look(dist: Any, rank: int) -> set[str]:
        mine = digests(LIB, contents[min(rank, len(contents) - 1)])
        return differing(LIB, groups(dist, rank), mine, dist.group.WORLD)

    return on_ranks(size, look)


def test_the_same_values_do_not_differ() -> None:
    """Nor do those of a single rank, with a group or without one."""
    content = {"w": torch.ones(3), "number": 4, "own.0": b"mine"}
    assert [set(), set(), set()] == found(3, content)
    assert [set()] == found(1, content)
    assert set() == differing(LIB, RankGroups(0, 1, None), digests(LIB, content), None)


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_all_ranks_know_the_names_that_differ_on_any_one(odd: int) -> None:
    """Whichever rank it is: the greatest and the least value are compared."""
    contents = [{"w": torch.full((2,), float(rank == odd)), "b": torch.zeros(2), "c": 7} for rank in range(3)]
    assert [{"w"}] * 3 == found(3, *contents)


def test_a_name_that_one_rank_has_alone_differs() -> None:
    """And so does what the others have under the same name with another content."""
    with_more = {"a": torch.zeros(1), "b": torch.zeros(1), "more": torch.zeros(1)}
    assert [{"more", "b"}] * 2 == found(2, with_more, {"a": torch.zeros(1), "b": torch.ones(1)})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        (torch.tensor([0.0]), torch.tensor([-0.0])),
        (torch.arange(6).reshape(2, 3).t(), torch.arange(6).reshape(2, 3).t().flip(0)),
        (1, 1.5),
        ("a", "b"),
    ],
)
def test_values_differ_by_content_form_and_kind(one: Any, other: Any) -> None:
    """To the last bit, however they lie in memory."""
    first, second = (digests(LIB, {"x": value})["x"] for value in (one, other))
    assert first != second
    assert first == digests(LIB, {"x": one.clone() if isinstance(one, torch.Tensor) else one})["x"]


def test_what_cannot_be_compared_counts_as_the_same() -> None:
    """The save tells of a value that pickle refuses; parts of sharded tensors have no digest."""
    sharded = type("DTensor", (), {"to_local": None})()
    assert {"local": 0} == digests(LIB, {"local": lambda: 0, "sharded": sharded, "own.1": 3})


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_writes_what_differs_under_names_of_its_own(rank: int) -> None:
    """All else keeps its name."""
    content = {"expert": torch.full((1,), float(rank)), "w": torch.zeros(1), "n": 3}
    written = parted(LIB, content, rank, {"expert"}, {"mean", "n"})
    assert {f"own.{rank}/expert", "w", "n"} == written.keys()
    assert written[f"own.{rank}/expert"] is content["expert"]
    assert content["w"] is written["w"]


@pytest.mark.parametrize(("rank", "stays"), [(0, True), (1, False)])
def test_buffers_of_rank_0_are_there_for_another_number_of_ranks(rank: int, stays: bool) -> None:
    """If they alone differ: each rank has its own in one value beside them."""
    content = {"mean": torch.full((1,), float(rank)), "seen": rank, "w": torch.zeros(1)}
    written = parted(LIB, content, rank, ("mean", "seen"), {"mean", "seen"})
    assert stays == ("mean" in written) == ("seen" in written)
    assert "w" in written
    own = unpickled(LIB, written[f"own.{rank}.buffers"])
    assert (rank, [float(rank)]) == (own["seen"], own["mean"].tolist())
    assert {"mean", "seen"} == own.keys()


def named(content: dict[str, Any]) -> str:
    """Return the parameter that two ranks find to differ: the second one has these, the first has zeros."""

    def look(dist: Any, rank: int) -> str:
        mine = content if rank else {name: torch.zeros_like(value) for name, value in content.items()}
        return own_parameter(LIB, groups(dist, rank), mine.items())

    first, second = on_ranks(2, look)
    assert first == second
    return str(first)


def test_the_first_parameter_that_differs_is_named() -> None:
    """By its name, among those of several dtypes; empty tensors have nothing that could differ."""
    same = {"a": torch.zeros(9), "empty": torch.empty(0), "h": torch.zeros(5, dtype=torch.float16)}
    assert "" == named(same)
    assert "h" == named({**same, "h": torch.ones(5, dtype=torch.float16)})
    assert "b" == named({**same, "b": torch.ones(3), "c": torch.ones(3)})


@pytest.mark.parametrize("at", [0, 250, 500, 750])
@pytest.mark.parametrize("form", ["contiguous", "a view", "transposed"])
def test_a_few_numbers_from_all_parts_of_a_tensor_are_compared(form: str, at: int) -> None:
    """Its first one, and as many at the same distances; however it lies in memory."""
    whole = torch.zeros(2, 1000)
    value = {"contiguous": torch.zeros(1000), "a view": whole[1], "transposed": torch.zeros(2, 500).t()}[form]
    flat = torch.zeros(1000)
    flat[at] = 1.0
    value.copy_(flat.reshape(value.shape))
    assert "w" == named({"w": value})
    assert "" == named({"w": torch.zeros_like(value)})


def test_tensors_that_one_rank_has_alone_are_named() -> None:
    """The name comes first in the order of names."""

    def look(dist: Any, rank: int) -> str:
        mine = {"b": torch.zeros(1), **({"a": torch.zeros(1)} if rank else {})}
        return own_parameter(LIB, groups(dist, rank), mine.items())

    assert ["a", "a"] == on_ranks(2, look)
