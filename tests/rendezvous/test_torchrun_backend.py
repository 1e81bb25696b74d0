"""torchrun itself over our rendezvous: ``--rdzv-backend=hpc_elastic``."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpc_elastic.testing.waiting import wait_until

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(600)]

GROUP = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
rank, world, found = dist.get_rank(), dist.get_world_size(), f"{total.item():g}"
dist.destroy_process_group()
"""
"""The ranks of a world meet."""

WORLD = """
import os
rank, world = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
found = os.environ["MASTER_ADDR"] + ":" + os.environ["MASTER_PORT"]
"""
"""They are told where they would meet; importing torch would take each of them seconds."""

TELL = """
import os, sys, time
place, ends = sys.argv[1:]
with open(place, "a") as told:
    told.write(f"{rank} of {world}: {found}\\n")
agent = os.getppid()
while ends == "held" and not os.path.exists(place + ".end") and os.getppid() == agent:
    time.sleep(0.05)  # torchrun leaves its workers behind when it is killed
"""
LEASE_S = 600
LIMIT_S = 200  # without a wait for a lease
MakeAgent = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[MakeAgent]:
    """Return a function that starts torchrun on a node; what still runs after the test is killed."""
    started: list[subprocess.Popen[str]] = []
    (tmp_path / "train.py").write_text(WORLD + TELL)
    (tmp_path / "group.py").write_text(GROUP + TELL)

    def start(
        nodes: str, *flags: str, worker: str = "train.py", ends: str = "held", restart: int = 0
    ) -> subprocess.Popen[str]:
        argv = [
            *(sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}", "--nproc-per-node=2"),
            *("--rdzv-backend=hpc_elastic", f"--rdzv-endpoint={tmp_path / 'run'}", "--rdzv-id=r"),
            *("--local-addr=127.0.0.1", f"--log-dir={tmp_path / 'logs'}", *flags),
            *(str(tmp_path / worker), str(tmp_path / "told"), ends),
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
    return told.read_text().splitlines() if told.exists() else []


def _end_workers(tmp_path: Path) -> None:
    (tmp_path / "told.end").touch()


def _is_whole(lines: list[str], world: int) -> bool:
    """Tell whether the last lines are of all ranks of a world, with one place to meet at."""
    last = sorted(lines[-world:])
    ranks = [line.partition(": ")[0] for line in last]
    return ranks == [f"{rank} of {world}" for rank in range(world)] and (
        1 == len({line.partition(": ")[2] for line in last})
    )


def test_two_agents_train(agent: MakeAgent, tmp_path: Path) -> None:
    """Without host or port of anybody: two torchruns of one line make one world of four ranks."""
    agents = [agent("2", worker="group.py", ends="at once") for _ in range(2)]
    assert [0, 0] == [process.wait(LIMIT_S) for process in agents]
    assert [f"{rank} of 4: 4" for rank in range(4)] == sorted(_told(tmp_path))


def test_the_first_agent_is_killed(agent: MakeAgent, tmp_path: Path) -> None:
    """No agent hosts anything, so that the others go on without the first as without any other."""
    quick = ("--rdzv-conf=last_call_timeout=3,keep_alive_interval=0.5,lease=3", "--max-restarts=3")
    agents = [agent("2:3", *quick) for _ in range(3)]
    wait_until(lambda: _is_whole(_told(tmp_path), 6), "a world of six ranks", timeout_s=LIMIT_S)
    agents[0].kill()
    wait_until(lambda: _is_whole(_told(tmp_path), 4), "a world of four ranks", timeout_s=LIMIT_S)
    _end_workers(tmp_path)
    assert [0, 0] == [process.wait(LIMIT_S) for process in agents[1:]]


def test_a_requeued_job_waits_for_nobody(agent: MakeAgent, tmp_path: Path) -> None:
    """What killed agents of the start before have left is known to be of the past."""
    long = f"--rdzv-conf=lease={LEASE_S},node="
    killed = [agent("2", f"{long}n{number}") for number in (1, 2)]
    wait_until(lambda: _is_whole(_told(tmp_path), 4), "a world of four ranks", timeout_s=LIMIT_S)
    for process in killed:
        process.kill()
    _end_workers(tmp_path)
    (tmp_path / "told").unlink()
    agents = [agent("2", f"{long}n{number}", restart=1) for number in (3, 4)]
    assert [0, 0] == [process.wait(LIMIT_S) for process in agents]
    assert _is_whole(_told(tmp_path), 4)


def test_a_wrong_option_is_torchs_error(agent: MakeAgent) -> None:
    """The message names the option; nothing is started."""
    process = agent("2", "--rdzv-conf=leese=3")
    said = process.communicate(timeout=120)[1]
    assert 1 == process.returncode
    assert "leese" in said
