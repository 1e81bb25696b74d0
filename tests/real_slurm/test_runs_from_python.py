"""A function that a script submits with `hpc_elastic.submit`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.record.journal import RoundFormed
from tests.real_slurm.cluster import Cluster
from tests.real_slurm.jobs import PYTHON, USER, Run, installed_for_users

pytestmark = pytest.mark.usefixtures(installed_for_users.__name__)

SUBMIT = """
import sys
import hpc_elastic
sys.path.append("DIRECTORY-modules")
import of_my_own

def total(steps, pause):
    import os, time
    from hpc_elastic import worker
    saved = worker.latest_checkpoint()
    step = saved.step if saved else 0
    first = step
    while step < steps:
        if worker.should_stop():
            worker.checkpoint_saved(step)
            raise SystemExit(0)
        time.sleep(pause)
        step += 1
        worker.tick(step)
        if step == 3:
            open(os.path.join(worker.run_dir(), "ticking." + os.environ["RANK"]), "w").close()
    names = ("RANK", "WORLD_SIZE")
    rank, world = (int(os.environ[name]) for name in names)
    return of_my_own.value(rank=rank, world=world, first=first, step=step)

run = hpc_elastic.submit(
    total, 200, 0.05, nodes=2, gpus_per_node=2, cpus_per_node=2, time="10m", partition="low",
    run_dir="DIRECTORY", allow_local_run_dir=True,
)
print(run.job_id)
"""
RESULTS = """
import json, hpc_elastic
run = hpc_elastic.Run("DIRECTORY")
print(json.dumps([run.results(timeout=100), run.status().phase.value, run.name]))
"""


def python(cluster: Cluster, program: str, directory: Path) -> str:
    """Run a script as the user, on the login host; return what it prints."""
    done = cluster.run(USER, [PYTHON, "-c", program.replace("DIRECTORY", str(directory))], timeout=150)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_values_of_a_preempted_function_come_back(cluster: Cluster) -> None:
    """It saves, is requeued, goes on where it stopped; another process gets what all ranks return.

    It uses a module that the caller alone has on its search path.
    """
    directory = cluster.shared / "from-python"
    modules = cluster.shared / "from-python-modules"
    modules.mkdir()
    (modules / "of_my_own.py").write_text("value = dict\n")
    run = Run(cluster, directory, python(cluster, SUBMIT, directory))
    cluster.wait_for(lambda: len(list(directory.glob("ticking.*"))) == 4, 60, "steps of all ranks")
    high = cluster.submit_high(4)
    run.wait(lambda state: state.requeues == 1, "the requeue")
    cluster.wait_state(high, "RUNNING")
    cluster.as_root("scancel", high)
    said: tuple[list[dict[str, Any]], str, str] = json.loads(python(cluster, RESULTS, directory))
    values, phase, name = said
    assert ("done", "total") == (phase, name)
    assert [0, 1, 2, 3] == [value["rank"] for value in values]
    stopped = run.entries(RoundFormed)[-1].checkpoint.step
    assert [(4, stopped, 200)] * 4 == [(v["world"], v["first"], v["step"]) for v in values]
