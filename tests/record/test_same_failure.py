"""Which failures are the same one, and how their repetition is told."""

from __future__ import annotations

from typing import Any

import pytest

from hpc_elastic.record.journal import Cause, FailedAlike, RoundEnded
from hpc_elastic.record.same_failure import is_early, lone_node, repeated_text, signature
from tests.meet.build import E0, after, formed, start


def failed(node: str = "n1", saved: int | None = None, number: int = 1, **failure: Any) -> RoundEnded:
    """Return the end of a round by a failure on a node."""
    return RoundEnded(number, Cause.CRASH, (node,), {"exitcode": 1, **failure}, saved)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"message": "OutOfMemoryError: rank 3"}, {"message": "OutOfMemoryError: rank 12", "rank": 12}, True),
        ({"message": "oops at 0xff01"}, {"message": "oops at 0x12ab\nmore"}, True),
        ({"message": "oops"}, {"message": "other"}, False),
        ({"message": "oops"}, {"message": "oops", "exitcode": -9}, False),
        ({"stderr_tail": "x\nlast line 7"}, {"stderr_tail": "y\nlast line 8"}, True),
        ({"stderr_tail": "a line"}, {"stderr_tail": "another"}, False),
        ({}, {"message": None}, True),
    ],
)
def test_the_same_failure_is_the_same_on_every_rank(
    one: dict[str, Any], other: dict[str, Any], same: bool
) -> None:
    """Exit code and first line count, and the last line of stderr where there is no message."""
    assert same == (signature(failed(**one)) == signature(failed("n2", **other)))


def test_hangs_at_one_place_are_the_same_failure() -> None:
    """The message of a hang names ranks, nodes and the others; only the place where it waits counts."""
    hung = failed(
        "gpu-a", message="no step for 30 s: rank 1 (gpu-a): step 5; the other: step 6", place="f a.py"
    )
    again = "no step for 31 s: ranks 2 (gpu-b), 3 (gpu-b)"
    assert signature(hung) == signature(failed("gpu-b", message=again, place="f a.py"))
    assert signature(hung) != signature(failed("gpu-b", message=again, place="g a.py"))


def test_a_hang_is_no_crash() -> None:
    """The cause belongs to the failure."""
    assert signature(failed(message="x")) != signature(failed(message="x")._replace(cause=Cause.HANG))


def test_one_node_is_named_only_if_it_is_always_the_same() -> None:
    """Once is no pattern, and several nodes are none to blame."""
    assert lone_node([failed("n1")]) is None
    assert lone_node([failed("n1"), failed("n1")]) == "n1"
    assert lone_node([failed("n1"), failed("n2")]) is None
    assert lone_node([failed("n1")._replace(nodes=("n1", "n2"))] * 2) is None


def test_where_and_what_was_saved_is_told() -> None:
    """The nodes with how often, and the last checkpoint."""
    ends = [failed("n1", 40), failed("n2", 40), failed("n1", 40)]
    assert (
        repeated_text(ends)
        == "the same failure 3 times in a row, on n1 (2 times), n2; the last checkpoint is still step 40"
    )
    late = failed(ran_s=60.0)
    assert "always on n1: that node may be bad; no checkpoint was marked" in repeated_text([late] * 2)
    assert "always on n1, soon after the start: the program, or that node;" in repeated_text([failed()] * 2)
    assert "in a row, on n1, the only node; no checkpoint" in repeated_text([failed()] * 2, nodes=1)


def test_a_saved_step_or_another_failure_starts_the_count_anew() -> None:
    """What was saved between two failures is progress."""
    first, second = failed(saved=10, number=1), failed(saved=10, number=2)
    third = failed(saved=20, number=3)
    other = failed(saved=20, number=4, message="another")
    entries = (start(), formed(1), first, formed(2), second)
    assert (first, second) == after(*entries).repeated
    assert (third,) == after(*entries, formed(3), third).repeated
    assert (other,) == after(*entries, formed(3), third, formed(4), other).repeated


def test_a_failure_that_a_lost_node_caused_is_forgotten() -> None:
    """It was no failure of the workers."""
    first, second = failed(number=1), failed(number=2)
    state = after(start(), formed(1), first, formed(2), second, formed(3)._replace(lost=("n3",)))
    assert (first,) == state.repeated


def test_another_node_with_the_same_failure_is_named() -> None:
    """One is enough; what is told of another round changes nothing."""
    entries = (start(), formed(1), failed(ran_s=60.0), formed(2), failed(number=2, ran_s=60.0))
    same = FailedAlike(E0, 2, "n2")
    state = after(*entries, same)
    assert ("n1", "n2") == state.repeated[-1].nodes
    assert state.ended is state.repeated[-1]
    assert "on n1 (2 times), n2; " in repeated_text(state.repeated)
    assert state.repeated == after(*entries, same, same._replace(node="n3")).repeated
    assert ("n1",) == after(*entries, same._replace(number=1)).repeated[-1].nodes


def test_a_note_of_what_was_no_failure_of_workers_repeats_nothing() -> None:
    """The end of the round names both nodes all the same."""
    lost = RoundEnded(1, Cause.NODE_LOSS, ("n1",), None)
    state = after(start(), formed(1), lost, FailedAlike(E0, 1, "n2"))
    assert ((), ("n1", "n2")) == (state.repeated, state.ended.nodes if state.ended else None)


@pytest.mark.parametrize(
    ("ran_s", "expected"),
    [(0.0, True), (9.99, True), (10.0, False), (None, True), (60, False)],
)
def test_what_fails_within_ten_seconds_is_early(ran_s: float | None, expected: bool) -> None:
    """So is what failed nobody knows when."""
    assert expected is is_early(failed(ran_s=ran_s))
    assert is_early(failed()._replace(failure=None))


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (None, "crash 1 "),
        ({"exitcode": 2}, "crash 2 "),
        ({"message": "  at 0xAf step 12\nmore "}, "crash 1 at # step #"),
        ({"message": " ", "stderr_tail": "first\nlast 3\n"}, "crash 1 last #"),
        ({"message": "x" * 170}, f"crash 1 {'x' * 160}"),
        ({"stderr_tail": "x" * 170}, f"crash 1 {'x' * 160}"),
    ],
)
def test_what_makes_a_failure_the_same(failure: dict[str, Any] | None, text: str) -> None:
    """Cause, exit code and 160 characters of the line that says most, without numbers."""
    assert text == signature(failed()._replace(failure=failure))


def test_where_a_failure_is_told_if_one_of_them_was_early() -> None:
    """Then it may be the program; on two nodes the only one is none to excuse."""
    ends = [failed(ran_s=60.0), failed(ran_s=1.0)]
    assert "always on n1, soon after the start" in repeated_text(ends, nodes=2)
    assert "on n1 (2 times), n2 (2 times); " in repeated_text([failed(), failed("n2")] * 2, nodes=1)
