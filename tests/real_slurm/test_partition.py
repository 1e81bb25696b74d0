"""Nodes that Slurm cannot reach, while the shared directory stays: no run is torn in two."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.record.journal import Decision, RoundFormed
from tests.real_slurm.cluster import Cluster, devcluster
from tests.real_slurm.jobs import (
    SLOW,
    Run,
    installed_for_users,
    nodes_of,
    plain,
    submit,
    uninterrupted,
)

pytestmark = pytest.mark.usefixtures(installed_for_users.__name__)

STEPS = 400
OURS = r"hpc_elastic run|start\.bin run|plain\.py"  # command lines of agents and workers
# No GPUs: a job with some that is requeued before slurmctld misses a node loses them (docs/concepts.md).
SHAPE = ("--nodes", "3", "--workers-per-node", "2", "--time", "10m", "--partition", "low")


def agents_on(cluster: Cluster, node: str) -> str:
    """Return the command lines of the agents and workers on a node."""
    words = ("pgrep", "--full", "--list-full", OURS)
    return devcluster("exec", "--dir", str(cluster.directory), node, *words).stdout


def agent_log(run: Run, node: str) -> str:
    """Return what the agent on a node has said."""
    return Path(run.paths.agent_log(node)).read_text()


def test_a_short_cut_and_a_restart_of_slurmd_disturb_nobody(cluster: Cluster, tmp_path: Path) -> None:
    """The link of one node is down for 5 s, slurmd of another is killed and started: one round all along.

    Neither the nodes of one job notice, nor the tasks of an array.
    """
    run = submit(cluster, SHAPE, plain(cluster, *SLOW, steps=STEPS))
    tasks = ("--mode", "array", "--gpus-per-node", "2", "--nodes", "4", "--time", "10m", "--partition", "low")
    array = submit(cluster, tasks, plain(cluster, *SLOW, steps=STEPS))
    array.wait_checkpoint(20)
    run.wait_checkpoint(20)
    cluster.cut("node3")
    cluster.command("kill-slurmd", "node2")
    cut_at = SystemClock().monotonic()
    cluster.wait_for(lambda: SystemClock().monotonic() - cut_at > 5, 30, "five seconds to pass")
    cluster.heal("node3")
    cluster.command("start-slurmd", "node2")
    array.wait_ending(120)
    run.wait_ending(120)
    run.wait_gone()
    assert [1, 1] == [len(each.entries(RoundFormed)) for each in (run, array)]
    assert ("COMPLETED", "0") == (run.job()["JobState"], run.job()["Restarts"])
    assert uninterrupted(tmp_path, STEPS) == run.result()


def test_the_agent_on_a_node_that_is_cut_off_stands_down(cluster: Cluster, tmp_path: Path) -> None:
    """It was frozen when its job began again elsewhere: it reads that, ends its workers, and leaves."""
    run = submit(cluster, SHAPE, plain(cluster, *SLOW, steps=STEPS))
    run.wait_checkpoint(20)
    cluster.cut("node3")
    cluster.execute("node3", "pkill", "-STOP", "--full", OURS)
    cluster.run("alice", ["scontrol", "requeue", run.job_id])
    run.wait(lambda state: state.rounds == 2, "the second start", 120)
    assert "" != agents_on(cluster, "node3")
    cluster.execute("node3", "pkill", "-CONT", "--full", OURS)
    assert "node3" not in nodes_of(run.entries(RoundFormed)[-1])
    cluster.wait_for(lambda: agents_on(cluster, "node3") == "", 60, "the orphans on node3 to end")
    assert "leaving: a newer start of this run exists" in agent_log(run, "node3")
    cluster.heal("node3")
    state = run.wait_ending(150)
    assert state.ending is not None
    assert Decision.DONE is state.ending.decision
    assert uninterrupted(tmp_path, STEPS) == run.result()


def test_a_node_that_comes_back_into_its_job_does_not_end_the_run(cluster: Cluster, tmp_path: Path) -> None:
    """Slurm's late kill may hit the new agent there, or the launch fail (rc 168): the run goes on anyhow."""
    # an agent that is killed before it shows itself is waited for as long as one that starts slowly
    flags = (*SHAPE, "--exclude", "node4", "--join-timeout", "20")
    run = submit(cluster, flags, plain(cluster, *SLOW, steps=STEPS))
    run.wait_checkpoint(20)
    cluster.cut("node3")
    cluster.run("alice", ["scontrol", "requeue", run.job_id])
    cluster.wait_for(lambda: cluster.is_missed("node3"), 90, "Slurm to miss node3")
    cluster.heal("node3")
    run.wait(lambda state: state.rounds >= 2, "the second start", 150)
    state = run.wait_ending(240)
    assert state.ending is not None
    assert Decision.DONE is state.ending.decision
    assert uninterrupted(tmp_path, STEPS) == run.result()
