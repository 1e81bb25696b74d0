"""torchrun itself over our rendezvous: ``--rdzv-backend=hpc_elastic``."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpc_elastic.testing.waiting import wait_until

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(180)]

TRAIN = """
import os, sys, time
import torch, torch.distributed as dist
place, lost = sys.argv[1:]
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
rank, world = dist.get_rank(), dist.get_world_size()
with open(place, "a") as told:
    told.write(f"{rank} of {world}: {total.item():g}\\n")
agent = os.getppid()
while world == int(lost) and os.getppid() == agent:
    time.sleep(0.05)  # the next world is a smaller one; torchrun leaves its workers behind when it is killed
dist.destroy_process_group()
"""
LEASE_S = 120
MakeAgent = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[MakeAgent]:
    """Return a function that starts torchrun on a node; what still runs after the test is killed."""
    started: list[subprocess.Popen[str]] = []
    (tmp_path / "train.py").write_text(TRAIN)

    def start(nodes: str, *flags: str, lost: int = 0, restart: int = 0) -> subprocess.Popen[str]:
        argv = [
            *(sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}", "--nproc-per-node=2"),
            *("--rdzv-backend=hpc_elastic", f"--rdzv-endpoint={tmp_path / 'run'}", "--rdzv-id=r"),
            *("--local-addr=127.0.0.1", f"--log-dir={tmp_path / 'logs'}", *flags),
            *(str(tmp_path / "train.py"), str(tmp_path / "told"), str(lost)),
        ]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "SLURM_JOB_ID": "r", "SLURM_RESTART_COUNT": str(restart)}
        started.append(subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def _told(tmp_path: Path) -> list[str]:
    told = tmp_path / "told"
    return sorted(told.read_text().splitlines()) if told.exists() else []


def test_two_agents_train(agent: MakeAgent, tmp_path: Path) -> None:
    """Without host or port of anybody: two torchruns of one line make one world of four ranks."""
    agents = [agent("2") for _ in range(2)]
    assert [0, 0] == [process.wait(120) for process in agents]
    assert [f"{rank} of 4: 4" for rank in range(4)] == _told(tmp_path)


def test_the_first_agent_is_killed(agent: MakeAgent, tmp_path: Path) -> None:
    """No agent hosts anything, so that the others go on without the first as without any other."""
    quick = ("--rdzv-conf=last_call_timeout=3,keep_alive_interval=0.5,lease=3", "--max-restarts=3")
    agents = [agent("2:3", *quick, lost=6) for _ in range(3)]
    of_six = [f"{rank} of 6: 6" for rank in range(6)]
    wait_until(lambda: of_six == _told(tmp_path), "a world of six ranks", timeout_s=90.0)
    agents[0].kill()
    assert [0, 0] == [process.wait(120) for process in agents[1:]]
    assert [f"{rank} of 4: 4" for rank in range(4)] == [line for line in _told(tmp_path) if " of 4" in line]


def test_a_requeued_job_waits_for_nobody(agent: MakeAgent, tmp_path: Path) -> None:
    """What killed agents of the start before have left is known to be of the past."""
    long = f"--rdzv-conf=lease={LEASE_S},node="
    killed = [agent("2", f"{long}n{number}", lost=4) for number in (1, 2)]
    of_four = [f"{rank} of 4: 4" for rank in range(4)]
    wait_until(lambda: of_four == _told(tmp_path), "a world of four ranks", timeout_s=90.0)
    for process in killed:
        process.kill()
    agents = [agent("2", f"{long}n{number}", restart=1) for number in (3, 4)]
    assert [0, 0] == [process.wait(LEASE_S) for process in agents]
    assert sorted(of_four * 2) == _told(tmp_path)


def test_a_wrong_option_is_torchs_error(agent: MakeAgent) -> None:
    """The message names the option; nothing is started."""
    process = agent("2", "--rdzv-conf=leese=3")
    said = process.communicate(timeout=120)[1]
    assert 1 == process.returncode
    assert "leese" in said
