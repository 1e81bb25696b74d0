"""Arrays of a user's own job script on a fake Slurm: each task is a run of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_elastic.record.journal import Cause, Decision, Requeued
from hpc_elastic.testing.fake_slurm import FakeSlurm
from tests.real_slurm.jobs import elastic
from tests.testing.fake_cluster import FakeCluster
from tests.testing.own_scripts import ONLY_ONCE, WAITS, OwnRun, submit_own

pytestmark = [pytest.mark.slow, pytest.mark.fake_slurm(grace=120, kill_wait=600, cred_expire=60, speed=60)]

HEADER = "--array=0-2\n--output=own-%A_%a.out"
START = 'echo "own $SLURM_ARRAY_TASK_ID start ${SLURM_RESTART_COUNT:-0}"\n'


@pytest.fixture
def cluster(fake_slurm: FakeSlurm) -> FakeCluster:
    """Return the fake as the helpers of the tests on a real Slurm take it."""
    return FakeCluster(fake_slurm, skips=False)


class TaskRun(OwnRun):
    """The run of a task of an array."""

    def __init__(self, array: OwnRun, index: int) -> None:
        where = Path(array.directory) / "tasks" / str(index)
        super().__init__(array.cluster, where, f"{array.job_id}_{index}", array.place)


def tasks_of(array: OwnRun) -> list[TaskRun]:
    """Return the runs of three tasks that have begun."""
    tasks = [TaskRun(array, index) for index in range(3)]
    for index, task in enumerate(tasks):
        task.wait_said(f"own {index} start 0")
    return tasks


def test_each_task_is_requeued_and_recorded_for_itself(cluster: FakeCluster) -> None:
    """One fails, two are preempted and come back; each has its own records, budget, output and end."""
    body = f"{START}{ONLY_ONCE}[ $SLURM_ARRAY_TASK_ID != 2 ] || exit 7\nsrun sleep 600\n"
    array = submit_own(cluster, body, header=HEADER)
    tasks = tasks_of(array)
    for task in tasks[:2]:
        cluster.slurm.wait_tasks(task.job_id, 1)
    assert tasks[2].wait_ending().ending is not None
    high = cluster.submit_high(4)
    for task in tasks[:2]:
        task.wait(lambda state: state.requeued, "the requeue")
    cluster.as_root("scancel", high)
    endings = [task.wait_ending().ending for task in tasks]
    decisions = [(one.decision, one.exit_code) for one in endings if one is not None]
    assert decisions == [(Decision.DONE, 0), (Decision.DONE, 0), (Decision.FAILED, 7)]
    causes = [[entry.cause for entry in task.entries(Requeued)] for task in tasks]
    assert causes == [[Cause.PREEMPTION], [Cause.PREEMPTION], []]
    assert tasks[1].said() == ["own 1 start 0", "own 1 start 1", "own end"]

    told = array.command("status", str(array.directory)).stdout
    assert "its tasks have left Slurm" in told
    assert f"next: hpc-elastic status {array.directory}/tasks/2 " in told
    assert [word in told for word in ("0  ", "1  ", "2  ")] == [True] * 3
    failed = array.command("explain", str(array.directory))
    assert "exit code 7" in failed.stdout
    assert "tasks/2" in failed.stderr
    assert array.command("status", str(tasks[0].directory)).stdout.startswith("job.sbatch_0: done")
    assert "own 1 start 1" in array.command("logs", str(tasks[1].directory)).stdout
    assert "preemption" in array.command("timeline", f"{tasks[1].directory}").stdout
    assert "preemption" in array.command("report", str(tasks[0].directory)).stdout
    assert "tasks: 2 done, 1 failed" in array.command("status", str(array.place)).stdout


def test_stop_ends_all_tasks(cluster: FakeCluster) -> None:
    """Those that run get SIGTERM and are recorded as stopped; one that waits never begins."""
    body = f"{START}trap 'echo own TERM; exit' TERM\n{WAITS}"
    array = submit_own(cluster, body, header="--array=0-2%2\n--output=own-%A_%a.out")
    tasks = [TaskRun(array, index) for index in range(2)]
    for index, task in enumerate(tasks):
        task.wait_said(f"own {index} start 0")
    told = array.command("stop", str(array.directory)).stdout
    for task in tasks:
        task.wait_said("own TERM")
        ending = task.state().ending
        assert ending is not None
        assert ending.decision is Decision.STOPPED
    array.wait_gone()
    assert "the tasks of the array are stopped" in told
    assert not (Path(array.directory) / "tasks" / "2").exists(), told


def test_a_resumed_array_starts_what_is_not_done(cluster: FakeCluster) -> None:
    """A task that is done ends at once in the next submission; one that failed runs again."""
    body = f"{START}[ -e again ] || [ $SLURM_ARRAY_TASK_ID = 0 ] || exit 3\n"
    array = submit_own(cluster, body, header=HEADER)
    tasks = tasks_of(array)
    for task in tasks:
        task.wait_ending()
    array.wait_gone()
    for ends in ("stop", "cancel"):
        refused = elastic(cluster, ends, str(array.directory)).stderr  # type: ignore[arg-type]
        assert "the tasks of the array have ended already" in refused
        assert f"hpc-elastic submit --resume {array.directory}" in refused
    (array.place / "again").touch()
    done = array.command("submit", "--resume", str(tasks[1].directory), "--parsable")
    second = done.stdout.split()[-1]
    for task in tasks[1:]:
        task.wait(
            lambda state: state.ending is not None and state.ending.decision is Decision.DONE, "the end"
        )
    cluster.wait_for(lambda: len(list(array.place.glob(f"own-{second}_*.out"))) == 3, 60, "the outputs")
    outputs = [array.place / f"own-{second}_{index}.out" for index in range(3)]
    cluster.wait_for(lambda: "nothing was started" in outputs[0].read_text(), 60, "the task that is done")
    assert "own 0" not in outputs[0].read_text()
    assert "own 1 start 0" in outputs[1].read_text()
