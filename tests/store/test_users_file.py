"""A file that the user has named is changed while another user exchanges what is on the way to it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_elastic.errors import UnfitFileError
from hpc_elastic.store.users_file import read_users_file, users_file, write_users_file
from tests.two_users import ALICE, BOB, TwoUsers, needs_root, two_users

__all__ = ["two_users"]

OLD, NEW, SECRET = b"old\n", b"new\n", "# of alice alone\n"
Attack = Callable[[Path, Path], None]  # on the file, towards the file that alice keeps for herself


def _link(file: Path, target: Path) -> None:
    file.unlink()
    file.symlink_to(target)


def _link_by_rename(file: Path, target: Path) -> None:
    link = file.with_name("l")
    link.symlink_to(target)
    link.rename(file)


def _other_file(file: Path, _target: Path) -> None:
    other = file.with_name("other")
    other.write_bytes(b"of bob\n")
    other.rename(file)


def _other_directory(file: Path, target: Path) -> None:
    file.parent.rename(file.parent.with_name("moved"))
    file.parent.symlink_to(target.parent)


def _second_name(file: Path, _target: Path) -> None:
    """Another file of Alice's, which the group may write: only such a one can get a second name."""
    file.unlink()
    os.link(file.with_name("of-alice"), file)


def _directory_of_his(file: Path, target: Path) -> None:
    file.parent.rename(file.parent.with_name("moved"))
    file.parent.mkdir(mode=0o2775)
    file.symlink_to(target)


def _gone(file: Path, _target: Path) -> None:
    file.unlink()


ATTACKS: dict[str, Attack] = {
    "a link in its place": _link,
    "a link moved there": _link_by_rename,
    "another file": _other_file,
    "its directory a link": _other_directory,
    "another directory": _directory_of_his,
    "a second name of another file": _second_name,
    "nothing": _gone,
}


def _script_of(users: TwoUsers, uid: int) -> tuple[Path, Path]:
    """Return a script in a directory of the group, and a file of the same name that alice keeps."""
    script, own = users.shared / "project" / "train.sbatch", users.home(ALICE) / "train.sbatch"

    def make() -> None:
        script.parent.mkdir(mode=0o2775, exist_ok=True)
        script.write_bytes(OLD)
        script.chmod(0o775)
        if uid == ALICE:
            script.with_name("of-alice").write_text(SECRET)

    users.act(uid, make)
    users.act(ALICE, lambda: own.write_text(SECRET))
    return script, own


@needs_root
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
@pytest.mark.parametrize("kept", [False, True])
def test_nothing_is_written_where_another_user_wants_it(
    two_users: TwoUsers, attack: Attack, kept: bool
) -> None:
    """Bob strikes after Alice has read the file: her own one stays, and she is told."""
    script, own = _script_of(two_users, ALICE)

    def change() -> str:
        with users_file(str(script)) as held:
            assert OLD == held.read()
            _wait_for(two_users, lambda: attack(script, own))
            try:
                held.exchange(NEW, kept_as=f"{script}.orig" if kept else "")
            except UnfitFileError as error:
                return str(error.strerror)
        return "changed"

    said = two_users.act(0, lambda: _as_alice(change))
    assert SECRET == own.read_text()
    assert {"train.sbatch"} == {each.name for each in own.parent.iterdir()}
    assert SECRET == next(two_users.shared.rglob("of-alice")).read_text()
    if attack in (
        _other_directory,
        _directory_of_his,
    ):  # the file that was opened is changed, wherever it is now
        link = f"project is a link of user uid {BOB}'s, which is not followed"
        there = (two_users.shared / "moved" / "train.sbatch").read_bytes()
        is_refused = kept and attack is _other_directory
        assert ((link, OLD) if is_refused else ("changed", NEW)) == (said, there)
    else:
        assert "another process has changed or exchanged it meanwhile" == said
        assert not script.exists() or NEW != script.read_bytes()


def _as_alice(act: Callable[[], str]) -> str:
    """Act with the rights of Alice; the process can take those of Bob between two of its steps."""
    os.setresuid(ALICE, ALICE, 0)
    return act()


def _wait_for(users: TwoUsers, attack: Callable[[], None]) -> None:
    os.seteuid(0)
    users.act(BOB, attack)
    os.seteuid(ALICE)


@needs_root
@pytest.mark.parametrize("where", ["the file", "a directory above"])
def test_links_of_others_are_not_followed(two_users: TwoUsers, where: str) -> None:
    """Neither to read nor to write; those of the user are, and stay."""
    script, own = _script_of(two_users, ALICE)
    file = two_users.shared / ("l.sbatch" if where == "the file" else "l/train.sbatch")
    target = own if where == "the file" else own.parent
    for_link = file if where == "the file" else file.parent

    def write() -> list[str]:
        found = []
        for act in (_read, read_users_file, lambda path: write_users_file(path, NEW)):
            try:
                act(str(file))
                found.append("done")
            except UnfitFileError as error:
                found.append(str(error.strerror))
        return found

    two_users.act(BOB, lambda: for_link.symlink_to(target))
    refused = f"{for_link.name} is a link of user uid {BOB}'s, which is not followed"
    assert [refused] * 3 == two_users.act(ALICE, write)
    for_link.unlink()
    two_users.act(ALICE, lambda: for_link.symlink_to(target))
    assert ["done"] * 3 == two_users.act(ALICE, write)
    assert for_link.is_symlink()
    assert NEW == own.read_bytes()
    assert OLD == script.read_bytes()


def _read(path: str) -> None:
    with users_file(path) as held:
        held.read()


