"""What is done to runs whose end nobody can write down; the same on a real Slurm and on the fake one."""

from __future__ import annotations

from functools import partial

from hpc_elastic.record.journal import (
    Budget,
    Cause,
    Decision,
    EpochStarted,
    NodeLeft,
    NodeUnfit,
    Requeued,
    RoundEnded,
    RoundFormed,
)
from hpc_elastic.slurm.client import parse
from tests.real_slurm.cluster import Cluster
from tests.real_slurm.jobs import USER, Run

ONE = ("--nodes", "1", "--gpus-per-node", "1", "--time", "10m", "--partition", "low")
CANNOT_RUN = ("bash", "-c", "no-such-program --x")
ONE_START = ("--max-requeues", "0")
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
UNHEARD = ("--max-preemptions", "1", "--stop-timeout", "90s")
LOST_OFTEN = ("--max-requeues", "5", "--max-node-losses", "1")
OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


def refuse_a_second_job(cluster: Cluster, run: Run) -> None:
    """Give the script of a run to sbatch once more; the job is refused, and the run goes on to its end.

    Args:
        cluster: with room for both.
        run: has saved a step, and is far from its end.
    """
    before = run.state()
    done = cluster.run(USER, ["sbatch", "--parsable", str(run.directory / "job.sbatch")])
    assert done.returncode == 0, done.stderr
    second = done.stdout.strip().partition(";")[0]
    cluster.wait_for(lambda: cluster.job(second).get("JobState") in OVER, 60, "the second job to end")
    log = (run.directory / f"slurm-{second}.out").read_text()
    assert f"job {run.job_id} has begun the run in it, this is job {second}" in log
    assert f"the run belongs to job {run.job_id}, so nothing is done to it" in log
    assert "start the agents again" not in log
    assert ("FAILED", "2:0") == (cluster.job(second)["JobState"], cluster.job(second)["ExitCode"])
    run.wait_ending()
    assert run.state().epoch == before.epoch
    assert [run.job_id] == [entry.job_id for entry in run.entries(EpochStarted)]
    assert [] == run.entries(Requeued)
    assert 1 == len(run.entries(RoundFormed))


def end_with_a_program_that_is_not_there(cluster: Cluster, run: Run, *, is_array: bool = False) -> None:
    """See a run end whose workers have no program to run; its script does not take that for its own trouble.

    Args:
        cluster: of the run.
        run: its workers end with 127.
        is_array: the run is an array of one task.
    """
    job = f"{run.job_id}_0" if is_array else run.job_id
    ended = run.wait_ending().ending
    assert ended is not None
    assert (Decision.FAILED, 127) == (ended.decision, ended.exit_code)
    cluster.wait_for(lambda: cluster.job(job).get("JobState") == "FAILED", 60, "the job to leave the queue")
    assert "127:0" == cluster.job(job)["ExitCode"]
    log = run.log()
    assert "command not found: no-such-program, looked for in PATH" in log
    assert "finish cannot be run" not in log


def _has_restarted(cluster: Cluster, job: str, times: str) -> bool:
    return cluster.job(job).get("Restarts") == times


def _lose_all_nodes(cluster: Cluster, run: Run, job: str, starts: int) -> list[str]:
    """Power the nodes of each start of a job off at once; return their host lists."""
    lost = []
    for start in range(starts):
        run.wait_round(start + 1)
        lost.append(cluster.job(job)["NodeList"])
        nodes = parse.expand(lost[-1])
        for node in nodes:
            cluster.crash(node)
        before = str(start + 1)
        cluster.wait_for(partial(_has_restarted, cluster, job, before), 90, "Slurm to notice")
        for node in nodes:
            cluster.boot(node)
    return lost


def leave_a_node_out_that_is_lost_again(cluster: Cluster, run: Run, *, is_array: bool = False) -> None:
    """Power the only node of a run off in two starts; the run leaves that node out and goes on elsewhere.

    Slurm gives the job the first node that is idle, so it is the same each time.

    Args:
        cluster: has nothing else to do.
        run: was submitted for one node, with room for two losses.
        is_array: the run is an array of one task.
    """
    job = f"{run.job_id}_0" if is_array else run.job_id
    bad, again = _lose_all_nodes(cluster, run, job, 2)
    assert bad == again
    run.wait_round(3, 120)
    assert bad == cluster.job(job)["ExcNodeList"]
    assert bad != cluster.job(job)["NodeList"]
    (unfit,) = run.entries(NodeUnfit)
    assert bad == unfit.node
    assert f"left out: {bad}" in run.log()
    assert 2 == run.state().used(Cause.NODE_LOSS)
    run.wait_ending()


