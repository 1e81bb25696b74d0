"""Runs that take long on a real Slurm: real training, and a run that is cut short by its time limit."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hpc_elastic.record.journal import (
    Cause,
    Drained,
    DrainRequested,
    NodeLeft,
    RoundEnded,
    RoundFormed,
    WarningHeld,
)
from hpc_elastic.record.run_log import read_records
from tests.frameworks import forked
from tests.real_slurm.cluster import Cluster
from tests.real_slurm.jobs import (
    EXAMPLES,
    PYTHON,
    SAVE_EVERY,
    SLOW,
    STEPS,
    THREE,
    Run,
    example,
    installed_for_users,
    plain,
    submit,
    uninterrupted,
)
from tests.real_slurm.test_array import QUICK, wait_size

pytestmark = pytest.mark.usefixtures(installed_for_users.__name__)

CRASH_ONCE = Path(__file__).parents[1] / "examples" / "crash_once.py"
TWO = (*QUICK, "--nodes", "2", "--gpus-per-node", "1", "--partition", "low")
ONE_OR_TWO = (*QUICK, "--mode", "array", "--partition", "low", "--nodes", "1:2")


def drains(run: Run) -> list[Cause]:
    """Return why the starts of a run were left."""
    return [entry.cause for entry in run.entries(Drained)]


def restarts(run: Run) -> list[tuple[int, int]]:
    """Return the steps that starts were left at, each with the one that the next start went on from.

    Slurm may warn up to 30 s early: a slow machine has formed no round by then.
    """
    began: dict[int, RoundFormed] = {}
    for formed in run.entries(RoundFormed):
        began.setdefault(formed.epoch.restart, formed)
    left = {entry.epoch.restart: entry.step for entry in run.entries(Drained) if entry.step is not None}
    return [
        (step, after.checkpoint.step if after.checkpoint else 0)
        for restart, step in left.items()
        if (after := began.get(restart + 1)) is not None
    ]


def test_the_time_limit_costs_no_step(cluster: Cluster, tmp_path: Path) -> None:
    """Warned before its time limit, a run saves, is requeued and goes on at the step it stopped at.

    So does each task of an array. Beside them, as it takes a minute, runs whose node is being drained.
    """
    limit = ("--time", "1m", "--checkpoint-lead", "10s")
    run = submit(cluster, (*THREE, *limit), plain(cluster, "--step-time", "0.2", steps=300))
    run.wait(lambda state: state.running is not None, "the workers")
    array = submit(cluster, (*ONE_OR_TWO, *limit, "--gpus-per-node", "1"), plain(cluster, *SLOW, steps=6000))
    asks = ("--time", "10m", "--watch-node-drain", "--cpus-per-task", "1", "--nodelist", "node4")
    watching = [
        submit(cluster, ("--partition", "low", "--nodes", "1", *asks), plain(cluster, *SLOW, steps=6000)),
        submit(cluster, (*ONE_OR_TWO, *asks), plain(cluster, *SLOW, steps=6000)),
    ]
    for each in watching:
        each.wait_checkpoint(20)
    cluster.as_root("scontrol", "update", "nodename=node4", "state=drain", "reason=fan")
    run.wait(lambda _state: bool(restarts(run)), "another start from a saved step", 180)
    for stopped, began in restarts(run):
        assert stopped == began
    assert {Cause.TIME_LIMIT} == set(drains(run))
    assert int(run.job()["Restarts"]) >= 1
    array.wait(lambda _state: len(array.entries(NodeLeft)) >= 2, "the limit of the tasks", 120)
    assert {Cause.TIME_LIMIT} == {entry.cause for entry in array.entries(NodeLeft)}
    check_left_node4(*watching)
    cluster.as_root("scontrol", "update", "nodename=node4", "state=resume")
    assert wait_size(array, 2, 90).checkpoint is not None
    for each in (array, *watching):
        each.command("cancel", str(each.directory))
    run.wait_ending(150)
    assert uninterrupted(tmp_path, 300) == run.result()


def check_left_node4(job: Run, array: Run) -> None:
    """Wait until a job and the tasks of an array have left node4, which is being drained."""
    job.wait(lambda state: state.requeues >= 1, "the requeue of the job", 120)
    array.wait(lambda _state: len(array.entries(NodeLeft)) >= 2, "both tasks to leave", 60)
    for why in (job.entries(Drained)[0], array.entries(NodeLeft)[0]):
        assert why.cause is Cause.NODE_DRAIN
        assert "the drain of node4 (fan" in why.detail


def wait_entry(run: Run, kind: type[object]) -> None:
    """Wait until a record of a kind has been written."""
    run.wait(lambda _state: bool(run.entries(kind)), f"a record {kind.__name__}", 150)


def test_a_lowered_limit_does_not_end_a_start_as_it_begins(cluster: Cluster) -> None:
    """Slurm warns as early as the job was queued for; the workers go on until the clock says so."""
    limit = ("--time", "10m", "--checkpoint-lead", "90s")
    runs = [
        submit(cluster, (*TWO, *limit), plain(cluster, *SLOW, steps=6000)),
        submit(cluster, (*ONE_OR_TWO, *limit, "--gpus-per-node", "1"), plain(cluster, *SLOW, steps=6000)),
    ]
    for run in runs:
        run.wait(lambda state: state.running is not None, "the workers")
        cluster.as_root("scontrol", "update", f"jobid={run.job_id}", "TimeLimit=2")
    for run, leaves in zip(runs, (Drained, NodeLeft), strict=True):
        wait_entry(run, WarningHeld)
        wait_entry(run, leaves)
        records = read_records(run.paths)
        held = next(record for record in records if isinstance(record.entry, WarningHeld))
        left = next(record for record in records if isinstance(record.entry, leaves))
        assert isinstance(held.entry, WarningHeld)
        assert isinstance(left.entry, Drained | NodeLeft)
        assert 30.0 == held.entry.before_s
        assert left.at - held.at > held.entry.left_s - held.entry.before_s - 10
        assert left.at - held.at < held.entry.left_s  # by the clock, which is looked at by the new limit
        assert "the time limit, " in run.entries(DrainRequested)[0].detail
        assert Cause.TIME_LIMIT is left.entry.cause
        run.command("stop", str(run.directory))


@pytest.mark.torch
def test_digits_ddp_preempted_and_crashed_has_the_same_weights(cluster: Cluster, tmp_path: Path) -> None:
    """Real DDP training, crashed once and preempted once, ends with the uninterrupted training's weights."""
    two = ("--nodes", "2", "--gpus-per-node", "2", "--time", "10m", "--partition", "low")
    python, *program = example(cluster, "digits_ddp", *SLOW)
    crash = str(shutil.copy(CRASH_ONCE, cluster.shared))
    hit = submit(cluster, two, [python, crash, "70", "2", "{run}/crashed", *program])
    hit.wait_checkpoint(100, 120)
    high = cluster.submit_high(4)
    hit.wait(lambda state: state.requeues == 1, "the requeue")
    cluster.wait_state(high, "RUNNING")
    words = ("--steps", str(STEPS), "--save-every", str(SAVE_EVERY))
    script, library = EXAMPLES / "digits_ddp" / "train.py", "torch.distributed,sklearn.datasets"
    with forked.training(tmp_path / "whole", 4, library, script, *words, python=PYTHON) as result:
        expected = result()
    cluster.as_root("scancel", high)
    hit.wait_ending(180)
    assert [Cause.CRASH] == [entry.cause for entry in hit.entries(RoundEnded)]
    assert [Cause.PREEMPTION] == drains(hit)
    assert expected == hit.result()
