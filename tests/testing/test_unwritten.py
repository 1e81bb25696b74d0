"""Runs whose end nobody can write down, and jobs that have no part in a run, on a fake Slurm."""

from __future__ import annotations

from typing import Any

import pytest

from hpc_elastic.testing.fake_slurm import FakeSlurm
from tests.real_slurm.jobs import plain, submit
from tests.real_slurm.unwritten import (
    CANNOT_RUN,
    LOST_OFTEN,
    ONE,
    ONE_START,
    end_with_a_program_that_is_not_there,
    leave_a_node_out_that_is_lost_again,
    lose_a_job_of_a_chain,
    lose_all_nodes_again_and_again,
    lose_the_node_of_a_run_with_one_start,
    preempt_before_the_agents_listen,
    refuse_a_second_job,
)
from tests.testing.fake_cluster import FakeCluster

pytestmark = [pytest.mark.slow, pytest.mark.fake_slurm(grace=120, kill_wait=120, speed=120)]


@pytest.fixture
def cluster(fake_slurm: FakeSlurm) -> Any:
    """Return the fake as the helpers of the tests on a real Slurm take it."""
    return FakeCluster(fake_slurm, skips=False)


def test_a_second_job_of_one_script_does_nothing(cluster: Any) -> None:
    """It is refused, and it neither starts agents again nor makes those of the first job leave."""
    run = submit(cluster, ONE, plain(cluster, "--step-time", "0.03", steps=400))
    run.wait_checkpoint(20)
    refuse_a_second_job(cluster, run)


@pytest.mark.parametrize("mode", ["step", "array"])
def test_a_worker_without_a_program_ends_the_job_at_once(cluster: Any, mode: str) -> None:
    """Its exit code, 127, is that of a finish that cannot be run, and none of its own; the log names it."""
    run = submit(cluster, (*ONE, "--mode", mode, "--max-restarts", "0"), CANNOT_RUN)
    end_with_a_program_that_is_not_there(cluster, run, is_array=mode == "array")


def test_nodes_that_are_lost_with_everybody_on_them_are_counted(cluster: Any) -> None:
    """Its budget of lost nodes holds the run, and the node that was there is named each time."""
    run = submit(cluster, (*ONE, *LOST_OFTEN), plain(cluster, "--step-time", "0.03", steps=4000))
    lose_all_nodes_again_and_again(cluster, run)


@pytest.mark.parametrize("mode", ["step", "array"])
def test_a_run_with_one_start_has_no_other(cluster: Any, mode: str) -> None:
    """Slurm was told not to requeue it, so the loss of its node ends it."""
    run = submit(
        cluster, (*ONE, "--mode", mode, *ONE_START), plain(cluster, "--step-time", "0.03", steps=4000)
    )
    lose_the_node_of_a_run_with_one_start(cluster, run, is_array=mode == "array")


def test_the_loss_of_a_job_of_a_chain_is_counted_by_the_next_one(cluster: Any) -> None:
    """Slurm starts none of them again, so it has another id."""
    run = submit(cluster, (*ONE, "--chain", "3"), plain(cluster, "--step-time", "0.03", steps=400))
    lose_a_job_of_a_chain(cluster, run)


@pytest.mark.parametrize("mode", ["step", "array"])
def test_a_preemption_before_the_agents_listen_starts_nothing(cluster: Any, mode: str) -> None:
    """The job goes back to the queue as preempted, and no agent is started in its grace."""
    run = submit(cluster, (*ONE, "--mode", mode), plain(cluster, "--step-time", "0.05", steps=200))
    preempt_before_the_agents_listen(cluster, run, is_array=mode == "array")


def test_a_task_that_is_lost_with_its_node_each_time_is_counted(cluster: Any) -> None:
    """In array mode, too, its budget of lost nodes holds the run before a third start begins."""
    flags = ("--mode", "array", *ONE, *LOST_OFTEN)
    run = submit(cluster, flags, plain(cluster, "--step-time", "0.03", steps=4000))
    lose_all_nodes_again_and_again(cluster, run, is_array=True)


@pytest.mark.parametrize("mode", ["step", "array"])
def test_a_node_that_is_lost_again_is_left_out(cluster: Any, mode: str) -> None:
    """The third start gives the job back before anything runs, and the fourth has another node."""
    run = submit(cluster, (*ONE, "--mode", mode), plain(cluster, "--step-time", "0.03", steps=600))
    leave_a_node_out_that_is_lost_again(cluster, run, is_array=mode == "array")
