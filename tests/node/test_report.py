"""What an agent tells people of the size of rounds."""

from __future__ import annotations

from pathlib import Path

from hpc_elastic.node.setup.agent_log import AgentLog, SizeNews
from hpc_elastic.record.journal import (
    Cause,
    Entry,
    Epoch,
    EpochStarted,
    Member,
    RoundEnded,
    RoundFormed,
    SizeWanted,
)
from hpc_elastic.record.state import RunState, apply
from hpc_elastic.testing.clock import FakeClock

EPOCH = Epoch(0, 0, 0, 0)


class World:
    """The agents of some nodes that all read one journal."""

    def __init__(self, *nodes: str) -> None:
        self.state = apply(RunState(), EpochStarted(EPOCH, "7", ()))
        self.said: list[str] = []
        self.news: dict[str, SizeNews] = {}
        self.round(*nodes)

    def write(self, entry: Entry) -> None:
        """Have everybody read a record."""
        self.state = apply(self.state, entry)
        for news in self.news.values():
            news.look(self.state)

    def round(self, *nodes: str) -> list[str]:
        """Form the next round; return what was told since the last one."""
        self.write(RoundEnded(self.state.rounds, Cause.MEMBERSHIP, (), None))
        members = tuple(Member(f"{node}.1", node, 1) for node in nodes)
        formed = RoundFormed(self.state.rounds + 1, EPOCH, members, "n1", 1, None)
        self.state = apply(self.state, formed)
        for node in nodes:
            self._news_of(node).begin(formed, self.state)
        told, self.said = self.said, []
        return told

    def _news_of(self, node: str) -> SizeNews:
        if node not in self.news:
            self.news[node] = SizeNews(lambda text: self.said.append(f"{node}: {text}"), f"{node}.1")
        return self.news[node]


def test_a_smaller_run_tells_why() -> None:
    """It is said when it is asked for, and when the next round is smaller; a later loss is none of it."""
    world = World("n1", "n2", "n3")
    assert [] == world.said
    world.write(SizeWanted(0, 2, "hpc-elastic scale", None, 3))
    words = "scaled from 3 to 2 nodes by the user (hpc-elastic scale)"
    assert [
        f"n1: the run was {words}: the workers save and stop at one step",
        f"n1: round 2 has 2 nodes in place of 3: {words}",
    ] == world.round("n1", "n2")
    assert [] == world.round("n1")
    assert [] == world.round("n1", "n2")


def test_a_run_that_grows_tells_why_until_it_has_its_size() -> None:
    """A node that was there before tells, though a new one is the first; later rounds have other reasons."""
    world = World("n2")
    world.write(SizeWanted(0, 3, "hpc-elastic scale", 0, 1))
    asked, larger, new = world.round("n1", "n2")
    assert "n2: the run was scaled from 1 to 3 nodes by the user (hpc-elastic scale): it takes in" in asked
    words = "scaled from 1 to 3 nodes by the user (hpc-elastic scale)"
    told = {larger, new}
    assert f"n2: round 2 has 2 nodes in place of 1: {words}" in told
    assert "n1: the user wants 3 nodes (hpc-elastic scale); round 2 has 2" in told
    assert [f"n1: round 3 has 3 nodes in place of 2: {words}"] == world.round("n1", "n2", "n3")
    assert [] == world.round("n1", "n3")
    assert [] == world.round("n1", "n2", "n3")


def test_a_change_that_is_taken_back_is_none() -> None:
    """The round that was to be smaller has the size that it had."""
    world = World("n1", "n2")
    world.write(SizeWanted(0, 1, "hpc-elastic scale", None, 2))
    world.write(SizeWanted(0, 2, "hpc-elastic scale", None, 2))
    _, back = world.round("n1", "n2")
    assert "n1: the run was kept at 2 nodes by the user (hpc-elastic scale)" == back


def test_a_size_of_an_earlier_submission_is_nothing_to_tell() -> None:
    """It does not hold any more."""
    world = World("n1", "n2")
    world.write(EpochStarted(Epoch(1, 0, 0, 0), "8", ()))
    world.write(SizeWanted(0, 1, "hpc-elastic scale", None, 2))
    assert [] == world.said


def test_words_in_the_log_of_an_agent_act_on_no_terminal(tmp_path: Path) -> None:
    """They may be the reason that somebody has given for a node, or the error of a program."""
    path = tmp_path / "n1.log"
    with path.open("wb", buffering=0) as file:
        AgentLog(FakeClock(), "n1", [file.fileno()]).say(
            "node n2 drains: \x1b]0;OWNED\x07\rx\nsecond \u202eline"
        )
    lines = path.read_text().splitlines()
    assert ["node n2 drains: \\x1b]0;OWNED\\x07", "x", "second \\u202eline"] == [
        line.partition("] ")[2] for line in lines
    ]
