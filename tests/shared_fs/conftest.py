"""Fixtures that give a test real shared file systems.

Each kind is started at most once per session, at its first test. Missing packages are installed.
Without root, apt or namespaces the tests are skipped, but they fail where HPC_ELASTIC_NO_SKIP=1.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.real_parts import require_root_and_namespaces, unavailable
from tests.shared_fs.clients import Client
from tests.shared_fs.file_system import CLIENTS, KINDS, FileSystem, shared_fs

TIMEOUT_S = 180
"""Limit of one test with its fixtures; the first one may have to install packages."""

Clients = tuple[Client, ...]


class OneKindPerWorker(LoadScopeScheduling):  # type: ignore[misc] # xdist is not typed
    """Gives all tests on one kind to the same worker, so that each kind is started once."""

    def _split_scope(self, nodeid: str) -> str:
        found = re.search(rf"\[.*\b({'|'.join(KINDS)})\b", nodeid)
        return found[1] if found else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneKindPerWorker:
    """Tell xdist how to share out the tests, where this directory is named on the command line."""
    return OneKindPerWorker(config, log)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on each kind, or on those that its marker `kinds` names."""
    if "kind" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("kinds")
        metafunc.parametrize("kind", marker.args if marker else KINDS, scope="session")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker of this directory."""
    config.addinivalue_line("markers", "kinds(*names): file systems that a test is for; default: all")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this directory."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.shared_fs)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def _is_possible() -> None:
    """Skip (or fail) where no file system can be set up."""
    require_root_and_namespaces("shared file system", ("net", "pid", "mount"))
    installed = shared_fs("install", timeout_s=900)
    if installed.returncode != 0:
        unavailable("shared file system", installed.stderr.strip())


@pytest.fixture(scope="session")
def _started(_is_possible: None) -> Iterator[dict[str, FileSystem]]:
    """Return the file systems that run; all are stopped at the end."""
    systems: dict[str, FileSystem] = {}
    yield systems
    for system in systems.values():
        system.stop()
        shutil.rmtree(system.directory)


@pytest.fixture(scope="session")
def intact_system(kind: str, _started: dict[str, FileSystem]) -> FileSystem:
    """Return a file system for tests that break nothing."""
    if kind not in _started:
        directory = Path(tempfile.mkdtemp(prefix=f"shared-fs-{kind}-", dir="/tmp"))
        _started[kind] = FileSystem(kind, directory)
        FileSystem.start(kind, directory)
    return _started[kind]


@pytest.fixture
def system(intact_system: FileSystem) -> Iterator[FileSystem]:
    """Return a file system that a test may break; afterwards all faults are mended."""
    yield intact_system
    intact_system.restore()


@pytest.fixture(scope="session")
def _programs(_started: dict[str, FileSystem]) -> Iterator[dict[tuple[str, int], Client]]:
    """Return the programs that run on clients; all are ended at the end."""
    programs: dict[tuple[str, int], Client] = {}
    yield programs
    for client in programs.values():
        client.close()


@pytest.fixture
def clients(intact_system: FileSystem, _programs: dict[tuple[str, int], Client]) -> Clients:
    """Return a program on each client of a file system."""
    for number in CLIENTS:
        key = intact_system.kind, number
        if key in _programs and not _programs[key].is_alive():  # an earlier test has killed its client
            _programs.pop(key).close()
        if key not in _programs:
            _programs[key] = Client(intact_system, number)
    return tuple(_programs[intact_system.kind, number] for number in CLIENTS)


@pytest.fixture
def run(clients: Clients, intact_system: FileSystem) -> str:
    """Return a fresh run directory on the shared file system, made by client 1."""
    root = str(intact_system.mount / f"run-{uuid.uuid4().hex[:12]}")
    clients[0].ask("make_run", root)
    return root
