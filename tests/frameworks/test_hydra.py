"""The example for Hydra's submitit launcher runs as its page says."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "hydra_submitit"


@pytest.mark.torch  # the extra of the other frameworks has it
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_each_job_of_a_sweep_is_a_run(tmp_path: Path) -> None:
    """Two jobs, each with checkpoints and a value of its own."""
    if importlib.util.find_spec("hydra_plugins") is None:
        pytest.skip("needs hydra-submitit-launcher")
    shutil.copytree(EXAMPLE, tmp_path / "example")
    argv = [sys.executable, "train.py", "--multirun", "lr=0.1,0.01", "steps=20", "hydra.sweep.dir=sweep"]
    done = subprocess.run(
        argv, cwd=tmp_path / "example", capture_output=True, text=True, check=False, timeout=250
    )
    assert 0 == done.returncode, done.stderr
    jobs = tmp_path / "example" / "sweep" / ".submitit"
    assert 2 == len(list(jobs.glob("*/*_result.pkl")))
    assert 2 == len({path.parent for path in jobs.glob("*/*_run/x-20")})
    assert 2 == sum("start at step 0" in path.read_text() for path in jobs.glob("*/*_log.out"))
