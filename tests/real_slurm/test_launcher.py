"""A user's own program that launches, started by srun on several nodes of a real Slurm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.real_slurm.cluster import REPOSITORY, Cluster
from tests.real_slurm.jobs import PYTHON, USER, installed_for_users

pytestmark = pytest.mark.usefixtures(installed_for_users.__name__)

PROGRAM = """
import json, os, sys
from hpc_elastic.launcher import LaunchConfig, elastic_launch
from hpc_elastic.multiprocessing.errors import ChildFailedError

def train(number):
    return int(os.environ["RANK"]) + number, os.environ["WORLD_SIZE"]

def fail(rank):
    if int(os.environ["RANK"]) == rank:
        raise ValueError("no luck")
    import time; time.sleep(600)

def say(**words):
    print(json.dumps({"node": os.environ["SLURMD_NODENAME"], **words}), flush=True)

if __name__ == "__main__":
    for number in (10, 20):
        config = LaunchConfig(2, 2, 2)
        say(number=number, values=elastic_launch(config, train)(number), run_id=config.run_id)
    try:
        elastic_launch(LaunchConfig(2, 2, 2, max_restarts=0), fail)(3)
    except ChildFailedError as error:
        say(failed=error.get_first_failure()[0], text=str(error))
"""

RESUMING = """
import os, sys, time
from hpc_elastic import worker
from hpc_elastic.launcher import LaunchConfig, elastic_launch
from hpc_elastic.multiprocessing import SignalException

def train():
    found = worker.latest_checkpoint()
    if found is not None:
        return found.step
    open("started." + os.environ["RANK"], "w").close()
    step = 0
    while not worker.should_stop():
        time.sleep(0.02)
        step += 1
        worker.tick(step)
    if os.environ["RANK"] == "0":
        worker.checkpoint_saved(step)

if __name__ == "__main__":
    try:
        print("values", *elastic_launch(LaunchConfig(2, 2, 2), train)().values(), flush=True)
    except SignalException as error:
        print("told by", error.sigval.name, flush=True)
        sys.exit(128 + error.sigval)
"""


def open_place(cluster: Cluster, name: str, program: str) -> Path:
    """Return a directory that users can write to, with a program in it."""
    place = cluster.shared / name
    place.mkdir()
    place.chmod(0o1777)
    (place / "program.py").write_text(program)
    return place


def test_a_program_below_srun_launches_on_all_its_nodes(cluster: Cluster) -> None:
    """One launch after the other; the nodes find each other by the step, and name the same failure."""
    place = open_place(cluster, "launches", PROGRAM)
    step = ["srun", "--partition=low", "--nodes=2", "--ntasks=2", "--time=2", "--cpus-per-task=2"]
    step += ["--output=said.%t", "--error=errors.%t"]  # lines of two tasks mix in one stream
    done = cluster.run(
        USER,
        [*step, PYTHON, "program.py"],
        cwd=place,
        env={"PYTHONPATH": str(REPOSITORY)},
    )
    assert done.returncode == 0, done.stderr
    said: list[dict[str, Any]] = [
        json.loads(line) for path in place.glob("said.*") for line in path.read_text().splitlines()
    ]
    for number in (10, 20):
        parts = [one["values"] for one in said if one.get("number") == number]
        values = {rank: value for part in parts for rank, value in part.items()}
        assert {str(rank): [rank + number, "4"] for rank in range(4)} == values
    failures = [one for one in said if "failed" in one]
    assert {"node1", "node2"} == {one["node"] for one in failures}
    assert [3, 3] == [one["failed"] for one in failures]
    assert 1 == len({one["text"] for one in failures})
    assert 2 == len({one["run_id"] for one in said if "run_id" in one})


def test_a_requeued_program_takes_its_run_up_again(cluster: Cluster) -> None:
    """All it does for that is to ask whether to stop, and from where to go on."""
    place = open_place(cluster, "requeued", RESUMING)
    shape = ["--partition=low", "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=2", "--time=2"]
    command = f"--wrap=srun --kill-on-bad-exit=0 {PYTHON} program.py"
    done = cluster.run(
        USER,
        ["sbatch", "--parsable", "--requeue", "--open-mode=append", "--output=out", *shape, command],
        cwd=place,
        env={"PYTHONPATH": str(REPOSITORY)},
    )
    assert done.returncode == 0, done.stderr
    cluster.wait_for(lambda: len(list(place.glob("started.*"))) == 4, 30, "four workers")
    cluster.as_root("scontrol", "requeue", done.stdout.strip())
    cluster.wait_for(lambda: (place / "out").read_text().count("values") == 2, 60, "the end of the run")
    lines = (place / "out").read_text().splitlines()
    assert 2 == lines.count("told by SIGTERM")
    steps = {step for line in lines if line.startswith("values") for step in line.split()[1:]}
    assert 1 == len(steps)
    assert steps.pop().isdigit()
