"""What the fold of the journal makes of nodes that leave by themselves, and of what comes late."""

from __future__ import annotations

import pytest

from hpc_elastic.record.journal import (
    AfterDrain,
    Cause,
    Decision,
    DrainExplained,
    DrainRequested,
    Entry,
    EpochStarted,
    Member,
    NodeLeft,
    RoundEnded,
    RoundFormed,
    RunEnded,
    SizeWanted,
)
from hpc_elastic.record.state import RunState, fits
from tests.meet.build import E0, after, start

A, B, C = "n1.1@12_0-0-0", "n2.1@12_1-0-0", "n3.1@12_2-0-0"


def formed(number: int, *ids: str) -> RoundFormed:
    """Return a round of these agents."""
    members = tuple(Member(one, one.partition(".")[0], 1) for one in ids)
    return RoundFormed(number, E0, members, "addr", 20_000, None)


def left(one: str) -> NodeLeft:
    """Return the goodbye of an agent."""
    return NodeLeft(E0, one, one.partition(".")[0], Cause.PREEMPTION, "SIGTERM")


def asked(cause: Cause, then: AfterDrain) -> DrainRequested:
    """Return a wish for a drain."""
    return DrainRequested(cause, "n1", then, "asked", E0)


def lost(number: int, *nodes: str) -> RoundEnded:
    """Return the end of a round by a loss."""
    return RoundEnded(number, Cause.NODE_LOSS, nodes, None)


PREEMPTED = asked(Cause.PREEMPTION, AfterDrain.REJOIN)


def state_of(*entries: Entry) -> RunState:
    """Return the state after the start of an array and these entries."""
    return after(start(expected=()), *entries)


def test_a_round_is_over_for_who_left_while_it_was_formed() -> None:
    """It has no workers, and nobody was asked to stop those of the others; that costs no restart."""
    state = state_of(formed(1, A, B, C), left(A))
    assert state.running is None
    assert state.ended == RoundEnded(1, Cause.PREEMPTION, ("n1",), None)
    assert {Cause.PREEMPTION: 1} == state.counts
    assert frozenset() == state.lost
    assert state_of(formed(1, A, B), left(C)).running is not None


def test_a_drain_goes_on_when_its_first_node_leaves() -> None:
    """The others still save; the round ends when they have, or when nobody is left to say so."""
    entries = (formed(1, A, B), PREEMPTED, left(B))
    assert state_of(*entries).running is not None
    ended = state_of(*entries, left(A)).ended
    assert ended == RoundEnded(1, Cause.PREEMPTION, ("n1",), None)


def test_who_has_left_is_in_no_further_round() -> None:
    """Whoever forms the round has not read of the goodbye yet, and tries again."""
    state = state_of(formed(1, A, B, C), PREEMPTED, left(C), RoundEnded(1, Cause.PREEMPTION, ("n3",), None))
    assert not fits(state, formed(2, A, B, C))
    assert fits(state, formed(2, A, B))


def test_who_has_left_is_not_lost() -> None:
    """Whoever watches it may have looked before it read of the goodbye."""
    state = state_of(formed(1, A, B, C), PREEMPTED, left(C))
    assert not fits(state, lost(1, "n3"))
    both = state_of(formed(1, A, B, C), PREEMPTED, left(C), lost(1, "n2", "n3"))
    assert {"n2"} == both.lost
    assert both.ended == lost(1, "n2")


def test_a_round_ends_for_a_node_that_slurm_has_set_down() -> None:
    """It has said so and left before the others had stopped; it is a loss, but nobody has vanished."""
    down = DrainExplained(E0, Cause.NODE_LOSS, "the node is down", 5.0)
    state = state_of(formed(1, A, B, C), PREEMPTED, down, left(A), lost(1, "n1"))
    assert state.ended == lost(1, "n1")
    assert ({Cause.NODE_LOSS: 1}, frozenset()) == (state.counts, state.lost)


def test_who_asked_all_to_leave_may_vanish_itself() -> None:
    """Without its batch host somebody else has to requeue the job."""
    down = DrainExplained(E0, Cause.NODE_LOSS, "a node is down", 5.0)
    state = state_of(formed(1, A, B), asked(Cause.PREEMPTION, AfterDrain.LEAVE), down, lost(1, "n1"))
    assert {"n1"} == state.lost


def test_nobody_leaves_a_run_that_has_ended() -> None:
    """A late goodbye changes nothing."""
    state = state_of(formed(1, A, B), RunEnded(Decision.DONE, 0, "", None, E0))
    assert not fits(state, left(A))


@pytest.mark.parametrize("cause", [Cause.STOP, Cause.INTERRUPT])
def test_what_slurm_wants_changes_no_wish_of_the_user(cause: Cause) -> None:
    """Who stopped a run would else find it queued again; that there is less time holds."""
    why = DrainExplained(E0, Cause.PREEMPTION, "Slurm wants the nodes back", 10.0)
    state = state_of(formed(1, A, B), asked(cause, AfterDrain.LEAVE), why)
    assert cause is state.leave_cause
    assert state.explained == why


def test_a_pause_for_another_size_is_not_explained_by_a_signal() -> None:
    """The signal's own drain, which follows, is."""
    why = DrainExplained(E0, Cause.TIME_LIMIT, "the limit is near", 10.0)
    paused = (formed(1, A, B), asked(Cause.MEMBERSHIP, AfterDrain.REJOIN))
    assert not fits(state_of(*paused), why)
    assert Cause.TIME_LIMIT is state_of(*paused, asked(Cause.PREEMPTION, AfterDrain.LEAVE), why).leave_cause


def test_a_size_for_the_next_submission_is_kept() -> None:
    """Though the one before wants the same."""
    now, later = SizeWanted(0, 2, "scale"), SizeWanted(1, 2, "scale")
    state = after(start(expected=()), now, later, EpochStarted(E0._replace(submission=1), "13", ()))
    assert 2 == state.wanted
    assert not fits(state_of(now), now._replace(detail="again"))
