"""Whole runs on a fake Slurm: preempted, cancelled, out of time, with lost nodes."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.record.journal import (
    Cause,
    Decision,
    Drained,
    Epoch,
    NodeLeft,
    NodeUnfit,
    Requeued,
    RoundEnded,
    RoundFormed,
)
from hpc_elastic.testing.fake_slurm import FakeSlurm
from tests.real_slurm.jobs import Run, nodes_of, plain, submit, uninterrupted
from tests.testing.fake_cluster import FakeCluster

pytestmark = [pytest.mark.slow, pytest.mark.fake_slurm(grace=120, kill_wait=120, speed=120)]
# Limits that no process comes near on a busy machine; what Slurm itself waits for takes 1 to 3 s.

TWO = ("--nodes", "2", "--gpus-per-node", "2", "--time", "10m", "--partition", "low")
TWO_OR_THREE = ("--nodes", "2:3", "--gpus-per-node", "1", "--time", "10m", "--partition", "low")


@pytest.fixture
def cluster(fake_slurm: FakeSlurm) -> FakeCluster:
    """Return the fake as the helpers of the tests on a real Slurm take it."""
    return FakeCluster(fake_slurm, skips=False)


STEPS = 80
SLOWLY = """
import os, runpy, sys, time
sign, *sys.argv = sys.argv[1:]
_sleep, _steps = time.sleep, 0
def sleep(seconds):
    global _steps
    _steps += seconds == 0.03
    _sleep(2.0 if seconds == 0.03 and _steps > 24 and os.path.exists(sign) else seconds)
time.sleep = sleep
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs the training with slow steps from the 25th on, as long as a file exists: it is not over too early."""


def begun(cluster: FakeCluster, flags: tuple[str, ...] = TWO) -> Run:
    """Submit a training and wait for its first checkpoint; it is slow until `go_on`."""
    real: Any = cluster  # has what the helpers need of a real one
    (cluster.shared / "slowly.py").write_text(SLOWLY)
    (cluster.shared / "slow").touch()
    python, *words = plain(real, "--step-time", "0.03", steps=STEPS)
    slowly = [python, str(cluster.shared / "slowly.py"), str(cluster.shared / "slow")]
    run = submit(real, flags, [*slowly, *words])
    run.wait_checkpoint(20)
    return run


def go_on(cluster: FakeCluster) -> None:
    """Have the training take no more time: what was to happen to it has happened."""
    (cluster.shared / "slow").unlink()


def test_a_preempted_run_resumes_by_itself(cluster: FakeCluster, tmp_path: Path) -> None:
    """It saves, is requeued, resumes where it stopped, and ends with the result of the bare training."""
    run = begun(cluster)
    high = cluster.submit_high(4)
    state = run.wait(lambda state: state.drained is not None, "the run to drain")
    go_on(cluster)
    stopped = state.drained.step if state.drained else None
    cluster.wait_state(high, "RUNNING")
    cluster.as_root("scancel", high)
    run.wait_ending()
    second = run.entries(RoundFormed)[-1]
    assert Epoch(0, 0, 1, 0) == second.epoch
    assert [2, 2] == [member.slots for member in second.members]
    assert stopped == second.checkpoint.step
    assert [Cause.PREEMPTION] == [entry.cause for entry in run.entries(Drained)]
    cluster.wait_state(run.job_id, "COMPLETED")
    assert ["REQUEUED", "COMPLETED"] == cluster.slurm.accounted(run.job_id)
    assert uninterrupted(tmp_path, STEPS) == run.result()


def test_a_cancelled_run_is_not_requeued(cluster: FakeCluster) -> None:
    """After scancel the run is over and says so."""
    run = begun(cluster)
    cluster.as_root("scancel", run.job_id)
    state = run.wait_ending()
    assert state.ending is not None
    assert Decision.CANCELLED is state.ending.decision
    cluster.wait_state(run.job_id, "CANCELLED")
    assert "0" == run.job()["Restarts"]


def test_the_time_limit_costs_no_step(cluster: FakeCluster, tmp_path: Path) -> None:
    """Warned ahead of its limit, a run saves, is requeued, and goes on at the step it stopped at."""
    run = begun(cluster)
    cluster.slurm.advance(9 * 60)
    run.wait(lambda state: state.requeues == 1, "the requeue")
    go_on(cluster)
    state = run.wait(lambda state: state.rounds == 2, "the second start")
    assert state.round is not None
    assert state.round.checkpoint is not None
    assert run.entries(Drained)[0].step == state.round.checkpoint.step
    assert [Cause.TIME_LIMIT] == [entry.cause for entry in run.entries(Drained)]
    run.wait_ending()
    assert uninterrupted(tmp_path, STEPS) == run.result()


def test_survivors_of_a_node_loss_go_on(cluster: FakeCluster, tmp_path: Path) -> None:
    """With nodes 2:3 the loss of one makes the world smaller, in the same start of the job."""
    run = begun(cluster, TWO_OR_THREE)
    first = run.entries(RoundFormed)[0]
    cluster.crash(nodes_of(first)[2])
    run.wait(lambda state: state.rounds == 2, "the round without it")
    go_on(cluster)
    run.wait_ending()
    second = run.entries(RoundFormed)[-1]
    assert nodes_of(first)[:2] == nodes_of(second)
    assert first.epoch == second.epoch
    assert [Cause.NODE_LOSS] == [entry.cause for entry in run.entries(RoundEnded)]
    assert uninterrupted(tmp_path, STEPS) == run.result()


FAILS_ON = """
import os, sys, time
if os.environ["HPC_ELASTIC_NODE"] == sys.argv[1]:
    raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB")
