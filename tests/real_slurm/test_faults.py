"""Faults under a run on a real Slurm: workers, nodes, the batch host, srun."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpc_elastic.rendezvous.journal import Cause, Epoch, RoundEnded, RoundFormed
from tests.real_slurm.cluster import Cluster
from tests.real_slurm.jobs import SLOW, THREE, installed_for_users, nodes_of, plain, submit, uninterrupted

pytestmark = pytest.mark.usefixtures(installed_for_users.__name__)


def test_a_worker_crash_is_mended_in_place(cluster: Cluster, tmp_path: Path) -> None:
    """A crashed worker is started again, with all others, in the same start of the same job."""
    run = submit(cluster, THREE, plain(cluster, *SLOW, "--crash-at", "50", "--crash-rank", "3"))
    run.wait_ending()
    run.wait_gone()
    (ended,) = run.entries(RoundEnded)
    assert (Cause.CRASH, ("node2",)) == (ended.cause, ended.nodes)
    assert "0" == run.job()["Restarts"]
    assert 2 == len(run.entries(RoundFormed))
    assert uninterrupted(tmp_path) == run.result()


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
    """With exactly 3 nodes a lost one, the batch host too, sends the job back; it finishes elsewhere."""
    run = submit(cluster, THREE, plain(cluster, *SLOW))
    run.wait_checkpoint(20)
    lost = nodes_of(run.entries(RoundFormed)[0])[place]
    cluster.crash(lost)
    run.wait(lambda state: state.requeues == 1, "the requeue", 60)
    run.wait_ending(150)
    second = run.entries(RoundFormed)[-1]
    assert lost not in nodes_of(second)
    assert 3 == len(second.members)
    assert uninterrupted(tmp_path) == run.result()


@pytest.mark.both_trackers
def test_final_failure_ends_everything_with_one_root_cause(cluster: Cluster) -> None:
    """Out of restarts, all agents end and the batch log closes with the one root cause."""
    program = (
        "import os, sys, time; rank = os.environ['RANK']; time.sleep(0.2 if rank == '3' else 600); 1 / 0"
    )
    worker = [plain(cluster)[0], "-c", program]
    run = submit(cluster, (*THREE, "--max-restarts", "1"), worker)
    run.wait_ending()
    run.wait_gone(30)
    log = run.log()
    assert 1 == log.count("Root Cause")
    summary = log[log.index("Root Cause") :]
    assert re.search(r"rank +: 3\b", summary)
    assert re.search(r"node +: node2\b", summary)
    assert "ZeroDivisionError" in summary
    assert 3 == log.count("leaving: a worker failed and the 1 restart is used")
    assert ("FAILED", "1:0") == (run.job()["JobState"], run.job()["ExitCode"])


def test_a_killed_srun_is_started_again(cluster: Cluster, tmp_path: Path) -> None:
    """SIGKILL of srun ends the step; the script starts it again in the same start of the job."""
    run = submit(cluster, THREE, plain(cluster, *SLOW))
    run.wait_checkpoint(20)
    batch_host = run.job()["BatchHost"]
    cluster.execute(batch_host, "pkill", "-KILL", "--oldest", "-x", "srun")
    cluster.wait_for(lambda: "exit code 137" in run.log(), 30, "the script to see srun's end")
    run.wait_ending(90)
    assert Epoch(0, 0, 1) == run.entries(RoundFormed)[-1].epoch
    assert uninterrupted(tmp_path) == run.result()


def test_a_killed_agent_on_the_batch_host_costs_no_wait(cluster: Cluster, tmp_path: Path) -> None:
    """When only the agent on the batch host dies, the script there requeues the job within seconds."""
    run = submit(cluster, (*THREE, "--nodes", "2:3"), plain(cluster, *SLOW))
    run.wait_checkpoint(20)
    batch_host = run.job()["BatchHost"]
    cluster.execute(batch_host, "pkill", "-KILL", "-f", r"^[^ ]*python[^ ]* -m hpc_elastic run")
    run.wait(lambda state: state.requeues == 1, "the requeue", 40)
    run.wait_ending(90)
    assert uninterrupted(tmp_path) == run.result()


def test_a_node_that_reboots_quickly_does_not_hold_the_run_up(cluster: Cluster, tmp_path: Path) -> None:
    """A node is back before Slurm has noticed, which wedges the step: the job is requeued all the same."""
    run = submit(cluster, (*THREE, "--nodes", "2:3"), plain(cluster, "--step-time", "0.1"))
    run.wait_checkpoint(20)
    lost = nodes_of(run.entries(RoundFormed)[0])[2]
    cluster.crash(lost)
    run.wait(lambda state: state.rounds == 2, "the survivors' round", 30)
    cluster.boot(lost)
    run.wait_ending(200)
    assert uninterrupted(tmp_path) == run.result()
