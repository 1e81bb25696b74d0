"""Process groups of real workers that meet without a port in their environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from hpc_elastic.paths import RunPaths
from tests.node.agents import Agents

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(find_spec("torch") is None, reason="could not find torch"),  # imports take seconds
]

REPOSITORY = Path(__file__).parents[2]
LIMIT_S = 120.0
NOWHERE = {"MASTER_ADDR": "x" * 64, "MASTER_PORT": "1", "OMP_NUM_THREADS": "1"}
EXAMPLE = f"""
import runpy
os.environ.update({NOWHERE})
runpy.run_path({str(REPOSITORY / "examples" / "any_port" / "train.py")!r}, run_name="__main__")
"""
SHARED = """
import os
import torch
import torch.distributed as dist
from hpc_elastic.frameworks.torch import shared_store

place = {"rank": int(os.environ["RANK"]), "world_size": 2}
for _ in range(2):
    dist.init_process_group("gloo", store=shared_store(timeout=100), **place)
    ones = torch.ones(1)
    dist.all_reduce(ones)
    dist.all_reduce(ones, group=dist.new_group([0, 1]))
    dist.monitored_barrier()
    dist.destroy_process_group()
dist.init_process_group("gloo", store=shared_store(timeout=100), **place)
dist.barrier()
print(ones.item())  # and the end of a process that has not left its group
"""


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Agents]:
    """Return agents whose workers run the example; where torch looks for rank 0 there is nobody."""
    made = Agents(tmp_path / "run", EXAMPLE)
    yield made
    made.end()


def test_the_ranks_meet_again_after_rank_0_was_killed(agents: Agents) -> None:
    """Two agents with two workers each: the store ends with rank 0, and the next round has another one."""
    flags = ("--nnodes", "2", "--max-restarts", "1")
    started = [agents.start(node, *flags, args=("--kill-at", "120")) for node in range(2)]
    printed = [agent.communicate(timeout=LIMIT_S)[0] for agent in started]
    assert [0, 0] == [agent.returncode for agent in started], printed
    first, second = agents.rounds()
    assert [2, 2] == [len(each.members) for each in (first, second)]
    assert second.checkpoint is not None
    assert 100 == second.checkpoint.step
    stores = [
        sorted((Path(agents.paths.kv) / f"round-{number}").glob("torch%2Faddress+*")) for number in (1, 2)
    ]
    assert [1, 1] == [len(found) for found in stores]
    assert stores[0][0].read_bytes() != stores[1][0].read_bytes()
    result = json.loads((Path(agents.paths.root) / "result.json").read_text())
    assert 200 == result["steps"]
    assert pytest.approx([2, -1], abs=0.5) == [result["weight"], result["bias"]]


def test_gloo_meets_in_the_run_directory(run_paths: RunPaths) -> None:
    """One group after another, groups of a group, and a process that ends without leaving."""
    environ = {**os.environ, **NOWHERE, "HPC_ELASTIC_RUN_DIR": run_paths.root, "HPC_ELASTIC_ROUND": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", SHARED],
            env={**environ, "RANK": str(rank), "WORLD_SIZE": "2"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
        )
        for rank in range(2)
    ]
    printed = [process.communicate(timeout=LIMIT_S) for process in started]
    assert [0, 0] == [process.returncode for process in started], printed
    assert ["4.0\n"] * 2 == [out for out, _ in printed]
