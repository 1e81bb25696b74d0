"""Runs the tests that describe real Slurm (tests/real_slurm) against the fake.

Each file of facts there, `test_slurm_*.py`, has a counterpart here that borrows its tests as they are.
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
    "test_a_second_step_needs_overlap": "there is one user, so none to keep out of another's job",
}


NOT_PLAYED = {  # would wait in vain
    "test_a_suspended_job_keeps_its_nodes": "nobody is suspended",
    "test_a_requeue_before_the_loss_is_noticed_costs_the_gpus": (
        "a requeue before a loss is noticed keeps the GPUs"
    ),
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
        name = getattr(item, "originalname", "")
        if here in item.path.parents and name in DIFFERENCES:
            item.add_marker(pytest.mark.xfail(strict=True, reason=DIFFERENCES[name]))
        elif here in item.path.parents and name in NOT_PLAYED:
            item.add_marker(pytest.mark.xfail(run=False, reason=NOT_PLAYED[name]))


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
