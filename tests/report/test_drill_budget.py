"""What is said of the budgets of a run before it is drilled."""

from __future__ import annotations

from typing import Any

import pytest

from hpc_elastic.record.journal import Cause
from hpc_elastic.record.state import RunState
from hpc_elastic.report.drill_report import budget_warnings

HELD = "holds the run until you release it"
FAILS = "ends the run as failed"
IF_REQUEUED = "if the job is requeued for it"
NEXT = "the next one, be it a real one,"


def warned(
    cause: Cause, used: int, *, task_restarts: int | None = None, has_queue: bool = True, **spec: Any
) -> list[str]:
    """Return what is said before a drill of a run in which its cause has come up so often."""
    state = RunState(counts={cause: used}, requeues=used)
    given = {"name": "train", **spec}
    return budget_warnings(cause, state, given, has_queue=has_queue, task_restarts=task_restarts)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (
            warned(Cause.PREEMPTION, 0, max_preemptions=1),
            f"this drill counts, and is the last preemption of max_preemptions = 1: {NEXT} {HELD}",
        ),
        (
            warned(Cause.PREEMPTION, 1, max_preemptions=1),
            f"max_preemptions = 1 is spent: this drill counts, too, and {HELD}",
        ),
        (
            warned(Cause.TIME_LIMIT, 0, max_time_limits=0, on_budget_spent="fail"),
            f"max_time_limits = 0 is spent: this drill counts, too, and {FAILS}",
        ),
        (
            warned(Cause.PREEMPTION, 1, max_preemptions=1, has_queue=False),
            f"max_preemptions = 1 is spent: this drill counts, too, and {FAILS}",
        ),
        (warned(Cause.CRASH, 3), f"max_restarts = 3 is spent: this drill counts, too, and {FAILS}"),
        (
            warned(Cause.HANG, 1, max_hangs=2),
            f"this drill counts, and is the last hang of max_hangs = 2: {NEXT} {FAILS}",
        ),
        (
            warned(Cause.NODE_LOSS, 100),
            f"max_node_losses = 100 is spent: this drill counts, too, and {HELD}, {IF_REQUEUED}",
        ),
        (warned(Cause.REQUEUE, 500), f"max_requeues = 500 is spent: this drill counts, too, and {HELD}"),
        (
            warned(Cause.REQUEUE, 0, max_requeues=2, task_restarts=2),
            "max_requeues = 2 is spent: this drill counts, too, and gives the task up",
        ),
    ],
)
def test_a_budget_that_a_drill_spends_is_told_first(found: list[str], told: str) -> None:
    """What is the last one of it, what exceeds it, and what becomes of the run then."""
    assert [told] == found


def test_nothing_is_said_while_enough_is_left() -> None:
    """Nor where there is no limit."""
    assert [] == warned(Cause.PREEMPTION, 0, max_preemptions=2)
    assert [] == warned(Cause.PREEMPTION, 40)
    assert [] == warned(Cause.CRASH, 1)
    assert [] == warned(Cause.CRASH, 2, max_restarts=9)


def test_a_budget_that_nobody_knows_may_be_spent() -> None:
    """A job script of the user's own has torchrun's default, by which the first failure ends the run."""
    for cause in (Cause.CRASH, Cause.HANG):
        (text,) = budget_warnings(cause, RunState(), {}, has_queue=True)
        assert "with 0, the default of torchrun's flags, this drill ends the run as failed" in text
    assert [] == budget_warnings(Cause.PREEMPTION, RunState(), {}, has_queue=True)
