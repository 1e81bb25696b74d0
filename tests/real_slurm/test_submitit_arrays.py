"""Calls of one `map_array` on a real Slurm: one job array, of which each task is a run of its own."""

from __future__ import annotations

import json

import pytest

from hpc_elastic.record.journal import RoundFormed
from tests.real_slurm.cluster import Cluster
from tests.real_slurm.jobs import Run, installed_for_users
from tests.real_slurm.test_submitit import python

pytestmark = pytest.mark.usefixtures(installed_for_users.__name__)

TRAIN = """
def train(more):
    import os, time
    from hpc_elastic import worker
    saved = worker.latest_checkpoint()
    step = first = saved.step if saved else 0
    while not worker.should_stop() and (first == 0 or step < first + more):  # the first start ends when told
        time.sleep(0.05)
        step += 1
        worker.tick(step)
        if step == 3:
            open(os.path.join(worker.run_dir(), "ticking." + os.environ["RANK"]), "w").close()
    worker.checkpoint_saved(step)
    return {"rank": int(os.environ["RANK"]), "first": first, "step": step}
"""
SUBMIT = """
import pickle, submitit
made = submitit.AutoExecutor("my log", cluster="hpcelastic")
made.update_parameters(nodes=1, gpus_per_node=2, cpus_per_task=2, timeout_min=10, tasks_per_node=2,
    hpcelastic_partition="low", hpcelastic_allow_local_run_dir=True, hpcelastic_array_parallelism=2)
jobs = made.map_array(train, [3, 4, 5, 6])
open("jobs.pkl", "wb").write(pickle.dumps(jobs))
print(*[job.job_id for job in jobs])
"""
CANCEL = """
import pickle
jobs = pickle.load(open("jobs.pkl", "rb"))
print([job.state for job in jobs])
jobs[3].cancel()
jobs[0].cancel()
"""
RESULTS = """
import json, pickle
jobs = pickle.load(open("jobs.pkl", "rb"))
values = [job.results() for job in jobs[1:3]]
problems = [str(job.exception()) for job in (jobs[0], jobs[3])]
print(json.dumps([values, problems, [job.state for job in jobs], jobs[1].run.job_id]))
"""


def test_each_call_is_cancelled_and_preempted_alone(cluster: Cluster) -> None:
    """Two run at once; when one is cancelled the next begins, which has the id of the whole array.

    Of the two that are then preempted one may not be requeued, and goes on as a job of its own.
    """
    place = cluster.shared / "submitit-array"
    place.mkdir()
    place.chmod(0o1777)
    ids = python(cluster, place, TRAIN + SUBMIT, {}).split()
    array = ids[0].partition("_")[0]
    assert [f"{array}_{index}" for index in range(4)] == ids
    runs = [Run(cluster, (place / "my log" / f"{job_id}_run").resolve(), job_id) for job_id in ids]

    def ticks(*which: int) -> None:
        places = [runs[index].directory for index in which]
        cluster.wait_for(lambda: all(len(list(p.glob("ticking.*"))) == 2 for p in places), 60, "steps")

    ticks(0, 1)
    limited = ("squeue", "--noheader", f"--jobs={ids[2]}", "--format=%r")
    cluster.wait_for(lambda: "JobArrayTaskLimit" in cluster.as_root(*limited), 60, "the limit to be told")
    assert "['RUNNING', 'RUNNING', 'PENDING', 'PENDING']" == python(cluster, place, CANCEL, {})
    ticks(2)
    assert array == runs[2].job()["JobId"]
    cluster.as_root("scontrol", "update", f"JobId={ids[1]}", "Requeue=0")
    nodes = {runs[index].job()["NodeList"] for index in (1, 2)}
    high = cluster.submit_high(len(nodes), f"--nodelist={','.join(nodes)}")
    for index in (1, 2):
        runs[index].wait(lambda state: state.requeues == 1, "the requeue")
    cluster.wait_state(high, "RUNNING", 60)
    cluster.as_root("scancel", high)
    values, problems, states, goes_on = json.loads(python(cluster, place, TRAIN + RESULTS, {}))
    assert all("cancelled" in problem for problem in problems)
    assert ["CANCELLED", "COMPLETED", "COMPLETED", "CANCELLED"] == states
    assert goes_on.isdigit()
    for index, of_ranks in zip((1, 2), values, strict=True):
        stopped = runs[index].entries(RoundFormed)[-1].checkpoint.step
        expected = [{"rank": rank, "first": stopped, "step": stopped + 3 + index} for rank in range(2)]
        assert expected == of_ranks
