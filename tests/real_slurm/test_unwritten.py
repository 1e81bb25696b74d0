"""Runs whose end nobody can write down, and jobs that have no part in a run, on a real Slurm."""

from __future__ import annotations

import pytest

from hpc_elastic.record.journal import Cause, Requeued
from hpc_elastic.slurm.client import parse
from tests.real_slurm.cluster import Cluster
from tests.real_slurm.conftest import StartCluster
from tests.real_slurm.jobs import PYTHON, SLOW, USER, installed_for_users, plain, submit
from tests.real_slurm.test_lost_nodes import expediting_site
from tests.real_slurm.unwritten import (
    CANNOT_RUN,
    DEAF,
    LOST_OFTEN,
    ONE,
    ONE_START,
    UNHEARD,
    end_with_a_program_that_is_not_there,
    leave_a_node_out_that_is_lost_again,
    lose_a_job_of_a_chain,
    lose_all_nodes_again_and_again,
    lose_the_node_of_a_run_with_one_start,
    preempt_before_the_agents_listen,
    preempt_unheard,
    refuse_a_second_job,
)

pytestmark = pytest.mark.usefixtures(installed_for_users.__name__)


def test_a_second_job_of_one_script_does_nothing(cluster: Cluster) -> None:
    """It is refused, and it neither starts agents again nor makes those of the first job leave."""
    run = submit(cluster, ONE, plain(cluster, *SLOW))
    run.wait_checkpoint(20)
    refuse_a_second_job(cluster, run)


@pytest.mark.parametrize("mode", ["step", "array"])
def test_a_worker_without_a_program_ends_the_job_at_once(cluster: Cluster, mode: str) -> None:
    """Its exit code, 127, is that of a finish that cannot be run, and none of its own; the log names it."""
    run = submit(cluster, (*ONE, "--mode", mode, "--max-restarts", "0"), CANNOT_RUN)
    end_with_a_program_that_is_not_there(cluster, run, is_array=mode == "array")


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_nodes_that_are_lost_with_everybody_on_them_are_counted(cluster: Cluster, nodes: str) -> None:
    """Its budget of lost nodes holds the run, and the only node that was there is named each time."""
    run = submit(cluster, (*ONE, "--nodes", nodes, *LOST_OFTEN), plain(cluster, *SLOW, steps=4000))
    lose_all_nodes_again_and_again(cluster, run)


def test_an_expedited_requeue_is_counted_as_any_other(
    cluster: Cluster, request: pytest.FixtureRequest
) -> None:
    """Slurm starts the job again as soon as it has missed the node; the budget holds it all the same."""
    if cluster.fact("expedited") == "refused":
        return
    request.getfixturevalue(expediting_site.__name__)
    run = submit(cluster, (*ONE, *LOST_OFTEN), plain(cluster, *SLOW, steps=4000))
    lose_all_nodes_again_and_again(cluster, run)
    assert "Yes" == run.job()["ExpeditedRequeue"]


@pytest.mark.parametrize("mode", ["step", "array"])
def test_a_run_with_one_start_has_no_other(cluster: Cluster, mode: str) -> None:
    """Slurm was told not to requeue it, so the loss of its node ends it."""
    run = submit(cluster, (*ONE, "--mode", mode, *ONE_START), plain(cluster, *SLOW, steps=4000))
    lose_the_node_of_a_run_with_one_start(cluster, run, is_array=mode == "array")


@pytest.mark.parametrize("kill_wait", [5, 30])
@pytest.mark.parametrize("mode", ["step", "array"])
def test_preemptions_that_may_kill_the_script_are_counted(
    start_cluster: StartCluster, mode: str, kill_wait: int
) -> None:
    """Slurm has said in the batch log that it preempts the job, or the task."""
    cluster = start_cluster(nodes=1, options=("--kill-wait", str(kill_wait)))
    flags = (*ONE, "--partition", "low0", "--mode", mode, *UNHEARD)
    run = submit(cluster, flags, [PYTHON, "-c", DEAF])
    preempt_unheard(cluster, run, run.job_id if mode == "step" else f"{run.job_id}_0")


@pytest.mark.parametrize("mode", ["step", "array"])
def test_a_preemption_before_the_agents_listen_starts_nothing(cluster: Cluster, mode: str) -> None:
    """The job goes back to the queue as preempted, and no agent is started in its grace."""
    run = submit(cluster, (*ONE, "--mode", mode), plain(cluster, *SLOW, steps=200))
    preempt_before_the_agents_listen(cluster, run, is_array=mode == "array")


def test_the_loss_of_a_job_of_a_chain_is_counted_by_the_next_one(cluster: Cluster) -> None:
    """Slurm starts none of them again, so it has another id."""
    run = submit(cluster, (*ONE, "--chain", "3"), plain(cluster, *SLOW, steps=400))
    lose_a_job_of_a_chain(cluster, run)


def test_a_task_that_is_lost_with_its_node_each_time_is_counted(cluster: Cluster) -> None:
    """In array mode, too, its budget of lost nodes holds the run before a third start begins."""
    flags = ("--mode", "array", *ONE, *LOST_OFTEN)
    run = submit(cluster, flags, plain(cluster, *SLOW, steps=4000))
    lose_all_nodes_again_and_again(cluster, run, is_array=True)


def test_a_job_whose_processes_are_all_killed_says_how_it_goes_on(cluster: Cluster) -> None:
    """With the batch script died all that could hand the job back; status names the command that goes on."""
    run = submit(cluster, ONE, plain(cluster, *SLOW))
    run.wait_checkpoint(20)
    cluster.execute(run.job()["NodeList"], "pkill", "-KILL", "-u", USER)
    run.wait_gone()
    shown = run.command("status", str(run.directory)).stdout
    why = "its batch script was killed, and no process was left to requeue it"
    assert f"job {run.job_id} ended as FAILED: {why}" in shown
    assert f"hpc-elastic submit --resume {run.directory}" in shown
    run.command("submit", "--resume", str(run.directory))
    ended = run.wait_ending()
    assert ended.round is not None
    assert ended.round.checkpoint is not None


def test_a_job_of_two_nodes_outlives_the_death_of_all_on_its_batch_host(cluster: Cluster) -> None:
    """The agent of the other node hands it back, before anything else."""
    run = submit(cluster, (*ONE, "--nodes", "2"), plain(cluster, *SLOW))
    run.wait_checkpoint(20)
    host = parse.expand(run.job()["NodeList"])[0]
    cluster.execute(host, "pkill", "-KILL", "-u", USER)
    run.wait(lambda state: state.requeues == 1, "the requeue")
    assert [Cause.LAUNCH_FAILURE] == [entry.cause for entry in run.entries(Requeued)]
    run.wait_ending()


@pytest.mark.parametrize("mode", ["step", "array"])
def test_a_node_that_is_lost_again_is_left_out(cluster: Cluster, mode: str) -> None:
    """The third start gives the job back before anything runs, and the fourth has another node."""
    run = submit(cluster, (*ONE, "--mode", mode), plain(cluster, *SLOW, steps=400))
    leave_a_node_out_that_is_lost_again(cluster, run, is_array=mode == "array")
