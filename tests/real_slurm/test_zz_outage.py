"""slurmctld frozen, then killed under runs on a real Slurm: nobody of ours notices before it is needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.rendezvous.journal import Decision, RoundFormed
from tests.real_slurm.cluster import Cluster
from tests.real_slurm.jobs import Run, elastic, installed_for_users, plain, submit, uninterrupted

pytestmark = pytest.mark.usefixtures(installed_for_users.__name__)

SMALL = ("--gpus-per-node", "1", "--time", "10m", "--partition", "low")
LONG = 1500
OUTAGE_S = 65.0


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
    """Send a signal to the agent of a run on a node."""
    pattern = rf"^[^ ]*python[^ ]* -m hpc_elastic run --run-dir={run.directory} "
    run.cluster.execute(node, "pkill", f"-{signal}", "-f", pattern)


def test_runs_go_on_end_and_drain_without_slurmctld(cluster: Cluster, tmp_path: Path) -> None:
    """One trains on, one ends, one drains meanwhile: no step is lost, and all is told once it is back."""
    trains = submit(cluster, (*SMALL, "--nodes", "2"), plain(cluster, "--step-time", "0.05", steps=LONG))
    ends = submit(cluster, (*SMALL, "--nodes", "1"), plain(cluster, "--step-time", "0.05"))
    drains = submit(cluster, (*SMALL, "--nodes", "1"), plain(cluster, "--step-time", "0.05", steps=LONG))
    for run in (trains, ends, drains):
        run.wait_checkpoint(20)
    drained_node = drains.job()["BatchHost"]
    with outage(cluster) as began:
        agents_hear(drains, drained_node, "TERM")
        drains.wait(lambda state: state.drained is not None, "the drain", 60)
        ends.wait_ending(60)
        cluster.command("kill-slurmctld")  # clients no longer hang, they are refused
        shown = elastic(cluster, "status", str(trains.directory))
        assert (0, True) == (shown.returncode, "running round 1" in shown.stdout), shown
        cluster.wait_for(lambda: SystemClock().monotonic() - began > OUTAGE_S, 60, "the time to pass")
    drains.wait(lambda state: state.requeues == 1, "the requeue", 120)
    drains.command("stop", str(drains.directory))
    ending = trains.wait_ending(120).ending
    assert ending is not None
    assert Decision.DONE is ending.decision
    assert 1 == len(trains.entries(RoundFormed)), trains.journal() + trains.log() + cluster.story()
    assert uninterrupted(tmp_path, LONG) == trains.result()
    ends.wait_gone(120)
    assert "COMPLETED" == ends.job()["JobState"]
