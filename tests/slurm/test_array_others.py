"""What other submissions and other tasks of a run do not mean for a task."""

from __future__ import annotations

import pytest

from hpc_elastic.record.array_task import TaskStart
from hpc_elastic.record.journal import Decision, RunEnded
from hpc_elastic.slurm.end.array_lifecycle import decide
from hpc_elastic.slurm.end.array_records import starts_in_vain
from tests.slurm.test_array_lifecycle import (
    BASE,
    BUDGETS,
    CANCELLED,
    ROUND,
    RUNNING,
    STARTED,
    records_of,
    state_of,
)


@pytest.mark.parametrize("decision", [Decision.DONE, Decision.FAILED, Decision.HELD])
def test_the_ending_of_an_earlier_submission_does_not_count(decision: Decision) -> None:
    """The task goes on as if nothing had been recorded."""
    ended = state_of(STARTED, RunEnded(decision, 1, "why", None))
    for job in (RUNNING, CANCELLED, None):
        fresh = BASE._replace(state=state_of(STARTED), submission=1, job=job)
        assert decide(fresh, BUDGETS) == decide(fresh._replace(state=ended), BUDGETS)


def test_rounds_of_other_tasks_do_not_count() -> None:
    """A task that was in none has started in vain each time."""
    assert 5 == starts_in_vain(records_of(STARTED, ROUND), TaskStart("12_7", 4, 0))
