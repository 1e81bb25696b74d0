"""pytest plugin: the fixture `fake_slurm`, a cluster of its own for each test that asks for it.

Installed with the package; loads nothing of it until a test uses the fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from hpc_elastic.testing.fake_slurm import FakeSlurm

_MARKER = (
    "fake_slurm(nodes=4, gpus=2, ...): settings of the fixture of this name, "
    "see hpc_elastic.testing.fake_slurm.Settings"
)


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line("markers", _MARKER)


@pytest.fixture
def fake_slurm(
    request: pytest.FixtureRequest, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeSlurm]:
    """Start a fake Slurm whose commands are the first on PATH; the marker `fake_slurm` sets it up.

    Afterwards every process of every job is killed. A test that fails shows the story of the cluster.
    """
    from hpc_elastic.testing.fake_slurm import FakeSlurm, Settings  # noqa: PLC0415 - only for its users

    settings = Settings()
    for marker in reversed(list(request.node.iter_markers("fake_slurm"))):
        settings = settings._replace(**marker.kwargs)
    with FakeSlurm(f"{tmp_path}/slurm", settings) as slurm:
        environ = slurm.environ
        for name in _surrounding_job():
            monkeypatch.delenv(name)
        monkeypatch.setenv("PATH", environ["PATH"])
        monkeypatch.setenv("SLURM_CONF", environ["SLURM_CONF"])
        yield slurm
        print(slurm.story())  # noqa: T201 - pytest shows it if the test has failed


def _surrounding_job() -> list[str]:
    import os  # noqa: PLC0415 - as above

    return [name for name in os.environ if name.startswith(("SLURM_", "SBATCH_", "SRUN_"))]  # noqa: TID251 - of the test
