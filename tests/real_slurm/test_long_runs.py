"""Runs that take long on a real Slurm: real training, and a run that is cut short by its time limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_elastic.rendezvous.journal import Cause, Drained, RoundEnded
from tests.real_slurm.cluster import Cluster
from tests.real_slurm.jobs import SLOW, THREE, Run, example, installed_for_users, plain, submit, uninterrupted

pytestmark = pytest.mark.usefixtures(installed_for_users.__name__)


def drains(run: Run) -> list[Cause]:
    """Return why the starts of a run were left."""
    return [entry.cause for entry in run.entries(Drained)]


def test_the_time_limit_costs_no_step(cluster: Cluster, tmp_path: Path) -> None:
    """Warned before its time limit, a run saves, is requeued and goes on at the step it stopped at."""
    limit = ("--time", "1m", "--checkpoint-lead", "10s")
    run = submit(cluster, (*THREE, *limit), plain(cluster, "--step-time", "0.2", steps=300))
    run.wait(lambda state: state.requeues == 1, "the requeue", 120)
    stopped = run.entries(Drained)[0].step
    state = run.wait(lambda state: state.rounds == 2, "the second start", 60)
    assert state.round is not None
    assert state.round.checkpoint is not None
    assert stopped == state.round.checkpoint.step
    assert [Cause.TIME_LIMIT] == drains(run)
    assert "1" == run.job()["Restarts"]
    run.wait_ending(150)
    assert uninterrupted(tmp_path, 300) == run.result()


@pytest.mark.torch
def test_digits_ddp_preempted_and_crashed_has_the_same_weights(cluster: Cluster) -> None:
    """Real DDP training, crashed once and preempted once, ends with the uninterrupted run's weights."""
    two = ("--nodes", "2", "--gpus-per-node", "2", "--time", "10m", "--partition", "low")
    whole = submit(cluster, two, example(cluster, "digits_ddp"))
    whole.wait_ending(120)
    crash = ("--crash-at", "70", "--crash-rank", "2")
    hit = submit(cluster, two, example(cluster, "digits_ddp", *SLOW, *crash))
    hit.wait_checkpoint(100, 120)
    high = cluster.submit_high(4)
    hit.wait(lambda state: state.requeues == 1, "the requeue")
    cluster.wait_state(high, "RUNNING")
    cluster.as_root("scancel", high)
    hit.wait_ending(180)
    assert [Cause.CRASH] == [entry.cause for entry in hit.entries(RoundEnded)]
    assert [Cause.PREEMPTION] == drains(hit)
    assert whole.result() == hit.result()
