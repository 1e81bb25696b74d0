"""Two faults at once, and faults at odd moments; where Slurm can, the site expedites requeues meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.record.journal import Decision, RoundFormed
from tests.real_slurm.cluster import Cluster
from tests.real_slurm.drills.conftest import Tell
from tests.real_slurm.drills.runs import flags
from tests.real_slurm.jobs import (
    PYTHON,
    SLOW,
    Run,
    installed_for_users,
    nodes_of,
    plain,
    submit,
    uninterrupted,
)
from tests.real_slurm.test_array import wait_size

pytestmark = pytest.mark.usefixtures(installed_for_users.__name__)

STEPS = 400  # 20 s of training without a fault
OUTAGE_S = 20.0
LOW = ("--partition", "low")
PERMANENT = ("--max-restarts", "0")
FAILS_WHEN_TOLD = """
import os, time
from hpc_elastic import worker

worker.checkpoint_saved(1)
while not os.path.exists(os.path.join(worker.run_dir(), "fail")):
    time.sleep(0.05)
raise SystemExit(3)
"""
"""A rank that fails as soon as there is a file `fail` in its run directory."""


@pytest.fixture(autouse=True)
def _expediting_site(cluster: Cluster) -> Iterator[None]:
    """Allow expedited requeues, where Slurm knows them."""
    before = cluster.slurm_conf.read_text()
    expedites = cluster.fact("expedited") != "refused"
    if expedites:
        cluster.change_settings(f"{before}SlurmctldParameters=enable_expedited_requeue\n")
    yield
    if expedites:
        cluster.change_settings(before)


@pytest.fixture
def begin(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Return a function that submits a training and waits until it works; at the end it has to be whole."""
    runs: list[Run] = []

    def start(nodes: str, mode: str = "step", *more: str) -> Run:
        size = int(nodes.rpartition(":")[2])
        run = submit(cluster, flags(mode, nodes, *LOW, *more), plain(cluster, *SLOW, steps=STEPS))
        runs.append(run)
        run.wait_checkpoint(20)
        wait_size(run, size)
        cluster.save_controller_state()
        return run

    yield start
    for run in runs:
        ending = run.wait_ending(240).ending
        assert ending is not None
        assert Decision.DONE is ending.decision, run.log()
        run.wait_gone(90)
        assert uninterrupted(tmp_path, STEPS) == run.result()


def hosts(run: Run) -> list[str]:
    """Return the nodes of the newest round; that of the batch script first, for a job of several nodes."""
    return nodes_of(run.entries(RoundFormed)[-1])


def down(cluster: Cluster) -> None:
    """SIGKILL of slurmctld."""
    cluster.execute("ctl", "pkill", "-KILL", "-x", "slurmctld")


def kill_script(run: Run, host: str) -> None:
    """SIGKILL of the batch script."""
    run.cluster.execute(host, "pkill", "-9", "-f", f"job{int(run.job_id):05d}/slurm_script")


def requeued(run: Run, times: int = 1) -> None:
    """Wait until Slurm has put the job back so often."""
    run.cluster.wait_for(lambda: int(run.job().get("Restarts", "0")) >= times, 120, "the requeue")


def test_the_batch_host_and_slurmctld(cluster: Cluster, begin: Callable[..., Run]) -> None:
    """Both are lost in the same second; slurmctld is away for longer than SlurmdTimeout."""
    run = begin("3")
    cluster.crash(hosts(run)[0])
    down(cluster)
    SystemClock().sleep(OUTAGE_S)
    cluster.command("start-slurmctld")


@pytest.mark.parametrize("gap_s", [1.0, 12.0])
def test_the_batch_host_and_its_first_survivor(
    cluster: Cluster, begin: Callable[..., Run], gap_s: float
) -> None:
    """The node that would requeue the job is lost as well; both come back."""
    run = begin("3")
    first, second, _ = hosts(run)
    cluster.crash(first)
    SystemClock().sleep(gap_s)
    cluster.crash(second)
    requeued(run)
    for host in (first, second):
        cluster.boot(host)


def test_all_nodes_of_a_job(cluster: Cluster, begin: Callable[..., Run]) -> None:
    """None of the run is left to requeue it: Slurm does."""
    run = begin("2")
    for host in hosts(run):
        cluster.crash(host)


def test_the_next_batch_host_as_the_next_start_begins(cluster: Cluster, begin: Callable[..., Run]) -> None:
    """A start that has formed no round loses its batch host as the one before did; who waits requeues it."""
    run = begin("2", "step", "--join-timeout", "30")
    cluster.crash(hosts(run)[0])
    requeued(run)
    cluster.wait_for(lambda: run.job().get("JobState") == "RUNNING", 90, "the next start")
    cluster.crash(run.job()["BatchHost"])
    requeued(run, 2)


def test_the_batch_host_within_the_grace_time(cluster: Cluster, begin: Callable[..., Run]) -> None:
    """Another user's job wants the nodes, and the batch host dies before they are free."""
    run = begin("2")
    host = hosts(run)[0]
    high = cluster.submit_high(4)
    cluster.wait_for(lambda: run.job().get("PreemptTime", "None") != "None", 30, "the preemption")
    cluster.crash(host)
    requeued(run)
    cluster.as_root("scancel", high)


