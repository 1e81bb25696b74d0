"""The tests of `tests/real_slurm/test_slurm_sites.py`, run against the fake."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from hpc_elastic.testing.fake_slurm import FakeSlurm
from tests.real_slurm import test_slurm_sites as real
from tests.testing.fake_cluster import SETTINGS, FakeCluster

globals().update({name: value for name, value in vars(real).items() if not name.startswith("__")})


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeCluster]:
    """Start a fake whose preemption cancels jobs and sends them the signal they asked for."""
    settings = SETTINGS._replace(preempt="CANCEL", user_signal=True)
    with FakeSlurm(tmp_path_factory.mktemp("site"), settings) as slurm:
        yield FakeCluster(slurm)


@pytest.fixture(params=["22.05", "26.05"])
def start_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., FakeCluster]]:
    """Return a function that starts a fake of each version as the options of `scripts/devcluster` say."""
    with ExitStack() as started:

        def start(*, nodes: int = 4, options: tuple[str, ...] = ()) -> FakeCluster:
            settings = SETTINGS._replace(
                version=request.param,
                nodes=nodes,
                expedited_requeue="SlurmctldParameters=enable_expedited_requeue" in options,
                cred_expire=600 * SETTINGS.speed,
            )
            return FakeCluster(started.enter_context(FakeSlurm(tmp_path_factory.mktemp("own"), settings)))

        yield start
