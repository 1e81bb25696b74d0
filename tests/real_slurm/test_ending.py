"""How starts of a job end on a real Slurm, what becomes of the run, and what its user sees."""

from __future__ import annotations

import re
import sys
from datetime import datetime, timedelta

import pytest

from hpc_elastic.record.journal import Cause, Decision, Drained, NodeLeft, Requeued, RoundFormed
from hpc_elastic.record.state import RunState
from hpc_elastic.slurm.client import parse
from tests.real_slurm.cluster import Cluster
from tests.real_slurm.conftest import StartCluster
from tests.real_slurm.jobs import SLOW, Run, installed_for_users, plain, submit
from tests.real_slurm.test_array import QUICK, wait_size

pytestmark = pytest.mark.usefixtures(installed_for_users.__name__)

ONE = ("--nodes", "1", "--gpus-per-node", "1", "--time", "10m", "--partition", "low")
ARRAY = (*QUICK, "--mode", "array")
BY_NAME = ("--chain", "2", "--chain-by", "singleton", "--name", "named")
CRASHES = ("--max-restarts", "9", "--", sys.executable)


def decision(run: Run, what: Decision, timeout: float = 60) -> RunState:
    """Wait until a run has ended in a way and return its state."""
    return run.wait(
        lambda state: state.ending is not None and state.ending.decision is what, f"{what.value}", timeout
    )


def handed_back(run: Run) -> list[Cause]:
    """Return why the starts of a run were handed back."""
    return [entry.cause for entry in run.entries(Requeued)]


def preempt(cluster: Cluster, run: Run, step: int = 20) -> str:
    """Preempt a run once it has saved a step; return the id of the job that did it."""
    run.wait_checkpoint(step)
    return cluster.submit_high(cluster.nodes)


def rerun(run: Run) -> list[str]:
    """Return the ids of the further jobs of a run's submission."""
    shown = run.cluster.as_root("squeue", "--noheader", "--all", "--states=all", "--format=%A %o")
    ids = [line.split()[0] for line in shown.splitlines() if str(run.directory) in line]
    return sorted((each for each in ids if each != run.job_id), key=int)


def test_a_spent_budget_holds_the_job_until_its_user_releases_it(cluster: Cluster) -> None:
    """The job waits in the queue, says why, and goes on where it stopped after `scontrol release`."""
    run = submit(cluster, (*ONE, "--max-preemptions", "0"), plain(cluster, *SLOW, steps=240))
    high = preempt(cluster, run)
    held = decision(run, Decision.HELD)
    cluster.wait_state(run.job_id, "PENDING")
    cluster.as_root("scancel", high)
    assert held.ending is not None
    assert "max_preemptions = 0" in held.ending.reason
    assert "0" == run.job()["Priority"]
    assert "max_preemptions = 0" in run.job()["Comment"]
    shown = run.command("status", str(run.directory)).stdout
    assert "max_preemptions = 0" in shown
    assert f"scontrol release {run.job_id}" in shown
    assert 0 == cluster.run("alice", ["scontrol", "release", run.job_id]).returncode
    decision(run, Decision.DONE)
    assert run.entries(Drained)[0].step == run.entries(RoundFormed)[-1].checkpoint.step


def test_a_job_that_slurm_has_put_back_does_not_start_for_a_failed_run(cluster: Cluster) -> None:
    """Preempted without a grace, it is in the queue already as its script finds the budget spent."""
    shape = (*ONE, "--partition", "low0", "--max-preemptions", "0", "--on-budget-spent", "fail")
    run = submit(cluster, shape, plain(cluster, *SLOW, steps=240))
    high = preempt(cluster, run)
    failed = decision(run, Decision.FAILED)
    assert failed.ending is not None
    assert "max_preemptions = 0" in failed.ending.reason
    cluster.wait_state(run.job_id, "CANCELLED")
    cluster.as_root("scancel", high)
    assert f"took job {run.job_id} out of the queue" in run.log()
    cluster.wait_for(lambda: "to go on from the checkpoint" in run.log(), 30, "the last lines of finish")
    assert 1 == len(run.entries(RoundFormed))


def test_the_same_failure_again_and_again_ends_the_run(cluster: Cluster) -> None:
    """Nothing was saved in between, so that restarts that are left would not help; requeued, it says so."""
    flags = (*ONE, "--max-restarts", "9")
    code = "import os; raise SystemExit(f'no such file: rank {os.getpid()}')"
    run = submit(cluster, flags, [sys.executable, "-c", code])
    state = decision(run, Decision.FAILED)
    run.wait_gone()
    assert state.ending is not None
    assert 3 == len(run.entries(RoundFormed))
    assert re.search(r"the same failure 3 times in a row, on node\d, the only node", state.ending.reason)
    cluster.as_root("scontrol", "requeue", run.job_id)
    cluster.wait_for(lambda: "the run was failed already since" in run.log(), 60, "the second start to end")
    run.wait_gone()
    assert ("FAILED", "1:0") == (run.job()["JobState"], run.job()["ExitCode"])
    assert 3 == len(run.entries(RoundFormed))


