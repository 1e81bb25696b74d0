"""The steps at which a training saves by time."""

from __future__ import annotations

from typing import Any

import pytest

from hpc_elastic.frameworks.torch.pace import FIRST_S, RetryPace, SavePace, next_question
from hpc_elastic.record.save_interval import Disturbances, SaveTimes, best_interval_s
from hpc_elastic.testing.clock import FakeClock


def saves(pace: SavePace, clock: FakeClock, steps: int, step_s: float) -> list[int]:
    """Return the steps at which a training saves whose steps all take as long."""
    found = []
    for step in range(1, steps + 1):
        clock.advance(step_s)
        if pace.is_due(step):
            found.append(step)
            pace.saved(step, SaveTimes(1.0, 2.0))
    return found


def test_the_first_save_comes_soon_and_the_others_by_its_cost() -> None:
    """One minute, as nobody knows yet what a save costs; then the best interval."""
    clock = FakeClock()
    first, second = saves(SavePace(clock, lambda value: value), clock, 1000, 1.0)[:2]
    assert FIRST_S == first
    best = best_interval_s(SaveTimes(1.0, 2.0), Disturbances().between_s(SaveTimes(1.0, 2.0), first))
    assert pytest.approx(best, abs=2) == second - first


def test_few_questions_are_asked_whatever_a_step_takes() -> None:
    """A question is a message to all ranks: steps of 8 ms must not ask at each of them."""
    clock, asked = FakeClock(), []

    def told(value: Any) -> Any:
        asked.append(value)
        return value

    assert [60 * 128] == saves(SavePace(clock, told), clock, 60 * 130, 1 / 128)
    assert 25 > len(asked)


def test_the_first_question_is_asked_after_the_first_step() -> None:
    """Also of a training that goes on from a step, and after a save."""
    clock, asked = FakeClock(), list[int]()
    steps = [0]

    def told(value: Any) -> Any:
        asked.append(steps[0])
        return value

    pace = SavePace(clock, told)
    for steps[0] in range(1, 4):
        pace.is_due(steps[0])
    assert 1 == asked[0]
    pace.resume(100, None, Disturbances())
    for steps[0] in range(101, 104):
        pace.is_due(steps[0])
    assert 101 in asked
    pace.saved(200, None)
    for steps[0] in range(201, 204):
        pace.is_due(steps[0])
    assert 201 in asked


def test_a_save_is_due_at_one_step_whoever_asks_again() -> None:
    """Ten steps of six seconds are the first minute; then the next interval begins."""
    clock = FakeClock()
    pace = SavePace(clock, lambda value: value)
    for step in range(1, 10):
        clock.advance(6.0)
        assert not pace.is_due(step)
    clock.advance(6.0)
    assert pace.is_due(10)
    assert pace.is_due(10)
    pace.saved(10, SaveTimes(1.0, 2.0))
    assert not pace.is_due(10)
    assert not pace.is_due(11)


def test_a_start_after_a_fault_knows_the_cost_of_a_save() -> None:
    """Its first interval is that of the run, not a minute."""
    clock = FakeClock()
    pace = SavePace(clock, lambda value: value)
    save, past = SaveTimes(0.1, 1.0), Disturbances(100.0, 50)
    pace.resume(7, save, past)
    assert best_interval_s(save, past.between_s(save)) == pace.interval_s
    assert FIRST_S > pace.interval_s


@pytest.mark.parametrize(
    ("passed_s", "steps", "expected"),
    [
        (60.0, 30, (True, 1)),
        (30.0, 10, (False, 10)),
        (59.0, 59, (False, 1)),
        (6.0, 100, (False, 100)),
        (0.0, 1, (False, 1)),
    ],
)
def test_the_next_question_is_asked_when_it_may_be_time(
    passed_s: float, steps: int, expected: tuple[bool, int]
) -> None:
    """By the time of a step until now, and no further ahead than that time has been observed."""
    assert expected == next_question(passed_s, steps, 60.0)


def retried(outcomes: dict[int, bool | None], steps: range, saves: dict[int, bool]) -> list[int]:
    """Return the steps at which a save is tried again.

    Args:
        outcomes: what is known of the last save from a step on.
        steps: of the training.
        saves: steps at which a save begins before, and whether it is a retry itself.
    """
    known: list[bool | None] = [None]
    pace = RetryPace(lambda value: value, lambda: known[-1])
    found = []
    for step in steps:
        known.append(outcomes.get(step, known[-1]))
        if pace.is_due(step):
            found.append(step)
            pace.saved(step, is_retry=True)
        if step in saves:
            pace.saved(step, is_retry=saves[step])
    return found


def test_a_failed_save_is_tried_again_soon() -> None:
    """At the next step that all ranks ask at: one, two, four ... after the save."""
    assert [11] == retried({10: False, 12: True}, range(1, 40), {10: False})
    assert [14] == retried({13: False, 15: True}, range(1, 40), {10: False})
    assert [18] == retried({15: False, 19: True}, range(1, 40), {10: False})


def test_a_save_that_has_succeeded_is_not_asked_for_again() -> None:
    """Nor is one that never began."""
    assert [] == retried({10: True, 30: False}, range(1, 40), {10: False})
    assert [] == retried({0: False}, range(40), {})


def test_a_save_that_always_fails_costs_ever_fewer_steps() -> None:
    """The pause from one try to the next doubles; a regular save begins it anew."""
    assert [11, 12, 14, 18, 26] == retried({10: False}, range(1, 41), {10: False})
    assert [11, 12, 14, 18, 21, 22, 24] == retried({10: False}, range(1, 26), {10: False, 20: False})


def test_nobody_is_asked_about_a_save_whose_outcome_is_known() -> None:
    """A question is a message to all ranks; one that is under way is asked about ever more rarely."""
    asked: list[int] = []
    outcomes: list[bool | None] = [None, None, True]
    pace = RetryPace(lambda value: value, lambda: outcomes[min(len(asked) - 1, 2)])
    pace.saved(10, is_retry=False)
    for step in range(11, 60):
        before = pace._ask_at
        if before is not None and step >= before:
            asked.append(step)
        assert not pace.is_due(step)
    assert [11, 12, 14] == asked
