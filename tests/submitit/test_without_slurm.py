"""Every way to run a function works on a machine that has none of Slurm's commands."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, os, submitit, hpc_elastic
from hpc_elastic.submitit import ElasticTask

def train(factor):
    return int(os.environ["RANK"]) * factor + int(os.environ["WORLD_SIZE"])

def executor(cluster, workers, **more):
    made = submitit.AutoExecutor("log-" + cluster, cluster=cluster, **more)
    made.update_parameters(timeout_min=5, tasks_per_node=workers)
    return made

if __name__ == "__main__":
    task = ElasticTask(train, workers_per_node=2, by_rank=True)
    started = {  # all at once
        "plugin": executor("hpcelastic", 2, hpcelastic_local=2).submit(train, 10),
        "local": executor("local", 1).submit(task, 10),
        "submit": hpc_elastic.submit(train, 10, local=2, workers_per_node=2),
    }
    values = {"debug": executor("debug", 1).submit(task, 10).result()}
    values["local"] = started["local"].result()
    values |= {name: started[name].results() for name in ("plugin", "submit")}
    print(json.dumps(values))
"""
SLURMS = ("sbatch", "srun", "salloc", "scancel", "scontrol", "squeue", "sacct", "sinfo")


@pytest.fixture
def path_without_slurm(tmp_path: Path) -> str:
    """Return a PATH with all that this machine has, but for Slurm."""
    found = tmp_path / "bin"
    found.mkdir()
    for directory in filter(os.path.isdir, os.environ["PATH"].split(":")):
        for name in os.listdir(directory):
            if not name.startswith(SLURMS) and not os.path.lexists(found / name):
                (found / name).symlink_to(os.path.join(directory, name))
    assert not any(shutil.which(name, path=str(found)) for name in SLURMS)
    return str(found)


@pytest.mark.slow
def test_functions_run_without_slurm(tmp_path: Path, path_without_slurm: str) -> None:
    """Our executor and `hpc_elastic.submit` on 2 nodes x 2 workers, `ElasticTask` below local and debug."""
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**os.environ, "PATH": path_without_slurm},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    two, four = [2, 12], [4, 14, 24, 34]
    assert {"debug": two, "local": two, "plugin": four, "submit": four} == json.loads(
        done.stdout.splitlines()[-1]
    )
