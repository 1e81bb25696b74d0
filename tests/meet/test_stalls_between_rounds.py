"""Between rounds, too, most nodes that fall silent together are no loss at first."""

from __future__ import annotations

from hpc_elastic.meet.liveness import STALL_LEASES
from hpc_elastic.meet.member_names import Phase
from hpc_elastic.meet.rules import (
    FormRound,
    JoinAction,
    Joining,
    MeetingSettings,
    TooFew,
    Wait,
    Waited,
    join,
    wait_on,
)
from tests.meet.build import after, crash, formed, joining, node_id, roster, seen, start

SETTINGS = MeetingSettings(min_nodes=2, max_nodes=3, lease=4)


def _step(view: Joining, now: float) -> JoinAction:
    """Return what a node does that has just begun to wait."""
    return join(view, wait_on(view, Waited(now), now), now)


def test_most_nodes_silent_together_are_waited_for() -> None:
    """Between rounds, too, a stalled file system is not taken for the loss of most nodes."""
    state = after(start(), formed(1), crash(1))
    stalled = roster(seen("n1", round_number=2, at=10), *(seen(n, Phase.RUNNING, at=1) for n in ("n2", "n3")))
    settings = SETTINGS._replace(min_nodes=1)
    view = joining(state, stalled, settings=settings)
    assert Wait(1, ("n2", "n3")) == _step(view, 10)
    assert FormRound((node_id("n1"),)) == _step(view, 13)


def test_too_few_are_told_once_a_stall_is_over() -> None:
    """Two nodes that fell silent together are given up after the three leases that a stall gets, no later."""
    state = after(start(), formed(1), crash(1))
    stalled = roster(seen("n1", round_number=2, at=10), *(seen(n, Phase.RUNNING, at=1) for n in ("n2", "n3")))
    view = joining(state, stalled, settings=SETTINGS._replace(min_nodes=2))
    over = 1 + STALL_LEASES * SETTINGS.lease
    assert Wait(1, ("n2", "n3")) == _step(view, over - 0.1)
    assert isinstance(_step(view, over), TooFew)
