"""What Slurm does to a job that it preempts. No code of ours runs here: our design rests on these facts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.real_slurm.cluster import Cluster
from tests.real_slurm.probes import Probe, Shape, running

pytestmark = pytest.mark.both_trackers

ON_1 = ("--partition=low", "--nodelist=node1", "--requeue")
ON_2 = ("--partition=low", "--nodelist=node2")
SHAPES = {
    "stubborn": Shape(ON_1),
    "ends well": Shape(ON_1, agent="exit=75", script="exit=0"),
    "ends badly": Shape(ON_1, agent="exit=75", script="exit=75"),
    "ends with RequeueExit": Shape(ON_1, agent="exit=75", script="exit=99"),
    "requeues itself": Shape(ON_1, agent="exit=75", script="requeue=75"),
    "parks": Shape(ON_1, agent="exit=75", script="stay"),
    "may not be requeued": Shape((*ON_2, "--no-requeue")),
    "half of it": Shape(("--partition=low", "--nodelist=node[2-3]", "--requeue"), nodes=2),
    "no grace": Shape(("--partition=low0", "--nodelist=node2", "--requeue")),
    "wants USR1": Shape((*ON_2, "--requeue", "--signal=USR1@60")),
}


@pytest.fixture(scope="module")
def jobs(session_cluster: Cluster) -> Iterator[dict[str, Probe]]:
    """Jobs on nodes 1 and 2 that are preempted all at once; they get their nodes back a while later."""
    with running(session_cluster, SHAPES) as probes:
        high = session_cluster.submit_high(2, "--nodelist=node[1-2]")
        session_cluster.wait_state(high, "RUNNING", 90)
        yield probes


def test_grace_tells_the_tasks_only(jobs: dict[str, Probe]) -> None:
    """SIGTERM and SIGCONT go to the tasks when the grace time begins, to the script when it is over."""
    job = jobs["stubborn"]
    job.wait_requeued()
    for word in ("TERM", "CONT"):
        job.wait_heard(word, "agent")
        job.wait_heard(word, "batch")
    assert {"TERM", "CONT"} == set(job.heard("agent"))
    assert {"TERM", "CONT"} == set(job.heard("batch"))
    told, ended = job.when("TERM", "agent"), job.when("TERM", "batch")
    assert told is not None
    assert ended is not None
    assert ended - told > 4  # GraceTime is 8 s


def test_workers_are_told_by_one_tracker_only(jobs: dict[str, Probe]) -> None:
    """Under linuxproc every process below the task hears it, also in another session; under cgroup none."""
    job = jobs["stubborn"]
    job.wait_heard("TERM", "agent")
    job.wait_dead("worker")
    assert ("TERM" in job.heard("worker")) == (job.cluster.tracker == "linuxproc")


def test_who_does_not_leave_is_requeued(jobs: dict[str, Probe]) -> None:
    """A job that stays until Slurm ends it is requeued by Slurm, whether its tasks left or not."""
    for name in ("stubborn", "parks"):
        jobs[name].wait_requeued()
        assert "child" not in " ".join(jobs["stubborn"].heard("batch"))


@pytest.mark.parametrize(("name", "state"), [("ends well", "COMPLETED"), ("ends badly", "FAILED")])
def test_who_ends_within_the_grace_time(jobs: dict[str, Probe], name: str, state: str) -> None:
    """A script that ends by itself ends the job, whatever its exit code; since Slurm 24.05 it is requeued."""
    if jobs[name].cluster.fact("end in grace") == "over":
        assert state == jobs[name].wait_over()
        assert 0 == jobs[name].restarts
    else:
        jobs[name].wait_requeued()
        assert 1 == jobs[name].restarts


@pytest.mark.parametrize("name", ["ends with RequeueExit", "requeues itself"])
def test_who_asks_for_it_is_requeued_at_once(jobs: dict[str, Probe], name: str) -> None:
    """The site's RequeueExit, and `scontrol requeue` from inside, spare the rest of the grace time."""
    jobs[name].wait_requeued()
    assert 1 == jobs[name].restarts


def test_the_next_end_of_who_has_asked_for_it(cluster: Cluster) -> None:
    """It is the end, but Slurm 24.11 still takes the job for preempted and starts it once more."""
    first = "trap : TERM; srun sleep 600; scontrol requeue $SLURM_JOB_ID; exit 75"
    script = f'if [ "${{SLURM_RESTART_COUNT:-0}}" = 0 ]; then {first}; fi'
    job_id = cluster.submit("alice", "--partition=low", "--requeue", "--nodelist=node4", wrap=script)
    steps = ("squeue", "--steps", "--noheader", "--format=%i")
    cluster.wait_for(lambda: f"{job_id}.0" in cluster.as_root(*steps), 30, "its step")
    high = cluster.submit_high(1, "--nodelist=node4")
    cluster.wait_state(high, "RUNNING", 60)
    cluster.as_root("scancel", high)
    cluster.wait_state(job_id, "COMPLETED", 60)
    starts = {"over": "1", "requeued once more": "2"}[cluster.fact("end after grace")]
    assert starts == cluster.job(job_id)["Restarts"]


def test_no_requeue_is_final(jobs: dict[str, Probe]) -> None:
    """A job submitted with --no-requeue is over, and its owner cannot put it back."""
    job = jobs["may not be requeued"]
    assert "PREEMPTED" == job.wait_over()
    assert 0 != job.cluster.run("alice", ["scontrol", "requeue", job.job_id]).returncode


def test_one_node_costs_the_whole_job(jobs: dict[str, Probe]) -> None:
    """The tasks on all nodes are told when one node is wanted, and the whole job is requeued."""
    job = jobs["half of it"]
    job.wait_requeued()
    for node in ("node2", "node3"):
        job.wait_heard("TERM", "agent", node)


def test_without_grace_everybody_is_told_at_once(jobs: dict[str, Probe]) -> None:
    """With GraceTime=0 the script hears it, too, and KillWait is all the time there is."""
    job = jobs["no grace"]
    job.wait_requeued()  # counted before the processes have heard of it
    job.wait_heard("TERM", "agent")
    job.wait_heard("TERM", "batch")
    told, ended = job.when("TERM", "agent"), job.when("TERM", "batch")
    assert told is not None
    assert ended is not None
    assert abs(ended - told) < 4


def test_a_warning_signal_is_not_used(jobs: dict[str, Probe]) -> None:
    """--signal changes nothing about preemption unless the site sets preempt_send_user_signal."""
    job = jobs["wants USR1"]
    job.wait_requeued()
    job.wait_heard("TERM", "agent")
    assert "USR1" not in job.heard("agent")
