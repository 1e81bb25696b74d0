"""``hpc-elastic adopt``: what it prints, and what it changes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = "#!/bin/bash\n#SBATCH --nodes=2\nsrun torchrun --nnodes=2 train.py\n"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Return a job script with torchrun."""
    path = tmp_path / "train.sbatch"
    path.write_text(SCRIPT)
    path.chmod(0o750)
    return path


def adopt(script: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    argv = [sys.executable, "-m", "hpc_elastic", "adopt", *flags, script.name]
    return subprocess.run(argv, cwd=script.parent, capture_output=True, text=True, check=False)


def test_it_shows_and_explains(script: Path) -> None:
    """The difference can be given to patch; nothing is changed before."""
    done = adopt(script)
    assert 0 == done.returncode, done.stderr
    assert "what changes, and why:" in done.stderr
    assert "hpc-elastic adopt --write train.sbatch" in done.stderr
    assert SCRIPT == script.read_text()
    wanted = adopt(script, "--write")
    changed = script.read_text()
    assert done.stdout == wanted.stdout
    assert "+ended=$?\n" in done.stdout
    assert (SCRIPT, 0o750) == (Path(f"{script}.orig").read_text(), script.stat().st_mode & 0o777)
    assert "hpc-elastic run" in changed


def test_an_older_script_is_not_overwritten(script: Path) -> None:
    """What `--write` has kept before stays."""
    Path(f"{script}.orig").write_text("older")
    done = adopt(script, "--write")
    assert 2 == done.returncode
    assert "train.sbatch.orig is there already" in done.stderr
    assert ("older", SCRIPT) == (Path(f"{script}.orig").read_text(), script.read_text())


def test_a_script_that_is_not_there(tmp_path: Path) -> None:
    """One line says so."""
    done = adopt(tmp_path / "none.sbatch")
    assert 2 == done.returncode
    assert done.stderr.startswith("error: SCRIPT: none.sbatch cannot be read: No such file or directory")
