"""Who is named when workers make no progress."""

from __future__ import annotations

from hpc_elastic.agent.hang_groups import RankLook
from hpc_elastic.agent.hang_verdict import Case, Evidence, Verdict, judge


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
