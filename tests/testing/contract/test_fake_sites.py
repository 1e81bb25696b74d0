"""The tests of `tests/real_slurm/test_slurm_sites.py`, run against the fake."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hpc_elastic.testing.fake_slurm import FakeSlurm
from tests.real_slurm import test_slurm_sites as real
from tests.testing.fake_cluster import SETTINGS, FakeCluster

globals().update({name: value for name, value in vars(real).items() if not name.startswith("__")})
del globals()["test_an_expedited_requeue_does_not_wait"]  # the fake has none: sites have to allow it


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeCluster]:
    """Start a fake whose preemption cancels jobs and sends them the signal they asked for."""
    settings = SETTINGS._replace(preempt="CANCEL", user_signal=True)
    with FakeSlurm(tmp_path_factory.mktemp("site"), settings) as slurm:
        yield FakeCluster(slurm)
