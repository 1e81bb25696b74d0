"""`hpc-elastic doctor` on the nodes of a real Slurm."""

from __future__ import annotations

import pytest

from tests.real_slurm.cluster import Cluster
from tests.real_slurm.jobs import elastic, installed_for_users

pytestmark = pytest.mark.usefixtures(installed_for_users.__name__)


def test_nodes_that_share_a_directory_say_so(cluster: Cluster) -> None:
    """Three nodes see each other in it, and their locks exclude each other; nothing is left."""
    done = elastic(cluster, "doctor", str(cluster.shared), "--nodes", "3", "--", "--partition", "high")
    assert 0 == done.returncode, done.stdout + done.stderr
    assert "slurm controller" in done.stdout
    assert "node1, node2, node3 see each other in it" in done.stdout
    assert "excludes between nodes" in done.stdout
    assert [] == list(cluster.shared.glob(".hpc_elastic-*"))


def test_a_node_that_has_another_directory_is_named(cluster: Cluster) -> None:
    """By the nodes that see each other, and by itself with what is mounted there; exit code 1."""
    place = cluster.shared / "local-on-node2"
    place.mkdir()
    place.chmod(0o1777)
    cluster.execute("node2", "mount", "-t", "tmpfs", "-o", "mode=1777", "scratch", str(place))
    try:
        done = elastic(cluster, "doctor", str(place), "--nodes", "3", "--", "--nodelist", "node[1-3]")
    finally:
        cluster.execute("node2", "umount", str(place))
    assert 1 == done.returncode, done.stdout + done.stderr
    assert "node1, node3 see each other, but not node2" in done.stdout
    alone = f"node2 sees only itself: {place} is in the memory of the node there (tmpfs on scratch)"
    assert alone in done.stdout
    assert "excludes between nodes" in done.stdout
    assert [] == list(place.iterdir())
