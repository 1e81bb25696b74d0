"""Who is named when workers make no progress."""

from __future__ import annotations

import pytest

from hpc_elastic.agent.hang_groups import Frame, RankLook
from hpc_elastic.agent.hang_verdict import Case, Evidence, Verdict, has_moved, judge


def judged(steps: dict[str, int], missing: tuple[str, ...] = ()) -> Verdict:
    """Return the verdict over one rank on each node, asked for by n2."""
    looks = tuple(RankLook(rank, node, step) for rank, (node, step) in enumerate(steps.items()))
    return judge(Case("n2", "no step for 30 s", {1}), Evidence("hangs", looks, missing), 0.0)


def test_the_node_of_the_odd_rank_is_named() -> None:
    """With its step, for a later hang of it to be compared with."""
    verdict = judged({"n1": 6, "n2": 6, "n3": 5})
    assert (("n3",), 5, 2) == (verdict.nodes, verdict.step, verdict.failure.rank)


def test_a_hang_of_all_ranks_names_all_nodes() -> None:
    """Not the one that has asked first; who has not spoken may be the odd one."""
    assert ("n1", "n2", "n3") == judged({"n1": 6, "n2": 6, "n3": 6}).nodes
    assert ("n1", "n2", "n3") == judged({"n1": 6, "n2": 6}, missing=("n3",)).nodes
    assert ("n2",) == judged({}).nodes


def test_where_all_are_in_one_place_the_suspect_is_named() -> None:
    """The others wait with it, and nobody is odd."""
    assert 1 == judged({"n1": 6, "n2": 6, "n3": 6}).failure.rank


def test_of_several_suspects_the_first_is_named() -> None:
    """If nothing was heard of any rank."""
    verdict = judge(Case("n2", "no step for 30 s", {3, 1, 2}), Evidence("hangs", (), ("n2",)), 0.0)
    assert (1, "n2") == (verdict.failure.rank, verdict.failure.node)


ELSEWHERE = (Frame("elsewhere", "/n/train.py", "9"),)
MUCH = 16 << 20


@pytest.mark.parametrize(
    ("now", "moved"),
    [
        (RankLook(1, "n1", moved=MUCH), True),
        (RankLook(1, "n1", moved=MUCH - 1), False),
        (RankLook(1, "n1", frames=ELSEWHERE), True),
        (RankLook(2, "n1", moved=MUCH), False),
        (RankLook(3, "n1", moved=MUCH), False),
    ],
    ids=["much data", "not much", "another place", "no suspect", "not seen before"],
)
def test_a_suspect_that_has_moved_is_alive(now: RankLook, moved: bool) -> None:
    """It is somewhere else, or has moved much data; nobody else counts."""
    before = {1: RankLook(1, "n1"), 2: RankLook(2, "n1")}
    assert moved is has_moved(Evidence("hangs", (now,), ()), before, {1, 3})
