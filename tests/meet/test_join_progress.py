"""What a node that waits for others tells people, and when."""

from __future__ import annotations

import pytest

from hpc_elastic.errors import RendezvousTimeoutError
from hpc_elastic.meet import rules
from hpc_elastic.meet.join_progress import beside_text, is_due, too_few_text, waiting_text
from hpc_elastic.meet.shared_fs import SharedFsRendezvous
from hpc_elastic.record.journal import Epoch, Member, RoundFormed, SizeWanted
from hpc_elastic.record.state import RunState
from hpc_elastic.testing.clock import FakeClock
from tests.meet.one_node import SETTINGS, MakeNode, alone

TWO = SETTINGS._replace(min_nodes=2, max_nodes=2)


@pytest.mark.parametrize(
    ("told_at", "now", "due"),
    [
        (None, 11.9, False),
        (None, 12.0, True),
        (12.0, 41.9, False),
        (12.0, 42.0, True),
    ],
)
def test_when_a_line_is_due(told_at: float | None, now: float, due: bool) -> None:
    """After 2 s, then every 30 s."""
    assert due is is_due(10.0, told_at, now)


@pytest.mark.parametrize(("have", "words"), [(1, "1 node is left, 3"), (2, "2 nodes are left, 3")])
def test_too_few_are_counted_in_words(have: int, words: str) -> None:
    """The reason why a run ends is read by people."""
    few = rules.TooFew(have, ("n3",), timed_out=False)
    assert f"{words} are needed; lost: n3" == too_few_text(few, SETTINGS._replace(min_nodes=3), "/run")


def listen(handler: SharedFsRendezvous) -> list[str]:
    """Return the list in which a node's lines for people arrive."""
    said: list[str] = []
    handler._waiting = handler._waiting._replace(say=said.append, place="/run")
    return said


def test_waiting_is_told_again_and_again(node: MakeNode) -> None:
    """Two lines within the minute that the node waits for another one; then why it gives up."""
    handler = node("n1", settings=TWO)
    said = listen(handler)
    with pytest.raises(
        RendezvousTimeoutError, match="1 of 2 nodes joined within 60 s; no other came to /run"
    ):
        handler.next_rendezvous()
    assert 2 == len(said)
    assert "waiting for 1 more node in /run (1 of 2 here: n1), 2 s so far, for at most 58 s more" == said[0]
    assert "33 s so far, for at most 27 s more" in said[1]


def test_missing_nodes_are_named_by_the_first_node_alone(node: MakeNode) -> None:
    """Below Slurm all lines end in one place, and Slurm has told who is to come."""
    settings = SETTINGS._replace(min_nodes=3)
    handler = node("n1", expected=("n1", "n2", "n3"), settings=settings)
    said = listen(handler)
    with pytest.raises(RendezvousTimeoutError, match="missing: n2, n3"):
        handler.next_rendezvous()
    assert said[0].startswith("waiting for 2 more nodes (n2, n3) in /run (1 of 3 here: n1)")


def test_the_last_call_is_told_with_its_own_time(node: MakeNode) -> None:
    """With the minimum there, the node waits for more only as long as the last call takes."""
    handler = node("n1")
    said = listen(handler)
    handler.next_rendezvous()
    (line,) = said
    assert "waiting for 2 more nodes in /run (1 of 3 here: n1), 2 s so far, for at most 3 s more" == line


def test_a_spare_says_once_that_it_stands_by(node: MakeNode, clock: FakeClock) -> None:
    """It waits without a deadline, so that there is no more to tell."""
    first = alone(node)
    one = SETTINGS._replace(max_nodes=1, may_outgrow=True)
    until = clock.monotonic() + 100.0

    def wait(seconds: float) -> None:
        clock.advance(seconds)
        first.run.tick()

    spare = node("n2", settings=one, wait=wait, interrupted=lambda: clock.monotonic() > until)
    said = listen(spare)
    with pytest.raises(Exception, match="interrupted"):
        spare.next_rendezvous()
    assert ["standing by: round 1 is full (1 of 1 node)"] == said


@pytest.mark.parametrize(("wanted", "told"), [(2, "standing by: round 1 is full (2 of 2 nodes)"), (1, "")])
def test_a_round_of_more_nodes_than_are_wanted_is_about_to_end(wanted: int, told: str) -> None:
    """Nobody is told that it is full with more than all."""
    members = (Member("n1.1", "n1", 1), Member("n2.1", "n2", 1))
    formed = RoundFormed(1, Epoch(0, 0, 0, 0), members, "n1", 1, None)
    state = RunState(epoch=Epoch(0, 0, 0, 0), round=formed, rounds=1, size=SizeWanted(0, wanted, "scale"))
    assert told == beside_text(
        rules.Joining(state, {}, "n3.1", Epoch(0, 0, 0, 0), SETTINGS._replace(max_nodes=3))
    )


def test_a_node_that_is_not_in_yet_tells_nothing() -> None:
    """The others that wait speak for themselves."""
    view = rules.Joining(RunState(), {}, "n1.1", Epoch(0, 0, 0, 0), TWO)
    assert "" == waiting_text(view, rules.Waited(since=0.0), 10.0, "/run")


def test_a_look_that_comes_first_is_made_at_once(node: MakeNode) -> None:
    """Nothing is waited for: the next step depends on it."""
    handler = node("n1", settings=TWO)
    assert 0.0 == handler._carry_out(rules.LookFirst(), rules.Waited(since=0.0))
