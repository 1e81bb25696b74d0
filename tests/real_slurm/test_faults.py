"""Faults under a run on a real Slurm: workers, nodes, the batch host, srun."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpc_elastic.record.journal import Cause, Epoch, Requeued, RoundEnded, RoundFormed
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

pytestmark = pytest.mark.usefixtures(installed_for_users.__name__)


@pytest.mark.parametrize("mode", ["step", "array"])
def test_a_worker_crash_is_mended_in_place(cluster: Cluster, tmp_path: Path, mode: str) -> None:
    """A crashed worker is started again, with all others, in the same start of the same job."""
    run = submit(
        cluster, (*THREE, "--mode", mode), plain(cluster, *SLOW, "--crash-at", "50", "--crash-rank", "3")
    )
    run.wait_ending()
    run.wait_gone()
    (ended,) = run.entries(RoundEnded)
    assert (Cause.CRASH, (nodes_of(run.entries(RoundFormed)[0])[1],)) == (ended.cause, ended.nodes)
    assert {"0"} == set(
        re.findall(r" Restarts=(\d+)", cluster.as_root("scontrol", "show", "job", run.job_id))
    )
    assert 2 == len(run.entries(RoundFormed))
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
    run.wait(
        lambda state: state.note is not None or state.epoch.relaunch == 1, "the reason in the records", 30
    )
    assert "srun ended with exit code 137" in run.command("timeline", str(run.directory)).stdout
    run.wait_ending(90)
    assert Epoch(0, 0, 0, 1) == run.entries(RoundFormed)[-1].epoch
    assert uninterrupted(tmp_path) == run.result()


def test_a_killed_agent_on_the_batch_host_costs_no_wait(cluster: Cluster, tmp_path: Path) -> None:
    """When only the agent on the batch host dies, the script there requeues the job within seconds."""
    run = submit(cluster, (*THREE, "--nodes", "2:3"), plain(cluster, *SLOW))
    run.wait_checkpoint(20)
    batch_host = run.job()["BatchHost"]
    cluster.execute(batch_host, "pkill", "-KILL", "-f", AGENT_PROCESS)
    run.wait(lambda state: state.requeues == 1, "the requeue", 40)
    run.wait_ending(90)
    assert uninterrupted(tmp_path) == run.result()


def test_a_script_that_is_killed_between_rounds_is_replaced(cluster: Cluster, tmp_path: Path) -> None:
    """Agents without workers leave at once, before they have heard why: they ask Slurm if it was that."""
    run = submit(cluster, THREE, plain(cluster, *SLOW))
    run.wait_checkpoint(20)
    (_, killed, _), batch_host = nodes_of(run.entries(RoundFormed)[0]), run.job()["BatchHost"]
    cluster.execute(killed, "pkill", "-KILL", "-f", AGENT_PROCESS)
    run.wait(lambda state: state.running is None, "the end of the round", 30)
    cluster.execute(batch_host, "pkill", "-9", "-f", f"job{int(run.job_id):05d}/slurm_script")
    run.wait(lambda state: state.requeues == 1, "the requeue", 30)
    run.wait_ending(90)
    assert Cause.LAUNCH_FAILURE in [entry.cause for entry in run.entries(Requeued)]
    assert uninterrupted(tmp_path) == run.result()


def test_an_agent_that_never_comes_is_not_waited_for(cluster: Cluster, tmp_path: Path) -> None:
    """Python cannot be run on one node: the job is requeued at once, and does without the node."""
    python = cluster.shared / "python"
    is_broken = 'case "$SLURMD_NODENAME $*" in "node2 "*" hpc_elastic run "*) exit 9 ;; esac'
    python.write_text(f'#!/bin/sh\n{is_broken}\nexec {PYTHON} "$@"\n')
    python.chmod(0o755)
    run = submit(cluster, (*THREE, "--python", str(python)), plain(cluster, *SLOW))
    run.wait_ending(90)
    assert "2 of 3 nodes joined, and no other agent runs; missing: node2" in run.log()
    assert [["node1", "node3", "node4"]] == [nodes_of(entry) for entry in run.entries(RoundFormed)]
    assert uninterrupted(tmp_path) == run.result()
