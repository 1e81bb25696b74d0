"""Workers that make no progress, and workers that the kernel kills, on a real Slurm."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.record.journal import Cause, HangSuspected, RoundEnded, RoundFormed
from tests.real_slurm.cluster import Cluster
from tests.real_slurm.jobs import PYTHON, example, installed_for_users, nodes_of, submit, uninterrupted

pytestmark = pytest.mark.usefixtures(installed_for_users.__name__)

TWO = ("--nodes", "2", "--gpus-per-node", "2", "--time", "10m", "--partition", "low")
HANGS_ONCE = """
import os, sys, time
sys.path.insert(0, {directory!r})
import plain

def all_reduce():
    time.sleep(600)

def load_batch():
    time.sleep(600)

def meet(step):
    there = os.path.join(os.environ["HPC_ELASTIC_RUN_DIR"], "there")
    os.makedirs(there, exist_ok=True)
    open(os.path.join(there, os.environ["RANK"]), "w").close()
    while len(os.listdir(there)) < 4:
        plain.worker.tick(step)
        time.sleep(0.05)

def train_step(weights, step, original=plain.train_step):
    if os.environ["HPC_ELASTIC_ROUND"] == "1" and step == (50 if plain.RANK == 3 else 51):
        meet(step)
        load_batch() if plain.RANK == 3 else all_reduce()
    return original(weights, step)

plain.train_step = train_step
plain.main()
"""


@pytest.mark.both_trackers
def test_a_hang_is_found_told_and_mended(cluster: Cluster, tmp_path: Path) -> None:
    """Stacks of all four ranks, the odd one by name in log and journal, a restart, the right result.

    A suspension that takes longer than a step may is no hang: nobody is asked where anything is.
    """
    words = example(cluster, "plain", "--step-time", "0.05")
    program = HANGS_ONCE.format(directory=str(Path(words[1]).parent))
    flags = (*TWO, "--hang-timeout", "3s")
    run = submit(cluster, flags, [PYTHON, "-c", program, *words[2:]])
    run.wait(lambda state: state.rounds == 2, "the restart")
    run.wait_checkpoint(60)
    cluster.as_root("scontrol", "suspend", run.job_id)
    cluster.wait_state(run.job_id, "SUSPENDED")
    SystemClock().sleep(5)  # nothing else tells that more time than a step may take is over
    cluster.as_root("scontrol", "resume", run.job_id)
    run.wait_ending(90)
    run.wait_gone()
    (suspected,) = run.entries(HangSuspected)
    assert 1 == suspected.number
    (ended,) = run.entries(RoundEnded)
    first, second = run.entries(RoundFormed)
    odd = nodes_of(first)[1]
    assert (Cause.HANG, (odd,)) == (ended.cause, ended.nodes)
    assert re.search(rf"rank 3 \({odd}\): step 50, in load_batch", ended.failure["message"])
    assert "the 3 others: step 51, in all_reduce" in ended.failure["message"]
    assert 40 == second.checkpoint.step
    directory = Path(run.paths.hang_logs(1, 1))
    found = {file.stem: file.read_text() for file in directory.glob("rank*.txt")}
    assert {"rank0", "rank1", "rank2", "rank3"} == set(found)
    assert "in load_batch" in found["rank3"]
    assert all("in all_reduce" in found[f"rank{rank}"] for rank in range(3))
    assert "the workers hang: no progress for" in run.log()
    assert uninterrupted(tmp_path) == run.result()
