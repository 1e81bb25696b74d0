"""The main job on a real Slurm: submitted by an unprivileged user, preempted, limited, ended by hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpc_elastic.record.checkpoints import MarkName, encode_name, write_mark
from hpc_elastic.record.journal import Cause, Decision, Drained, Epoch, RoundFormed
from tests.real_slurm.cluster import Cluster
from tests.real_slurm.conftest import StartCluster
from tests.real_slurm.jobs import (
    SLOW,
    THREE,
    Run,
    installed_for_users,
    nodes_of,
    plain,
    submit,
    uninterrupted,
)

pytestmark = pytest.mark.usefixtures(installed_for_users.__name__)


def drains(run: Run) -> list[Cause]:
    """Return why the starts of a run were left."""
    return [entry.cause for entry in run.entries(Drained)]


@pytest.mark.both_trackers
def test_three_nodes_with_two_workers_each_finish(cluster: Cluster, tmp_path: Path) -> None:
    """A run on 3 nodes x 2 workers ends as done, with the result of the bare training."""
    run = submit(cluster, THREE, plain(cluster))
    state = run.wait_ending()
    run.wait_gone()
    assert state.ending is not None
    assert Decision.DONE is state.ending.decision
    (formed,) = run.entries(RoundFormed)
    assert ["node1", "node2", "node3"] == nodes_of(formed)
    assert [2, 2, 2] == [member.slots for member in formed.members]
    assert ("COMPLETED", "0:0") == (run.job()["JobState"], run.job()["ExitCode"])
    assert uninterrupted(tmp_path) == run.result()


@pytest.mark.both_trackers
@pytest.mark.parametrize("partition", ["low", "low0"], ids=["grace", "no-grace"])
def test_a_preempted_run_resumes_by_itself(cluster: Cluster, tmp_path: Path, partition: str) -> None:
    """Preempted by a higher partition, a run saves, is requeued, resumes where it stopped and finishes."""
    run = submit(cluster, (*THREE, "--partition", partition), plain(cluster, *SLOW))
    run.wait_checkpoint(20)
    high = cluster.submit_high(4)
    state = run.wait(lambda state: state.drained is not None, "the run to drain")
    stopped = state.drained.step if state.drained else None
    run.wait(lambda state: state.requeues == 1, "the requeue")
    cluster.wait_state(high, "RUNNING")
    cluster.as_root("scancel", high)
    state = run.wait_ending(120)
    # a late kill of the first start may hit the second one, which is then started again
    second = next(entry for entry in run.entries(RoundFormed) if entry.epoch > Epoch(0, 0, 0, 0))
    assert stopped == second.checkpoint.step
    assert [Cause.PREEMPTION] == drains(run)
    assert uninterrupted(tmp_path) == run.result()


def test_a_run_under_a_step_manager_is_preempted(
    cluster: Cluster, start_cluster: StartCluster, tmp_path: Path
) -> None:
    """A process on its batch host manages its steps; it is saved, requeued and finished as any other."""
    asked = ("sbatch", "--test-only", "--partition=low", "--stepmgr", "--wrap=true")
    known = cluster.run("alice", asked).returncode == 0
    assert known == (cluster.fact("step manager") != "refused")
    if not known:
        return
    site = start_cluster(nodes=2, tracker=cluster.tracker, options=("--extra", "PrologFlags=contain"))
    flags = ("--nodes", "2", "--time", "10m", "--partition", "low", "-o", "stepmgr")
    run = submit(site, flags, plain(site, *SLOW, steps=100))
    run.wait_checkpoint(20)
    assert "Yes" == run.job()["StepMgrEnabled"]
    high = site.submit_high(2)
    run.wait(lambda state: state.requeues == 1, "the requeue")
    site.wait_state(high, "RUNNING")
    site.as_root("scancel", high)
    run.wait_ending(120)
    assert [Cause.PREEMPTION] == drains(run)
    assert uninterrupted(tmp_path, 100) == run.result()


@pytest.mark.both_trackers
def test_a_cancelled_run_is_never_requeued(cluster: Cluster) -> None:
    """After scancel the job is over for good, and the run says so."""
    run = submit(cluster, THREE, plain(cluster, "--step-time", "0.5"))
    run.wait(lambda state: state.running is not None, "the workers to run")
    cluster.run("alice", ["scancel", run.job_id])
    run.wait_gone()
    state = run.wait_ending(30)
    assert state.ending is not None
    assert Decision.CANCELLED is state.ending.decision
    assert ("CANCELLED", "0") == (run.job()["JobState"], run.job()["Restarts"])


def test_a_finished_job_that_slurm_starts_again_ends_at_once(cluster: Cluster) -> None:
    """A done run is never rerun: started again by a requeue, its job completes without a round."""
    run = submit(cluster, THREE, plain(cluster))
    run.wait_ending()
    run.wait_gone()
    cluster.as_root("scontrol", "requeue", run.job_id)
    cluster.wait_for(lambda: run.job().get("Restarts") == "1", 60, "the second start")
    cluster.wait_state(run.job_id, "COMPLETED", 60)
    assert 1 == len(run.entries(RoundFormed))


def test_stop_saves_and_ends_the_run(cluster: Cluster) -> None:
    """`hpc-elastic stop` drains a run: checkpoint, no requeue, and `submit --resume` goes on from there.

    A save was slow meanwhile, so the next job is warned earlier, and its agents let workers save longer.
    """
    run = submit(cluster, THREE, plain(cluster, *SLOW))
    run.wait_checkpoint(20)
    run.command("stop", str(run.directory))
    state = run.wait_ending(60)
    run.wait_gone()
    assert state.ending is not None
    assert Decision.STOPPED is state.ending.decision
    assert "COMPLETED" == run.job()["JobState"]
    shown = run.command("status", str(run.directory)).stdout
    assert "stopped" in shown
    slow = MarkName(1, 1, 0, 2)
    write_mark(run.paths, slow, None, 2, took_s=104)
    (Path(run.paths.checkpoints) / encode_name(slow)).chmod(0o644)  # its reader is another user here
    said = run.command("submit", "--resume", str(run.directory)).stdout
    assert "workers get 140 s to save before the time limit" in said
    again = Run(cluster, run.directory, re.findall(r"job (\d+)", said)[0])
    arguments = " 1 0 140" if cluster.fact("shown command") == "script and arguments" else ""
    assert again.job()["Command"].endswith(f"/job.sbatch{arguments}")
    state = run.wait(lambda state: state.epoch.submission == 1 and state.ending is not None, "the end", 90)
    assert state.ending is not None
    assert Decision.DONE is state.ending.decision
    assert run.entries(Drained)[0].step == run.entries(RoundFormed)[-1].checkpoint.step
