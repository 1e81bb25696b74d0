"""The clock that tests move by hand, and waiting with it."""

from __future__ import annotations

import pytest

from hpc_elastic.clock import Clock
from hpc_elastic.testing.clock import FakeClock
from hpc_elastic.testing.waiting import wait_until


def test_time_passes_by_hand_alone(clock: FakeClock) -> None:
    """Both clocks stand still until somebody sleeps or advances them."""
    used: Clock = clock
    before = (used.monotonic(), used.wall())
    assert before == (used.monotonic(), used.wall())
    used.sleep(1.5)
    clock.advance(0.5)
    assert (before[0] + 2.0, before[1] + 2.0) == (used.monotonic(), used.wall())


def test_time_does_not_go_back(clock: FakeClock) -> None:
    """A negative step is refused."""
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1.0)


def test_waiting_ends_with_the_condition(clock: FakeClock) -> None:
    """The wait returns as soon as the condition holds."""
    began = clock.monotonic()
    wait_until(lambda: clock.monotonic() >= began + 3.0, "three seconds", interval_s=1.0, clock=clock)
    assert began + 3.0 == clock.monotonic()


def test_waiting_in_vain_says_for_what(clock: FakeClock) -> None:
    """What did not come in time is named."""
    with pytest.raises(AssertionError, match="not within 5 s: a miracle"):
        wait_until(lambda: False, "a miracle", timeout_s=5.0, interval_s=1.0, clock=clock)
