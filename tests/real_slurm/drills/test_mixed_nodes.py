"""A job on nodes that differ: in each start and each round a node has as many workers as GPUs of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.record.journal import RoundFormed
from tests.real_slurm.cluster import Cluster
from tests.real_slurm.conftest import StartCluster
from tests.real_slurm.drills.conftest import Tell
from tests.real_slurm.drills.runs import MODES
from tests.real_slurm.jobs import PYTHON, Run, submit
from tests.real_slurm.test_array import QUICK, wait_size

GPUS = {"node1": 2, "node2": 2, "node3": 1}
WORKER = """
import json, os, time
from hpc_elastic import worker

names = ("RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE")
seen = [*(os.environ[name] for name in names), os.uname().nodename]
with open(os.path.join(worker.run_dir(), f"new.{seen[0]}"), "w") as file:
    json.dump(seen[1:], file)
os.rename(file.name, os.path.join(worker.run_dir(), f"seen.{os.environ['HPC_ELASTIC_ROUND']}.{seen[0]}"))
saved = worker.latest_checkpoint()
step = saved.step if saved else 0
while not worker.should_stop():
    time.sleep(0.02)
    step += 1
    worker.tick(step)
worker.checkpoint_saved(step, shards=int(os.environ["WORLD_SIZE"]))
"""


class Strike(NamedTuple):
    """What ends a round, and how long after it was formed.

    Attributes:
        name: for people.
        argv: the command, with `{job}` to fill in.
        after_s: how long the round has lasted by then [s].
    """

    name: str
    argv: tuple[str, ...]
    after_s: float


STRIKES = {
    "step": (
        Strike("the step killed", ("scancel", "{job}.0"), 0.0),
        Strike("requeued", ("scontrol", "requeue", "{job}"), 1.5),
        Strike("the step killed", ("scancel", "{job}.0"), 4.0),
    ),
    "array": (
        Strike("the small node's task requeued", ("scontrol", "requeue", "{job}_{small}"), 0.0),
        Strike("all tasks requeued", ("scontrol", "requeue", "{job}"), 1.5),
        Strike("the small node's task requeued", ("scontrol", "requeue", "{job}_{small}"), 4.0),
    ),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("tracker", ["linuxproc", "cgroup"])
def test_each_node_has_a_worker_per_gpu_of_its_own(
    start_cluster: StartCluster, tell: Tell, tracker: str, mode: str
) -> None:
    """At first, and after whatever makes the agents start anew."""
    cluster = start_cluster(nodes=len(GPUS), tracker=tracker, options=("--last-gpus", "1"))
    more = (*QUICK, "--mode", "array") if mode == "array" else ()
    shape = ("--nodes", str(len(GPUS)), "--time", "10m", "--exclusive", "--partition", "low")
    run = submit(cluster, (*shape, *more), [PYTHON, "-c", WORKER])
    tell(mode, "at first", check(run, 1))
    for strike in STRIKES[mode]:
        formed = len(run.entries(RoundFormed))
        SystemClock().sleep(strike.after_s)
        words = {"job": run.job_id, "small": task_on(cluster, run.job_id, "node3")}
        cluster.as_root(*(word.format(**words) for word in strike.argv))
        tell(mode, f"{strike.name} {strike.after_s:g} s after the round was formed", check(run, formed + 1))
    run.command("cancel", str(run.directory))
    run.wait_ending(60)


def task_on(cluster: Cluster, job_id: str, node: str) -> str:
    """Return the number of the task of an array on a node; empty if there is none."""
    shown = cluster.as_root("squeue", "--noheader", f"--jobs={job_id}", f"--nodelist={node}", "--format=%K")
    return shown.strip()


def check(run: Run, least: int) -> str:
    """Wait for a round of all nodes with at least this number, and look at its workers."""
    run.wait_round(least, 120)
    formed = wait_size(run, len(GPUS), 120)
    assert {member.node: member.slots for member in formed.members} == GPUS
    paths = [run.directory / f"seen.{formed.number}.{rank}" for rank in range(sum(GPUS.values()))]
    run.wait(lambda _: all(path.exists() for path in paths), f"ranks of round {formed.number}")
    seen: Sequence[Sequence[str]] = [json.loads(path.read_text()) for path in paths]
    for local_size, world_size, node in seen:
        assert (GPUS[node], sum(GPUS.values())) == (int(local_size), int(world_size))
    return f"round {formed.number}: 2, 2 and 1 workers"
