"""Nodes that are lost under a run on a real Slurm, the batch host among them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_elastic.record.journal import Cause, Requeued, RoundEnded, RoundFormed
from tests.real_slurm.cluster import Cluster
from tests.real_slurm.jobs import (
    AGENT_PROCESS,
    PYTHON,
    SLOW,
    THREE,
    installed_for_users,
    nodes_of,
    plain,
    submit,
    uninterrupted,
)
from tests.real_slurm.test_array import QUICK, wait_size

ARRAY = (*QUICK, "--mode", "array", "--time", "10m", "--partition", "low")
TASKS = (*ARRAY, "--nodes", "1:4", "--cpus-per-task", "4")  # one on each node
pytestmark = pytest.mark.usefixtures(installed_for_users.__name__)


@pytest.mark.both_trackers
def test_survivors_of_a_node_loss_go_on_in_the_allocation(cluster: Cluster, tmp_path: Path) -> None:
    """With nodes 2:3 the loss of a node makes the world smaller, in the same start of the job."""
    flags = (*THREE, "--nodes", "2:3")
    run = submit(cluster, flags, plain(cluster, *SLOW))
    run.wait_checkpoint(20)
    first = run.entries(RoundFormed)[0]
    cluster.crash(nodes_of(first)[2])
    run.wait_ending(90)
    second = run.entries(RoundFormed)[-1]
    assert nodes_of(first)[:2] == nodes_of(second)
    assert first.epoch == second.epoch
    assert [Cause.NODE_LOSS] == [entry.cause for entry in run.entries(RoundEnded)]
    assert uninterrupted(tmp_path) == run.result()


@pytest.mark.parametrize("place", [2, 0], ids=["a-node", "the-batch-host"])
def test_a_run_of_fixed_size_is_requeued_after_a_node_loss(
    cluster: Cluster, tmp_path: Path, place: int
) -> None:
    """With exactly 3 nodes a lost one, the batch host too, sends the job back; it finishes elsewhere.

    slurmctld (seen with 24.11.5) notes the answers to its pings together. Where it waits for the lost node
    among them for longer than SlurmdTimeout, it takes the others for lost, too, and requeues the job itself.
    """
    run = submit(cluster, THREE, plain(cluster, *SLOW))
    run.wait_checkpoint(20)
    lost = nodes_of(run.entries(RoundFormed)[0])[place]
    cluster.crash(lost)
    run.wait(lambda state: state.requeues == 1 or state.epoch.restart == 1, "the requeue", 60)
    run.wait_ending(150)
    second = run.entries(RoundFormed)[-1]
    assert lost not in nodes_of(second)
    assert 3 == len(second.members)
    assert uninterrupted(tmp_path) == run.result()


@pytest.fixture
def expediting_site(cluster: Cluster) -> Iterator[None]:
    """Let jobs ask for an expedited requeue, and have all others wait for ten minutes after theirs."""
    before = cluster.slurm_conf.read_text()
    slow = before.replace("SchedulerParameters=", "SchedulerParameters=requeue_delay=600,")
    cluster.change_settings(f"{slow}SlurmctldParameters=enable_expedited_requeue\n")
    yield
    cluster.change_settings(before)


def test_where_the_site_expedites_requeues_a_run_does_not_wait(
    cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A run goes on elsewhere as soon as its batch host is missed; one that fails for good is not held."""
    if cluster.fact("expedited") == "refused":
        return
    request.getfixturevalue(expediting_site.__name__)
    fails = submit(cluster, ("--nodes", "1", "--partition", "low"), [PYTHON, "-c", "raise SystemExit(3)"])
    run = submit(cluster, THREE, plain(cluster, *SLOW))
    fails.wait_gone(60)
    assert ("FAILED", "0") == (fails.job()["JobState"], fails.job()["Requeue"])
    run.wait_checkpoint(20)
    cluster.crash(nodes_of(run.entries(RoundFormed)[0])[0])
    run.wait(lambda state: state.requeues == 1, "the requeue", 60)
    run.wait_ending(90)
    assert ("Yes", "1") == (run.job()["ExpeditedRequeue"], run.job()["Restarts"])
    assert [Cause.NODE_LOSS] == [entry.cause for entry in run.entries(Requeued)]
    assert uninterrupted(tmp_path) == run.result()


def test_a_node_that_reboots_quickly_does_not_hold_the_run_up(cluster: Cluster, tmp_path: Path) -> None:
    """A node is back before Slurm has noticed, which wedges the step: the job is requeued all the same.

    A task of an array that was on it starts anew.
    """
    run = submit(cluster, (*THREE, "--nodes", "2:3"), plain(cluster, "--step-time", "0.1"))
    array = submit(cluster, TASKS, plain(cluster, *SLOW, steps=10000))
    wait_size(array, 4)
    run.wait_checkpoint(20)
    lost = nodes_of(run.entries(RoundFormed)[0])[2]
    cluster.crash(lost)
    run.wait(lambda state: state.rounds == 2, "the survivors' round", 30)
    wait_size(array, 3, without=lost)
    cluster.boot(lost)
    wait_size(array, 4, 120)
    array.command("cancel", str(array.directory))
    run.wait_ending(200)
    assert uninterrupted(tmp_path) == run.result()


@pytest.fixture
def patient_controller(cluster: Cluster) -> Iterator[None]:
    """Let slurmctld give a node up after a minute, as real ones do after five."""
    before = cluster.slurm_conf.read_text()
    cluster.change_settings(re.sub(r"SlurmdTimeout=\d+", "SlurmdTimeout=60", before))
    yield
    cluster.change_settings(before)


@pytest.mark.usefixtures("patient_controller")
def test_srun_does_not_hold_a_job_that_no_agent_is_left_of(cluster: Cluster, tmp_path: Path) -> None:
    """A node is cut off just when its agent ends: srun never hears of that, and would wait for it for ever.

    The script sees that no agent is left; ten of the seconds between its looks pass in one here.
    """
    setup = ("--setup", 'pause() { if [ "$1" = 30 ]; then sleep 3; else sleep "$1"; fi; }')
    run = submit(cluster, (*THREE, *setup), plain(cluster, *SLOW))
    run.wait_checkpoint(20)
    _, killed, cut = nodes_of(run.entries(RoundFormed)[0])
    log = cluster.directory / "log" / f"slurmd-{cut}.log"
    before = len(log.read_text())
    cluster.cut(cut)
    cluster.execute(killed, "pkill", "-KILL", "--oldest", "-f", AGENT_PROCESS)
    gave_up = "Failed to send MESSAGE_TASK_EXIT"

    def has_given_up() -> bool:  # that of 26.05 goes on trying until the job is requeued
        return gave_up in log.read_text()[before:] or run.state().requeues == 1

    cluster.wait_for(has_given_up, 60, "slurmstepd's end")
    cluster.heal(cut)
    run.wait(lambda state: state.requeues == 1, "the requeue", 60)
    assert "srun is killed" in run.log()
    run.wait_ending(240)  # 26.05: slurmstepd goes on trying for minutes, and its node is not free
    assert uninterrupted(tmp_path) == run.result()