def lose_all_nodes_again_and_again(cluster: Cluster, run: Run, *, is_array: bool = False) -> None:
    """Power the nodes of a run off at once, in each of its starts, until its budget of lost nodes is spent.

    Nobody is left to write that down: the next start does it.

    Args:
        cluster: of the run.
        run: was submitted with `LOST_OFTEN`, and has room for another start beside the nodes that are off.
        is_array: the run is an array of one task.
    """
    job = f"{run.job_id}_0" if is_array else run.job_id
    lost = _lose_all_nodes(cluster, run, job, 2)
    ended = run.wait_ending().ending
    assert ended is not None
    assert (Decision.HELD, Budget.NODE_LOSSES) == (ended.decision, ended.budget)
    cluster.wait_state(job, "PENDING")
    cluster.wait_for(lambda: cluster.job(job)["Priority"] == "0", 60, "the job to be held")
    ends = run.entries(RoundEnded if is_array else Requeued)
    assert [Cause.NODE_LOSS] * 2 == [entry.cause for entry in ends]
    hosts, named = [parse.expand(each) for each in lost], [entry.nodes for entry in ends]
    # of several nodes the batch host is named if it has said nothing; else nothing tells which one was first
    for on, told in zip(hosts, named, strict=True):
        assert told == on[:1] or (not told and len(on) > 1)
    assert 2 == len(run.entries(RoundFormed))


def preempt_unheard(cluster: Cluster, run: Run, job_id: str) -> None:
    """Preempt a run twice whose workers hear nothing, so that SIGKILL may come before its script has written.

    Args:
        cluster: of the run.
        run: may be preempted once; its workers have longer than Slurm gives them.
        job_id: its job, or task.
    """
    for start in range(2):
        run.wait_round(start + 1, 120)
        high = cluster.submit_high(len(cluster.node_names))
        cluster.wait_for(partial(_has_restarted, cluster, job_id, str(start + 1)), 120, "the requeue")
        cluster.as_root("scancel", high)
    ended = run.wait_ending().ending
    assert ended is not None
    assert (Decision.HELD, Budget.PREEMPTIONS) == (ended.decision, ended.budget)
    assert 2 == len(run.entries(RoundFormed))


def lose_a_job_of_a_chain(cluster: Cluster, run: Run) -> None:
    """Power the node of the first job of a chain off; the next job counts that, and goes on.

    Args:
        cluster: of the run.
        run: was submitted as a chain, and may lose a node.
    """
    run.wait_checkpoint(20)
    node = run.job()["NodeList"]
    cluster.crash(node)
    run.wait_gone(90)
    cluster.boot(node)
    ended = run.wait_ending(150)
    assert ended.ending is not None
    assert Decision.DONE is ended.ending.decision
    assert (1, 1) == (ended.requeues, ended.epoch.link)
    (end,) = run.entries(Requeued)
    assert (Cause.NODE_LOSS, (node,)) == (end.cause, end.nodes)
    log = (run.directory / f"slurm-{ended.job_id}.out").read_text()
    assert f"start 0 of job {run.job_id} has ended without a record (node_loss)" in log
    assert run.entries(RoundFormed)[-1].checkpoint.step >= 20


def lose_the_node_of_a_run_with_one_start(cluster: Cluster, run: Run, *, is_array: bool = False) -> None:
    """Power the node of a run off that is to be requeued never; Slurm does not start it again, either.

    Args:
        cluster: of the run.
        run: was submitted with `ONE_START`.
        is_array: the run is an array of one task.
    """
    name = f"{run.job_id}_0" if is_array else run.job_id
    run.wait_round(1)
    node = cluster.job(name)["NodeList"]
    cluster.crash(node)
    run.wait_gone(90)
    cluster.boot(node)
    job = cluster.job(name)
    assert ("NODE_FAIL", "0", "0") == (job["JobState"], job["Restarts"], job["Requeue"])
    assert 1 == len(run.entries(EpochStarted))
    assert [] == run.entries(Requeued)


def preempt_before_the_agents_listen(cluster: Cluster, run: Run, *, is_array: bool = False) -> None:
    """Preempt a run as soon as its job runs: its signal ends the agents, or they hear it as they begin.

    Either way nothing is started in the grace, and the run comes back.

    Args:
        cluster: with a grace time.
        run: was submitted just now.
        is_array: the run is an array of one task, whose end its agent records if it came to listen.
    """
    job = f"{run.job_id}_0" if is_array else run.job_id
    cluster.wait_state(job, "RUNNING")
    high = cluster.submit_high(len(cluster.node_names))
    cluster.wait_for(partial(_has_restarted, cluster, job, "1"), 90, "the requeue")
    assert "again (1 of 3)" not in run.log()
    cluster.as_root("scancel", high)
    run.wait_round(1, 90)
    causes = {entry.cause for entry in run.entries(NodeLeft if is_array else Requeued)}
    assert causes == {Cause.PREEMPTION} or (is_array and not causes)
    assert not any(entry.epoch.relaunch for entry in run.entries(EpochStarted))
    members = [member for formed in run.entries(RoundFormed) for member in formed.members]
    assert all(member.node_id.endswith("-0") for member in members if is_array)  # none was started again
    run.wait_ending()
