"""Workers in state D: how long is too long."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_elastic.node.workers.stuck_in_kernel import (
    TIMEOUT_ENV,
    UninterruptibleWatch,
    read_state,
    state_timeout,
)
from hpc_elastic.testing.clock import FakeClock
from hpc_elastic.testing.waiting import wait_until
from tests.node.stuck import STUCK


class States:
    """What /proc would say."""

    def __init__(self, **states: str | None) -> None:
        self.by_pid = {int(name.removeprefix("p")): state for name, state in states.items()}

    def __call__(self, pid: int) -> str | None:
        """Return the state of a process."""
        return self.by_pid[pid]


@pytest.mark.parametrize(
    ("text", "explicit", "expected"),
    [
        (None, None, 0.0),
        ("12.5", None, 12.5),
        ("", None, 0.0),
        ("soon", None, 0.0),
        ("-3", None, 0.0),
        ("inf", None, 0.0),
        ("nan", None, 0.0),
        ("5", 7.0, 7.0),
        ("5", 0.0, 0.0),
        (None, -1.0, 0.0),
    ],
)
def test_the_timeout(text: str | None, explicit: float | None, expected: float) -> None:
    """An explicit one comes first; what is no positive number turns the watch off."""
    environ = {} if text is None else {TIMEOUT_ENV: text}
    assert expected == state_timeout(environ, explicit)


def test_a_worker_that_stays_in_state_d_is_told_at_the_timeout() -> None:
    """Not before, and only that worker."""
    clock, states = FakeClock(), States(p1="D 4", p2="S")
    watch = UninterruptibleWatch(10.0, clock.monotonic, states)
    assert () == watch.check([1, 2])
    assert clock.monotonic() + 10.0 == watch.next_check_at()
    clock.advance(9.9)
    assert () == watch.check([1, 2])
    clock.advance(0.1)
    assert (1,) == watch.check([1, 2])


@pytest.mark.parametrize("between", ["S", "R", None], ids=["sleeps", "runs", "gone"])
def test_another_state_begins_anew(between: str | None) -> None:
    """The time in state D counts only without a break."""
    clock, states = FakeClock(), States(p1="D 4")
    watch = UninterruptibleWatch(10.0, clock.monotonic, states)
    watch.check([1])
    clock.advance(8.0)
    states.by_pid[1] = between
    assert () == watch.check([1])
    assert float("inf") == watch.next_check_at()
    states.by_pid[1] = "D 4"
    clock.advance(8.0)
    assert () == watch.check([1])
    clock.advance(10.0)
    assert (1,) == watch.check([1])


def test_many_short_waits_are_not_one_long_one() -> None:
    """A worker that reads from a slow disk is in state D at every look, but runs in between."""
    clock, states = FakeClock(), States(p1="D 0")
    watch = UninterruptibleWatch(10.0, clock.monotonic, states)
    for count in range(100):
        states.by_pid[1] = f"D {count}"
        assert () == watch.check([1])
        clock.advance(9.0)


def test_workers_that_ended_are_forgotten() -> None:
    """A later process with the same pid starts at zero."""
    clock, states = FakeClock(), States(p1="D")
    watch = UninterruptibleWatch(10.0, clock.monotonic, states)
    watch.check([1])
    clock.advance(20.0)
    assert () == watch.check([])
    assert () == watch.check([1])


@pytest.fixture
def stuck() -> Iterator[subprocess.Popen[bytes]]:
    """A real process in state D."""
    with subprocess.Popen([sys.executable, "-c", STUCK], start_new_session=True) as process:
        yield process
        os.killpg(process.pid, 9)


def test_a_real_process_in_state_d(stuck: subprocess.Popen[bytes]) -> None:
    """Its state and how often it has slept; found by a watch; None once it is gone."""
    children = Path(f"/proc/{stuck.pid}/task/{stuck.pid}/children")
    # a short wait for the disk comes before it, as Python starts; the long one begins with the child
    wait_until(
        lambda: children.read_text() != "" and (read_state(stuck.pid) or "").startswith("D"), "state D"
    )
    assert read_state(stuck.pid) == read_state(stuck.pid)
    assert int((read_state(stuck.pid) or "").split()[1]) >= 0
    clock = FakeClock()
    watch = UninterruptibleWatch(5.0, clock.monotonic)
    own = os.getpid()
    assert () == watch.check([stuck.pid, own])
    clock.advance(5.0)
    assert (stuck.pid,) == watch.check([stuck.pid, own])
    assert read_state(2**22 + 1) is None
