"""What workers see of the Slurm step of their agents."""

from __future__ import annotations

import json

import pytest

from hpc_elastic.slurm.adopt.script import adopt
from tests.real_slurm.cluster import Cluster
from tests.real_slurm.jobs import PYTHON, THREE, USER, installed_for_users, submit

pytestmark = pytest.mark.usefixtures(installed_for_users.__name__)

SCRIPT = """
import json, os, sys
with open(f"{sys.argv[1]}.{os.environ['RANK']}", "w") as file:
    json.dump(dict(os.environ), file)
"""


@pytest.mark.parametrize("mode", ["step", "array"])
def test_each_worker_is_a_task_of_its_own(cluster: Cluster, mode: str) -> None:
    """Libraries that look for Slurm find the rank of the worker and the size of the world."""
    script = cluster.shared / "place.py"
    script.write_text(SCRIPT)
    run = submit(cluster, (*THREE, "--mode", mode), (PYTHON, str(script), "{run}/place"))
    run.wait_ending()
    found = [json.loads((run.directory / f"place.{rank}").read_text()) for rank in range(6)]
    assert [str(rank) for rank in range(6)] == [env["SLURM_PROCID"] for env in found]
    assert ["0", "1"] * 3 == [env["SLURM_LOCALID"] for env in found]
    assert {("6", "3", "2(x3)")} == {
        (env["SLURM_NTASKS"], env["SLURM_STEP_NUM_NODES"], env["SLURM_STEP_TASKS_PER_NODE"]) for env in found
    }
    nodes = found[0]["SLURM_STEP_NODELIST"].split(",")
    assert [env["SLURMD_NODENAME"] for env in found] == [node for node in nodes for _ in range(2)]
    assert {"1"} == {env["PYTHONUNBUFFERED"] for env in found}
    assert {found[0]["JAX_COORDINATOR_ADDRESS"]} == {env["JAX_COORDINATOR_ADDRESS"] for env in found}
    assert [] == [name for env in found for name in env if name.startswith(("PMI_", "PMI2_", "PMIX_"))]


@pytest.mark.parametrize("mode", ["step", "array"])
def test_an_agent_has_all_cpus_of_a_node_that_is_its_own(cluster: Cluster, mode: str) -> None:
    """Also where fewer were asked for; since Slurm 23.02 srun takes that from a variable of sbatch's."""
    script = cluster.shared / "place.py"
    script.write_text(SCRIPT)
    shape = ("--nodes", "2", "--exclusive", "--cpus-per-task", "4", "--time", "10m", "--partition", "low")
    run = submit(cluster, (*shape, "--mode", mode), (PYTHON, str(script), "{run}/place"))
    run.wait_ending()
    found = [json.loads((run.directory / f"place.{rank}").read_text()) for rank in range(2)]
    assert ["8", "8"] == [env["SLURM_CPUS_ON_NODE"] for env in found]
    assert {8} == {int(env["SLURM_CPUS_PER_TASK"]) * int(env["LOCAL_WORLD_SIZE"]) for env in found}


@pytest.mark.parametrize(
    ("options", "cpus"),
    [
        ("--nodes=2 --ntasks-per-node=2 --cpus-per-task=4 --gpus-per-task=1", "4"),
        ("--nodes=1 --exclusive --cpus-per-task=2 --gres=gpu:2", "4"),
    ],
    ids=["per task", "exclusive"],
)
def test_an_adopted_script_gives_an_agent_its_whole_allocation(
    cluster: Cluster, options: str, cpus: str
) -> None:
    """Options for tasks, which the workers were meant to be, leave it no GPU and no CPU less."""
    home = cluster.shared / f"adopted-{len(list(cluster.shared.iterdir()))}"
    home.mkdir(mode=0o777)
    home.chmod(0o1777)
    (home / "w.py").write_text(SCRIPT)
    (home / "hpc-elastic").write_text(f'#!/bin/sh\nexec {PYTHON} -m hpc_elastic "$@"\n')
    (home / "hpc-elastic").chmod(0o755)
    head = f"#!/bin/bash\n#SBATCH {options} --partition=low --time=5\nexport PATH={home}:$PATH\n"
    script = adopt(
        f"{head}torchrun --nnodes=$SLURM_JOB_NUM_NODES --nproc-per-node=2 w.py {home}/place\n", "job.sh"
    ).text
    (home / "job.sh").write_text(script)
    done = cluster.run(USER, ["sbatch", "--wait", "--output=out", "job.sh"], cwd=home, timeout=120)
    assert 0 == done.returncode, (home / "out").read_text()
    found = [json.loads(path.read_text()) for path in sorted(home.glob("place.*"))]
    assert {(cpus, "0,1")} == {(env["SLURM_CPUS_PER_TASK"], env["CUDA_VISIBLE_DEVICES"]) for env in found}
