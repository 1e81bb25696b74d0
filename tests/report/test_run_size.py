"""How many nodes a run uses of those it has."""

from __future__ import annotations

import pytest

from hpc_elastic.meet.member_names import MemberName, Phase
from hpc_elastic.record.journal import Entry, Epoch, EpochStarted, Member, Record, RoundFormed, SizeWanted
from hpc_elastic.record.state import RunState, fold
from hpc_elastic.report.run_status import size_text

EPOCH = Epoch(0, 0, 0, 0)
STARTED = EpochStarted(EPOCH, "7", ("n1", "n2", "n10"))
WANTED = SizeWanted(0, 1, "hpc-elastic scale")
ROUND = RoundFormed(1, EPOCH, (Member("n1.1", "n1", 2),), "n1", 1, None)


def state_of(*entries: Entry) -> RunState:
    """Return the state after these entries."""
    return fold(RunState(), [Record(number, 0.0, "n1", entry) for number, entry in enumerate(entries, 1)])


def member(node: str, phase: Phase = Phase.JOINING, epoch: Epoch = EPOCH) -> str:
    """Return the name of a member."""
    return MemberName(f"{node}.1", epoch, phase, 2, 5).text()


@pytest.mark.parametrize(
    ("state", "members", "expected"),
    [
        (state_of(STARTED, ROUND), [member("n2")], ""),
        (
            state_of(STARTED, WANTED, ROUND),
            [member("n1", Phase.RUNNING), member("n10"), member("n2"), "news+3"],
            "1 of 3 nodes (hpc-elastic scale); n2, n10 stand by",
        ),
        (
            state_of(STARTED._replace(expected=()), WANTED, ROUND),
            [member("n2"), member("n3", epoch=Epoch(0, 0, 1, 0)), member("n4", Phase.LEFT)],
            "1 of 2 nodes (hpc-elastic scale); n2 stands by",
        ),
        (
            state_of(STARTED, WANTED, ROUND._replace(lost=("n2",))),
            [member("n2")],
            "1 of 2 nodes (hpc-elastic scale)",
        ),
        (state_of(STARTED, WANTED), [member("n1"), member("n2")], "1 of 3 nodes (hpc-elastic scale)"),
        (state_of(WANTED._replace(submission=-1)), [], "1 node (hpc-elastic scale)"),
    ],
    ids=["nobody asked", "two spares", "unknown nodes", "a lost node", "between rounds", "before the start"],
)
def test_the_size_names_who_stands_by(state: RunState, members: list[str], expected: str) -> None:
    """Of the nodes that are there; only while a round runs are the others spares."""
    assert expected == size_text(state, members)
