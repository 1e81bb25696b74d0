"""What Slurm does when a node is lost, by how the job was submitted. No code of ours runs here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.real_slurm.cluster import Cluster
from tests.real_slurm.probes import LASTING, Probe, Shape, running

pytestmark = pytest.mark.both_trackers

LOW = ("--partition=low", "--requeue")
WITH_4 = (*LOW, "--nodelist=node[2,4]")  # node2 runs the batch script
NO_KILL = "--no-kill"
BOTH = (*LASTING, NO_KILL)
SHAPES = {
    "default": Shape(WITH_4, nodes=2),
    "no requeue": Shape(("--partition=low", "--no-requeue", "--nodelist=node[2,4]"), nodes=2),
    "no-kill of sbatch": Shape((*WITH_4, NO_KILL), nodes=2, script="exit=137"),
    "no-kill of both": Shape((*WITH_4, NO_KILL), nodes=2, script="stay", srun=BOTH),
    "no-kill of srun": Shape(WITH_4, nodes=2, srun=BOTH),
    "batch host": Shape((*LOW, "--nodelist=node[1-2]", NO_KILL), nodes=2, script="stay", srun=BOTH),
    "reboot": Shape((*LOW, "--nodelist=node[2-3]", NO_KILL), nodes=2, script="stay", srun=BOTH),
    "slurmd": Shape((*LOW, "--nodelist=node2")),
}


@pytest.fixture(scope="module")
def jobs(session_cluster: Cluster) -> Iterator[dict[str, Probe]]:
    """Jobs that lose node4, or node1 with their batch script; node3 reboots; node2 has all survivors."""
    cluster = session_cluster
    with running(cluster, SHAPES) as probes:
        cluster.command("kill-slurmd", "node2")
        for node in ("node4", "node1", "node3"):
            cluster.crash(node)
        cluster.boot("node3")
        cluster.command("start-slurmd", "node2")
        cluster.wait_for(lambda: cluster.is_missed("node1"), 90, "Slurm to miss node1")
        cluster.wait_for(lambda: cluster.is_missed("node4"), 90, "Slurm to miss node4")
        yield probes


def test_by_default_a_lost_node_costs_the_job(jobs: dict[str, Probe]) -> None:
    """Everybody is told, by 22.05 and newer, and killed once Slurm has noticed; the job is requeued."""
    for name in ("default", "no-kill of srun"):
        jobs[name].wait_requeued()
        told = "TERM" if "TERM" in jobs[name].heard("agent", "node2") else ""
        assert jobs[name].cluster.fact("told of loss") == told


def test_without_requeue_the_loss_is_final(jobs: dict[str, Probe]) -> None:
    """A job submitted with --no-requeue ends as NODE_FAIL."""
    assert "NODE_FAIL" == jobs["no requeue"].wait_over()


def test_no_kill_of_sbatch_alone_is_the_worst(jobs: dict[str, Probe]) -> None:
    """The step is killed without a warning, and the job ends as failed; it is not requeued."""
    job = jobs["no-kill of sbatch"]
    assert "FAILED" == job.wait_over()
    assert 0 == job.restarts
    assert "TERM" not in job.heard("agent", "node2") or job.cluster.tracker == "linuxproc"


def test_no_kill_of_both_lets_the_others_go_on(jobs: dict[str, Probe]) -> None:
    """The node leaves the job; script and tasks on the other one hear nothing."""
    job = jobs["no-kill of both"]
    job.cluster.wait_for(lambda: job.nodes == ["node2"], 60, "node4 to leave the job")
    assert ("RUNNING", "1") == (job.job()["JobState"], job.job()["NumNodes"])
    assert job.lives("agent", "node2")
    assert job.lives("batch")
    assert [] == job.heard("agent", "node2")


def test_nobody_ends_a_job_without_its_batch_host(jobs: dict[str, Probe]) -> None:
    """With --no-kill the job runs on without a script: its tasks have to put it back."""
    job = jobs["batch host"]
    job.cluster.wait_for(lambda: job.nodes == ["node2"], 60, "node1 to leave the job")
    assert "RUNNING" == job.job()["JobState"]
    assert job.lives("agent", "node2")
    assert not job.lives("batch")


def test_a_lost_node_of_a_job_that_runs_on_is_told(jobs: dict[str, Probe]) -> None:
    """Slurm says that it does not respond, whatever state it is in."""
    job = jobs["no-kill of both"]
    state = job.cluster.node_state("node4").replace("+completing", "")  # for other jobs of it
    assert state in job.cluster.fact("lost node").split(" or ")


def test_a_quick_reboot_may_go_unnoticed(jobs: dict[str, Probe]) -> None:
    """A node back within SlurmdTimeout stays in the job, though nothing of the job runs there."""
    job = jobs["reboot"]
    assert not job.lives("agent", "node3")
    assert "down" not in job.cluster.node_state("node3")
    assert ("RUNNING", ["node2", "node3"]) == (job.job()["JobState"], job.nodes)


def test_a_restart_of_slurmd_disturbs_nobody(jobs: dict[str, Probe]) -> None:
    """When slurmd is killed and comes back, the job on its node hears nothing."""
    job = jobs["slurmd"]
    assert "RUNNING" == job.job()["JobState"]
    assert [] == job.heard("agent")
    assert job.lives("agent")
