"""Our agent over torch's own rendezvous and its store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_elastic.meet.interface import free_port
from tests.agent.elastic_nodes import Nodes

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    """Return nodes that meet by torch's handler."""
    pytest.importorskip("torch")
    made = Nodes(tmp_path, "c10d")
    yield made
    made.end()


def test_a_crash_restarts_the_workers_of_all(nodes: Nodes) -> None:
    """Also those that have succeeded already and wait at the end: there torch's agent waits in vain."""
    crash_once = f'if [ "$1" = b ] && mkdir "{nodes.root}/crashed"; then exit 7; fi'
    options = {"min_nodes": 2, "max_nodes": 2, "max_restarts": 1, "place": f"localhost:{free_port()}"}
    for name in "ab":
        nodes.start(name, f"set -- {name}; {crash_once}", **options)
    results = [nodes.result(name) for name in "ab"]
    assert ["SUCCEEDED"] * 2 == [result["state"] for result in results]
    assert [0, 1] == sorted(result["remaining_restarts"] for result in results)
    for workers in (nodes.told()[:2], nodes.told()[2:]):
        assert [(0, 2), (1, 2)] == sorted((worker.rank, worker.world_size) for worker in workers)
        assert 1 == len({worker.master for worker in workers})
