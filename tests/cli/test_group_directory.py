"""Commands that change or write a file in a directory of a group, while another member is at work there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_elastic.cli import app
from hpc_elastic.paths import RunPaths
from hpc_elastic.slurm.run_jobs.script_tasks import array_of
from tests.cli.recorded_runs import paths
from tests.store.surroundings import REPOSITORY
from tests.two_users import ALICE, BOB, TwoUsers, needs_root, two_users

__all__ = ["paths", "two_users"]

LATE = "#!/bin/bash\r\n\r\n#SBATCH --nodes=2\r\necho OF-BOB\r\nsrun python train.py\r\n"
TORCHRUN = (
    "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=4\necho OF-BOB\n"
    "srun torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint $H:29500 train.py\n"
)
TWO_RUNS = "#!/bin/bash\n#SBATCH --nodes=2\nsrun torchrun a.py\nsrun torchrun b.py\n"
SHELL = '#!/bin/sh\necho >{place}/asked; read line <{place}/answered; exec /bin/bash "$@"\n'


def hpc_elastic(*words: str, cwd: Path, path: str = "") -> tuple[int, str]:
    """Run a command as this process's user; return its exit code, and what it said."""
    environ = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}", "PYTHONPATH": str(REPOSITORY)}
    argv = [sys.executable, "-P" if sys.version_info >= (3, 11) else "-B", "-m", "hpc_elastic", *words]
    done = subprocess.run(
        argv, cwd=cwd, env=environ, capture_output=True, text=True, check=False, timeout=150
    )
    return done.returncode, done.stdout + done.stderr


@needs_root
@pytest.mark.slow
def test_lint_writes_nothing_through_a_link_that_came_while_it_asked_the_shell(two_users: TwoUsers) -> None:
    """The script was its own file when it was read; the error says that somebody has exchanged it."""
    home, script = two_users.home(ALICE), two_users.shared / "train.sbatch"
    two_users.act(BOB, lambda: script.write_text(LATE))

    def prepare() -> None:
        (home / "profile").write_text("# mine\n")
        (home / "bash").write_text(SHELL.format(place=home))
        (home / "bash").chmod(0o700)
        os.mkfifo(home / "asked")
        os.mkfifo(home / "answered")

    def exchange() -> None:
        (two_users.shared / "l").symlink_to(home / "profile")
        (two_users.shared / "l").rename(script)

    two_users.act(ALICE, prepare)
    words = ("lint", "--fix", "train.sbatch")
    end = two_users.begin(ALICE, lambda: hpc_elastic(*words, cwd=two_users.shared, path=str(home)))
    (home / "asked").read_bytes()
    two_users.act(BOB, exchange)
    (home / "answered").write_bytes(b"\n")
    code, said = end()
    assert (2, "# mine\n") == (code, (home / "profile").read_text()), said
    assert "train.sbatch cannot be written, and is as before" in said


@needs_root
@pytest.mark.slow
def test_adopt_writes_no_draft_through_a_link_that_came_while_it_asked_the_shell(
    two_users: TwoUsers,
) -> None:
    """The directory of the script was one when it was opened."""
    home, folder = two_users.home(ALICE), two_users.shared / "scripts"

    def prepare() -> None:
        folder.mkdir()
        (folder / "train.sbatch").write_text(TWO_RUNS)
        (home / "bash").write_text(SHELL.format(place=home))
        (home / "bash").chmod(0o700)
        os.mkfifo(home / "asked")
        os.mkfifo(home / "answered")

    def exchange() -> None:
        folder.rename(folder.with_name("moved"))
        folder.symlink_to(home)

    two_users.act(ALICE, prepare)
    words = ("adopt", "--write", "scripts/train.sbatch")
    end = two_users.begin(ALICE, lambda: hpc_elastic(*words, cwd=two_users.shared, path=str(home)))
    (home / "asked").read_bytes()
    two_users.act(BOB, exchange)
    (home / "answered").write_bytes(b"\n")
    code, said = end()
    assert (2, False) == (code, (home / "train.draft.sbatch").exists()), said
    assert "train.draft.sbatch cannot be written: " in said


