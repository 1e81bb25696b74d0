"""An administrator lowers the time limit below the warning: the start is used, and saved before its end."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.record.journal import (
    Cause,
    Drained,
    DrainRequested,
    NodeLeft,
    RoundFormed,
    StopAgreed,
    WarningHeld,
)
from hpc_elastic.record.run_log import read_records
from tests.real_slurm.cluster import Cluster
from tests.real_slurm.drills.conftest import Tell
from tests.real_slurm.drills.runs import MODES, flags, grown_s, saved_step, saving, told
from tests.real_slurm.jobs import Run, installed_for_users

pytestmark = [pytest.mark.usefixtures(installed_for_users.__name__), pytest.mark.both_trackers]

LIMIT_S = 120.0
KILL_WAIT_S = 5.0
JITTER_S = 0.5  # between what two questions are answered


class Timing(NamedTuple):
    """When the limit is lowered, and how long a save takes if it may.

    Attributes:
        after_s: after the first step [s].
        save_s: how long a save takes if it may [s].
        is_held: whether most of the start is left, so that the warning is held.
    """

    after_s: float
    save_s: float
    is_held: bool = True

    def __str__(self) -> str:
        return f"lowered from 10 to 2 min after {self.after_s:g} s, a save of {self.save_s:g} s"


TIMINGS = (Timing(0.0, 0.5), Timing(12.0, 3.0), Timing(30.0, 8.0), Timing(80.0, 90.0, is_held=False))


@pytest.mark.parametrize("mode", MODES)
def test_most_of_a_start_is_used(cluster: Cluster, tell: Tell, mode: str) -> None:
    """Slurm warns at once, which the agents weigh: they save by the clock, and know how long they may."""
    size = 1 if mode == "step" else 2
    options = flags(mode, str(size), "--partition", "low")
    runs = {}
    for timing in reversed(TIMINGS):  # a busy machine needs its time to start them: first those that have it
        runs[timing] = saving(cluster, options, timing.save_s, size), SystemClock().monotonic()
    for timing, (run, worked_at) in sorted(runs.items(), key=lambda one: one[1][1] + one[0].after_s):
        SystemClock().sleep(max(0.0, worked_at + timing.after_s - SystemClock().monotonic()))
        cluster.as_root("scontrol", "update", f"jobid={run.job_id}", "timelimit=2")
    for timing, (run, _) in runs.items():
        tell(mode, str(timing), judged(run, timing))


def judged(run: Run, timing: Timing) -> str:
    """Check how a run uses what is left of its start; return it in words."""
    run.cluster.wait_for(lambda: has_saved(run), LIMIT_S + 60, "the save before the limit")
    asked, agreed = run.entries(DrainRequested)[0], run.entries(StopAgreed)[0]
    assert Cause.TIME_LIMIT is asked.cause
    assert timing.is_held == asked.detail.startswith("the time limit, "), run.journal()
    assert timing.is_held == bool(run.entries(WarningHeld))
    run.wait(lambda _state: len(run.entries(RoundFormed)) > 1, "the next round", 120)
    again = run.entries(RoundFormed)[1].checkpoint
    assert again is not None
    assert again.step >= agreed.step
    trained_s = used_s(run)
    assert LIMIT_S / 2 < trained_s < LIMIT_S, (trained_s, run.journal())
    first = [each for name, each in told(run).items() if name.endswith(f".{agreed.step}")]
    most_s = max(each[0].left_s for each in first)
    assert most_s < LIMIT_S - trained_s + KILL_WAIT_S + 5.0, run.journal()
    assert max(map(grown_s, first)) < JITTER_S
    how = asked.detail or f"by {asked.asked.signal}"
    return f"{trained_s:.0f} of 120 s used; asked {how}; told {most_s:.0f} s to save; 0 steps lost"


def has_saved(run: Run) -> bool:
    """Tell whether a start, or a task of an array, has left with what all had agreed to save."""
    agreed = run.entries(StopAgreed)
    left = [*run.entries(Drained), *run.entries(NodeLeft)]
    return bool(agreed and left) and saved_step(run) >= agreed[0].step


def used_s(run: Run) -> float:
    """Return how long the workers of the first start ran before they were asked to save [s]."""
    records = read_records(run.paths)
    times: dict[type, float] = {type(record.entry): record.at for record in reversed(records)}
    return times[DrainRequested] - times[RoundFormed]
