"""Fixtures that give a test a real Slurm.

Tests run under the process tracker `linuxproc`, those marked `both_trackers` also under `cgroup`;
the environment variable DEVCLUSTER_PROCTRACK names others for all, `--slurm-core-under` one for the core.
Missing packages are installed.
DEVCLUSTER_EXTRA has lines for the slurm.conf of each cluster, with semicolons between them.
DEVCLUSTER_DELAYS=SECONDS:SEED has each strike come up to so much later: the same tests, other timings.
Without root, packages or namespaces the tests are skipped, but they fail where HPC_ELASTIC_NO_SKIP=1.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from hpc_elastic.store.node_ledger import FOLDER
from tests.real_parts import require_root_and_namespaces, unavailable
from tests.real_slurm.cluster import Cluster, devcluster
from tests.real_slurm.core import CORE
from tests.real_slurm.explained import Looked, check
from tests.real_slurm.order import plain_name, rank, trackers, unit
from tests.real_slurm.results import ResultsFile

TRACKERS = os.environ.get("DEVCLUSTER_PROCTRACK", "")

TIMEOUT_S = 450
"""Limit of one test with its fixtures, unless it has a `timeout` marker of its own."""

StartCluster = Callable[..., Cluster]
_CLUSTERS: dict[Path, Cluster] = {}  # that are up, by their directories
_LOOKED = Looked()


class Units(LoadScopeScheduling):  # type: ignore[misc] # xdist is not typed
    """Gives tests that share jobs to one worker, and all others one by one, in the order of collection."""

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Units:
    """Tell xdist how to share out the tests, where this directory is named on the command line."""
    config.option.loadscopereorder = False
    return Units(config, log)


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker of this directory."""
    results = config.getoption("--slurm-results")
    if results is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(ResultsFile(results, core=config.getoption("--slurm-core")))
    config.addinivalue_line("markers", "slurm: needs a real Slurm (scripts/devcluster)")
    config.addinivalue_line("markers", "both_trackers: runs under linuxproc and under cgroup")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a command line ask for the core of these tests."""
    parser.addoption("--slurm-results", type=Path, metavar="FILE", help="write down how they have ended")
    parser.addoption("--slurm-core", action="store_true", help="of the tests on a real Slurm only the core")
    where = "process tracker of the core, in place of those of each test; all others have their own"
    parser.addoption("--slurm-core-under", default="", metavar="TRACKER", help=where)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the process trackers of a test that uses the session's cluster."""
    if "session_cluster" not in metafunc.fixturenames:
        return
    both = metafunc.definition.get_closest_marker("both_trackers") is not None
    test = plain_name(metafunc.definition.nodeid)
    core_under = metafunc.config.getoption("--slurm-core-under")
    under = trackers(test, both=both, asked=TRACKERS, core_under=core_under)
    metafunc.parametrize("session_cluster", under, indirect=True, scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark every test of this directory, the first one may have to install packages; long ones go first."""
    if config.getoption("--slurm-core"):
        others = [item for item in items if plain_name(item.nodeid) not in CORE]
        items[:] = [item for item in items if plain_name(item.nodeid) in CORE]
        config.hook.pytest_deselected(items=others)
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.slurm)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(TIMEOUT_S))
    items.sort(key=lambda item: rank(item.nodeid) if here in item.path.parents else (0, 0))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Compare, at the end of a test that has passed, what `explain` tells of its runs with what was done."""
    is_over = False
    try:
        result = yield
        is_over = True
    finally:
        places = [cluster.shared for cluster in _CLUSTERS.values()]
        roots = [root for place in places for root in _LOOKED.new_runs(place)]
    if is_over and item.get_closest_marker("drills") is None:
        check(item.nodeid, roots)
    return result


@pytest.fixture(scope="session")
def _slurm_possible() -> None:
    """Skip (or fail) where a cluster cannot be set up."""
    require_root_and_namespaces("real Slurm", ("net", "pid"))
    installed = devcluster("install", timeout_s=900)
    if installed.returncode != 0:
        unavailable("real Slurm", installed.stderr.strip())


@pytest.fixture
def start_cluster(_slurm_possible: None) -> Iterator[StartCluster]:
    """Return a function that starts another cluster for this test only."""
    started: list[Path] = []

    def start(**arguments: object) -> Cluster:
        started.append(_new_directory())
        _CLUSTERS[started[-1]] = Cluster.start(started[-1], **arguments)  # type: ignore[arg-type]
        return _CLUSTERS[started[-1]]

    yield start
    for directory in started:
        _remove(directory)


@pytest.fixture(scope="session")
def session_cluster(request: pytest.FixtureRequest, _slurm_possible: None) -> Iterator[Cluster]:
    """Start the one cluster of the session, per tracker: 4 nodes, 2 GPUs each, short timeouts."""
    directory = _new_directory()
    try:
        _CLUSTERS[directory] = Cluster.start(directory, tracker=request.param)
        yield _CLUSTERS[directory]
    finally:
        _remove(directory)


@pytest.fixture
def cluster(session_cluster: Cluster) -> Iterator[Cluster]:
    """Return the session's cluster; afterwards all jobs are cancelled and all faults mended.

    What earlier tests have done to its nodes is held against none of them.
    """
    shutil.rmtree(session_cluster.shared / FOLDER, ignore_errors=True)
    yield session_cluster
    session_cluster.restore()


def _new_directory() -> Path:
    """Return an empty directory that unprivileged users can enter (pytest's own are closed)."""
    directory = Path(tempfile.mkdtemp(prefix="devcluster-test-", dir="/tmp"))
    directory.chmod(0o755)
    return directory


def _remove(directory: Path) -> None:
    _CLUSTERS.pop(directory, None)
    done = devcluster("purge", "--dir", str(directory))
    shutil.rmtree(directory, ignore_errors=True)
    assert done.returncode == 0, done.stderr
