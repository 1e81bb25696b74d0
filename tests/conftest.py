"""Fixtures that all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpc_elastic.paths import RunPaths
from hpc_elastic.store.memory import MemoryStore
from hpc_elastic.store.shared_dir import SharedDirStore
from hpc_elastic.testing.clock import FakeClock

_OF_A_JOB = ("SLURM_", "SBATCH_", "HPC_ELASTIC_RUN", "TORCHELASTIC_")


@pytest.fixture(autouse=True)
def _outside_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the job that the tests themselves may run in; `SLURM_CONF` stays."""
    for name in list(os.environ):
        if name.startswith(_OF_A_JOB) and name != "SLURM_CONF":
            monkeypatch.delenv(name)


@pytest.fixture
def clock() -> FakeClock:
    """Return a clock that the test moves by hand."""
    return FakeClock()


@pytest.fixture
def run_paths(tmp_path: Path) -> RunPaths:
    """Return the paths of a run directory whose directories exist."""
    paths = RunPaths(tmp_path / "run")
    for directory in (paths.root, *paths.directories()):
        os.makedirs(directory, mode=0o700, exist_ok=True)
    return paths


@pytest.fixture
def memory_store() -> MemoryStore:
    """Return an empty store in memory."""
    return MemoryStore()


@pytest.fixture
def shared_dir_store(run_paths: RunPaths) -> SharedDirStore:
    """Return a store in a fresh run directory."""
    return SharedDirStore(run_paths.root)
