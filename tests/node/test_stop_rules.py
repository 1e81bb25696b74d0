"""How the workers of a node are asked to stop: the rows in which one fact alone makes the difference."""

from __future__ import annotations

import pytest

from hpc_elastic.node.stop_rules import (
    NO_STEP,
    DrainProgress,
    DrainStep,
    DrainTimes,
    StopRequest,
    Unasked,
    drain_step,
    heard,
    is_rescue_due,
)
from hpc_elastic.record.journal import Asked, Cause, StopAgreed
from hpc_elastic.record.state import RunState
from tests.meet.build import after, crash, drain, formed, start

DRAINS = after(start(), formed(1), drain())


@pytest.mark.parametrize(("is_signal", "asked", "words"), [(True, "SIGTERM", ""), (False, "", "SIGTERM")])
def test_a_request_has_a_signal_or_words(asked: str, words: str, *, is_signal: bool) -> None:
    """As it was heard."""
    request = heard(StopRequest(), Cause.PREEMPTION, "SIGTERM", 30.0, is_signal=is_signal)
    assert (Asked(asked), words) == (request.asked, request.words)
    assert not heard(StopRequest(), Cause.PREEMPTION, "SIGTERM", 30.0).is_signal


@pytest.mark.parametrize(
    ("state", "has_told", "bound", "proposes", "expected"),
    [
        (DRAINS, False, 5, True, DrainStep(tells=5, proposes=True)),
        (DRAINS, False, 5, False, DrainStep(tells=5)),
        (DRAINS, True, 5, True, DrainStep(proposes=True)),
        (DRAINS, True, None, True, DrainStep(proposes=True)),
        (DRAINS, False, None, True, DrainStep()),
        (after(StopAgreed(1, 9), state=DRAINS), False, 5, True, DrainStep(stop_after=9)),
        (after(crash(1), state=DRAINS), False, 5, True, DrainStep()),
        (
            after(StopAgreed(1, NO_STEP), state=DRAINS),
            True,
            None,
            True,
            DrainStep(stop_after=NO_STEP, signals=True, stop_now=True),
        ),
    ],
)
def test_the_first_step_of_a_node_is_told_once(
    state: RunState, has_told: bool, bound: int | None, proposes: bool, expected: DrainStep
) -> None:
    """As long as none is agreed on and the round runs."""
    progress = DrainProgress(Cause.PREEMPTION, agreed=30.0, has_told=has_told)
    found = drain_step(progress, state, DrainTimes(), proposes=proposes, bound=bound, now=0.0)
    assert expected == found


@pytest.mark.parametrize(
    ("cause", "deadline", "rescues", "due_at"),
    [
        (Cause.PREEMPTION, 25.0, True, 15.0),
        (None, 8.0, True, 4.0),
        (Cause.PREEMPTION, 25.0, False, None),
        (Cause.STOP, 25.0, True, None),
        (Cause.PREEMPTION, None, True, None),
    ],
)
def test_workers_keep_their_state_near_the_end_of_their_time(
    cause: Cause | None, deadline: float | None, rescues: bool, due_at: float | None
) -> None:
    """If that is asked for, and another start follows; in a short time half of it is for the checkpoint."""
    progress, times = DrainProgress(cause, requested=deadline), DrainTimes(rescues=rescues)
    due = [second for second in range(30) if is_rescue_due(progress, times, 0.0, second)]
    assert ([] if due_at is None else [*range(int(due_at), 30)]) == due


def test_nothing_is_known_or_done_before_a_request() -> None:
    """Workers that do not ask are ended at once."""
    assert (False, None) == Unasked()
    assert not DrainTimes().is_stop_given
    assert (None, "", None, False, False, False) == StopRequest()
    assert (False, False) == (DrainProgress().has_told, DrainProgress().has_signalled)
    assert (None, False, None, False, False) == DrainStep()
