"""``hpc-elastic init`` in directories of all kinds; what it writes is a job that can be queued."""

from __future__ import annotations

import os
import pwd
import shutil
import sys
import venv
from pathlib import Path

import pytest

from hpc_elastic.cli import app
from hpc_elastic.slurm.job.job_file import build_spec, read_job_file
from hpc_elastic.slurm.job.spec import JobSpec
from hpc_elastic.testing.fake_slurm import FakeSlurm
from hpc_elastic.testing.pytest_plugin import fake_slurm

__all__ = ["fake_slurm"]

MAIN = 'if __name__ == "__main__":\n    print(1)\n'

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty directory, on a machine without Slurm and outside of any environment."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "sh", "env", "python3", "dd", "sha256sum", "stat", "cat", "rm", "sleep"):
        (programs / name).symlink_to(shutil.which(name) or "")
    monkeypatch.setenv("PATH", str(programs))
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def job() -> JobSpec:
    """Return the job of the file that was written."""
    return build_spec(read_job_file("job.toml"), {})


def test_a_job_file_is_written_that_a_dry_run_accepts(here: Path, capsys: Capture) -> None:
    """Without Slurm a word says so."""
    (here / "train.py").touch()
    assert 0 == app.run(["init"])
    said = capsys.readouterr()
    assert "  hpc-elastic submit --dry-run job.toml\n" in said.out
    assert "there is no Slurm on this machine: partition and account are left to you\n" in said.err
    assert 0 == app.run(["submit", "--dry-run", "job.toml"])
    assert ("train.py",) == job().command


def test_it_runs_here(here: Path) -> None:
    """As its first lines say."""
    (here / "train.py").write_text('open("ran", "w")\n')
    assert 0 == app.run(["init"])
    assert 0 == app.run(["submit", "--local", "1", "job.toml"])
    assert (here / "ran").exists()


def test_a_file_that_is_there_stays(here: Path, capsys: Capture) -> None:
    """Also a link to nothing; --force replaces a file."""
    (here / "train.py").touch()
    (here / "job.toml").write_text("mine")
    assert 2 == app.run(["init"])
    assert "error: --output: job.toml is there already\n  fix: give --force" in capsys.readouterr().err
    assert "mine" == (here / "job.toml").read_text()
    assert 0 == app.run(["init", "--force"])
    assert ("train.py",) == job().command
    (here / "other.toml").symlink_to("nowhere")
    assert 2 == app.run(["init", "-o", "other.toml"])
    assert not (here / "nowhere").exists()


def test_standard_output_takes_the_file(here: Path, capsys: Capture) -> None:
    """And nothing is written."""
    (here / "train.py").touch()
    assert 0 == app.run(["init", "-o", "-"])
    assert 'command = ["train.py"]\n' in capsys.readouterr().out
    assert ["train.py"] == os.listdir(here)


@pytest.mark.parametrize(
    ("files", "command"),
    [
        ({"main.py": "", "other.py": MAIN}, ("main.py",)),
        ({"digits.py": MAIN, "model.py": "x = 1\n", "odd.py": "def\n"}, ("digits.py",)),
        (
            {"a.sbatch": "#!/bin/bash\n#SBATCH -N 2\ntorchrun t.py --lr 1\n", "t.py": "", "train.py": ""},
            ("t.py", "--lr", "1"),
        ),
        ({"a.sbatch": "#!/bin/bash\n#SBATCH -N 2\ntorchrun gone.py\n", "train.py": ""}, ("train.py",)),
        ({"setup.sh": "python train2.py\n", "train.py": ""}, ("train.py",)),
    ],
)
def test_the_program_is_found(here: Path, files: dict[str, str], command: tuple[str, ...]) -> None:
    """In a job script, by its name, or as the only one."""
    for name, text in files.items():
        (here / name).write_text(text)
    assert 0 == app.run(["init"])
    assert command == job().command


@pytest.mark.parametrize(
    ("files", "words", "said"),
    [
        ({}, [], "no training script is here\n  fix: name it: hpc-elastic init train.py"),
        (
            {"a.py": MAIN, "b.py": MAIN},
            [],
            "a.py, b.py could be meant\n  fix: name it: hpc-elastic init a.py",
        ),
        ({}, ["gone.py"], "gone.py cannot be read: No such file or directory"),
        ({}, ["first.toml"], "SCRIPT: first.toml is no training script\n  fix: a job file is named so: "),
        ({"a.sh": "#!/bin/bash\nR -f x\n"}, ["a.sh"], "it runs as it is: hpc-elastic submit a.sh"),
    ],
)
def test_what_cannot_be_found_is_asked_for_by_name(
    here: Path, files: dict[str, str], words: list[str], said: str, capsys: Capture
) -> None:
    """Nothing is written."""
    for name, text in files.items():
        (here / name).write_text(text)
    assert 2 == app.run(["init", *words])
    assert said in capsys.readouterr().err
    assert not (here / "job.toml").exists()


@pytest.mark.parametrize(
    ("variable", "folder", "setting"),
    [
        ("VIRTUAL_ENV", "env", "venv"),
        ("CONDA_PREFIX", "env", "conda"),
        ("", ".venv", "venv"),
        ("", "venv", "venv"),
    ],
)
def test_the_environment_of_the_user_runs_the_program(
    here: Path, variable: str, folder: str, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that is active, else that of the directory; a dry run looks whether it is one."""
    (here / "train.py").touch()
    venv.create(here / folder, symlinks=True)
    if variable:
        monkeypatch.setenv(variable, str(here / folder))
    assert 0 == app.run(["init"])
    assert str(here / folder) == getattr(job(), setting)
    assert 0 == app.run(["submit", "--dry-run", "job.toml"])


def test_the_environment_of_uv_is_told_as_such(here: Path) -> None:
    """By its lock file."""
    (here / "train.py").touch()
    (here / "uv.lock").touch()
    venv.create(here / ".venv", symlinks=True)
    assert 0 == app.run(["init"])
    assert job().uv


def test_settings_of_the_settings_files_are_left_to_them(here: Path) -> None:
    """They hold for the job."""
    (here / "train.py").touch()
    (here / "hpc-elastic.toml").write_text('account = "ml"\ntime = "2h"\n')
    assert 0 == app.run(["init"])
    text = (here / "job.toml").read_text()
    assert f"# given by {here}/hpc-elastic.toml:1\n# account" in text
    assert job().time is None


SACCTMGR = """#!/bin/sh
[ "$*" = "--noheader --parsable2 show user $USER_ASKED withassoc format=DefaultAccount,Account" ] || exit 1
printf 'ml|other\\nml|ml\\n'
"""


def test_slurm_tells_partition_gpus_and_account(
    fake_slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dry run asks it in return."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").touch()
    program = [sys.executable, "-m", "hpc_elastic"]
    env = {"USER_ASKED": pwd.getpwuid(os.geteuid()).pw_name}
    Path(fake_slurm.bin, "sacctmgr").write_text(SACCTMGR)
    done = fake_slurm.run([*program, "init"], cwd=folder, env=env)
    assert 0 == done.returncode, done.stderr
    text = (folder / "job.toml").read_text()
    for line in ('partition = "low"', 'account = "ml"', "gpus_per_node = 2", 'time = "4h"'):
        assert f"\n{line}\n" in text
    assert "# charged for the job; your default; others: other\n" in text
    done = fake_slurm.run([*program, "submit", "--dry-run", "job.toml"], cwd=folder)
    assert 0 == done.returncode, done.stderr
    assert "#SBATCH --partition=low\n" in done.stdout
