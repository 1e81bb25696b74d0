"""The two ways in which files of dead agents leave a node's memory remove the same, whatever is there."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.start import scratch
from hpc_elastic.start.scratch import remove_left
from tests.docs.pages import REPOSITORY
from tests.two_users import ALICE, BOB, TwoUsers, two_users

__all__ = ["two_users"]
EPILOG = REPOSITORY / "sbatch_templates" / "batch.sh"
ME = os.geteuid()
FOLDER = f"hpc_elastic-{ME}"
DEAD, LIVING = 2**22 + 1, os.getpid()  # process ids; the kernel gives none above 2**22
needs_root = pytest.mark.skipif(ME != 0, reason="only root can give a directory away")


def by_epilog(place: Path, programs: str = "") -> None:
    """Remove as Slurm's epilog does.

    Args:
        place: of the folders.
        programs: a directory with programs that are found first.
    """
    environ = {"PATH": f"{programs}:{os.environ['PATH']}"}
    argv = ["/bin/bash", "-p", "-c", '. "$1"; remove_left "$2"', "bash", str(EPILOG), str(place)]
    subprocess.run(argv, env=environ, check=False, timeout=150)


def by_agent(place: Path) -> None:
    """Remove as the next agent of the user does."""
    remove_left(str(place))


WAYS: dict[str, Callable[[Path], None]] = {"epilog": by_epilog, "agent": by_agent}


def directory(path: Path, mode: int = 0o700, owner: int = ME) -> None:
    """Make a directory with two files, one of which shells do not list."""
    path.mkdir(parents=True)
    for name in ("copy-a-0-0", ".hidden"):
        (path / name).write_bytes(b"state")
    path.chmod(mode)
    os.chown(path, owner, -1)


def odd_folder(place: Path) -> None:
    """Fill a place with directories that are to go, and with those that only look so."""
    now, folder = int(SystemClock().wall()), place / FOLDER
    folder.mkdir(mode=0o700)
    for name in (f"{DEAD}-0123abcd", f"{LIVING}-0123abcd", f"kept-{now - 9}-{now - 1}-0123abcd"):
        directory(folder / name)
    for begin, end in ((now - 9, now + 999), (now + 500, now + 999)):
        directory(folder / f"kept-{begin}-{end}-0123abcd")
    for name in ("2024-results", f"{DEAD}-0123ABCD", f"{DEAD}-0123abcde", "kept-1-2-x", "a\nb-01234567"):
        directory(folder / name)
    directory(folder / f"{DEAD}-11111111" / "below")
    directory(folder / f"{DEAD}-22222222", mode=0o770)
    directory(place / "elsewhere")
    (folder / f"{DEAD}-33333333").symlink_to(place / "elsewhere")
    (folder / f"{DEAD}-44444444").write_text("a file")
    directory(place / f"{FOLDER}-{DEAD}-0123abcd")
    directory(place / f"{FOLDER}-{LIVING}-0123abcd")
    directory(place / f"{FOLDER}-{DEAD}-x")
    directory(place / f"hpc_elastic-{ME + 1}-{DEAD}-0123abcd")
    for pipe in (folder / f"{DEAD}-66666666", place / f"{FOLDER}-{DEAD}-66666666"):
        os.mkfifo(pipe)  # who opened it would wait for ever
    if ME == 0:
        directory(folder / f"{DEAD}-55555555", owner=65534)
        directory(place / f"{FOLDER}-{DEAD}-55555555", owner=65534)


def there(place: Path) -> set[str]:
    """Return all that is in a place, without the time in names."""
    found = {str(path.relative_to(place)) for path in place.rglob("*")}
    return {re.sub(r"kept-\d+-\d+-0", "kept-0", path) for path in found}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_the_dead_go_and_all_else_stays(tmp_path: Path, way: Callable[[Path], None]) -> None:
    """Both ways have the same result: of a directory with another one in it the files go."""
    odd_folder(tmp_path)
    before = there(tmp_path)
    way(tmp_path)
    gone = {path for path in before - there(tmp_path) if "/copy" not in path and "/.hidden" not in path}
    expected = {f"{FOLDER}/{DEAD}-0123abcd", f"{FOLDER}-{DEAD}-0123abcd"}
    assert expected == gone
    kept = [path.name for path in (tmp_path / FOLDER).glob("kept-[0-9]*-0123abcd")]
    assert 1 == len(kept)  # the expired one and that of the future are gone


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_directory_with_a_lock_stays(tmp_path: Path, way: Callable[[Path], None]) -> None:
    """That of an agent in another container, whose process id nobody has here."""
    directory(tmp_path / FOLDER / f"{DEAD}-0123abcd")
    (tmp_path / FOLDER).chmod(0o700)
    lock = os.open(tmp_path / FOLDER / f"{DEAD}-0123abcd", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    before = there(tmp_path)
    way(tmp_path)
    assert before == there(tmp_path)
    os.close(lock)
    way(tmp_path)
    assert {FOLDER} >= there(tmp_path)


def _a_link(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to("elsewhere")


def _a_link_of_another_user(folder: Path) -> None:
    _a_link(folder)
    os.lchown(folder, 65534, -1)


def _for_all(folder: Path) -> None:
    folder.chmod(0o777)


def _of_another_user(folder: Path) -> None:
    os.chown(folder, 65534, -1)


@needs_root
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("attack", [_a_link, _a_link_of_another_user, _for_all, _of_another_user])
def test_nothing_goes_from_a_folder_that_is_not_the_users_alone(
    tmp_path: Path, way: Callable[[Path], None], attack: Callable[[Path], None]
) -> None:
    """Others could have moved any directory of the user's there."""
    directory(tmp_path / FOLDER / f"{DEAD}-0123abcd")
    (tmp_path / FOLDER).chmod(0o700)
    attack(tmp_path / FOLDER)
    before = there(tmp_path)
    way(tmp_path)
    assert before == there(tmp_path)


