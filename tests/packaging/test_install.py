"""The package as users install it: built, in fresh environments, away from the source tree."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import hpc_elastic

pytestmark = [pytest.mark.packaging, pytest.mark.unhurried, pytest.mark.timeout(1800)]

REPOSITORY = Path(__file__).parents[2]
RENDER = ["render", "--nodes", "2:4", "--time", "1h", "--", "python", "train.py", "--lr", "0.1"]


def _run(argv: list[str], cwd: Path) -> str:
    """Run a command as a user's shell would and return what it prints."""
    hidden = ("PYTHON", "SLURM_", "HPC_ELASTIC")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    done = subprocess.run(argv, cwd=cwd, env=environ, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the source archive, and the wheel from it alone."""
    place = tmp_path_factory.mktemp("dist")
    _run([sys.executable, "-m", "build", "--outdir", str(place), str(REPOSITORY)], place)
    (built,) = place.glob("*.whl")
    return built


def _install(place: Path, *what: str) -> Path:
    """Make a fresh environment with the package and return its `hpc-elastic`."""
    _run([sys.executable, "-m", "venv", str(place)], place.parent)
    pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, *what], place.parent)
    return place / "bin" / "hpc-elastic"


def test_the_wheel_holds_the_package(wheel: Path) -> None:
    """Templates, license and type marker are in the wheel; tests and scripts are not."""
    names = zipfile.ZipFile(wheel).namelist()
    in_repository = {path.name for path in (REPOSITORY / "sbatch_templates").iterdir()}
    assert in_repository == {
        name.rpartition("/")[2] for name in names if name.startswith("hpc_elastic/sbatch_templates/")
    }
    assert "hpc_elastic/py.typed" in names
    assert "hpc_elastic/isolated/importable/hpc_elastic/__init__.py" in names  # for other Pythons
    assert {f"hpc_elastic/docs/{page}.md" for page in ("how-to/stopping", "coming-from-torchrun")} <= {*names}
    assert any(name.endswith("licenses/LICENSE") for name in names)
    epilog = zipfile.ZipFile(wheel).getinfo("hpc_elastic/sbatch_templates/batch.sh")
    assert 0o111 == (epilog.external_attr >> 16) & 0o111  # Slurm executes it
    info = f"hpc_elastic-{hpc_elastic.__version__}.dist-info/"
    assert [] == [name for name in names if not name.startswith(("hpc_elastic/", info))]


def _check(command: Path, cwd: Path) -> None:
    """Check that an installation works: the command, the template, a run without Slurm."""
    assert hpc_elastic.__version__ in _run([str(command), "version"], cwd)
    script = _run([str(command), *RENDER], cwd)
    assert script.startswith("#!/bin/bash")
    (epilog,) = re.findall(r"^begin_sruns (/\S+)", script, re.MULTILINE)
    assert os.access(epilog, os.X_OK)
    assert "srun" in script.split()
    assert "train.py --lr 0.1" in script
    worker = ["run", "--run-dir", str(cwd / "run"), "--no-python", "sh", "-c", 'echo "rank $RANK"']
    assert "rank 0\n" == _run([str(command), *worker], cwd)


@pytest.mark.parametrize("how", ["wheel", "editable"])
def test_an_installation_works(wheel: Path, tmp_path: Path, how: str) -> None:
    """A script is rendered and a worker runs, from the wheel and from an editable installation."""
    what = [str(wheel)] if how == "wheel" else ["--editable", str(REPOSITORY)]
    command = _install(tmp_path / "env", *what)
    (tmp_path / "elsewhere").mkdir()
    _check(command, tmp_path / "elsewhere")
