"""Who is named when workers make no progress."""

from __future__ import annotations

import pytest

from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.multiprocessing.errors.failure import failure_summary
from hpc_elastic.node.hangs.groups import Frame, RankLook
from hpc_elastic.node.hangs.look import (
    Case,
    Evidence,
    HangVerdict,
    has_moved,
    judge,
    stopped,
    stopped_text,
)
from hpc_elastic.report.timeline import failure_text


def judged(steps: dict[str, int], missing: tuple[str, ...] = ()) -> HangVerdict:
    """Return the verdict over one rank on each node, asked for by n2."""
    looks = tuple(RankLook(rank, node, step) for rank, (node, step) in enumerate(steps.items()))
    return judge(Case("n2", "no step for 30 s", {1}), Evidence("hangs", looks, missing), 0.0)


def test_the_node_of_the_odd_rank_is_named() -> None:
    """With its step, for a later hang of it to be compared with."""
    verdict = judged({"n1": 6, "n2": 6, "n3": 5})
    assert (("n3",), 5, 2) == (verdict.nodes, verdict.step, verdict.failure.rank)


def test_the_place_of_the_odd_rank_is_recorded() -> None:
    """Function and file of the innermost call that tells something, without its line."""
    here, there = (Frame("wait", "/usr/threading.py", "3"), Frame("load", "/a/train.py", "7")), ()
    looks = (RankLook(0, "n1", 5, frames=here), RankLook(1, "n2", 6, frames=there), RankLook(2, "n3", 6))
    assert "load train.py" == judge(Case("n2", "", {1}), Evidence("hangs", looks, ()), 0.0).failure.place
    assert "" == judged({"n1": 6, "n2": 6, "n3": 5}).failure.place


def test_a_hang_of_all_ranks_names_all_nodes() -> None:
    """Not the one that has asked first; who has not spoken may be the odd one."""
    assert ("n1", "n2", "n3") == judged({"n1": 6, "n2": 6, "n3": 6}).nodes
    assert ("n1", "n2", "n3") == judged({"n1": 6, "n2": 6}, missing=("n3",)).nodes
    assert ("n2",) == judged({}).nodes


def test_where_all_are_in_one_place_the_suspect_is_named() -> None:
    """The others wait with it, and nobody is odd: no text calls it the culprit."""
    verdict = judged({"n1": 6, "n2": 6, "n3": 6})
    assert (1, False) == (verdict.failure.rank, verdict.failure.stands_out)
    assert judged({"n1": 6, "n2": 6, "n3": 5}).failure.stands_out
    assert judged({"n1": 6}).failure.stands_out
    assert not judged({"n1": 6}, missing=("n2",)).failure.stands_out
    failure = verdict.failure.to_json()
    told = "(local_rank: 0), of those without progress; no rank stands out"
    assert told in failure_summary("train.py", [verdict.failure])
    assert failure_text(failure).startswith("the workers hang: no step for 30 s: no rank stands out: ranks 0")
    assert failure_text({**failure, "stands_out": True}).startswith("rank 1 on n2: hangs: ")


def test_of_several_suspects_the_first_is_named() -> None:
    """If nothing was heard of any rank."""
    verdict = judge(Case("n2", "no step for 30 s", {3, 1, 2}), Evidence("hangs", (), ("n2",)), 0.0)
    assert (1, "n2") == (verdict.failure.rank, verdict.failure.node)


def test_who_has_not_spoken_is_not_named_beside_an_odd_rank() -> None:
    """Its silence is told, but what was seen weighs more."""
    verdict = judged({"n1": 6, "n2": 6, "n3": 5}, missing=("n4", "n5"))
    assert ("n3",) == verdict.nodes
    assert "; nothing was heard from n4, n5; " in verdict.failure.message
    assert "nothing was heard" not in judged({"n1": 6, "n2": 6, "n3": 5}).failure.message


def test_a_node_with_several_odd_ranks_is_named_once() -> None:
    """The failure is that of its first one."""
    places = [("n1", 6), ("n1", 6), ("n1", 6), ("n2", 5), ("n2", 5)]
    looks = tuple(RankLook(rank, node, step) for rank, (node, step) in enumerate(places))
    verdict = judge(Case("n1", "no step for 30 s", {0}), Evidence("hangs", looks, ()), 0.0)
    assert (("n2",), 3) == (verdict.nodes, verdict.failure.rank)


def test_the_failure_has_what_was_seen_of_its_rank() -> None:
    """Place, process, log and stack are those of the odd rank, the time is now."""
    odd = RankLook(2, "n2", 5, local_rank=1, pid=77, log="/logs/2.err", stack='File "a.py"')
    looks = (RankLook(0, "n1", 6), RankLook(1, "n1", 6), odd)
    failure = judge(Case("n1", "no step for 30 s", {0}), Evidence("hangs", looks, ()), 12.5).failure
    assert (2, 1, "n2", 77) == (failure.rank, failure.local_rank, failure.node, failure.pid)
    assert (odd.log, odd.stack, 12.5) == (failure.log, failure.traceback, failure.timestamp)
    assert ExitCode.HUNG == failure.exitcode
    assert failure.message.startswith("no step for 30 s: rank 2 (n2): step 5")
    assert failure.message.endswith("stacks of all ranks in hangs")


def test_stopped_ranks_are_told_of() -> None:
    """Only those that somebody has stopped."""
    asleep, held = RankLook(0, "n1", pid=7, state="S"), RankLook(1, "n2", pid=8, state="T")
    assert (held,) == stopped(Evidence("hangs", (asleep, held), ()))
    assert stopped_text((held,)).startswith("rank 1 (n2): stopped (SIGSTOP)")
    assert () == stopped(Evidence("hangs", (asleep,), ()))


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
        (RankLook(4, "n1", moved=MUCH + 8), False),
        (RankLook(1, "n1", step=9, section="save", state="D"), False),
    ],
    ids=[
        "much data",
        "not much",
        "another place",
        "no suspect",
        "not seen before",
        "most of it earlier",
        "the same place",
    ],
)
def test_a_suspect_that_has_moved_is_alive(now: RankLook, moved: bool) -> None:
    """It is somewhere else, or has moved much data; nobody else counts."""
    before = {1: RankLook(1, "n1"), 2: RankLook(2, "n1"), 4: RankLook(4, "n1", moved=9)}
    assert moved is has_moved(Evidence("hangs", (now,), ()), before, {1, 3, 4})


def test_a_suspect_among_equals_is_told_of_with_what_was_seen_of_it() -> None:
    """Its process and its log are named, though its place is that of all others."""
    looks = tuple(RankLook(rank, f"n{rank}", 6, pid=70 + rank, log=f"/{rank}.err") for rank in range(3))
    failure = judge(Case("n0", "no step for 30 s", {1}), Evidence("hangs", looks, ()), 0.0).failure
    assert (1, 71, "/1.err") == (failure.rank, failure.pid, failure.log)


def test_a_suspect_of_which_nothing_was_heard_is_named() -> None:
    """With the node that has asked."""
    message = judged({}, missing=("n2",)).failure.message
    assert message.startswith("no step for 30 s: rank 1 (n2); nothing was heard from n2")
