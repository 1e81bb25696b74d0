"""submitit on a real Slurm: our executor, and its own with an `ElasticTask`; both are preempted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.record.journal import RoundFormed
from tests.real_slurm.cluster import Cluster
from tests.real_slurm.jobs import PYTHON, USER, Run, installed_for_users

pytestmark = pytest.mark.usefixtures(installed_for_users.__name__)

TRAIN = """
def train(steps, pause):
    import os, time
    from hpc_elastic import worker
    saved = worker.latest_checkpoint()
    step = first = saved.step if saved else 0
    while step < steps and not worker.should_stop():
        time.sleep(pause)
        step += 1
        worker.tick(step)
        if step == 3:
            open(os.path.join(worker.run_dir(), "ticking." + os.environ["RANK"]), "w").close()
    worker.checkpoint_saved(step)
    rank, world = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    return {"rank": rank, "world": world, "first": first, "step": step}
"""
SUBMIT = """
import pickle, submitit
made = submitit.AutoExecutor("log", cluster="CLUSTER")
shape = dict(nodes=2, gpus_per_node=2, cpus_per_task=2, timeout_min=10)
made.update_parameters(**shape, tasks_per_node=PER_NODE, CLUSTER_partition="low", **MORE)
job = made.submit(WORK, 200, 0.05)
open("job.pkl", "wb").write(pickle.dumps(job))
print(job.job_id)
"""
RESULT = """
import json, pickle
job = pickle.load(open("job.pkl", "rb"))
print(json.dumps([job.RESULT, job.done(), job.exception()]))
"""
LOCAL = "{'hpcelastic_allow_local_run_dir': True}"  # the development cluster shares the disk of its machine
PLUGIN = {"CLUSTER": "hpcelastic", "PER_NODE": "2", "MORE": LOCAL, "WORK": "train", "RESULT": "results()"}
STOCK = {
    "CLUSTER": "slurm",
    "PER_NODE": "1",
    "MORE": "{'slurm_srun_args': ['--kill-on-bad-exit=0']}",
    "WORK": "hpc_elastic.submitit.ElasticTask(train, by_rank=True)",
    "RESULT": "results()[0]",
}


def python(cluster: Cluster, place: Path, program: str, words: dict[str, str]) -> str:
    """Run a script as the user, on the login host; return what it prints."""
    for name, text in words.items():
        program = program.replace(name, text)
    done = cluster.run(USER, [PYTHON, "-c", "import hpc_elastic\n" + program], cwd=place, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("words", [PLUGIN, STOCK], ids=["plugin", "stock"])
def test_a_preempted_job_gives_its_values(cluster: Cluster, words: dict[str, str]) -> None:
    """On 2 nodes with 2 workers each: saved, requeued, resumed at the step where it stopped."""
    place = cluster.shared / f"submitit-{words['CLUSTER']}"
    place.mkdir()
    place.chmod(0o1777)
    job_id = python(cluster, place, TRAIN + SUBMIT, words)
    directory = (place / "log" / f"{job_id}_run").resolve()
    cluster.wait_for((directory / "journal").is_dir, 60, "the run to begin")
    run = Run(cluster, directory, job_id)
    cluster.wait_for(lambda: len(list(directory.glob("ticking.*"))) == 4, 60, "steps of all ranks")
    high = cluster.submit_high(4)
    run.wait(lambda state: state.requeues == 1, "the requeue")
    cluster.wait_state(high, "RUNNING", 60)
    cluster.as_root("scancel", high)
    said: tuple[list[dict[str, Any]], bool, None] = json.loads(python(cluster, place, TRAIN + RESULT, words))
    values, is_done, problem = said
    assert (True, None) == (is_done, problem)
    stopped = run.entries(RoundFormed)[-1].checkpoint.step
    assert [{"rank": rank, "world": 4, "first": stopped, "step": 200} for rank in range(4)] == values
