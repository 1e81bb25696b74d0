"""The time limit comes while slurmctld is away: the agents save by the clock, and nothing is lost."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.record.journal import (
    Cause,
    Drained,
    DrainRequested,
    NodeLeft,
    Requeued,
    RoundFormed,
    StopAgreed,
)
from tests.real_slurm.cluster import Cluster
from tests.real_slurm.drills.conftest import Tell
from tests.real_slurm.drills.runs import MODES, SAVER, flags, saved_step, saving, told, wait_steps
from tests.real_slurm.jobs import PYTHON, Run, installed_for_users, submit
from tests.real_slurm.test_array import wait_size

pytestmark = [pytest.mark.usefixtures(installed_for_users.__name__), pytest.mark.both_trackers]

LIMIT_S = 60.0
KNOWN_STEP = 150  # 3 s of training: by then the agents have asked for the limit


class Timing(NamedTuple):
    """One run among those that the outage meets.

    Attributes:
        lead_s: how long before the limit it is to be warned [s].
        save_s: how long its save takes [s].
    """

    lead_s: int
    save_s: float

    def __str__(self) -> str:
        return f"a lead of {self.lead_s} s, a save of {self.save_s:g} s"


TIMINGS = (Timing(10, 1.0), Timing(15, 8.0), Timing(12, 11.0))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_agents_save_by_the_clock(cluster: Cluster, tell: Tell, mode: str, how: str) -> None:
    """Before the limit, as long as a save takes; the job is requeued once slurmctld is back."""
    runs = {timing: limited(cluster, mode, timing) for timing in TIMINGS}
    cluster.save_controller_state()
    began = SystemClock().monotonic()
    if how == "killed":
        cluster.command("kill-slurmctld")
    else:
        cluster.execute("ctl", "pkill", "-STOP", "-x", "slurmctld")
    try:
        for timing, run in runs.items():
            wait_saved(run, timing)
    finally:
        away_s = SystemClock().monotonic() - began
        cluster.restart_controller()
    for timing, run in runs.items():
        tell(mode, f"slurmctld {how}; {timing}", judged(run, timing, mode, away_s))


@pytest.mark.parametrize("mode", MODES)
def test_agents_that_were_never_told_of_the_limit_save_by_that_of_the_submission(
    cluster: Cluster, tell: Tell, mode: str
) -> None:
    """Slurmctld is frozen as soon as the first round has formed, which is before anybody asks it."""
    timing, nodes = TIMINGS[1], 1 if mode == "step" else 2
    worker = [PYTHON, "-c", SAVER, str(timing.save_s)]
    run = submit(cluster, flags(mode, str(nodes), *asked_for(timing)), worker)
    wait_size(run, nodes)
    began = SystemClock().monotonic()
    cluster.execute("ctl", "pkill", "-STOP", "-x", "slurmctld")
    try:
        wait_saved(run, timing)
    finally:
        away_s = SystemClock().monotonic() - began
        cluster.execute("ctl", "pkill", "-CONT", "-x", "slurmctld")
    tell(mode, f"slurmctld frozen as the run begins; {timing}", judged(run, timing, mode, away_s))


def asked_for(timing: Timing) -> tuple[str, ...]:
    """Return the options of a run of one minute."""
    return ("--time", "1m", "--checkpoint-lead", str(timing.lead_s), "--partition", "low")


def limited(cluster: Cluster, mode: str, timing: Timing) -> Run:
    """Submit a run of one minute, and wait until it works."""
    nodes = 1 if mode == "step" else 2
    run = saving(cluster, flags(mode, str(nodes), *asked_for(timing)), timing.save_s, nodes)
    wait_steps(run, nodes, KNOWN_STEP)
    return run


def wait_saved(run: Run, timing: Timing) -> None:
    """Wait until a run has saved for its limit."""
    run.wait(lambda _: has_saved(run), f"the save with {timing}", LIMIT_S + 30)


def has_saved(run: Run) -> bool:
    """Tell whether all ranks have stopped at the agreed step and saved it; in an array one task may leave."""
    agreed = run.entries(StopAgreed)
    left = [*run.entries(Drained), *run.entries(NodeLeft)]
    return bool(agreed and left) and saved_step(run) >= agreed[-1].step


def judged(run: Run, timing: Timing, mode: str, away_s: float) -> str:
    """Check how a run got over its limit; return it in words."""
    asked = run.entries(DrainRequested)[0]
    assert (Cause.TIME_LIMIT, True) == (asked.cause, asked.detail.startswith("the time limit, ")), asked
    agreed = run.entries(StopAgreed)[0]
    first = [each for name, each in told(run).items() if name.endswith(f".{agreed.step}")]
    took_s = max(each[-1].at - each[0].at for each in first)
    assert took_s > timing.save_s - 1.0, "the save was cut short"
    if mode == "step":
        run.wait(lambda state: state.requeues > 0, "the requeue", 120)
        assert {Cause.TIME_LIMIT} == {entry.cause for entry in run.entries(Requeued)}
    run.wait(lambda _state: len(run.entries(RoundFormed)) > 1, "the next round", 120)
    again = run.entries(RoundFormed)[1].checkpoint
    assert again is not None
    assert again.step >= agreed.step
    return f"{asked.detail}; saved in {took_s:.1f} s, 0 steps lost; slurmctld away for {away_s:.0f} s"
