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
    "test_a_second_step_needs_overlap": "there is one user, and no access control",
}


OF_A_VERSION = (
    "test_who_ends_within_the_grace_time",
    "test_the_death_of_the_script_ends_the_job",
    "test_a_lost_node_of_a_job_that_runs_on_is_told",
    "test_a_range_of_nodes_gives_what_is_free",
    "test_an_agent_is_told_who_and_where_it_is",
)
"""Tests that look at what differs between the versions."""

NOT_PLAYED = {  # would wait in vain
    "test_a_suspended_job_keeps_its_nodes": "no job is suspended",
    "test_a_requeue_before_the_loss_is_noticed_may_cost_the_gpus": (
        "a requeue before a loss is noticed keeps the GPUs"
    ),
}


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker of the tests that are borrowed."""
    config.addinivalue_line("markers", "both_trackers: runs under linuxproc and under cgroup")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test under one process tracker, or under both as the real one does, and as each version."""
    if "session_cluster" in metafunc.fixturenames:
        both = metafunc.definition.get_closest_marker("both_trackers") is not None
        asks = metafunc.definition.originalname in OF_A_VERSION
        kinds = ["linuxproc-22.05", "cgroup-26.05"] if both else ["cgroup-22.05"]
        kinds += ["cgroup-24.11", *(["cgroup-22.05"] if both else ["cgroup-26.05"])] if asks else []
        metafunc.parametrize("session_cluster", kinds, indirect=True, scope="module")


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
    tracker, _, version = request.param.partition("-")
    settings = SETTINGS._replace(tracker=tracker, version=version)
    with FakeSlurm(tmp_path_factory.mktemp("fake"), settings) as slurm:
        yield FakeCluster(slurm)


@pytest.fixture
def cluster(session_cluster: FakeCluster) -> Iterator[FakeCluster]:
    """Return the fake; afterwards all jobs are cancelled."""
    yield session_cluster
    session_cluster.restore()
