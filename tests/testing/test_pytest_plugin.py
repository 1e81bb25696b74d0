"""The fixture `fake_slurm` as users of the package get it."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

from hpc_elastic.testing import pytest_plugin
from tests.docs.pages import REPOSITORY, all_blocks

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

TEST = """
import pytest

@pytest.mark.fake_slurm(nodes=2)
def test_requeue(fake_slurm):
    job = fake_slurm.submit("--nodes=2", wrap="srun -N2 -n2 true")
    fake_slurm.wait_state(job, "COMPLETED")
    assert fake_slurm.settings.nodes == 2

def test_commands_are_on_path(fake_slurm):
    import subprocess
    assert "sbatch" in subprocess.run(["which", "sbatch"], capture_output=True, text=True).stdout
    assert len(subprocess.run(["sinfo", "-hN"], capture_output=True, text=True).stdout.split()) > 4

def test_failing(fake_slurm):
    fake_slurm.submit(wrap="true")
    assert False
"""


def pytest_in(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run pytest as in a project that has the package installed."""
    known = any(one.name == "hpc_elastic" for one in entry_points(group="pytest11"))
    plugin = [] if known else ["-p", "hpc_elastic.testing.pytest_plugin"]
    argv = [sys.executable, "-m", "pytest", "-p", "no:randomly", "--strict-markers", *plugin, *words]
    return subprocess.run(argv, cwd=directory, capture_output=True, text=True, check=False)


def test_the_package_brings_the_plugin() -> None:
    """Where it is installed pytest finds it."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert {"hpc_elastic": pytest_plugin.__name__} == project["entry-points"]["pytest11"]


def test_a_project_gets_a_cluster_by_asking_for_it(tmp_path: Path) -> None:
    """The marker sets it up, its commands are the first on PATH, and a failing test tells what happened."""
    (tmp_path / "test_mine.py").write_text(TEST)
    done = pytest_in(tmp_path)
    assert "1 failed, 2 passed" in done.stdout, done.stdout
    assert "job 1000: submitted" in done.stdout


def test_the_example_of_the_documentation_passes(tmp_path: Path) -> None:
    """The page shows a test that asks for the fixture."""
    (code,) = [one.code for one in all_blocks() if one.code.startswith("# test_with_plugin.py")]
    (tmp_path / "test_with_plugin.py").write_text(code)
    done = pytest_in(tmp_path)
    assert "1 passed" in done.stdout, done.stdout


def test_who_does_not_use_it_loads_nothing(tmp_path: Path) -> None:
    """The plugin costs a project nothing but itself."""
    (tmp_path / "test_mine.py").write_text(
        "import sys\n"
        "def test_light():\n"
        "    loaded = {name for name in sys.modules if name.startswith('hpc_elastic')}\n"
        "    assert loaded <= {'hpc_elastic', 'hpc_elastic.testing', 'hpc_elastic.testing.pytest_plugin'}\n"
    )
    done = pytest_in(tmp_path)
    assert "1 passed" in done.stdout, done.stdout