def test_where_slurm_may_not_requeue_a_job_another_one_goes_on(cluster: Cluster) -> None:
    """Preempted, a plain run is submitted again; of a chain the next job goes on, and the last is taken away.

    A chain may wait for a job or for its name. All go on as the same submission, with the same counts,
    where they stopped.
    """
    steps = 480  # none may be done before all are queued, also on a busy machine
    again = submit(cluster, ONE, plain(cluster, *SLOW, steps=steps))
    chain = submit(cluster, (*ONE, "--chain", "3"), plain(cluster, *SLOW, steps=steps))
    named = submit(cluster, (*ONE, *BY_NAME), plain(cluster, *SLOW, steps=steps))
    cluster.as_root("scontrol", "update", f"jobid={again.job_id}", "requeue=0")
    second, third = rerun(chain)
    (last,) = rerun(named)
    assert "singleton" in cluster.job(last)["Dependency"]
    assert f"afterany:{second}" in cluster.job(third)["Dependency"]
    for run in (again, named):
        run.wait_checkpoint(20)
    high = preempt(cluster, chain)
    for run in (again, chain, named):
        run.wait(lambda state: state.requeues == 1, "the end of the first job")
    cluster.wait_for(lambda: len(rerun(again)) == 1, 30, "the second job")
    cluster.as_root("scancel", high)
    (submitted,) = rerun(again)
    for run, job_id in ((again, submitted), (chain, second), (named, last)):
        state = decision(run, Decision.DONE)
        assert (job_id, (0, 1, 0)) == (state.job_id, state.epoch[:3])
        assert [Cause.PREEMPTION] == handed_back(run)
        assert job_id in run.command("status", str(run.directory)).stdout
        assert run.entries(Drained)[0].step == run.entries(RoundFormed)[-1].checkpoint.step
    cluster.wait_state(third, "CANCELLED")
    assert "0" == cluster.job(chain.job_id)["Restarts"]


def test_a_failing_line_of_the_script_is_recorded_and_tried_again(cluster: Cluster) -> None:
    """It may be the node's fault; once it works the run is done, and when it never does the job is held."""
    switch = cluster.shared / "mounted"
    flags = (*ONE, "--max-launch-failures", "1", "--setup", f"test -e {switch}")
    ill = submit(cluster, (*ONE, "--max-launch-failures", "0", "--setup", "false"), plain(cluster))
    lacking = submit(cluster, (*ONE, "--setup", "no-such-program --load"), plain(cluster))
    well = submit(cluster, flags, plain(cluster))  # last: it must be mended before Slurm starts it again
    well.wait(lambda state: state.requeues == 1, "the requeue")
    switch.touch()
    assert [Cause.LAUNCH_FAILURE] == handed_back(well)
    assert f"setup failed (exit code 1): test -e {switch}" in well.entries(Requeued)[0].detail
    held = decision(ill, Decision.HELD)
    assert held.ending is not None
    assert "setup failed (exit code 1): false" in held.ending.reason
    decision(well, Decision.DONE)
    failed = decision(lacking, Decision.FAILED)  # at once: it would be missing in the next start, too
    assert failed.ending is not None
    assert "no-such-program --load (no-such-program: command not found)" in failed.ending.reason
    assert 0 == failed.requeues


def test_slurm_names_the_cause_not_the_signal(cluster: Cluster) -> None:
    """A node set down and a requeue by hand send the same signal to the agents as a preemption."""
    run = submit(cluster, ONE, plain(cluster, *SLOW, steps=400))
    run.wait_checkpoint(20)
    first = run.job()["NodeList"]
    cluster.as_root("scontrol", "update", f"nodename={first}", "state=down", "reason=test")
    run.wait(lambda state: state.requeues == 1, "the first requeue")
    run.wait(lambda state: state.running is not None and state.epoch.restart == 1, "the second start")
    cluster.run("alice", ["scontrol", "requeue", run.job_id])
    run.wait(lambda state: state.requeues == 2, "the second requeue")
    by_node, by_hand = handed_back(run)
    assert (Cause.NODE_LOSS, Cause.REQUEUE) == (by_node, by_hand)
    assert "scontrol requeue" in run.entries(Requeued)[-1].detail


def test_a_batch_host_that_is_set_down_is_a_lost_node(cluster: Cluster) -> None:
    """Slurm lets the job go on with its other node, and a second later ends it for want of its script."""
    run = submit(cluster, (*ONE, "--nodes", "2"), plain(cluster, *SLOW, steps=400))
    run.wait_checkpoint(20)
    host = parse.expand(run.job()["NodeList"])[0]
    cluster.as_root("scontrol", "update", f"nodename={host}", "state=down", "reason=test")
    # it answers, so that Slurm takes it for a good one again, and the old script still runs there
    cluster.as_root("scontrol", "update", f"nodename={host}", "state=drain", "reason=test")
    run.wait(lambda state: state.requeues == 1, "the requeue")
    assert [Cause.NODE_LOSS] == handed_back(run)
    by_agents = cluster.fact("set down batch host") == "its agents"
    assert ((host,) if by_agents else ()) == run.entries(Requeued)[0].nodes
    decision(run, Decision.DONE)