@needs_root
def test_a_run_in_a_folder_of_that_name_is_no_task_of_another_users_array(two_users: TwoUsers) -> None:
    """Who can write to the directory above can put a record of a run there."""
    task = RunPaths(two_users.shared / "tasks" / "7")
    array = RunPaths(two_users.shared)

    def make(place: RunPaths) -> None:
        os.makedirs(place.root, exist_ok=True)
        Path(place.identity).write_text("{}")

    two_users.act(ALICE, lambda: make(task))
    two_users.act(BOB, lambda: make(array))
    assert two_users.act(ALICE, lambda: array_of(task) is None)
    os.chown(two_users.shared, ALICE, -1)
    assert two_users.act(ALICE, lambda: array_of(task) is None)
    os.chown(array.identity, ALICE, -1)
    assert two_users.act(ALICE, lambda: array_of(task) is not None)


@needs_root
@pytest.mark.slow
def test_no_other_user_can_write_to_what_a_shell_reads_for_completion(two_users: TwoUsers) -> None:
    """A umask that leaves new files to the group would let its members run code at the next start."""
    home = two_users.home(ALICE)

    def install() -> tuple[int, str]:
        home.chmod(0o755)
        os.environ.update(HOME=str(home), SHELL="/bin/bash")
        return hpc_elastic("--install-completion", cwd=home)

    def writable() -> list[str]:
        return [str(one) for one in home.rglob("*") if os.access(one, os.W_OK)]

    code, said = two_users.act(ALICE, install)
    assert 0 == code, said
    assert len(two_users.act(ALICE, writable)) > 1
    assert [] == two_users.act(BOB, writable)


@needs_root
@pytest.mark.slow
def test_adopt_says_whose_script_it_would_take_over(two_users: TwoUsers) -> None:
    """Also where the old one would have to go through a link; nothing is changed, and nothing left."""
    home, script = two_users.home(ALICE), two_users.shared / "train.sbatch"
    orig = script.with_name("train.sbatch.orig")
    two_users.act(BOB, lambda: script.write_text(TORCHRUN))

    def adopt() -> tuple[int, str]:
        return hpc_elastic("adopt", "--write", "train.sbatch", cwd=two_users.shared)

    code, said = two_users.act(ALICE, adopt)
    assert (2, True) == (code, f"it belongs to user uid {BOB}, and a new file would belong to you" in said), (
        said
    )
    assert (TORCHRUN, False) == (script.read_text(), orig.exists())
    script.unlink()
    two_users.act(ALICE, lambda: script.write_text(TORCHRUN))
    two_users.act(BOB, lambda: orig.symlink_to(home / "new"))
    code, said = two_users.act(ALICE, adopt)
    assert (2, True) == (code, "train.sbatch.orig is a link of user" in said), said
    assert (TORCHRUN, []) == (script.read_text(), os.listdir(home))


@needs_root
def test_a_report_is_written_through_no_link_of_others(
    paths: RunPaths, two_users: TwoUsers, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nor into a pipe of theirs, also not as root; a link of the user's own is followed."""
    file, own = two_users.shared / "run.html", two_users.home(ALICE) / "own.html"
    own.write_text("mine")
    words = ["report", paths.root, "-o", str(file)]
    two_users.act(BOB, lambda: file.symlink_to(own))
    assert 2 == app.run(words)
    assert f"run.html is a link of user uid {BOB}'s, which is not followed" in capfd.readouterr().err
    file.unlink()
    two_users.act(BOB, lambda: os.mkfifo(file))
    reader = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    assert 2 == app.run(words)
    assert f"it belongs to user uid {BOB}, not to you" in capfd.readouterr().err
    assert b"" == os.read(reader, 9)
    os.close(reader)
    file.unlink()
    assert "mine" == own.read_text()
    file.symlink_to(own)
    assert 0 == app.run(words)
    assert own.read_text().startswith("<!DOCTYPE html>")
