"""A node's workers have ended well when one elsewhere fails: nobody is lost, all start again in place."""

from __future__ import annotations

import pytest

from hpc_elastic.record.journal import Cause, Decision, Drained, NodeLeft, Requeued, RoundEnded, RoundFormed
from tests.real_slurm.cluster import Cluster
from tests.real_slurm.drills.conftest import Tell
from tests.real_slurm.drills.runs import MODES, flags
from tests.real_slurm.jobs import PYTHON, installed_for_users, nodes_of, submit

pytestmark = [pytest.mark.usefixtures(installed_for_users.__name__), pytest.mark.both_trackers]

GAPS_S = (0.0, 0.01, 0.04, 0.1, 0.4, 1.0, 3.0)
WORKER = """
import os, sys, time
from hpc_elastic import worker

gaps = [float(gap) for gap in sys.argv[1].split(",")]
rank = os.environ["RANK"]
saved = worker.latest_checkpoint()
done = saved.step if saved else 0
ended = os.path.join(worker.run_dir(), f"ended.{done}")

def wait(path):
    while not os.path.exists(path):
        time.sleep(0.002)

if done < len(gaps):
    if rank == "0":
        worker.checkpoint_saved(done + 1)
        open(ended + ".marked", "w").close()
        time.sleep(600)
    wait(ended + ".marked")
    if rank == "2":
        open(ended, "w").close()
        os._exit(0)
    wait(ended)
    time.sleep(gaps[done])
    os._exit(3 + done)
"""
"""Rank 2 ends well, rank 1 fails so much later, rank 0 works on; in each round with the next gap."""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("nodes", ["3", "2:3"])
def test_who_has_ended_well_is_not_lost(cluster: Cluster, tell: Tell, mode: str, nodes: str) -> None:
    """However soon the failure follows, the next round has all three, in the same start of the job."""
    options = flags(mode, nodes, "--partition", "low", "--max-restarts", "20")
    run = submit(cluster, options, [PYTHON, "-c", WORKER, ",".join(map(str, GAPS_S))])
    ending = run.wait_ending(120).ending
    assert ending is not None
    assert Decision.DONE is ending.decision, run.log()
    assert [Cause.CRASH] * len(GAPS_S) == [entry.cause for entry in run.entries(RoundEnded)]
    formed = [sorted(nodes_of(entry)) for entry in run.entries(RoundFormed)]
    assert [formed[0]] * (len(GAPS_S) + 1) == formed
    assert 3 == len(formed[0])
    assert [] == [*run.entries(Drained), *run.entries(Requeued), *run.entries(NodeLeft)]
    for gap_s in GAPS_S:
        tell(mode, f"{nodes} nodes, a failure {gap_s:g} s after the end", "a restart in place, all 3 nodes")