if os.environ["WORLD_SIZE"] == "3":
    time.sleep(600)
"""


def test_a_node_that_always_fails_is_left_out_of_the_run_and_of_the_next_one(cluster: FakeCluster) -> None:
    """With nodes 2:3 and the settings of a job: after three failures there the two others end the run."""
    real: Any = cluster  # has what the helpers need of a real one
    (cluster.shared / "fails.py").write_text(FAILS_ON)
    bad = cluster.node_names[1]
    run = submit(real, TWO_OR_THREE, [sys.executable, str(cluster.shared / "fails.py"), bad])
    state = run.wait_ending()
    assert state.ending is not None
    assert Decision.DONE is state.ending.decision
    assert [3, 3, 3, 2] == [len(formed.members) for formed in run.entries(RoundFormed)]
    (unfit,) = run.entries(NodeUnfit)
    assert (bad, True) == (unfit.node, unfit.by_failures)
    assert "the same failure 3 times in a row, always on" in unfit.reason
    cluster.wait_state(run.job_id, "COMPLETED")
    again = submit(real, TWO_OR_THREE[2:], [sys.executable, "-c", "pass"])
    assert bad == again.job()["ExcNodeList"]


def test_a_run_of_fixed_size_is_requeued_after_a_node_loss(cluster: FakeCluster, tmp_path: Path) -> None:
    """With exactly 2 nodes a lost one sends the job back; it finishes elsewhere."""
    run = begun(cluster)
    lost = nodes_of(run.entries(RoundFormed)[0])[1]
    cluster.crash(lost)
    run.wait(lambda state: state.requeues == 1, "the requeue", 60)
    go_on(cluster)
    run.wait_ending()
    assert lost not in nodes_of(run.entries(RoundFormed)[-1])
    assert uninterrupted(tmp_path, STEPS) == run.result()


def test_a_preempted_task_of_an_array_leaves_alone(cluster: FakeCluster, tmp_path: Path) -> None:
    """The others go on at once; the task is put back by itself, and the result is the same."""
    run = begun(cluster, ("--mode", "array", "--nodes", "1:3", "--last-call-timeout", "2", *TWO[2:]))
    state = run.wait(lambda state: state.running is not None, "a round")
    assert state.running is not None
    node = nodes_of(state.running)[0]
    high = cluster.submit_high(1, f"--nodelist={node}")
    run.wait(lambda _state: bool(run.entries(NodeLeft)), "the node to leave")
    go_on(cluster)
    cluster.as_root("scancel", high)
    run.wait_ending()
    assert [(node, Cause.PREEMPTION)] == [(left.node, left.cause) for left in run.entries(NodeLeft)]
    assert uninterrupted(tmp_path, STEPS) == run.result()


def test_a_killed_srun_is_started_again(cluster: FakeCluster, tmp_path: Path) -> None:
    """SIGKILL of srun ends the step; the script starts another one in the same start of the job."""
    run = begun(cluster)
    (srun,) = [one for one in cluster.slurm.processes(run.job_id) if one.step == "srun"]
    os.kill(srun.pid, signal.SIGKILL)
    run.wait(lambda state: state.rounds == 2, "the next round")
    go_on(cluster)
    run.wait_ending()
    assert Epoch(0, 0, 0, 1) == run.entries(RoundFormed)[-1].epoch
    assert uninterrupted(tmp_path, STEPS) == run.result()


@pytest.mark.fake_slurm(version="26.05", expedited_requeue=True, cred_expire=72000)
def test_where_the_site_expedites_requeues_a_run_does_not_wait(cluster: FakeCluster, tmp_path: Path) -> None:
    """After the loss of its batch host it goes on elsewhere at once; one that fails for good is not held."""
    run = begun(cluster)
    cluster.crash(nodes_of(run.entries(RoundFormed)[0])[0])
    real: Any = cluster
    fails = submit(real, ("--nodes", "1"), [plain(real)[0], "-c", "raise SystemExit(3)"])
    cluster.wait_state(fails.job_id, "FAILED")
    run.wait(lambda state: state.requeues == 1, "the requeue")
    go_on(cluster)
    run.wait_ending()
    assert [Cause.NODE_LOSS] == [entry.cause for entry in run.entries(Requeued)]
    assert "1" == run.job()["Restarts"]
    assert uninterrupted(tmp_path, STEPS) == run.result()