def test_a_limit_that_comes_without_a_warning(cluster: Cluster) -> None:
    """An administrator brings it forward: it is over when Slurm looks, and KillWait is all there is."""
    run = submit(cluster, ONE, plain(cluster, *SLOW, steps=2000))
    run.wait_checkpoint(20)
    soon = datetime.now() + timedelta(seconds=1)  # noqa: DTZ005 - slurmctld reads local time
    end = f"EndTime={soon.isoformat(timespec='seconds')}"
    cluster.as_root("scontrol", "update", f"jobid={run.job_id}", end)
    run.wait(lambda state: state.requeues == 1, "the requeue", 90)
    assert [Cause.TIME_LIMIT] == handed_back(run)
    run.wait(lambda state: state.running is not None and state.epoch.restart == 1, "the second start")
    assert run.entries(RoundFormed)[-1].checkpoint is not None


@pytest.mark.both_trackers
def test_a_job_cancelled_while_it_drains_or_waits_is_not_brought_back(cluster: Cluster) -> None:
    """Neither in the grace of a preemption nor in the queue after it."""
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    slow = submit(cluster, (*ONE, "--stop-timeout", "4s"), [sys.executable, "-c", deaf])
    quick = submit(cluster, ONE, plain(cluster, "--step-time", "0.5"))
    slow.wait(lambda state: state.running is not None, "the deaf workers")
    quick.wait(lambda state: state.running is not None, "the other workers")
    cluster.submit_high(cluster.nodes)
    slow.wait(lambda state: state.drain is not None, "the drain")
    cluster.run("alice", ["scancel", slow.job_id])
    quick.wait(lambda state: state.requeues == 1, "the requeue")
    cluster.wait_state(quick.job_id, "PENDING")
    cluster.run("alice", ["scancel", quick.job_id])
    for run in (slow, quick):
        run.wait_gone()
        assert ("CANCELLED", True) == (run.job()["JobState"], run.job()["Restarts"] in "01")
    assert "0" == slow.job()["Restarts"]
    decision(slow, Decision.CANCELLED)


def test_a_batch_script_that_is_killed(cluster: Cluster) -> None:
    """Slurm ends the job as failed and would leave it so; its agents hand it back before they leave."""
    run = submit(cluster, ONE, plain(cluster, *SLOW, steps=240))
    run.wait_checkpoint(20)
    node = run.job()["NodeList"]
    cluster.execute(node, "pkill", "-9", "-f", f"job{int(run.job_id):05d}/slurm_script")
    run.wait(lambda state: state.requeues == 1, "the requeue")
    assert [Cause.LAUNCH_FAILURE] == handed_back(run)
    decision(run, Decision.DONE)
    assert run.entries(Drained)[0].step == run.entries(RoundFormed)[-1].checkpoint.step


def test_preemption_that_cancels(start_cluster: StartCluster) -> None:
    """With PreemptMode=CANCEL a job that hands itself back in its grace runs again; so does a task."""
    cluster = start_cluster(nodes=3, options=("--preempt", "CANCEL", "--gpus", "1"))
    run = submit(cluster, ONE, plain(cluster, *SLOW, steps=240))
    array = submit(cluster, (*ONE, *ARRAY, "--nodes", "1:2"), plain(cluster, *SLOW, steps=2000))
    wait_size(array, 2)
    high = preempt(cluster, run)
    run.wait(lambda state: state.requeues == 1, "the requeue")
    array.wait(lambda _state: len(array.entries(NodeLeft)) == 2, "both tasks to leave")
    cluster.wait_state(high, "RUNNING")
    cluster.as_root("scancel", high)
    decision(run, Decision.DONE)
    assert [Cause.PREEMPTION] == handed_back(run)
    back = wait_size(array, 2)
    assert back.checkpoint is not None
    assert {Cause.PREEMPTION} == {entry.cause for entry in array.entries(NodeLeft)}


@pytest.mark.parametrize("tracker", ["linuxproc", "cgroup"])
def test_a_suspended_run_goes_on_where_it_stood(start_cluster: StartCluster, tracker: str) -> None:
    """With PreemptMode=SUSPEND nobody is lost and nothing is restarted, however long it stood still."""
    options = ("--preempt", "SUSPEND", "--gpus", "0")
    cluster = start_cluster(nodes=2, options=options, tracker=tracker)
    flags = ("--nodes", "2", "--time", "10m", "--partition", "low")
    run = submit(cluster, flags, plain(cluster, *SLOW, steps=240))
    array = submit(cluster, (*flags, *ARRAY), plain(cluster, *SLOW, steps=240))
    for each in (run, array):
        each.wait_checkpoint(20)
    high = cluster.submit("bob", "--partition=high", "--nodes=2", "--exclusive", wrap="sleep 6")
    for job in (run.job_id, f"{array.job_id}_0", f"{array.job_id}_1"):
        cluster.wait_state(job, "SUSPENDED")
    cluster.wait_state(high, "COMPLETED", 40)
    for each in (run, array):
        decision(each, Decision.DONE)
        assert 1 == len(each.entries(RoundFormed))
        assert [] == [*each.entries(Requeued), *each.entries(NodeLeft)]
