"""What Slurm does to single tasks of a run in array mode, and how such a run ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_elastic.record.journal import Cause, Decision, NodeLeft, Requeued, RoundFormed, StopKind, TaskStopped
from hpc_elastic.record.node_faults import node_faults
from hpc_elastic.record.run_log import read_records
from hpc_elastic.record.state import RunState
from tests.real_slurm.cluster import Cluster
from tests.real_slurm.jobs import PYTHON, SLOW, Run, installed_for_users, nodes_of, plain, submit
from tests.real_slurm.test_array import QUICK, STEPS, task_on, wait_empty_queue, wait_log, wait_size

pytestmark = pytest.mark.usefixtures(installed_for_users.__name__)

ARRAY = ("--mode", "array", "--time", "10m")
WHOLE_NODES = (*ARRAY, *QUICK, "--gpus-per-node", "2")
SMALL = (*ARRAY, *QUICK, "--gpus-per-node", "1", "--partition", "low")
CRASHES = "import os, time; time.sleep(0.2 if os.environ['RANK'] == '1' else 600); 1 / 0"


def task(run: Run, number: int) -> dict[str, str]:
    """Return what Slurm says of a task."""
    return run.cluster.job(f"{run.job_id}_{number}")


def wait_left(run: Run, node: str, cause: Cause) -> None:
    """Wait until a node has left a run for a cause."""

    def has_left(_state: object) -> bool:
        return (node, cause) in [(entry.node, entry.cause) for entry in run.entries(NodeLeft)]

    run.wait(has_left, f"{node} to leave for {cause.value}")


def wait_running(run: Run) -> None:
    """Wait until a round runs that no node has left, so that what is done next is a stop of its own."""

    def runs(state: RunState) -> bool:
        members = state.running.members if state.running is not None else ()
        return bool(members) and state.left.isdisjoint(one.node_id for one in members)

    run.wait(runs, "the next round")


def restarts(run: Run, tasks: dict[str, int]) -> dict[str, int]:
    """Return how often Slurm has put the task on each node back into the queue."""
    return {node: int(task(run, number)["Restarts"]) for node, number in tasks.items()}


def strike_three_of_four(cluster: Cluster, run: Run) -> list[str]:
    """Kill a script and an srun, and requeue a task, on a node each; return the nodes afterwards."""
    by_script, by_hand, by_srun, spared = nodes_of(wait_size(run, 4))
    run.wait_checkpoint(20)
    on = {node: task_on(run, node) for node in (by_script, by_hand, by_srun, spared)}
    script = f"job{int(task(run, on[by_script])['JobId']):05d}/slurm_script"
    cluster.execute(by_script, "pkill", "-9", "-f", script)
    cluster.run("alice", ["scontrol", "requeue", f"{run.job_id}_{on[by_hand]}"])
    wait_left(run, by_script, Cause.LAUNCH_FAILURE)
    wait_left(run, by_hand, Cause.REQUEUE)
    wait_running(run)
    cluster.execute(by_srun, "pkill", "-KILL", "--oldest", "-x", "srun")
    wait_log(run, on[by_srun], "start the agent again (1 of 3)")
    run.wait(lambda _state: set(restarts(run, on).values()) == {0, 1}, "the requeues")
    back = nodes_of(wait_size(run, 4, 90))
    assert {by_script: 1, by_hand: 1, by_srun: 0, spared: 0} == restarts(run, on)
    said = "".join(path.read_text() for path in Path(run.paths.agent_logs).iterdir())
    assert 1 == said.count("this task is requeued from here")
    return back


@pytest.fixture
def down_lasts(cluster: Cluster) -> Iterator[None]:
    """Let a node that is set down stay so: with 2 its answer to a ping under way brings it back at once."""
    before = cluster.slurm_conf.read_text()
    cluster.change_settings(before.replace("ReturnToService=2", "ReturnToService=1"))
    yield
    cluster.change_settings(before)


@pytest.mark.usefixtures("down_lasts")
@pytest.mark.both_trackers
def test_what_happens_to_one_task_costs_no_other_its_start(cluster: Cluster) -> None:
    """A script and an srun are killed, a task is requeued; then a node is set down and two are preempted.

    Without grace time; and one of these two may not be requeued: another task goes on in its place.
    """
    flags = (*WHOLE_NODES, "--partition", "low0", "--nodes", "1:4")
    run = submit(cluster, flags, plain(cluster, *SLOW, steps=20 * STEPS))
    down, wanted, final, spared = strike_three_of_four(cluster, run)
    on = {node: task_on(run, node) for node in (down, wanted, final)}
    cluster.as_root("scontrol", "update", f"jobid={run.job_id}_{on[final]}", "requeue=0")
    cluster.as_root("scontrol", "update", f"nodename={down}", "state=down", "reason=test")
    wait_left(run, down, Cause.NODE_LOSS)
    wait_running(run)
    # Slurm holds a job that it starts again on a node that still clears up after it.
    cluster.as_root("scontrol", "update", f"nodename={down}", "state=drain", "reason=test")
    high = cluster.submit_high(2, f"--nodelist={wanted},{final}")
    wait_left(run, wanted, Cause.PREEMPTION)
    wait_left(run, final, Cause.PREEMPTION)
    cluster.wait_for(lambda: task(run, on[final])["JobState"] == "PREEMPTED", 60, "the task's end")
    assert [spared] == nodes_of(wait_size(run, 1, without=down))
    cluster.as_root("scancel", high)
    wait_size(run, 2, 90, without=down, at_most=3)  # 3: both places were taken at once
    cluster.as_root("scontrol", "update", f"nodename={down}", "state=resume")
    wait_size(run, 4, 90)  # nobody is left out
    assert [] == node_faults(read_records(run.paths), "run")  # not against that whose srun was killed, either
    assert "0" == task(run, on[final])["Restarts"]
    assert 1 == run.log().count("the run goes on with task ")
    assert [] == run.entries(Requeued)  # not the run: some of its tasks
    run.command("stop", str(run.directory))
    run.wait_ending()
    wait_empty_queue(cluster)


def stops(run: Run) -> list[StopKind]:
    """Return how tasks were stopped that brought no agent up."""
    return [entry.how for entry in run.entries(TaskStopped)]


def decided(run: Run) -> tuple[Decision, str]:
    """Wait for the end of a run; return how it ended and why."""
    ending = run.wait_ending().ending
    assert ending is not None
    return ending.decision, ending.reason


def check_second_end(run: Run, code: str) -> None:
    """Wait until the first task has ended once more, by the record, and Slurm says so."""
    log = run.directory / f"slurm-{run.job_id}_0.out"
    ends = "finish: the run is "
    run.cluster.wait_for(lambda: log.read_text().count(ends) == 2, 60, f"a second end of {run.job_id}_0")
    run.cluster.wait_for(lambda: task(run, 0)["ExitCode"] == code, 60, f"exit code {code}")
    assert ("1", "0") == (task(run, 0)["Restarts"], task(run, 1)["Restarts"])


def test_an_array_ends_once_and_for_all(cluster: Cluster) -> None:
    """Done, failed or cancelled: a task that Slurm starts again ends at once, and nobody is brought back.

    One run is done; one fails again and again, one has no restart left, and the root cause is told; one is
    cancelled while a task is on its way back; of one the script of a task fails once.
    """
    done = submit(cluster, (*SMALL, "--nodes", "2"), plain(cluster))
    fails = submit(cluster, (*SMALL, "--nodes", "2", "--max-restarts", "9"), [PYTHON, "-c", CRASHES])
    spent = submit(cluster, (*SMALL, "--nodes", "2", "--max-restarts", "0"), [PYTHON, "-c", CRASHES])
    decision, reason = decided(fails)
    assert (Decision.FAILED, True) == (decision, "the same failure 3 times in a row" in reason)
    assert (Decision.FAILED, "a worker failed") == decided(spent)
    assert Decision.DONE is decided(done)[0]
    failed = cluster.shared / "failed"  # only once: a task whose script fails four times is given up
    setup = f"test $SLURM_ARRAY_TASK_ID = 0 || test -e {failed} || {{ touch {failed}; false; }}"
    broken = submit(cluster, (*SMALL, "--nodes", "1:2", "--setup", setup), plain(cluster, *SLOW, steps=4000))
    whole = ("--nodes", "1:2", "--gpus-per-node", "2")  # so that each task has a node of its own
    cancelled = submit(cluster, (*SMALL, *whole), plain(cluster, *SLOW, steps=4000))
    broken.wait(lambda _state: StopKind.FAILED in stops(broken), "the script to fail")
    first, second = (task_on(cancelled, node) for node in nodes_of(wait_size(cancelled, 2)))
    for run in (done, fails, spent):
        cluster.run("alice", ["scontrol", "requeue", f"{run.job_id}_0"])
    cluster.run("alice", ["scancel", "--signal=TERM", f"{cancelled.job_id}_{first}"])
    cluster.wait_for(lambda: task(cancelled, first)["Restarts"] == "1", 60, "the requeue of a task")
    cluster.run("alice", ["scancel", cancelled.job_id])
    for run, code in ((done, "0:0"), (fails, "1:0"), (spent, "1:0")):
        check_second_end(run, code)
    assert [1, 3, 1] == [len(run.entries(RoundFormed)) for run in (done, fails, spent)]
    assert "ZeroDivisionError" in fails.log()
    assert Decision.CANCELLED is decided(cancelled)[0]
    for number, restarts in ((first, "1"), (second, "0")):
        found = task(cancelled, number)
        assert ("CANCELLED", restarts) == (found["JobState"], found["Restarts"])
    wait_size(broken, 2)
