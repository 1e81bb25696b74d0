"""Fixtures that all tests share."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.workermanage import WorkerController

from hpc_elastic.paths import RunPaths
from hpc_elastic.store.memory import MemoryStore
from hpc_elastic.store.shared_dir import SharedDirStore
from hpc_elastic.testing.clock import FakeClock

_PR_SET_CHILD_SUBREAPER = 36
# the same examples each time, however long they take: a failure that comes and goes tells nobody anything
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")

_OF_A_JOB = ("SLURM_", "SBATCH_", "HPC_ELASTIC_RUN", "TORCHELASTIC_")


def pytest_configure() -> None:
    """Let agents hear what the tests send them, also where the tests run below `nohup`."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a script
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    """Tell each worker of `-n` whether it may have to give tests away; else one would get all slow ones."""
    node.workerinput["gives_away"] = node.config.option.dist == "worksteal"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let several workers begin with what is slow, else one of them works alone at the end."""
    if getattr(config, "workerinput", {}).get("gives_away"):
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail if a test was skipped where `scripts/test` said that none may be."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    forbidden = os.environ.get("HPC_ELASTIC_NO_SKIP") == "1"
    if forbidden and reporter is not None and reporter.stats.get("skipped"):
        reporter.write_line("tests were skipped, and HPC_ELASTIC_NO_SKIP=1 forbids it", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(autouse=True)
def _adopts_no_orphans() -> Iterator[None]:
    """Undo what starting workers in this process does, else it keeps the dead of later tests as zombies."""
    yield
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.fixture(autouse=True)
def _outside_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the job that the tests themselves may run in; `SLURM_CONF` stays."""
    for name in list(os.environ):
        if name.startswith(_OF_A_JOB) and name != "SLURM_CONF":
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _without_settings_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the settings files of this machine and of the user who runs the tests."""
    monkeypatch.setenv("HPC_ELASTIC_SITE_CONFIG", "")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nonexistent")


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
