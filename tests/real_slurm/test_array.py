"""Runs in array mode on a real Slurm: tasks that are preempted, lost, cancelled and scaled alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpc_elastic.record.journal import (
    Budget,
    Cause,
    Decision,
    Epoch,
    NodeLeft,
    RoundEnded,
    RoundFormed,
)
from hpc_elastic.record.state import RunState
from tests.real_slurm.cluster import Cluster
from tests.real_slurm.conftest import StartCluster
from tests.real_slurm.jobs import (
    AGENT_PROCESS,
    SLOW,
    Run,
    elastic,
    installed_for_users,
    nodes_of,
    plain,
    submit,
    uninterrupted,
)

pytestmark = pytest.mark.usefixtures(installed_for_users.__name__)

ARRAY = ("--mode", "array", "--gpus-per-node", "2", "--time", "10m", "--partition", "low")
QUICK = ("--last-call-timeout", "5")
STEPS = 300


def wait_empty_queue(cluster: Cluster) -> None:
    """Wait until Slurm has no job any more, not even a waiting one."""
    cluster.wait_for(lambda: "" == cluster.as_root("squeue", "--noheader").strip(), 60, "an empty queue")


def hurried(cluster: Cluster) -> list[str]:
    """Return the jobs that Slurm has; those that wait for their time are started.

    Since 24.05 Slurm starts a task once more that has ended after a requeue within its grace time.
    """
    found = cluster.as_root("squeue", "--noheader", "--array", "--format=%i").split()
    for job in found:
        cluster.as_root("scontrol", "update", f"jobid={job}", "StartTime=now")
    return found


def reasons(run: Run) -> str:
    """Return why the tasks of a run wait."""
    return run.cluster.as_root("squeue", "--noheader", "--array", "--format=%R", f"--jobs={run.job_id}")


def wait_size(
    run: Run, size: int, timeout: float = 60, *, without: str = "", at_most: int | None = None
) -> RoundFormed:
    """Wait until a round of so many nodes runs, without one of them, and return it."""
    sizes = range(size, (at_most or size) + 1)

    def fits(state: RunState) -> bool:
        formed = state.running
        return formed is not None and len(formed.members) in sizes and without not in nodes_of(formed)

    state = run.wait(fits, f"a round of {size}", timeout)
    assert state.running is not None
    return state.running


def wait_log(run: Run, task: int, text: str) -> None:
    """Wait until the batch log of a task holds a text."""
    path = run.directory / f"slurm-{run.job_id}_{task}.out"
    try:
        run.cluster.wait_for(lambda: text in path.read_text(), 30, f"{text!r} in {path}")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{path.read_text()}\n{run.journal()}") from None


def task_on(run: Run, node: str) -> int:
    """Return the number of the task that runs on a node."""
    shown = run.cluster.as_root("squeue", "--noheader", f"--nodelist={node}", "--format=%F %K")
    (found,) = [line.split()[1] for line in shown.splitlines() if line.split()[0] == run.job_id]
    return int(found)


def test_preempted_tasks_leave_alone_and_come_back(cluster: Cluster, tmp_path: Path) -> None:
    """The others go on at once, below the minimum they wait and hand back, and the result is the same."""
    flags = (*ARRAY, *QUICK, "--join-timeout", "4", "--nodes", "2:6")
    run = submit(cluster, flags, plain(cluster, *SLOW, steps=STEPS))
    first = wait_size(run, 4)
    run.wait_checkpoint(20)
    wanted = nodes_of(first)[0]  # the first node is nothing special
    task = task_on(run, wanted)
    high = [cluster.submit_high(1, f"--nodelist={wanted}")]
    second = wait_size(run, 3)
    assert [Cause.PREEMPTION] == [entry.cause for entry in run.entries(RoundEnded)]
    assert [(wanted, Cause.PREEMPTION)] == [(each.node, each.cause) for each in run.entries(NodeLeft)]
    assert nodes_of(first)[1:] == nodes_of(second)
    assert second.checkpoint is not None
    wait_log(run, task, "this task is requeued (1 of at most 500)")
    high.append(cluster.submit_high(2, f"--nodelist={','.join(nodes_of(second)[:2])}"))
    state = run.wait(lambda state: state.requeues > 0, "the rest to hand back", 60)
    assert 1 == state.used(Cause.JOIN_TIMEOUT)
    cluster.as_root("scancel", *high)
    third = wait_size(run, 4, 90)
    assert third.epoch >= Epoch(0, 0, 1, 0)
    state = run.wait_ending(120)
    assert state.ending is not None
    assert Decision.DONE is state.ending.decision
    wait_empty_queue(cluster)  # two of the six have never had a node
    assert uninterrupted(tmp_path, STEPS) == run.result()


def test_lost_tasks_come_back_and_cancelled_ones_do_not(cluster: Cluster) -> None:
    """A node crashes, an agent is killed, a node is cut off with its agent; then one task and all end."""
    run = submit(cluster, (*ARRAY, *QUICK, "--nodes", "1:3"), plain(cluster, *SLOW, steps=20 * STEPS))
    lost, killed, cut = nodes_of(wait_size(run, 3))
    run.wait_checkpoint(20)
    task = task_on(run, killed)
    cluster.cut(cut)  # its agent goes on: the shared directory is still there
    cluster.crash(lost)
    cluster.execute(killed, "pkill", "-KILL", "-f", AGENT_PROCESS)
    wait_log(run, task, "start the agent again (1 of 3)")
    cluster.wait_for(lambda: cluster.is_missed(lost), 60, f"Slurm to miss {lost}")
    cluster.boot(lost)
    last = wait_size(run, 3, 120, without=cut)
    assert killed in nodes_of(last)
    assert Cause.NODE_LOSS in [entry.cause for entry in run.entries(RoundEnded)]
    agent_log = Path(run.paths.agent_log(cut))
    cluster.wait_for(lambda: "a newer start" in agent_log.read_text(), 30, "the old agent to stand down")
    cluster.run("alice", ["scancel", f"{run.job_id}_{task}"])
    wait_size(run, 2)
    wait_log(run, task, "the run goes on without it")
    cluster.run("alice", ["scancel", run.job_id])
    ending = run.wait_ending(60).ending
    assert ending is not None
    assert Decision.CANCELLED is ending.decision


def test_a_run_is_scaled_stopped_and_resumed(cluster: Cluster) -> None:
    """Nodes beyond the size are given back and wait; more than the array has are a further array."""
    run = submit(cluster, (*ARRAY, *QUICK, "--nodes", "1:3"), plain(cluster, *SLOW, steps=20 * STEPS))
    wait_size(run, 3)
    run.wait_checkpoint(20)
    run.command("scale", str(run.directory), "--nodes", "1")
    wait_size(run, 1)
    reason = "has 1 node in place of 3: scaled from 3 to 1 node by the user"
    cluster.wait_for(lambda: reason in run.log(), 30, "the batch log to tell why")
    absurd = elastic(cluster, "scale", str(run.directory), "--nodes", "5000")
    assert "5000 nodes are wanted, which can never run at once: partition low has 4 nodes" in absurd.stderr
    cluster.wait_for(
        lambda: 2 == reasons(run).count("JobArrayTaskLimit"), 40, "the throttle to hold two tasks"
    )
    told = run.command("scale", str(run.directory), "--nodes", "4")
    assert "1 more task is queued as array" in told.stdout
    wait_size(run, 4, 90)
    assert "4 tasks run" in run.command("status", str(run.directory)).stdout
    run.command("stop", str(run.directory))
    ending = run.wait_ending().ending
    assert ending is not None
    assert (Decision.STOPPED, 0) == ending[:2]
    wait_empty_queue(cluster)
    told = run.command("submit", "--resume", str(run.directory))
    run = Run(cluster, run.directory, re.findall(r"job (\d+)", told.stdout)[0])
    run.wait(lambda state: state.epoch.submission == 1, "the second submission", 30)
    again = wait_size(run, 3, 60)
    assert again.checkpoint is not None
    task = task_on(run, nodes_of(again)[1])
    cluster.as_root("scancel", "--signal=USR2", f"{run.job_id}_{task}")  # as before the time limit
    wait_size(run, 2, 30)
    assert Cause.TIME_LIMIT is run.entries(NodeLeft)[-1].cause
    wait_size(run, 3, 60)
    run.command("cancel", str(run.directory))
    wait_empty_queue(cluster)


def test_a_task_that_comes_back_does_not_wait(start_cluster: StartCluster) -> None:
    """Slurm would have it wait for minutes; the node that goes on has it started as soon as one is free."""
    cluster = start_cluster(nodes=2, options=("--cred-expire", "300"))
    run = submit(cluster, (*ARRAY, *QUICK, "--nodes", "1:2"), plain(cluster, *SLOW, steps=1000))
    first = wait_size(run, 2)
    run.wait_checkpoint(20)
    high = cluster.submit_high(1, f"--nodelist={nodes_of(first)[1]}")
    wait_size(run, 1)
    cluster.wait_state(high, "RUNNING")
    cluster.wait_for(lambda: "BeginTime" in reasons(run), 30, "the task to wait for its time")

    def is_told() -> bool:
        told = run.command("status", str(run.directory)).stdout
        waits = rf"lets task {run.job_id}_\d wait until 2.*, as after every requeue; to start it "
        return re.search(waits, told) is not None or "BeginTime" not in reasons(run)  # the node was quicker

    cluster.wait_for(is_told, 30, "status to tell what the task waits for")
    cluster.as_root("scancel", high)
    wait_size(run, 2, 90)
    run.command("stop", str(run.directory))
    cluster.wait_for(lambda: hurried(cluster) == [], 60, "an empty queue")


def test_a_spent_budget_holds_all_tasks_until_they_are_released(cluster: Cluster) -> None:
    """Those that run save first; the released ones go on from there."""
    flags = (*ARRAY, *QUICK, "--nodes", "1:2", "--max-preemptions", "0")
    run = submit(cluster, flags, plain(cluster, *SLOW, steps=20 * STEPS))
    first = wait_size(run, 2)
    run.wait_checkpoint(20)
    high = cluster.submit_high(1, f"--nodelist={nodes_of(first)[1]}")
    state = run.wait_ending()
    assert state.ending is not None
    assert (Decision.HELD, Budget.PREEMPTIONS) == (state.ending.decision, state.ending.budget)
    cluster.wait_for(lambda: 2 == reasons(run).count("held state"), 60, "both tasks to be held")
    cluster.as_root("scancel", high)
    assert 0 == cluster.run("alice", ["scontrol", "release", run.job_id]).returncode
    second = wait_size(run, 2, 90)
    assert Epoch(0, 0, 1, 0) == second.epoch
    assert second.checkpoint is not None
    run.command("cancel", str(run.directory))
    wait_empty_queue(cluster)
