"""A job as users of submitit hold it."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from pathlib import Path

import pytest
import submitit
from submitit.core.utils import UncompletedJobError

from hpc_elastic.errors import RunDirError
from hpc_elastic.report.run_status import RunPhase
from hpc_elastic.submitit import HpcElasticJob
from hpc_elastic.submitit import job as job_module
from hpc_elastic.testing.fake_slurm import FakeSlurm
from tests.submitit.jobs import add, executor, on_slurm, patient, wait_for


def tell_rank() -> int:
    """Return the rank, and print it."""
    rank = int(os.environ["RANK"])
    print("rank", rank)  # noqa: T201 - what `stdout` shows
    return rank


@pytest.mark.slow
def test_ranks_are_tasks(tmp_path: Path) -> None:
    """Their number is known before the first round; each has its own value and output, also for asyncio."""
    job = executor(tmp_path, tasks_per_node=3).submit(tell_rank)
    assert 3 == job.num_tasks

    async def values() -> tuple[list[int], int, list[int]]:
        proxy = job.awaitable()
        completed = [await one for one in proxy.results_as_completed(0.05)]
        return completed, await proxy.result(0.05), await proxy.results(0.05)

    completed, first, all_of_them = asyncio.run(values())
    assert ([0, 1, 2], 0, [0, 1, 2]) == (sorted(completed), first, all_of_them)
    one = job.task(1)
    assert (1, [1], "rank 1\n", "", 1) == (
        one.result(),
        one.results(),
        one.stdout(),
        one.stderr(),
        one.num_tasks,
    )
    assert one is one.task(0)
    with pytest.raises(ValueError, match="between 0 and 2"):
        job.task(3)
    assert [job] == list(submitit.helpers.as_completed([job], timeout=60, poll_frequency=0.05))


@pytest.mark.slow
def test_a_job_is_cancelled_when_it_is_deleted(tmp_path: Path) -> None:
    """If that was asked for, as with any other executor."""
    job = executor(tmp_path).submit(_idle).cancel_at_deletion()
    run = job.run  # type: ignore[attr-defined]
    del job
    gc.collect()
    assert RunPhase.CANCELLED is run.status().phase


def _idle() -> None:
    threading.Event().wait(600)


@pytest.mark.slow
def test_a_batch_that_is_submitted_by_asking_for_a_result(tmp_path: Path) -> None:
    """What begins in submitit's own class ends in ours; a function that ends its process has no value."""
    made = executor(tmp_path)
    with made.batch(allow_implicit_submissions=True):
        job, gone = made.submit(add, 1, 5), made.submit(sys.exit, 0)
        assert 6 == job.result()
    with pytest.raises(
        UncompletedJobError, match=r"rank 0 has left no value .*\n  fix: have the function return"
    ):
        gone.result()


def test_an_id_that_comes_round_again(tmp_path: Path) -> None:
    """A new run is not lost because an old one had its id: pids and, in time, Slurm's ids are used again."""
    for target in ("old", "new"):
        job_module._link(target, tmp_path / "7_run")
    assert "new" == os.readlink(tmp_path / "7_run")
    assert ["7_run"] == os.listdir(tmp_path)


def test_a_job_that_is_not_there_is_told(tmp_path: Path) -> None:
    """By id and folder, at once and by every method."""
    unknown: HpcElasticJob[int] = HpcElasticJob(tmp_path, "999")
    with pytest.raises(RunDirError, match=f"there is no job 999 in {tmp_path}"):
        unknown.done()
    with pytest.raises(UncompletedJobError, match="there is no job 999"):
        unknown.result()
    assert 'state="UNKNOWN"' in repr(unknown)


@pytest.mark.slow
@pytest.mark.fake_slurm(speed=600, nodes=1, grace=5.0)
def test_a_job_that_is_held_and_released(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    """A preemption that is one too many holds it: that is an end, which `scontrol release` takes back."""
    go, ready = tmp_path / "go", tmp_path / "ready"
    held, job = on_slurm(tmp_path / "log", hpcelastic_max_preemptions=0).map_array(
        patient, [str(go)] * 2, [f"{ready}0", f"{ready}1"]
    )
    wait_for(lambda: len(list(tmp_path.glob("ready*"))) == 2, "both calls to run")
    high = fake_slurm.submit_high(1)
    ids = (held.job_id, job.job_id)
    held_by = ("PENDING", "job_requeued_in_held_state")  # the reason alone is there while it still ends
    wait_for(lambda: {_why(fake_slurm, name) for name in ids} == {held_by}, "both to be held")
    assert ["REQUEUE_HOLD", True] * 2 == [held.state, held.done(), job.state, job.done()]
    with pytest.raises(UncompletedJobError, match="held"):
        job.result()
    fake_slurm.command("scancel", high)
    os.unlink(f"{ready}1.0")
    fake_slurm.command("scontrol", "release", job.job_id)
    wait_for(Path(f"{ready}1.0").exists, "the released call to run")
    assert (False, True) == (job.done(), held.done())
    go.touch()
    assert job.job_id == job.result()


def _why(fake_slurm: FakeSlurm, job_id: str) -> tuple[str, str]:
    found = fake_slurm.job(job_id)
    return found["JobState"], found["Reason"]
