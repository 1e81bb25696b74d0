"""A short run of scripts/chaos: real trainings on a real Slurm under faults from a seed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real_parts import require_root_and_namespaces, unavailable
from tests.real_slurm.cluster import REPOSITORY

SEED = 11
LIMIT_S = 240


@pytest.mark.chaos
@pytest.mark.slurm
@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 60)
def test_a_short_run_breaks_no_promise(tmp_path: Path) -> None:
    """Faults from a fixed seed, one after the other and two at once; every run keeps every promise."""
    require_root_and_namespaces("chaos", ("net", "pid"))
    python = os.environ.get("HPC_ELASTIC_TEST_PYTHON", sys.executable)
    record = tmp_path / "chaos.json"
    words = (
        "--minutes",
        "1",
        "--seed",
        str(SEED),
        "--json",
        str(record),
        "--evidence",
        str(tmp_path / "kept"),
    )
    done = subprocess.run(
        [python, "-m", "chaos_lib.cli", *words],
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'scripts'}"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode == 2:
        unavailable("chaos", done.stdout + done.stderr)
    assert 0 == done.returncode, done.stdout + done.stderr
    runs = json.loads(record.read_text())["runs"]
    assert [[]] * len(runs) == [run["broken"] for run in runs]
    assert sum(len(run["effects"]) for run in runs) >= 2, done.stdout
