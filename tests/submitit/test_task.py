"""`ElasticTask` below submitit's own executors that need no Slurm."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
import submitit
from submitit.core.utils import FailedJobError

from hpc_elastic.errors import InputError
from hpc_elastic.submitit import ElasticTask
from tests.submitit.jobs import Counting


def executor(folder: Path, cluster: str = "local") -> submitit.AutoExecutor:
    """Return an executor of submitit."""
    made = submitit.AutoExecutor(folder, cluster=cluster)
    made.update_parameters(timeout_min=5, tasks_per_node=1)
    return made


def place(factor: int, more: int = 0) -> int:
    """Return something of a worker's place."""
    return int(os.environ["RANK"]) * factor + int(os.environ["WORLD_SIZE"]) + more


def test_the_function_runs_in_every_worker(tmp_path: Path) -> None:
    """The task returns rank 0's value, or all of them."""
    made = executor(tmp_path)
    one = made.submit(ElasticTask(place, workers_per_node=2), 10)
    all_of_them = made.submit(ElasticTask(place, workers_per_node=3, by_rank=True), 10, more=1)
    assert 2 == one.result()
    assert [4, 14, 24] == all_of_them.result()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # submitit's open logs
def test_debugging(tmp_path: Path) -> None:
    """In the submitting process itself."""
    assert [2, 12] == executor(tmp_path, "debug").submit(
        ElasticTask(place, workers_per_node=2, by_rank=True, run_dir=str(tmp_path / "run")), 10
    ).result()


def test_a_failure_is_the_jobs(tmp_path: Path) -> None:
    """With the traceback of the rank that failed first."""

    def broken() -> None:
        raise LookupError("no such shard")

    job = executor(tmp_path).submit(ElasticTask(broken, max_restarts=0))
    with pytest.raises(FailedJobError, match="no such shard"):
        job.result()


def count(ready: str, until: int) -> dict[str, int]:
    """Train: save when asked to stop, and go on from there."""
    from hpc_elastic import worker  # noqa: PLC0415 - runs in a worker

    saved = worker.latest_checkpoint()
    step = first = saved.step if saved else 0
    while not worker.should_stop() and (step < until or first == 0):  # the first start ends when asked
        step += 1
        worker.tick(step)
        if step == 1:
            Path(ready).touch()
        threading.Event().wait(0.01)
    worker.checkpoint_saved(step)
    return {"first": first, "step": step}


def test_a_preempted_job_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """Submitit's signal makes the workers save; submitit starts the task again, which goes on."""
    job = executor(tmp_path).submit(ElasticTask(count), str(tmp_path / "ready"), 100)
    while not (tmp_path / "ready").exists():
        threading.Event().wait(0.05)
    (task,) = psutil.Process(int(job.job_id)).children()
    task.send_signal(signal.SIGUSR2)
    value: dict[str, Any] = job.result()
    assert 0 < value["first"]
    assert max(100, value["first"]) == value["step"]


class Saving(Counting):
    """A callable with the hook under the name that submitit documents, and itself passes over."""

    __submitit_checkpoint__ = Counting.go_on


@pytest.mark.slow
def test_the_hook_of_a_callable_inside_is_called(tmp_path: Path) -> None:
    """What it says is called after the requeue, and not what was submitted at first."""
    made = executor(tmp_path)
    job = made.submit(ElasticTask(Saving()), str(tmp_path / "ready"))
    while not (tmp_path / "ready").exists():
        threading.Event().wait(0.05)
    (task,) = psutil.Process(int(job.job_id)).children()
    task.send_signal(signal.SIGUSR2)
    assert 42 == job.result()


@pytest.mark.parametrize(
    ("function", "numbers", "words"),
    [
        (7, {}, "7 cannot be called"),
        (place, {"workers_per_node": 0}, "workers_per_node = 0"),
        (place, {"min_nodes": "2"}, "min_nodes = '2'"),
        (place, {"max_restarts": -1}, "max_restarts = -1"),
        (place, {"preload": "torch"}, "preload is 'torch'"),
        (place, {"run_dir": 5}, "run_dir is 5"),
    ],
)
def test_what_cannot_work_is_refused_where_it_is_made(
    function: Any, numbers: dict[str, Any], words: str
) -> None:
    """And not by each task of a job that has waited in the queue."""
    with pytest.raises(InputError, match=words):
        ElasticTask(function, **numbers)


def test_outside_of_a_job_of_submitit(monkeypatch: pytest.MonkeyPatch) -> None:
    """As below Hydra without --multirun: what to do is told."""
    for name in [name for name in os.environ if name.startswith(("SLURM_", "SUBMITIT_"))]:
        monkeypatch.delenv(name)
    with pytest.raises(InputError, match=r"outside of a job of submitit\n  fix: .*--multirun"):
        ElasticTask(place)(1)


def test_it_can_be_sent(tmp_path: Path) -> None:
    """Both names of submitit's hook lead to it, and it is a plain object."""
    task = ElasticTask(place, workers_per_node=2)
    again = pickle.loads(pickle.dumps(task))  # noqa: S301 - just made
    assert (2, "place") == (again.workers_per_node, again.__name__)
    assert type(task).checkpoint is type(task).__submitit_checkpoint__


def test_one_task_per_node(tmp_path: Path) -> None:
    """Two agents on a node would take each other's GPUs: that is refused, and told how to mend."""
    made = executor(tmp_path)
    made.update_parameters(tasks_per_node=2)
    with pytest.raises(FailedJobError, match="tasks_per_node=1"):
        made.submit(ElasticTask(place), 1).results()
