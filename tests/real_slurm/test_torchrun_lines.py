"""Lines written for torchrun in a user's own job script, with the word replaced."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.slurm.adopt.script import adopt_per_node
from tests.real_slurm.cluster import REPOSITORY, Cluster
from tests.real_slurm.jobs import installed_for_users

pytestmark = pytest.mark.usefixtures(installed_for_users.__name__)

REPORT = """
import json, os, sys
names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURMD_NODENAME")
facts = {name: os.environ[name] for name in names}
os.makedirs(sys.argv[1], exist_ok=True)
open(f"{sys.argv[1]}/{facts['RANK']}.{facts['SLURMD_NODENAME']}", "w").write(json.dumps(facts))
"""
SCRIPT = f"""#!/bin/bash
#SBATCH --nodes=2 --cpus-per-task=2
export PYTHONPATH={REPOSITORY}
run="{sys.executable} -m hpc_elastic run"
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -1)
each="srun --ntasks-per-node=1"
$each bash -c "$run --nnodes \\$SLURM_NNODES --nproc_per_node 2 --node_rank=\\$SLURM_PROCID \\
    --master_addr=$head --master_port=29533 w.py static" || exit 1
$each $run --nnodes 2 --rdzv_id 100 --rdzv_backend c10d --rdzv_endpoint $head:29500 w.py c10d || exit 2
$each $run --standalone --nproc-per-node 1 w.py standalone || exit 3
srun --overlap -N1 -n1 -w "$head" $run --nnodes 1 w.py once & first=$!
srun --overlap -N1 -n1 -w "$head" $run --nnodes 1 w.py again & second=$!
wait $first || exit 4
wait $second || exit 5
$each bash -c "$run w.py train; $run w.py eval" || exit 6
"""


NODE_SCRIPT = "torchrun --nnodes=2 --nproc-per-node=2 --node_rank=$SLURM_NODEID w.py node\n"


def seen(folder: Path) -> list[dict[str, Any]]:
    """Return what the workers of a line have left, by rank."""
    return [json.loads(path.read_text()) for path in sorted(folder.iterdir())]


def test_lines_for_torchrun_in_one_job(cluster: Cluster) -> None:
    """Static, c10d and standalone; steps at once do not meet, nor do lines of a script that a step runs."""
    home = cluster.shared / "lines"
    home.mkdir(mode=0o777)
    home.chmod(0o777)
    (home / "w.py").write_text(REPORT)
    (home / "job.sh").write_text(SCRIPT)
    done = cluster.run("alice", ["sbatch", "--wait", "--output=out", "job.sh"], cwd=home, timeout=120)
    out = (home / "out").read_text()
    assert 0 == done.returncode, out
    static = seen(home / "static")
    assert ["0", "1", "2", "3"] == [facts["RANK"] for facts in static]
    assert {("4", "29533")} == {(facts["WORLD_SIZE"], facts["MASTER_PORT"]) for facts in static}
    assert static[0]["MASTER_ADDR"] == static[0]["SLURMD_NODENAME"]
    for line in ("c10d", "train", "eval"):
        assert [("0", "2"), ("1", "2")] == [
            (facts["RANK"], facts["WORLD_SIZE"]) for facts in seen(home / line)
        ]
    alone = seen(home / "standalone")
    assert [("0", "1")] * 2 == [(facts["RANK"], facts["WORLD_SIZE"]) for facts in alone]
    assert 2 == len({facts["SLURMD_NODENAME"] for facts in alone})
    assert [1, 1] == [len(seen(home / line)) for line in ("once", "again")]
    assert "nothing was started" not in out


def test_a_script_that_srun_runs_on_each_node_is_adopted(cluster: Cluster) -> None:
    """Its job script gets the lines that are told; one world comes of it, and the run is known by its job."""
    home = cluster.shared / "per-node"
    home.mkdir(mode=0o777)
    home.chmod(0o1777)
    (home / "w.py").write_text(REPORT)
    (home / "hpc-elastic").write_text(f'#!/bin/sh\nexec {sys.executable} -m hpc_elastic "$@"\n')
    (home / "hpc-elastic").chmod(0o755)
    adopted = adopt_per_node(NODE_SCRIPT, "node.sh")
    (home / "node.sh").write_text(adopted.text)
    paths = (f"export PYTHONPATH={REPOSITORY}", f"export PATH={home}:$PATH")
    head = ("#!/bin/bash", "#SBATCH --nodes=2 --cpus-per-task=2 --output=out", *paths)
    (home / "job.sh").write_text("\n".join((*head, *adopted.job_script)) + "\n")
    done = cluster.run("alice", ["sbatch", "--parsable", "--wait", "job.sh"], cwd=home, timeout=120)
    out = (home / "out").read_text()
    assert 0 == done.returncode, out
    ranks = seen(home / "node")
    assert ["0", "1", "2", "3"] == [facts["RANK"] for facts in ranks]
    assert {"4"} == {facts["WORLD_SIZE"] for facts in ranks}
    words = [sys.executable, "-m", "hpc_elastic", "status", done.stdout.strip()]
    told = cluster.run("alice", words, cwd=home, env={"PYTHONPATH": str(REPOSITORY)})
    assert 0 == told.returncode, told.stderr
    assert "done" in told.stdout.splitlines()[0]
