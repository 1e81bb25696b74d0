"""A job on nodes that differ: each node has as many workers as Slurm has given it GPUs there."""

from __future__ import annotations

import pytest

from hpc_elastic.record.journal import Decision, RoundFormed
from tests.real_slurm.conftest import StartCluster
from tests.real_slurm.jobs import installed_for_users, plain, submit

pytestmark = pytest.mark.usefixtures(installed_for_users.__name__)


def test_each_node_has_a_worker_per_gpu_of_its_own(start_cluster: StartCluster) -> None:
    """Whole nodes come with their GPUs; the environment of the job names those of the batch host alone."""
    cluster = start_cluster(nodes=3, options=("--last-gpus", "1"))
    run = submit(cluster, ("--nodes", "3", "--time", "5m", "--exclusive"), plain(cluster, steps=40))
    ending = run.wait_ending().ending
    assert ending is not None
    assert Decision.DONE is ending.decision, run.log()
    (formed,) = run.entries(RoundFormed)
    assert {"node1": 2, "node2": 2, "node3": 1} == {member.node: member.slots for member in formed.members}
