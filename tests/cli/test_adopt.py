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
    assert "the changes and their reasons:" in done.stderr
    assert "hpc-elastic adopt --write train.sbatch" in done.stderr
    assert SCRIPT == script.read_text()
    wanted = adopt(script, "--write")
    changed = script.read_text()
    assert done.stdout == wanted.stdout
    assert "+ended=$?\n" in done.stdout
    assert (SCRIPT, 0o750) == (Path(f"{script}.orig").read_text(), script.stat().st_mode & 0o777)
    assert "hpc_elastic run" in changed


def test_a_script_comes_from_stdin() -> None:
    """There is no file to change then."""
    argv = [sys.executable, "-m", "hpc_elastic", "adopt"]
    shown = subprocess.run([*argv, "-"], input=SCRIPT, capture_output=True, text=True, check=False)
    assert (0, True) == (shown.returncode, "+ended=$?\n" in shown.stdout), shown.stderr
    assert "--write" not in shown.stderr
    refused = subprocess.run(
        [*argv, "--write", "-"], input=SCRIPT, capture_output=True, text=True, check=False
    )
    assert 2 == refused.returncode
    assert "there is no file to change" in refused.stderr


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


@pytest.mark.parametrize("end", ["", "\r\n"], ids=["no end of line", "Windows"])
def test_what_it_shows_is_a_patch(script: Path, end: str) -> None:
    """Whatever the line ends are."""
    script.write_bytes(SCRIPT.replace("\n", end or "\n").removesuffix(end or "\n").encode())
    argv = [sys.executable, "-m", "hpc_elastic", "adopt", script.name]
    shown = subprocess.run(argv, cwd=script.parent, capture_output=True, check=True).stdout
    assert b"\\ No newline at end of file\n+" in shown
    subprocess.run(["git", "apply", "--whitespace=nowarn", "-p0"], input=shown, cwd=script.parent, check=True)
    assert b"hpc_elastic run" in script.read_bytes()
    assert b"\r" not in script.read_bytes()


def test_a_link_stays_one(script: Path, tmp_path: Path) -> None:
    """The script that it leads to is changed."""
    (tmp_path / "link.sbatch").symlink_to(script)
    assert 0 == adopt(tmp_path / "link.sbatch", "--write").returncode
    assert (tmp_path / "link.sbatch").is_symlink()
    assert "hpc_elastic run" in script.read_text()
    assert SCRIPT == (tmp_path / "link.sbatch.orig").read_text()


def test_a_script_that_cannot_be_kept_is_told(script: Path) -> None:
    """Here there is no room for `.orig` in its name; the script stays as it is."""
    script = script.rename(script.with_name("x" * 252))
    done = adopt(script, "--write")
    assert 2 == done.returncode
    assert "cannot be written: File name too long" in done.stderr
    assert SCRIPT == script.read_text()


def test_a_script_that_stays_as_it_is_gets_a_draft(script: Path) -> None:
    """Only with --write, beside the script; one that is there stays."""
    text = "#!/bin/bash\nfor lr in 1 2; do\n  srun torchrun train.py\ndone\n"
    script.write_text(text)
    draft = script.with_name("train.draft.sbatch")
    done = adopt(script)
    assert (2, False) == (done.returncode, draft.exists())
    assert "hpc-elastic adopt --write train.sbatch writes train.draft.sbatch" in done.stderr
    assert "this script stays as it is: hpc-elastic submit train.sbatch" in done.stderr
    assert 2 == adopt(script, "--write").returncode
    assert "LEFT TO YOU" in draft.read_text()
    assert (text, False) == (script.read_text(), Path(f"{script}.orig").exists())
    draft.write_text("mine")
    assert "is there already, and stays as it is" in adopt(script, "--write").stderr
    assert "mine" == draft.read_text()


def test_a_script_that_its_shell_cannot_read_is_refused(script: Path) -> None:
    """With the line; a changed one would be as wrong."""
    script.write_text(f"{SCRIPT}if true; then\n")
    done = adopt(script)
    assert 2 == done.returncode
    assert "the shell cannot read line 5: syntax error" in done.stderr


def test_the_program_of_several_tasks_is_read(script: Path) -> None:
    """Beside the script: how it learns its rank decides whether agents may start it."""
    script.write_text("#!/bin/bash\n#SBATCH -N 2 --ntasks-per-node=2\nsrun python train.py\n")
    assert "cannot read train.py in line 3 from here" in adopt(script).stderr
    program = script.with_name("train.py")
    program.write_text("from mpi4py import MPI\n")
    assert "does not learn its rank from Slurm or torch" in adopt(script).stderr
    program.write_text("import lightning\n")
    done = adopt(script)
    assert (0, True) == (done.returncode, "--no-python python train.py\n" in done.stdout), done.stderr
