"""The files of the account of a run, as commands find them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpc_elastic.account import read as account_read
from hpc_elastic.account.facts import Doing, WorkFact, encode_fact
from hpc_elastic.account.gpus import GpuUse, NodeGpus, encode_gpus, summary_of
from hpc_elastic.account.read import read_facts, read_gpus
from hpc_elastic.paths import RunPaths
from hpc_elastic.store.files import read

FACT = WorkFact(1, Doing.STEP, 10.0, 5.0, "n1.1", 2, 3)


def test_a_file_that_goes_while_they_are_read_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was listed; the lines of the other nodes count."""
    paths = RunPaths(tmp_path)
    os.mkdir(paths.account)
    for name in ("n1", "n2"):
        Path(paths.account, name).write_bytes(encode_fact(FACT._replace(agent=f"{name}.1")))

    def late(path: str, limit: int) -> bytes | None:
        if path.endswith("n1"):
            os.unlink(path)
        return read(path, limit=limit)

    monkeypatch.setattr(account_read, "read", late)
    assert ["n2.1"] == [fact.agent for fact in read_facts(paths)]
    assert [] == read_facts(RunPaths(tmp_path / "none"))


def test_the_gpus_of_nodes_are_read_from_their_own_files(tmp_path: Path) -> None:
    """Whatever else a user has put beside them."""
    paths = RunPaths(tmp_path)
    os.mkdir(paths.gpus)
    for name, node in (("n1.json", "n1"), ("n2.json.bak", "n2")):
        Path(paths.gpus, name).write_bytes(encode_gpus(NodeGpus(node, 1.0)))
    assert ["n1"] == [one.node for one in read_gpus(paths)]


def test_gpus_whose_drivers_tell_no_share_have_no_least_busy_one() -> None:
    """Their memory is known all the same."""
    silent = GpuUse("0", "GPU-a", peak=7, limit=9)
    found = summary_of([NodeGpus("n1", 1.0, (silent,)), NodeGpus("n2", 1.0)])
    assert found is not None
    assert (("n1",), 1, None, None, 7, 9) == tuple(found)
    busy = GpuUse("1", "GPU-b", samples=2, busy=50)
    found = summary_of([NodeGpus("n1", 1.0, (silent, busy))])
    assert found is not None
    assert (0.25, (0.25, "n1", "1")) == (found.share, found.least)
    assert summary_of([NodeGpus("n2", 1.0)]) is None
