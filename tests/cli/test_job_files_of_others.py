"""A job file of another user: a dry run starts none of its programs, and submit names the owner."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from hpc_elastic.cli import app
from tests.two_users import ACL, ALICE, BOB, TwoUsers, acl_for, needs_root, two_users

__all__ = ["two_users"]
pytestmark = needs_root

JOB = """
name = "t"
time = "1h"
nodes = 1
gpus_per_node = 1
python = "{python}"
setup = ["touch {ran}"]
health_command = "{python}"
command = ["{python}", "train.py"]
"""
DRY = {
    "render": ["render"],
    "submit --dry-run": ["submit", "--dry-run", "--allow-local-run-dir"],
    "submit --local --dry-run": ["submit", "--dry-run", "--local", "1"],
    "lint": ["lint"],
}


class Colleague:
    """The job file of Bob, with a program of his that leaves a trace when it runs.

    Args:
        users: the two of the group.
    """

    def __init__(self, users: TwoUsers) -> None:
        self._users = users
        self._ran = users.shared / "ran"
        self._python = users.shared / "python"
        self.file = users.shared / "job.toml"
        users.act(BOB, self._write)
        users.act(ALICE, (users.home(ALICE) / "train.py").touch)

    def _write(self) -> None:
        self._python.write_text(f'#!/bin/sh\necho {"{"}$@{"}"} > {self._ran}; exec {sys.executable} "$@"\n')
        self._python.chmod(0o755)
        self.file.write_text(JOB.format(python=self._python, ran=self._ran))

    def name_environment(self) -> None:
        """Have Bob's file name an environment with his program, and a working directory of his."""
        self._users.act(BOB, self._make_environment)

    def _make_environment(self) -> None:
        place = self.file.parent
        programs = place / "venv" / "bin"
        programs.mkdir(parents=True)
        (programs / "python3").symlink_to(self._python)
        (place / "train.py").write_text("import tensorflow\n")
        self.file.write_text(
            f'command = ["train.py"]\nworkdir = "{place}"\nvenv = "{place}/venv"\n'
            "cpus_per_node = 1\ntime = 5\n"
        )

    def run(self, *words: str) -> tuple[int, str]:
        """Have Alice run a command; return its exit code, and what it said."""
        home = self._users.home(ALICE)

        def act() -> tuple[int, str]:
            os.chdir(home)
            with open("said", "w", encoding="utf-8") as said, redirect_stdout(said), redirect_stderr(said):
                code = app.run([*words])
            return code, Path("said").read_text(encoding="utf-8")

        code: int
        code, said = self._users.act(ALICE, act)
        return code, said

    def has_run(self) -> bool:
        """Tell whether a program of Bob's has run since the last question."""
        found = self._ran.exists()
        self._ran.unlink(missing_ok=True)
        return found


@pytest.fixture
def colleague(two_users: TwoUsers, monkeypatch: pytest.MonkeyPatch) -> Colleague:
    """Return the job file; there is no Slurm here."""
    programs = two_users.shared.with_name("bin")
    programs.mkdir()
    for name in ("bash", "sh"):
        (programs / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(programs))
    return Colleague(two_users)


def _given(file: Path) -> None:
    """Leave the file as it is."""


def _alices_but_writable(file: Path) -> None:
    os.chown(file, ALICE, -1)
    file.chmod(0o664)


def _behind_alices_link(file: Path) -> None:
    file.rename(file.with_name("real.toml"))
    file.symlink_to("real.toml")
    os.lchown(file, ALICE, -1)


def _for_everybody(file: Path) -> None:
    os.chown(file, 0, 0)
    file.chmod(0o666)


def _writable_by_an_acl(file: Path) -> None:
    """The group itself may only read; Bob may write."""
    os.chown(file, ALICE, -1)
    file.chmod(0o644)
    try:
        os.setxattr(file, ACL, acl_for(BOB))
    except OSError:
        pytest.skip("the file system has no ACLs")


WAYS: dict[str, Callable[[Path], None]] = {
    "his": _given,
    "writable for the group": _alices_but_writable,
    "behind a link": _behind_alices_link,
    "writable for everybody": _for_everybody,
    "writable by an ACL": _writable_by_an_acl,
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("command", DRY.values(), ids=DRY)
def test_a_dry_run_starts_none_of_its_programs(
    colleague: Colleague, way: Callable[[Path], None], command: list[str]
) -> None:
    """The script is shown all the same."""
    way(colleague.file)
    code, said = colleague.run(*command, str(colleague.file))
    assert (0, False) == (code, colleague.has_run()), said
    assert ("#SBATCH" in said) == (command[0] != "lint")


@pytest.mark.parametrize("own", [(), ("--python", sys.executable)], ids=["", "--python"])
def test_a_dry_run_starts_no_python_in_its_surroundings(colleague: Colleague, own: tuple[str, ...]) -> None:
    """Neither that of its environment, nor the user's own one in its working directory."""
    colleague.name_environment()
    dry = ("submit", "--dry-run", "--allow-local-run-dir")
    code, said = colleague.run(*dry, *own, str(colleague.file))
    assert (0, False) == (code, colleague.has_run()), said
    os.chown(colleague.file, ALICE, -1)
    colleague.file.chmod(0o644)
    code, said = colleague.run(*dry, *own, str(colleague.file))
    assert (2, True) == (code, colleague.has_run()), said


def test_the_interpreter_is_asked_where_the_user_has_named_it(colleague: Colleague) -> None:
    """As an option, or in a file that nobody else can write to."""
    code, said = colleague.run(
        "render", str(colleague.file), "--python", str(colleague.file.with_name("python"))
    )
    assert (0, True) == (code, colleague.has_run()), said
    os.chown(colleague.file, ALICE, -1)
    colleague.file.chmod(0o644)
    code, said = colleague.run("render", str(colleague.file))
    assert (0, True) == (code, colleague.has_run()), said


def test_submit_says_whose_file_it_is(colleague: Colleague) -> None:
    """Before Slurm is asked; of the user's own file nothing is said."""
    text = f"warning: {colleague.file} belongs to user uid {BOB}: its command, setup and python run as you"
    _, said = colleague.run("submit", "--allow-local-run-dir", str(colleague.file))
    assert text == said.splitlines()[0]
    os.chown(colleague.file, ALICE, -1)
    _, said = colleague.run("submit", "--allow-local-run-dir", str(colleague.file))
    assert "belongs to" not in said
