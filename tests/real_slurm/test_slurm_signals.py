"""Which processes of a job hear what users and faults do to it. No code of ours runs here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.real_slurm.cluster import Cluster
from tests.real_slurm.probes import Probe, Shape, running

pytestmark = pytest.mark.both_trackers

LOW = ("--partition=low", "--requeue", "--exclude=node4")
TWO = (*LOW, "--nodelist=node[1-2]")
SHAPES = {  # the larger ones first, as there is one CPU for each of 8 jobs per node
    "kill an agent": Shape(TWO, nodes=2, script="stay"),
    "kill an agent, -K": Shape(TWO, nodes=2, script="stay", srun=("--kill-on-bad-exit=1", "--wait=0")),
    "kill an agent, -W": Shape(TWO, nodes=2, script="stay", srun=("--kill-on-bad-exit=0", "--wait=3")),
    "scancel": Shape(LOW),
    "scancel, resurrects itself": Shape(LOW, agent="exit=75", script="requeue-at-once"),
    "USR1 to steps": Shape(LOW),
    "USR1 to the script": Shape(LOW),
    "USR1 to all": Shape(LOW),
    "TERM to steps": Shape(LOW),
    "TERM to all": Shape(LOW, script="stay"),
    "INT to all": Shape(LOW),
    "scancel of the step": Shape(LOW, script="stay"),
    "requeue": Shape(LOW),
    "requeuehold": Shape(LOW),
    "requeue once over": Shape(LOW, agent="exit=0"),
    "kill the script": Shape(LOW),
    "kill srun": Shape(LOW, script="stay"),
    "TERM to srun": Shape(LOW, script="stay"),
    "USR1 to srun": Shape(LOW),
    "node down": Shape(("--partition=low", "--nodelist=node4", "--requeue")),
}


@pytest.fixture(scope="module")
def jobs(session_cluster: Cluster) -> Iterator[dict[str, Probe]]:
    """Jobs side by side, each of which has just met what its name says."""
    with running(session_cluster, SHAPES) as probes:
        _tell_by_scancel(session_cluster, {name: probe.job_id for name, probe in probes.items()})
        for name, role, word in (
            ("kill the script", "batch", "KILL"),
            ("kill srun", "srun", "KILL"),
            ("TERM to srun", "srun", "TERM"),
            ("USR1 to srun", "srun", "USR1"),
        ):
            probes[name].send(probes[name].nodes[0], role, word)
        for name in ("kill an agent", "kill an agent, -K", "kill an agent, -W"):
            probes[name].send("node2", "agent", "KILL")
        yield probes


def _tell_by_scancel(cluster: Cluster, ids: dict[str, str]) -> None:
    for words in (
        ["scancel", ids["scancel"]],
        ["scancel", ids["scancel, resurrects itself"]],
        ["scancel", "-s", "USR1", ids["USR1 to steps"]],
        ["scancel", "-s", "USR1", "--batch", ids["USR1 to the script"]],
        ["scancel", "-s", "USR1", "--full", ids["USR1 to all"]],
        ["scancel", "-s", "TERM", ids["TERM to steps"]],
        ["scancel", "-s", "TERM", "--full", ids["TERM to all"]],
        ["scancel", "-s", "INT", "--full", ids["INT to all"]],
        ["scancel", f"{ids['scancel of the step']}.0"],
        ["scancel", "-s", "TERM", ids["requeue once over"]],
        ["scontrol", "requeue", ids["requeue"]],
        ["scontrol", "requeuehold", ids["requeuehold"]],
    ):
        done = cluster.run("alice", words)
        assert done.returncode == 0, (words, done.stderr)


@pytest.mark.parametrize("name", ["scancel", "requeue", "requeuehold"])
def test_the_end_of_a_job_is_told_to_script_and_tasks(jobs: dict[str, Probe], name: str) -> None:
    """SIGTERM and SIGCONT at once to both; under linuxproc to their children, too."""
    job = jobs[name]
    job.wait_heard("TERM", "agent")
    job.wait_heard("TERM", "batch")
    job.wait_dead("agent")
    job.wait_dead("worker")
    assert "CONT" in job.heard("agent")
    assert ("TERM" in job.heard("worker")) == (job.cluster.tracker == "linuxproc")


def test_scancel_is_final(jobs: dict[str, Probe]) -> None:
    """A cancelled job is over and counts no restart."""
    assert "CANCELLED" == jobs["scancel"].wait_over()
    assert 0 == jobs["scancel"].restarts


def test_a_script_can_bring_a_cancelled_job_back(jobs: dict[str, Probe]) -> None:
    """`scontrol requeue` works in a job that is being cancelled; so nobody may ask for it blindly."""
    jobs["scancel, resurrects itself"].wait_requeued()


def test_a_requeued_job_runs_again(jobs: dict[str, Probe]) -> None:
    """Requeued by its owner, a job counts one restart; with requeuehold it waits for a release."""
    job, held = jobs["requeue"], jobs["requeuehold"]
    job.wait_requeued()
    held.wait_requeued()
    held.cluster.wait_state(held.job_id, "PENDING")
    assert ("0", "job_requeued_in_held_state") == (held.job()["Priority"], held.job()["Reason"])
    job.wait_started(start=1)


def test_a_job_that_is_over_can_be_requeued(jobs: dict[str, Probe]) -> None:
    """A completed job runs again when its owner asks for it; so a done run must end at once."""
    job = jobs["requeue once over"]
    assert "COMPLETED" == job.wait_over()
    assert 0 == job.cluster.run("alice", ["scontrol", "requeue", job.job_id]).returncode
    job.wait_requeued()


def test_signals_for_steps_reach_tasks_only(jobs: dict[str, Probe]) -> None:
    """`scancel --signal` speaks to the tasks, not to the script; the job runs on."""
    for word in ("USR1", "TERM"):
        job = jobs[f"{word} to steps"]
        job.wait_heard(word, "agent")
        assert [] == job.heard("batch")
        assert "RUNNING" == job.job()["JobState"]


def test_signals_for_the_script_reach_no_task(jobs: dict[str, Probe]) -> None:
    """`scancel --signal --batch` speaks to the script only."""
    job = jobs["USR1 to the script"]
    job.wait_heard("USR1", "batch")
    assert "USR1" not in job.heard("agent")


def test_signals_for_all_go_through_srun(jobs: dict[str, Probe]) -> None:
    """With --full the script hears it, and srun, which forwards SIGUSR1 but only reports at SIGINT."""
    for word, forwarded in (("USR1", True), ("INT", False)):
        job = jobs[f"{word} to all"]
        job.wait_heard(word, "batch")
        if forwarded:
            job.wait_heard(word, "agent")
        assert "RUNNING" == job.job()["JobState"]
        assert job.lives("agent")


@pytest.mark.parametrize("name", ["TERM to all", "TERM to srun", "kill srun", "scancel of the step"])
def test_without_srun_the_tasks_are_killed(jobs: dict[str, Probe], name: str) -> None:
    """What ends srun, or the step, kills every task at once; the script goes on and sees a failure."""
    job = jobs[name]
    job.wait_dead("agent")
    job.cluster.wait_for(lambda: job.child_code("batch") is not None, 30, "the script to see the end of srun")
    assert 0 != job.child_code("batch")
    # linuxproc tells TERM to everybody below the script
    assert "TERM" not in job.heard("agent") or (name == "TERM to all" and job.cluster.tracker == "linuxproc")
    assert "RUNNING" == job.job()["JobState"]


def test_srun_forwards_usr1(jobs: dict[str, Probe]) -> None:
    """SIGUSR1 to srun reaches the tasks."""
    jobs["USR1 to srun"].wait_heard("USR1", "agent")
    assert jobs["USR1 to srun"].lives("agent")


def test_the_death_of_the_script_ends_the_job(jobs: dict[str, Probe]) -> None:
    """Slurm counts it as a failed launch and does not requeue.

    The tasks end at once, most often told: SIGTERM and a SIGKILL for the step come by two requests that race.
    """
    job = jobs["kill the script"]
    assert "FAILED" == job.wait_over()
    assert (0, job.cluster.fact("killed script")) == (job.restarts, job.job()["Reason"])
    job.wait_dead("agent")
    assert set(job.heard("agent")) <= {"CONT", "TERM"}


def test_the_death_of_a_task_leaves_the_others_alone(jobs: dict[str, Probe]) -> None:
    """With --kill-on-bad-exit=0 --wait=0 they go on; under linuxproc the worker outlives its agent."""
    job = jobs["kill an agent"]
    job.wait_dead("agent", "node2")
    if job.cluster.tracker.startswith("cgroup"):
        job.wait_dead("worker", "node2")
    else:
        assert job.lives("worker", "node2")
    assert job.lives("agent", "node1")
    assert [] == job.heard("agent", "node1")


def test_settings_of_a_site_would_end_the_others(jobs: dict[str, Probe]) -> None:
    """With --kill-on-bad-exit or --wait of a site the others end, too: so both are given explicitly."""
    jobs["kill an agent, -K"].wait_dead("agent", "node1")
    assert "TERM" in jobs["kill an agent, -K"].heard("agent", "node1")
    jobs["kill an agent, -W"].wait_dead("agent", "node1")


def test_a_drained_node_lets_its_jobs_run_but_a_node_set_down_does_not(jobs: dict[str, Probe]) -> None:
    """Draining a node or closing a partition tells a job nothing; a node set down requeues its jobs."""
    job = jobs["node down"]
    cluster = job.cluster
    cluster.as_root("scontrol", "update", "nodename=node4", "state=drain", "reason=test")
    cluster.as_root("scontrol", "update", "partitionname=low", "state=down")
    cluster.wait_for(lambda: "drain" in cluster.node_state("node4"), 30, "node4 to drain")
    assert ("RUNNING", []) == (job.job()["JobState"], job.heard("agent"))
    cluster.as_root("scontrol", "update", "partitionname=low", "state=up")
    cluster.as_root("scontrol", "update", "nodename=node4", "state=down", "reason=test")
    job.wait_heard("TERM", "agent")
    job.wait_requeued()


def test_jobs_do_not_notice_that_slurmctld_restarts(jobs: dict[str, Probe]) -> None:
    """SIGKILL of slurmctld and a new one leave running jobs alone."""
    job = jobs["USR1 to the script"]
    before = job.heard("agent")
    # a slurmctld that dies as it starts a job starts it twice: it is held, and its node drained
    for name in ("requeue", "scancel, resurrects itself", "requeue once over"):
        if name != "requeue once over" or jobs[name].restarts:
            jobs[name].wait_requeued()
            jobs[name].wait_started(start=1)
    job.cluster.save_controller_state()
    job.cluster.restart_controller()
    job.cluster.wait_state(job.job_id, "RUNNING")
    assert before == job.heard("agent")
    assert job.lives("agent")
