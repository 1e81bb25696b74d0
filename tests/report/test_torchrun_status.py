"""Runs whose agents are torchrun's."""

from __future__ import annotations

import pytest

from hpc_elastic.meet.member_names import MemberName, Phase
from hpc_elastic.record.journal import Cause, Entry, Record, RoundEnded
from hpc_elastic.record.state import RunState, fold
from hpc_elastic.report import run_status
from hpc_elastic.report.run_status import Mark, RunView, member_texts, newest_marks, status_of
from hpc_elastic.report.timeline import timeline
from tests.meet.build import E0, formed, start

ENTRIES: tuple[Entry, ...] = (start(expected=()), formed(1, ("n1", "n2")))
RECORDS = [Record(number, 0.0, "n1", entry) for number, entry in enumerate(ENTRIES, 1)]
STATE = fold(RunState(), RECORDS)


def mark(node: str, phase: Phase, at: float, pid: int = 1) -> Mark:
    """Return what a node says of itself."""
    return Mark(MemberName(f"{node}.{pid}", E0, phase, 1, 3), at)


@pytest.mark.parametrize(
    ("phases", "phase", "words"),
    [
        ((Phase.RUNNING, Phase.RUNNING), run_status.RunPhase.RUNNING, "running round 1 on 2 nodes: n1, n2"),
        (
            (Phase.SUCCEEDED, Phase.SUCCEEDED),
            run_status.RunPhase.GONE,
            "all agents have left after round 1 (n1, n2); how their workers ended is not recorded here",
        ),
        ((Phase.SUCCEEDED, Phase.RUNNING), run_status.RunPhase.RUNNING, "running round 1 on 2 nodes: n1, n2"),
    ],
    ids=["all run", "all left", "one left"],
)
def test_a_run_whose_agents_have_left_does_not_run(
    phases: tuple[Phase, Phase], phase: run_status.RunPhase, words: str
) -> None:
    """Nobody records the end of the last round."""
    marks = (mark("n1", phases[0], 1.0), mark("n2", phases[1], 1.0))
    where = status_of(RunView(STATE, -1, torchruns=marks))
    assert (phase, words) == where


def test_before_the_first_round() -> None:
    """The agents that wait are named."""
    state = fold(RunState(), RECORDS[:1])
    where = status_of(RunView(state, -1, torchruns=(mark("n1", Phase.JOINING, 1.0),)))
    assert "the agents meet for the next round (n1)" == where.text


def test_silence_is_told_in_nodes() -> None:
    """Workers are not counted there."""
    marks = (mark("n1", Phase.RUNNING, 1.0), mark("n2", Phase.RUNNING, 1.0))
    text = status_of(RunView(STATE, -1, silent_s=50.0, torchruns=marks)).text
    assert "no agent has given a sign of life for 50 s" in text
    assert "running round 1 on 2 nodes: n1, n2" in text


def test_what_each_node_does() -> None:
    """The newest agent of a node counts: an older one may have been killed."""
    marks = [
        mark("n2", Phase.RUNNING, 5.0),
        mark("n2", Phase.SUCCEEDED, 8.0, pid=2),
        mark("n1", Phase.RUNNING, 9.0),
    ]
    told = member_texts(newest_marks(marks, STATE), now_s=10.0)
    assert ["n1 is in round 1, last sign of life 1.0 s ago", "n2 has left after round 1, 2.0 s ago"] == told


def test_the_timeline_guesses_no_reason_and_counts_nodes() -> None:
    """A round of torchrun's ends without a word."""
    ended = Record(3, 2.0, "n1", RoundEnded(1, Cause.MEMBERSHIP, (), None))
    told = [moment.text for moment in timeline([*RECORDS, ended], by_torchrun=True)]
    assert "round 1: 2 nodes (n1, n2) met in 0.0 s" == told[1]
    assert told[2].startswith("round 1 ended after 2.0 s: its agents meet anew and do not tell why")
