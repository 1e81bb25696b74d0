"""What other settings of a site change: other kinds of preemption, and what a lost node does to GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.real_slurm.cluster import Cluster
from tests.real_slurm.conftest import StartCluster
from tests.real_slurm.probes import Shape, running

LOW = ("--partition=low", "--requeue", "--nodelist=node1")
CANCELLING = {
    "stubborn": Shape(LOW),
    "requeues itself": Shape(LOW, agent="exit=75", script="requeue=75"),
    "wants USR1": Shape((*LOW, "--signal=USR1@60")),
    "its script wants USR1": Shape((*LOW, "--signal=B:USR1@60")),
}


@pytest.fixture(scope="module")
def site(session_cluster: Cluster) -> Iterator[Cluster]:
    """A cluster whose preemption cancels jobs and sends them the signal they asked for."""
    before = session_cluster.slurm_conf.read_text()
    text = before.replace("PreemptMode=REQUEUE", "PreemptMode=CANCEL")
    try:
        session_cluster.change_settings(f"{text}SlurmctldParameters=preempt_send_user_signal\n")
        yield session_cluster
    finally:
        session_cluster.change_settings(before)


def test_a_site_may_cancel_and_send_the_jobs_own_signal(site: Cluster) -> None:
    """A preempted job is over, unless it asks back in its grace time; USR1 comes in SIGTERM's place."""
    with running(site, CANCELLING) as jobs:
        high = site.submit_high(1, "--nodelist=node1")
        jobs["wants USR1"].wait_heard("USR1", "agent")
        jobs["its script wants USR1"].wait_heard("USR1", "batch")
        assert "TERM" not in jobs["wants USR1"].heard("agent")
        assert site.fact("own signal").split() == jobs["its script wants USR1"].heard("agent")
        site.wait_state(high, "RUNNING", 60)
        assert "PREEMPTED" == jobs["stubborn"].wait_over()
        jobs["requeues itself"].wait_requeued()
        assert 0 == jobs["stubborn"].restarts


def test_a_suspended_job_keeps_its_nodes(start_cluster: StartCluster) -> None:
    """Nothing is told to a job that is suspended for another one; it goes on later, and keeps its GPUs."""
    site = start_cluster(nodes=1, options=("--preempt", "SUSPEND"))
    with running(
        site, {"plain": Shape(("--partition=low",)), "gpus": Shape(("--partition=low", "--gpus=1"))}
    ) as jobs:
        job = jobs["plain"]
        high = site.submit("bob", "--partition=high", "--cpus-per-task=8", wrap="sleep 600")
        site.wait_state(job.job_id, "SUSPENDED", 60)
        site.wait_state(high, "RUNNING")
        wants = site.submit("bob", "--partition=high", "--gpus=2", wrap="sleep 600")
        site.as_root("scancel", high)
        site.wait_state(job.job_id, "RUNNING", 60)
        assert "TERM" not in job.heard("agent")
        assert ("PENDING", "0") == (site.job(wants)["JobState"], job.job()["Restarts"])


def test_a_requeue_before_the_loss_is_noticed_may_cost_the_gpus(start_cluster: StartCluster) -> None:
    """Why survivors wait until Slurm has taken a lost node out of the job before they requeue it."""
    site = start_cluster(nodes=2)
    shape = Shape(("--partition=low", "--requeue", "--no-kill", "--gpus-per-node=2"), nodes=2)
    with running(site, {"job": shape}) as jobs:
        job = jobs["job"]
        site.crash("node2")
        assert 0 == site.run("alice", ["scontrol", "requeue", job.job_id]).returncode
        site.wait_for(lambda: site.is_missed("node2"), 90, "Slurm to miss node2")
        site.boot("node2")
        if site.fact("early requeue") == "kept":
            job.wait_requeued()
            steps = ("squeue", "--steps", "--noheader", "--format=%i")
            step = re.compile(rf"{job.job_id}\.\d")  # 20.11 counts on from the start before
            site.wait_for(lambda: bool(step.search(site.as_root(*steps))), 90, "srun to get its GPUs")
            details = site.as_root("scontrol", "show", "job", "--details", job.job_id)
            assert "JOB_GRES=gpu:4" in details  # AllocTRES of 26.05 leaves them out
            return
        output = site.shared / f"{job.job_id}.out"
        site.wait_for(
            lambda: "Invalid generic resource" in output.read_text(), 90, "srun to be refused its GPUs"
        )


def test_an_expedited_requeue_does_not_wait(start_cluster: StartCluster) -> None:
    """Where the site allows it: at once after the loss of a node; but a job that fails is held."""
    more = ("--cred-expire", "600", "--extra", "SlurmctldParameters=enable_expedited_requeue")
    site = start_cluster(nodes=2, options=more)
    asked = ("sbatch", "--test-only", "--partition=low", "--requeue=expedite", "--wrap=true")
    if site.fact("expedited") == "refused":
        assert 0 != site.run("alice", asked).returncode
        return
    options = ("--partition=low", "--requeue=expedite")
    lasts = site.submit("alice", *options, wrap="exec sleep 600")
    fails = site.submit("alice", *options, wrap="exit 3")
    ends = site.submit("alice", *options, wrap="scontrol update jobid=$SLURM_JOB_ID requeue=0; exit 3")
    site.wait_state(fails, "REQUEUE_HOLD", 60)
    site.wait_state(ends, "FAILED", 60)
    site.wait_state(lasts, "RUNNING", 60)
    site.crash(site.job(lasts)["BatchHost"])
    site.wait_for(
        lambda: (site.job(lasts)["JobState"], site.job(lasts)["Restarts"]) == ("RUNNING", "1"),
        90,
        "the job to run on the other node, 600 s before a usual requeue",
    )
