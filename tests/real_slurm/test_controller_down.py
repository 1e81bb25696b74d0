"""slurmctld frozen, then killed under runs on a real Slurm: nobody of ours notices before it is needed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.record.journal import (
    Cause,
    Decision,
    Drained,
    DrainRequested,
    NodeLeft,
    RoundFormed,
    StopAgreed,
)
from tests.real_slurm.cluster import Cluster
from tests.real_slurm.drills.runs import MODES, flags, saving, wait_steps
from tests.real_slurm.jobs import (
    AGENT_PROCESS,
    SLOW,
    Run,
    elastic,
    installed_for_users,
    plain,
    submit,
    uninterrupted,
)
from tests.real_slurm.test_array import QUICK, wait_size

pytestmark = pytest.mark.usefixtures(installed_for_users.__name__)

SMALL = ("--gpus-per-node", "1", "--time", "10m", "--partition", "low")
ARRAY = (*QUICK, "--mode", "array")
LONG = 700  # steps of the training that lasts over the outage
ENDLESS = 20 * LONG  # steps of those that are stopped
LIMITED = ("--time", "1m", "--checkpoint-lead", "15", "--partition", "low")
KNOWN_STEP = 150  # 3 s of training: by then the agents have asked for the limit
OUTAGE_S = 25.0  # more than twice SlurmdTimeout


@contextmanager
def outage(cluster: Cluster) -> Iterator[float]:
    """Freeze slurmctld, so that its clients hang; kill it afterwards and start another one.

    Returns:
        When that began [s], by this machine's monotonic clock.
    """
    cluster.save_controller_state()
    cluster.execute("ctl", "pkill", "-STOP", "-x", "slurmctld")
    try:
        yield SystemClock().monotonic()
    finally:
        cluster.restart_controller()


def agents_hear(run: Run, node: str, signal: str) -> None:
    """Send a signal to the agent of a run on a node; if it has two of them there, to one."""
    pattern = f"{AGENT_PROCESS} --run-dir={run.directory} "
    run.cluster.execute(node, "pkill", f"-{signal}", "--oldest", "-f", pattern)


def test_runs_go_on_end_and_drain_without_slurmctld(cluster: Cluster, tmp_path: Path) -> None:
    """One trains on, one ends, one drains meanwhile: no step is lost, and all is told once it is back.

    Of one in array mode a task leaves, the others go on without it; it comes back when slurmctld does.
    """
    array = submit(cluster, (*SMALL, *ARRAY, "--nodes", "1:2"), plain(cluster, *SLOW, steps=ENDLESS))
    drains = submit(cluster, (*SMALL, "--nodes", "1"), plain(cluster, *SLOW, steps=ENDLESS))
    ends = submit(cluster, (*SMALL, "--nodes", "1"), plain(cluster, *SLOW))
    # the last one, as it is still to train after what the others do
    trains = submit(cluster, (*SMALL, "--nodes", "2"), plain(cluster, *SLOW, steps=LONG))
    for run in (trains, ends, drains, array):
        run.wait_checkpoint(20)
    wait_size(array, 2)
    drained_node = drains.job()["BatchHost"]
    task_node = cluster.job(f"{array.job_id}_1")["BatchHost"]
    with outage(cluster) as began:
        agents_hear(drains, drained_node, "TERM")
        agents_hear(array, task_node, "TERM")
        wait_size(array, 1)
        drains.wait(lambda state: state.drained is not None, "the drain", 60)
        ends.wait_ending(60)
        cluster.command("kill-slurmctld")  # clients no longer hang, they are refused
        shown = elastic(cluster, "status", str(trains.directory))
        assert (0, True) == (shown.returncode, "running round 1" in shown.stdout), shown
        shown = elastic(cluster, "doctor", str(cluster.shared))
        assert re.search(
            r"PROBLEM  slurm controller .* is DOWN\n +fix: .* cannot reach a Slurm", shown.stdout
        ), shown
        cluster.wait_for(lambda: SystemClock().monotonic() - began > OUTAGE_S, 60, "the time to pass")
    drains.wait(lambda state: state.requeues == 1, "the requeue", 120)
    drains.command("stop", str(drains.directory))
    wait_size(array, 2, 120)
    assert [Cause.PREEMPTION] == [entry.cause for entry in array.entries(NodeLeft)]
    array.command("stop", str(array.directory))
    ending = trains.wait_ending(120).ending
    assert ending is not None
    assert Decision.DONE is ending.decision
    assert 1 == len(trains.entries(RoundFormed))
    assert uninterrupted(tmp_path, LONG) == trains.result()
    ends.wait_gone(120)
    assert "COMPLETED" == ends.job()["JobState"]


def wait_left(run: Run) -> None:
    """Wait until the only node of a run has left."""
    run.wait(lambda _: bool(run.entries(Drained) or run.entries(NodeLeft)), "the node to leave", 90)


@pytest.mark.timeout(400)
def test_the_time_limit_comes_while_slurmctld_is_away(cluster: Cluster) -> None:
    """The agents save by the limit that they know, in both modes; the next start goes on at that step."""
    runs = {mode: saving(cluster, flags(mode, "1", *LIMITED), save_s=2.0, size=1) for mode in MODES}
    for run in runs.values():
        wait_steps(run, 1, KNOWN_STEP)
    with outage(cluster):
        for run in runs.values():
            wait_left(run)
    for mode, run in runs.items():
        asked, agreed = run.entries(DrainRequested)[0], run.entries(StopAgreed)[0]
        assert (Cause.TIME_LIMIT, True) == (asked.cause, asked.detail.startswith("the time limit, ")), mode
        run.wait(lambda state: state.rounds > 1, f"the next round of {mode}", 120)
        again = run.entries(RoundFormed)[1].checkpoint
        assert again is not None, mode
        assert again.step == agreed.step, mode
