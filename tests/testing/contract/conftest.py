"""Runs the tests that describe real Slurm (tests/real_slurm) against the fake.

What the fake does otherwise is in DIFFERENCES; such a test has to fail here, and is named in
docs/how-to/testing.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_elastic.testing.fake_slurm import FakeSlurm
from tests.testing.fake_cluster import SETTINGS, FakeCluster

DIFFERENCES = {
    "test_grace_tells_the_tasks_only": "the clock skips the grace time, which the test measures",
    "test_components_of_a_hetjob_make_one_step": "there are no hetjobs",
    "test_a_job_shrinks_but_does_not_grow": "there is one user, so none to keep out of another's job",
}


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker of the tests that are borrowed."""
    config.addinivalue_line("markers", "both_trackers: runs under linuxproc and under cgroup")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test under one process tracker, or under both as the real one does."""
    if "session_cluster" in metafunc.fixturenames:
        both = metafunc.definition.get_closest_marker("both_trackers") is not None
        metafunc.parametrize(
            "session_cluster", ["linuxproc", "cgroup"] if both else ["cgroup"], indirect=True, scope="module"
        )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Expect the known differences."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and getattr(item, "originalname", "") in DIFFERENCES:
            reason = DIFFERENCES[getattr(item, "originalname", "")]
            item.add_marker(pytest.mark.xfail(strict=True, reason=reason))


@pytest.fixture(scope="module")
def session_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FakeCluster]:
    """Start a fake with the settings of the development cluster."""
    with FakeSlurm(tmp_path_factory.mktemp("fake"), SETTINGS._replace(tracker=request.param)) as slurm:
        yield FakeCluster(slurm)


@pytest.fixture
def cluster(session_cluster: FakeCluster) -> Iterator[FakeCluster]:
    """Return the fake; afterwards all jobs are cancelled."""
    yield session_cluster
    session_cluster.restore()