@needs_root
def test_the_file_of_another_user_is_not_taken_over(two_users: TwoUsers) -> None:
    """Its owner could not be kept; the old content is not kept either. A file of the group is changed."""
    script, _ = _script_of(two_users, BOB)

    def change() -> str:
        with users_file(str(script)) as held, pytest.raises(UnfitFileError) as raised:
            held.exchange(NEW, kept_as=f"{script}.orig")
        return str(raised.value.strerror)

    assert f"it belongs to user uid {BOB}, and a new file would belong to you" == two_users.act(ALICE, change)
    assert (OLD, ["train.sbatch"]) == (script.read_bytes(), os.listdir(script.parent))


@needs_root
@pytest.mark.parametrize("made", ["a link", "a link to nothing", "a file"])
def test_the_name_for_the_old_content_is_not_followed(two_users: TwoUsers, made: str) -> None:
    """Another user has taken it first: nothing is changed."""
    script, own = _script_of(two_users, ALICE)
    orig = script.with_name("train.sbatch.orig")

    def take() -> None:
        if made == "a file":
            orig.write_text("of bob\n")
        else:
            orig.symlink_to(own if made == "a link" else own.with_name("new"))

    def change() -> str:
        with users_file(str(script)) as held, pytest.raises(OSError, match=r"\.orig") as raised:
            held.exchange(NEW, kept_as=str(orig))
        return type(raised.value).__name__

    two_users.act(BOB, take)
    assert ("FileExistsError" if made == "a file" else "UnfitFileError") == two_users.act(ALICE, change)
    assert (OLD, SECRET) == (script.read_bytes(), own.read_text())
    assert ["train.sbatch"] == os.listdir(own.parent)


def test_mode_and_attributes_stay(tmp_path: Path) -> None:
    """The old content can be kept beside it, with the same mode."""
    script = tmp_path / "train.sbatch"
    script.write_bytes(OLD)
    script.chmod(0o751)
    try:
        os.setxattr(script, "user.note", b"mine")
    except OSError:
        pytest.skip("the file system has no attributes")
    with users_file(str(script)) as held:
        held.exchange(NEW, kept_as=f"{script}.orig")
    for file, content in ((script, NEW), (tmp_path / "train.sbatch.orig", OLD)):
        assert (content, 0o751) == (file.read_bytes(), file.stat().st_mode & 0o777)
        assert b"mine" == os.getxattr(file, "user.note")
    assert 2 == len(os.listdir(tmp_path))


@pytest.mark.parametrize("path", ["no/file", "no/../file", "", ".", "file/below"])
def test_a_way_that_leads_nowhere_is_an_error_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Nothing is made."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_bytes(OLD)
    with pytest.raises(OSError, match=r"^\[Errno \d+\] ") as raised:
        write_users_file(path, NEW)
    assert path == raised.value.filename
    assert ["file"] == os.listdir(tmp_path)
    assert OLD == (tmp_path / "file").read_bytes()


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    """As the kernel ends them."""
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="Too many levels"):
        write_users_file(str(tmp_path / "a"), NEW)


def test_a_new_file_has_the_mode_of_the_umask_and_an_old_one_its_own(tmp_path: Path) -> None:
    """A device takes the bytes."""
    before = os.umask(0o027)
    try:
        for name, mode in (("new", None), ("old", 0o604)):
            file = tmp_path / name
            if mode is not None:
                file.write_bytes(OLD)
                file.chmod(mode)
            write_users_file(str(file), NEW)
            assert (NEW, mode or 0o640) == (file.read_bytes(), file.stat().st_mode & 0o777)
    finally:
        os.umask(before)
    write_users_file("/dev/null", NEW)


@needs_root
@pytest.mark.parametrize("with_what", ["a link", "a file"])
def test_the_new_file_is_exchanged_before_it_gets_its_name(
    two_users: TwoUsers, monkeypatch: pytest.MonkeyPatch, with_what: str
) -> None:
    """It has a name of its own for a moment: Alice is told that hers is not the one that is there now."""
    script, own = _script_of(two_users, ALICE)

    def attack() -> None:
        (private,) = (each for each in script.parent.iterdir() if each.name.startswith("."))
        private.unlink()
        private.symlink_to(own) if with_what == "a link" else private.write_text("of bob\n")

    def change() -> str:
        rename = os.rename

        def late(old: str, new: str, **places: int | None) -> None:
            monkeypatch.setattr(os, "rename", rename)
            _wait_for(two_users, attack)
            rename(old, new, **places)

        monkeypatch.setattr(os, "rename", late)
        with users_file(str(script)) as held, pytest.raises(UnfitFileError) as raised:
            held.exchange(NEW)
        return str(raised.value.strerror)

    said = two_users.act(0, lambda: _as_alice(change))
    assert "another process has changed or exchanged it meanwhile" == said
    assert SECRET == own.read_text()


@needs_root
@pytest.mark.parametrize("made", ["a directory", "a second name", "a pipe"])
def test_whatever_has_the_name_for_the_old_content_stays(two_users: TwoUsers, made: str) -> None:
    """Alice waits for no reader of a pipe, and writes into no other file of hers."""
    script, _ = _script_of(two_users, ALICE)
    orig, other = script.with_name("train.sbatch.orig"), script.with_name("of-alice")

    def take() -> None:
        if made == "a second name":
            os.link(other, orig)
        else:
            (os.mkdir if made == "a directory" else os.mkfifo)(orig)

    def change() -> str:
        with users_file(str(script)) as held, pytest.raises(FileExistsError) as raised:
            held.exchange(NEW, kept_as=str(orig))
        return str(raised.value.filename)

    two_users.act(BOB, take)
    assert str(orig) == two_users.act(ALICE, change)
    assert (OLD, SECRET) == (script.read_bytes(), other.read_text())