@pytest.mark.parametrize("moment", ["stat", "readlink", "flock", "rm"])
def test_a_link_that_comes_while_the_epilog_looks_is_not_followed(tmp_path: Path, moment: str) -> None:
    """At each of its steps: it is in the directory that it has entered, and removes there or nowhere."""
    place, own, programs = tmp_path / "shm", tmp_path / "own", tmp_path / "bin"
    directory(place / FOLDER / f"{DEAD}-0123abcd")
    (place / FOLDER).chmod(0o700)
    directory(own / f"{DEAD}-0123abcd")
    before = there(own)
    programs.mkdir()
    (programs / moment).write_text(
        f"#!/bin/bash\nPATH=${{PATH#*:}}\n[ -L {place}/{FOLDER} ] || "
        f'{{ mv {place}/{FOLDER} {place}/moved && ln -s {own} {place}/{FOLDER}; }}\nexec {moment} "$@"\n'
    )
    (programs / moment).chmod(0o755)
    by_epilog(place, str(programs))
    assert (place / FOLDER).is_symlink()
    assert before == there(own)


def test_both_ways_know_the_same_names() -> None:
    """The epilog is a text of its own, since Python's file system may be away."""
    text = EPILOG.read_text(encoding="utf-8")
    names = {"_he_of_agent": scratch._NAME, "_he_of_kept": scratch._KEPT}
    assert names == dict(re.findall(r"^(_he_of_agent|_he_of_kept)='(.*)'$", text, re.MULTILINE))


@needs_root
@pytest.mark.timeout(120)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("made", ["directories", "links", "pipes", "files", "the folder"])
def test_what_another_user_has_named_like_an_agents_directory_leads_nowhere(
    two_users: TwoUsers, way: Callable[[Path], None], made: str
) -> None:
    """In a place in which all can write: nothing of Alice's goes, nothing is waited for, and Bob's stays."""
    place, own = two_users.shared, two_users.home(ALICE) / "own"
    place.chmod(0o1777)
    folder = f"hpc_elastic-{ALICE}"

    def prepare() -> None:
        own.mkdir()
        (own / "copy-a-0-0").write_text("mine")

    def attack() -> None:
        if made == "the folder":
            (place / folder).symlink_to(own.parent)
        for number in range(3):
            name = place / f"{folder}-{DEAD + number}-0123abcd"
            if made == "directories":
                directory(name, owner=BOB)
            elif made == "links":
                name.symlink_to(own)
            elif made == "pipes":
                os.mkfifo(name)
            else:
                name.write_text("x")

    two_users.act(ALICE, prepare)
    two_users.act(BOB, attack)
    before = there(place)
    two_users.act(ALICE, lambda: way(place))
    assert before == there(place)
    assert ["copy-a-0-0"] == os.listdir(own)
