"""Waiting for a condition in tests of real processes and files."""

from __future__ import annotations

from collections.abc import Callable

from hpc_elastic.clock import Clock, SystemClock


def wait_until(
    condition: Callable[[], bool],
    what: str,
    *,
    timeout_s: float = 60.0,
    interval_s: float = 0.01,
    clock: Clock | None = None,
) -> None:
    """Return as soon as a condition holds.

    Args:
        condition: asked again and again.
        what: names the condition in the error.
        timeout_s: how long to wait [s].
        interval_s: time between two questions [s].
        clock: for tests of this function.

    Raises:
        AssertionError: the condition did not hold in time.
    """
    used = clock or SystemClock()
    deadline = used.monotonic() + timeout_s
    while not condition():
        if used.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {what}")
        used.sleep(interval_s)
