"""Settings files and projects that another user has made, or can write to: nothing of them is used."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from hpc_elastic.cli import app
from tests.two_users import ACL, ALICE, BOB, GROUP, TwoUsers, acl_for, needs_root, two_users

__all__ = ["two_users"]
pytestmark = needs_root

TEXT = 'account = "bobs"\nsetup = ["touch {ran}"]\n'


class Lines:
    """Alice's lines in a directory below one of her group, with the settings of Bob's choice above.

    Args:
        users: the two of the group.
    """

    def __init__(self, users: TwoUsers) -> None:
        self._users = users
        self.file = users.shared / "hpc-elastic.toml"
        self.here = users.shared / "alices"
        users.act(ALICE, self._make)

    def _make(self) -> None:
        self.here.mkdir()
        (self.here / "train.py").touch()

    def put(self, uid: int, path: Path | None = None) -> None:
        """Have a user write a settings file."""
        at = self.file if path is None else path
        self._users.act(uid, lambda: at.write_text(TEXT))
        at.chmod(0o644)

    def run(self, *words: str, **variables: str) -> tuple[int, str]:
        """Have Alice run a command; return its exit code, and what it said."""
        home = self._users.home(ALICE)

        def act() -> tuple[int, str]:
            os.chdir(self.here)
            os.environ.update(variables)
            place = home / "said"
            with place.open("w", encoding="utf-8") as said, redirect_stdout(said), redirect_stderr(said):
                code = app.run([*words])
            return code, place.read_text(encoding="utf-8")

        code: int
        code, said = self._users.act(ALICE, act)
        return code, said

    def render(self, **variables: str) -> tuple[int, str]:
        """Have Alice print the script of a job."""
        return self.run("render", "--", "python3", "train.py", **variables)


@pytest.fixture
def lines(two_users: TwoUsers) -> Lines:
    """Return the lines."""
    return Lines(two_users)


def test_the_users_own_file_is_read(lines: Lines) -> None:
    """In a directory that others write to, too."""
    lines.put(ALICE)
    code, said = lines.render()
    assert (0, True) == (code, "--account=bobs" in said), said


def _given(_lines: Lines) -> str:
    return f"the settings file belongs to user uid {BOB}"


def _alices_but_writable(lines: Lines) -> str:
    os.chown(lines.file, ALICE, GROUP)
    lines.file.chmod(0o664)
    return f"members of group gid {GROUP} can write to the settings file (mode 664)"


def _for_everybody(lines: Lines) -> str:
    os.chown(lines.file, 0, 0)
    lines.file.chmod(0o646)
    return "everybody can write to the settings file (mode 646)"


def _behind_his_link(lines: Lines) -> str:
    """The link leads to a file that only she can write to."""
    own = lines.here / "own.toml"
    lines.put(ALICE, own)
    lines.file.unlink()
    lines.file.symlink_to(own)
    os.lchown(lines.file, BOB, GROUP)
    return f"is a link of user uid {BOB}"


def _behind_alices_link(lines: Lines) -> str:
    lines.file.rename(lines.file.with_name("real.toml"))
    lines.file.symlink_to("real.toml")
    os.lchown(lines.file, ALICE, GROUP)
    return f"the settings file belongs to user uid {BOB}"


def _writable_by_an_acl(lines: Lines) -> str:
    """The group itself may only read; Bob may write."""
    os.chown(lines.file, ALICE, GROUP)
    try:
        os.setxattr(lines.file, ACL, acl_for(BOB))
    except OSError:
        pytest.skip("the file system has no ACLs")
    return f"user uid {BOB} can write to the settings file"


WAYS: dict[str, Callable[[Lines], str]] = {
    "his": _given,
    "writable for the group": _alices_but_writable,
    "writable for everybody": _for_everybody,
    "behind his link": _behind_his_link,
    "behind her link": _behind_alices_link,
    "writable by an ACL": _writable_by_an_acl,
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_file_of_the_project_is_refused(lines: Lines, way: Callable[[Lines], str]) -> None:
    """Also by the command that shows settings; a nearer file of the user's own is the way on."""
    lines.put(BOB)
    what = way(lines)
    for code, said in (lines.render(), lines.run("config")):
        assert 2 == code
        assert what in said
        assert "a nearer hpc-elastic.toml of your own" in said
        assert "bobs" not in said
    lines.put(ALICE, lines.here / "hpc-elastic.toml")
    code, said = lines.render()
    assert (0, True) == (code, "--account=bobs" in said), said


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_file_of_the_site_is_refused(lines: Lines, way: Callable[[Lines], str]) -> None:
    """The error says how to go on without it."""
    lines.put(BOB)
    what = way(lines)
    moved = lines.file.rename(lines.file.with_name("site.toml"))
    code, said = lines.render(HPC_ELASTIC_SITE_CONFIG=str(moved))
    assert 2 == code
    assert what in said
    assert "HPC_ELASTIC_SITE_CONFIG= hpc-elastic" in said


def _make_project(place: Path) -> None:
    (place / "pyproject.toml").touch()
    programs = place / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "python3").write_text(f"#!/bin/sh\ntouch {place}/ran\n")
    (programs / "python3").chmod(0o755)


@pytest.mark.parametrize("owner", [BOB, ALICE])
def test_no_python_of_a_project_of_uv_above_runs_that_is_another_users(
    lines: Lines, two_users: TwoUsers, owner: int
) -> None:
    """Nobody has named it; the user's own one runs."""
    two_users.act(owner, lambda: _make_project(two_users.shared))
    options = ("--uv", "--cpus-per-node", "1", "-t", "5", "--allow-local-run-dir")
    code, said = lines.run("submit", "--dry-run", *options, "--", "train.py")
    assert (2, owner == ALICE) == (code, (two_users.shared / "ran").exists()), said
    venv = two_users.shared / ".venv"
    assert (owner == BOB) == (f"belongs to user uid {BOB}, and the workers would run with" in said)
    assert (owner == BOB) == (f"if you trust it, name it: --venv {venv}" in said)


def test_roots_files_are_read(lines: Lines) -> None:
    """They are those of the administrators."""
    lines.put(BOB)
    os.chown(lines.file, 0, 0)
    code, said = lines.render()
    assert (0, True) == (code, "--account=bobs" in said), said


def test_a_file_that_the_user_cannot_read_is_one_error(lines: Lines) -> None:
    """It says whose file it is."""
    lines.put(BOB)
    lines.file.chmod(0o600)
    code, said = lines.render()
    assert (2, True) == (code, f"cannot be read: it belongs to user uid {BOB}" in said), said


def test_root_reads_no_users_file(
    lines: Lines, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not even in a directory of that user, where root may look at runs."""
    os.chown(lines.here, BOB, GROUP)
    lines.put(BOB, lines.here / "hpc-elastic.toml")
    monkeypatch.chdir(lines.here)
    assert 2 == app.run(["render", "--", "python3", "train.py"])
    assert f"belongs to user uid {BOB}" in capsys.readouterr().err