def test_slurmd_and_srun_of_the_batch_host(cluster: Cluster, begin: Callable[..., Run]) -> None:
    """The batch script starts srun again, though slurmd of its node is away for some seconds."""
    run = begin("2")
    host = hosts(run)[0]
    cluster.command("kill-slurmd", host)
    cluster.execute(host, "pkill", "-KILL", "--oldest", "-x", "srun")
    SystemClock().sleep(5)
    cluster.command("start-slurmd", host)


def test_the_script_and_a_requeue_by_its_owner(cluster: Cluster, begin: Callable[..., Run]) -> None:
    """The job is requeued in the second in which its script is killed: once, and it is not held."""
    run = begin("2")
    kill_script(run, hosts(run)[0])
    cluster.run("alice", ["scontrol", "requeue", run.job_id])


def test_the_script_of_a_job_that_is_preempted(cluster: Cluster, begin: Callable[..., Run]) -> None:
    """Its script is killed within the grace time."""
    run = begin("2")
    host = hosts(run)[0]
    high = cluster.submit_high(4)
    cluster.wait_for(lambda: run.job().get("PreemptTime", "None") != "None", 30, "the preemption")
    kill_script(run, host)
    requeued(run)
    cluster.as_root("scancel", high)


def test_a_node_of_an_array_and_slurmctld(cluster: Cluster, begin: Callable[..., Run]) -> None:
    """A task's node dies as slurmctld does."""
    run = begin("1:3", "array")
    cluster.crash(hosts(run)[-1])
    down(cluster)
    SystemClock().sleep(OUTAGE_S)
    cluster.command("start-slurmctld")


def test_a_batch_host_that_is_back_as_it_is_missed(cluster: Cluster, begin: Callable[..., Run]) -> None:
    """It boots as soon as Slurm has noticed its loss."""
    run = begin("3")
    host = hosts(run)[0]
    cluster.crash(host)
    cluster.wait_for(lambda: cluster.is_missed(host), 60, "the loss to be noticed")
    cluster.boot(host)


def test_a_final_failure_without_slurmctld(cluster: Cluster, tell: Tell) -> None:
    """It has to take the job's right to be requeued, and waits for slurmctld: the job is not held."""
    run = submit(cluster, (*flags("step", "2", *LOW), *PERMANENT), [PYTHON, "-c", FAILS_WHEN_TOLD])
    wait_size(run, 2)
    cluster.save_controller_state()
    down(cluster)
    (run.directory / "fail").touch()
    SystemClock().sleep(OUTAGE_S)
    cluster.command("start-slurmctld")
    _failed_for_good(run)
    tell("step", f"slurmctld is away for {OUTAGE_S:.0f} s", "failed, not held")


def test_a_final_failure_and_the_batch_host(cluster: Cluster, tell: Tell) -> None:
    """The run has failed; no process is left that could end the job, so its user does."""
    run = submit(cluster, (*flags("step", "2", *LOW), *PERMANENT), [PYTHON, "-c", FAILS_WHEN_TOLD])
    wait_size(run, 2)
    host = hosts(run)[0]
    (run.directory / "fail").touch()
    cluster.crash(host)
    ending = run.wait_ending(240).ending
    assert ending is not None
    assert Decision.FAILED is ending.decision, run.log()
    state = run.job()["JobState"]
    run.command("cancel", str(run.directory))
    run.wait_gone(90)
    tell("step", "in the same second", f"failed; the job is {state} until its user cancels it")


def _failed_for_good(run: Run) -> None:
    ending = run.wait_ending(240).ending
    assert ending is not None
    assert Decision.FAILED is ending.decision, run.log()
    run.wait_gone(90)
    assert "FAILED" == run.job()["JobState"]


@pytest.mark.parametrize("how", ["scancel", "stop"])
def test_an_end_by_its_user_while_it_waits_expedited(cluster: Cluster, tell: Tell, how: str) -> None:
    """Its node is lost and no other is free: whoever ends the run then has it never start again."""
    run = submit(cluster, flags("step", "1", *LOW), plain(cluster, *SLOW, steps=STEPS))
    run.wait_checkpoint(20)
    high = cluster.submit_high(3)
    cluster.wait_for(lambda: cluster.job(high).get("JobState") == "RUNNING", 30, "the other nodes")
    cluster.crash(hosts(run)[0])
    requeued(run)
    state = run.job()["JobState"]
    if how == "stop":
        run.command("stop", str(run.directory))
    else:
        cluster.run("alice", ["scancel", run.job_id])
    cluster.as_root("scancel", high)
    run.wait_gone(120)
    assert 1 == len(run.entries(RoundFormed)), run.journal()
    shown = run.command("status", str(run.directory)).stdout
    tell("step", f"{how} in state {state}", f"{run.job()['JobState']}: {shown.splitlines()[0]}")
