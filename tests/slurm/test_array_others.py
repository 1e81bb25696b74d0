"""What other submissions and other tasks of a run do not mean for a task."""

from __future__ import annotations

import pytest

from hpc_elastic.record.array_task import TaskStart
from hpc_elastic.record.journal import Cause, Decision, Drained, Entry, EpochStarted, Requeued, RunEnded
from hpc_elastic.slurm.end.choices import Hold, Requeue
from hpc_elastic.slurm.end.history import task_starts_in_vain
from hpc_elastic.slurm.end.lifecycle import decide
from tests.slurm.test_array_lifecycle import (
    BASE,
    BUDGETS,
    CANCELLED,
    EPOCH,
    ROUND,
    RUNNING,
    SECOND,
    STARTED,
    records_of,
    scontrol,
    state_of,
)

AGAIN = EPOCH._replace(restart=1)  # the next start of the run


@pytest.mark.parametrize("decision", [Decision.DONE, Decision.FAILED, Decision.HELD])
def test_the_ending_of_an_earlier_submission_does_not_count(decision: Decision) -> None:
    """The task goes on as if nothing had been recorded."""
    ended = state_of(STARTED, RunEnded(decision, 1, "why", None))
    for job in (RUNNING, CANCELLED, None):
        fresh = BASE._replace(state=state_of(STARTED), epoch=SECOND._replace(submission=1), job=job)
        assert decide(fresh, BUDGETS) == decide(fresh._replace(state=ended), BUDGETS)


def test_rounds_of_other_tasks_do_not_count() -> None:
    """A task that was in none has started in vain each time."""
    assert 5 == task_starts_in_vain(records_of(STARTED, ROUND), TaskStart("12_7", 4, 0))


def test_a_start_that_goes_back_as_a_whole_is_counted_once() -> None:
    """The last requeue of the run that is allowed is that of all its tasks, not of the first one alone."""
    drained, back = Drained(EPOCH, Cause.JOIN_TIMEOUT, None, "why"), Requeued(EPOCH, Cause.JOIN_TIMEOUT)
    budgets = BUDGETS._replace(max_requeues=1)
    fresh = BASE._replace(epoch=EPOCH, job=scontrol(Restarts="0"))
    first = fresh._replace(state=state_of(STARTED, ROUND, drained))
    second = first._replace(state=state_of(STARTED, ROUND, drained, back))
    assert [Requeue, Requeue] == [type(decide(facts, budgets)) for facts in (first, second)]
    spent = first._replace(state=state_of(*requeued_once(), drained._replace(epoch=AGAIN)))
    assert isinstance(decide(spent, budgets), Hold)


def requeued_once() -> tuple[Entry, ...]:
    """Return the records of a run whose second start has begun."""
    return STARTED, ROUND, Requeued(EPOCH, Cause.JOIN_TIMEOUT), EpochStarted(AGAIN, "12", ())
