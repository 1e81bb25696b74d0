"""Agents that end before they have told their names: the job script's epilog says so in their place."""

from __future__ import annotations

import pytest

from hpc_elastic.meet import rules
from hpc_elastic.meet.join_progress import too_few_text
from hpc_elastic.meet.member_names import TERMINAL, MemberName, Phase, Seen, parse_name
from hpc_elastic.meet.rules import FormRound, MeetingSettings, TooFew, Wait
from hpc_elastic.record.journal import Cause, Drained, Entry, Record
from hpc_elastic.record.node_faults import node_faults
from hpc_elastic.store.node_events import Fault
from tests.meet.build import E0, after, joining, node_id, roster, seen, start

NEVER = Seen(MemberName("n3.0", E0, Phase.ABSENT, 0, 0), 0.0)
THREE = MeetingSettings(min_nodes=3, max_nodes=3)


def choose(settings: MeetingSettings, *entries: Seen) -> rules.JoinAction:
    """Return what the first node does in the moment in which it has joined."""
    view = joining(after(start()), roster(*entries), settings=settings)
    return rules.join(view, rules.wait_on(view, rules.Waited(0.0), 0.0), 0.0)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (MeetingSettings(min_nodes=2, max_nodes=3), FormRound((node_id("n1"), node_id("n2")))),
        (THREE, TooFew(2, ("n3",), timed_out=True, ended=True)),
    ],
    ids=["the minimum is there", "it is not"],
)
def test_nobody_waits_for_it(settings: MeetingSettings, expected: rules.JoinAction) -> None:
    """Neither for the last call nor for the deadline; a node of which nothing is known is waited for."""
    here = (seen("n1"), seen("n2"))
    assert isinstance(choose(settings, *here), Wait)
    assert expected == choose(settings, *here, NEVER)


def test_the_others_are_still_waited_for() -> None:
    """One that may come could be enough."""
    settings = THREE._replace(min_nodes=2)
    assert isinstance(choose(settings, seen("n1"), NEVER), Wait)


def test_it_is_held_against_its_node() -> None:
    """The next job does without it."""
    text = too_few_text(TooFew(2, ("n3",), timed_out=True, ended=True), THREE, "/run")
    assert "2 of 3 nodes joined, and no other agent runs; missing: n3" == text
    entries: tuple[Entry, ...] = (start(), Drained(E0, Cause.JOIN_TIMEOUT, None, text, missing=("n3",)))
    records = [Record(number, 1000.0, "n1", entry) for number, entry in enumerate(entries, 1)]
    assert [("n3", Fault.ABSENT)] == [
        (one.event.host, one.event.fault) for one in node_faults(records, "run")
    ]


def test_the_name_that_is_told_in_its_place() -> None:
    """A terminal one: nobody waits for its heartbeats."""
    assert NEVER.name == parse_name("n3.0+0-0-0-0+absent+0+0+0")
    assert Phase.ABSENT in TERMINAL
