"""Something has asked for the end already, and then Slurm ends the job: everybody hears how long there is."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.record.journal import Decision, StopAgreed
from tests.real_slurm.cluster import Cluster
from tests.real_slurm.drills.conftest import Tell
from tests.real_slurm.drills.runs import (
    MODES,
    agents_said,
    flags,
    grown_s,
    saved_step,
    saving,
    told,
)
from tests.real_slurm.jobs import Run, installed_for_users

pytestmark = [pytest.mark.usefixtures(installed_for_users.__name__), pytest.mark.both_trackers]

KILL_WAIT_S = 5.0
GRACE_S = 8.0
JITTER_S = 0.5  # between what two questions are answered


class Strike(NamedTuple):
    """What asks for the end first, what follows, and when.

    Attributes:
        first: what has asked for the end when it comes.
        then: what Slurm does.
        gap_s: how long after the first [s].
        save_s: how long a save takes if it may [s].
        least_s: what Slurm grants at the second strike [s].
    """

    first: str
    then: str
    gap_s: float
    save_s: float
    least_s: float

    def __str__(self) -> str:
        return f"{self.first}, {self.gap_s:g} s later {self.then}, a save of {self.save_s:g} s"


STRIKES = [
    Strike("stop", "scancel", 0.3, 6.0, KILL_WAIT_S),
    Strike("stop", "scancel", 2.5, 9.0, KILL_WAIT_S),
    Strike("stop", "preemption without grace", 0.0, 6.0, KILL_WAIT_S),
    Strike("stop", "preemption", 1.2, 20.0, KILL_WAIT_S + GRACE_S),
    Strike("preemption", "scancel", 0.0, 20.0, KILL_WAIT_S),
    Strike("preemption", "scancel", 2.0, 20.0, KILL_WAIT_S),
    Strike("preemption", "scancel", 4.5, 20.0, KILL_WAIT_S),
]


def strike(run: Run, how: str) -> str:
    """Do one thing to a run; return the id of the job that preempts it, if one does."""
    if how == "stop":
        run.command("stop", str(run.directory))
    elif how == "scancel":
        assert 0 == run.cluster.run("alice", ["scancel", run.job_id]).returncode
    else:
        return run.cluster.submit_high(run.cluster.nodes)
    return ""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("drill", STRIKES, ids=str)
def test_who_is_signalled_again_is_told_again(cluster: Cluster, tell: Tell, mode: str, drill: Strike) -> None:
    """Slurm is asked again, the time only shrinks, and a save that is sized by it is whole."""
    partition = "low0" if "without" in drill.then else "low"
    run = saving(cluster, flags(mode, "2", "--partition", partition), drill.save_s)
    high = strike(run, drill.first)
    run.wait(lambda state: state.drain is not None, "the first drain", 30)
    cluster.wait_for(lambda: bool(told(run)), 30, "a rank to begin its save")
    SystemClock().sleep(drill.gap_s)
    high = strike(run, drill.then) or high
    saves(run, drill)
    ended(run, drill, high)
    tell(mode, str(drill), seen(run))


def saves(run: Run, drill: Strike) -> None:
    """Hold what the ranks were told in their first save against what Slurm grants."""
    count = 2 if drill.first == "preemption" else 1  # of an array the agents alone tell what Slurm says
    run.cluster.wait_for(lambda: agents_said(run).count("] Slurm: ") >= count, 30, "Slurm's answer")
    (agreed, *_) = run.entries(StopAgreed)
    run.cluster.wait_for(lambda: saved_step(run) >= agreed.step, 30, f"the save of step {agreed.step}")
    for name, asked in told(run).items():
        if name.endswith(f".{agreed.step}"):
            assert grown_s(asked) < JITTER_S, (name, asked)
            assert asked[-1].left_s < drill.least_s + JITTER_S, (name, asked[-1])


def ended(run: Run, drill: Strike, high: str) -> None:
    """Wait until the run has ended as its user wanted it; a stop that was carried out is one.

    Slurm may kill the script of a cancelled job before it has written that down; then `status` asks Slurm.
    """
    if drill.then == "scancel":
        assert "without grace" not in agents_said(run)
    else:
        run.cluster.as_root("scancel", high)  # a requeued job carries out the stop that was overtaken
    if drill.first == "stop":
        ending = run.wait_ending(120).ending
        assert ending is not None
        assert Decision.STOPPED is ending.decision, agents_said(run)
        return
    jobs = ("squeue", "--noheader", f"--jobs={run.job_id}")
    run.cluster.wait_for(lambda: "" == run.cluster.as_root(*jobs).strip(), 120, "the end of the job")
    ending = run.state().ending
    assert ending is None or Decision.CANCELLED is ending.decision, agents_said(run)
    assert "cancelled" in run.command("status", str(run.directory)).stdout.splitlines()[0].lower()


def seen(run: Run) -> str:
    """Return in words what a rank was told, and how the run ended."""
    (agreed, *_) = run.entries(StopAgreed)
    first = [asked for name, asked in told(run).items() if name.endswith(f".{agreed.step}")]
    most, least = max(each[0].left_s for each in first), min(each[-1].left_s for each in first)
    ending = run.state().ending
    how = "cancelled, by Slurm's word alone" if ending is None else ending.decision.value
    return f"told {most:.1f} s, in the end {least:.1f} s; step {agreed.step} saved; {how}"
