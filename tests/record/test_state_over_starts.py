"""What of a run's state lives longer than one start of its job."""

from __future__ import annotations

import pytest

from hpc_elastic.meet.rules import Announce, LeaveRun, Waited, join
from hpc_elastic.record.journal import AfterDrain, Cause, Decision, Drained, DrainRequested, Epoch, RunEnded
from hpc_elastic.record.state import fits, is_released
from tests.meet.build import (
    E0,
    RELAUNCHED,
    REQUEUED,
    RESUBMITTED,
    after,
    drain,
    ending,
    formed,
    joining,
    start,
)

STOP = DrainRequested(Cause.STOP, "", AfterDrain.LEAVE, "hpc-elastic stop")


def test_a_stop_that_a_requeue_has_overtaken_still_counts() -> None:
    """The next start of the same job leaves at once, for the same reason."""
    state = after(start(), formed(1), STOP, start(REQUEUED))
    assert (Cause.STOP, True) == (state.leave_cause, state.leaving)


def test_a_stop_between_two_jobs_of_a_chain_still_counts() -> None:
    """The next job leaves at once, though Slurm knows it by another id."""
    following = start(E0._replace(link=1))._replace(job_id="18")
    assert after(start(), formed(1), STOP, following).leaving
    assert not after(start(), formed(1), STOP, following._replace(job_id="")).leaving


def test_a_stop_still_counts_after_a_start_that_was_left_for_another_reason() -> None:
    """Nothing was started on its node, which has failed before."""
    left = Drained(E0, Cause.NODE_LOSS, None, "unfit")
    assert after(start(), formed(1), STOP, left, start(REQUEUED)).leaving


def test_a_stop_that_was_carried_out_is_over() -> None:
    """Whoever starts the run again wants it to run."""
    assert not after(start(), formed(1), STOP, Drained(E0, Cause.STOP, 4, ""), start(REQUEUED)).leaving
    assert not after(start(), formed(1), STOP, start(RESUBMITTED)).leaving
    assert not after(start(), formed(1), STOP, start(REQUEUED)._replace(job_id="18")).leaving


@pytest.mark.parametrize("cause", [Cause.PREEMPTION, Cause.TIME_LIMIT, Cause.INTERRUPT])
def test_other_requests_end_with_their_start(cause: Cause) -> None:
    """Slurm wanted the nodes, not the end of the run."""
    assert not after(start(), formed(1), drain(cause=cause), start(REQUEUED)).leaving


@pytest.mark.parametrize("decision", list(Decision))
def test_only_a_held_run_is_started_again_by_its_job(decision: Decision) -> None:
    """The agents of a later start of the same job announce it, or leave at once."""
    state = after(start(), formed(1), ending(decision))
    view = joining(state, {})._replace(epoch=REQUEUED)
    action = join(view, Waited(since=-100.0), 0.0)
    assert (Announce if decision is Decision.HELD else LeaveRun) is type(action)


@pytest.mark.parametrize(
    ("epoch", "released"),
    [(E0, False), (RELAUNCHED, False), (REQUEUED, True), (RESUBMITTED, False), (Epoch(1, 0, 1, 0), False)],
)
def test_a_run_is_released_by_a_later_start_of_its_job(epoch: Epoch, released: bool) -> None:
    """Agents that are started again in the same start find it held, and leave."""
    held = after(start(), formed(1), ending(Decision.HELD))
    assert released == is_released(held, epoch)
    assert not is_released(after(start(), formed(1), ending(Decision.STOPPED)), epoch)
    assert not is_released(after(start(), formed(1)), epoch)
    action = join(joining(held, {})._replace(epoch=epoch), Waited(since=-100.0), 0.0)
    assert (released or epoch.submission == 1) == isinstance(action, Announce)


@pytest.mark.parametrize("decision", [Decision.STOPPED, Decision.CANCELLED])
def test_the_user_may_end_a_run_that_is_held(decision: Decision) -> None:
    """Nobody else changes the ending."""
    held = after(start(), formed(1), ending(Decision.HELD))
    assert fits(held, ending(decision))
    assert not fits(held, ending(Decision.DONE))
    ended = after(ending(decision), state=held)
    assert ended.ending == RunEnded(decision, 0, "", None)
    assert not fits(ended, start(REQUEUED))
