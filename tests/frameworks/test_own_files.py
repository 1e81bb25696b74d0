"""Checkpoints that frameworks unpickle by path: those of this user alone, whatever others do meanwhile."""

from __future__ import annotations

import gc
import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic import worker
from hpc_elastic.errors import UnfitFileError
from hpc_elastic.frameworks import ElasticLoop, latest
from hpc_elastic.frameworks.own_files import close_to_others, own_path, remove_below
from hpc_elastic.frameworks.saving import Saves
from tests.frameworks.test_saving import in_run
from tests.two_users import ACL, ALICE, BOB, TwoUsers, acl_for, needs_root, two_users

__all__ = ["two_users"]


def save(run: Path, files: int = 2) -> str:
    """Save a checkpoint of a directory as a framework does, by the umask, and mark it; return its path."""
    run.mkdir(mode=0o700)
    with pytest.MonkeyPatch.context() as patch:
        saves = Saves(5, environ=in_run(run, patch))
        path = Path(saves.path(5))
        path.mkdir()
        for number in range(files):
            (path / f"{number}.pt").write_text("mine")
        saves.saved(5, str(path))
    return str(path)


def read(run: Path, meanwhile: Callable[[], object] = lambda: None) -> str:
    """Return what a trainer reads of the newest checkpoint."""
    with pytest.MonkeyPatch.context() as patch:
        environ = in_run(run, patch)
        path = Saves(environ=environ).newest()
        assert path is not None
        assert os.path.samefile(path, latest() or "")
        meanwhile()
        return Path(path, "0.pt").read_text()


def put_another_there(run: Path) -> None:
    """Put another directory in the place of a run, with a checkpoint of the same name."""
    run.rename(run.with_name("away"))
    for place in (run, run / "saved", run / "saved" / "step-5-0"):
        place.mkdir()
        place.chmod(0o755)
    (run / "saved" / "step-5-0" / "0.pt").write_text("evil")


def test_in_a_private_place_the_path_stays(tmp_path: Path) -> None:
    """Nobody else can put anything there; also one that is not there is returned as it is."""
    (tmp_path / "file").touch()
    for name in ("file", ".", "none", "file/below"):
        path = str(tmp_path / name)
        assert path == own_path(path)


@needs_root
def test_a_checkpoint_that_is_exchanged_before_it_is_read(two_users: TwoUsers) -> None:
    """The trainer reads the one that was checked: its path leads through a descriptor."""
    run = two_users.shared / "run"
    two_users.act(ALICE, lambda: save(run))

    found, done = two_users.home(ALICE) / "found", two_users.home(ALICE) / "done"
    for fifo in (found, done):
        os.mkfifo(fifo)
        os.chown(fifo, ALICE, -1)
    end = two_users.begin(ALICE, lambda: read(run, lambda: (found.write_text("x"), done.read_text())))
    found.read_text()
    two_users.act(BOB, lambda: put_another_there(run))
    done.write_text("x")
    assert "mine" == end()


@needs_root
def test_a_checkpoint_that_was_exchanged_already_is_refused(two_users: TwoUsers) -> None:
    """The user who has made the other one is named, and what to do."""
    run = two_users.shared / "run"

    def look() -> str:
        with pytest.raises(UnfitFileError) as refused:
            own_path(str(run / "saved" / "step-5-0"))
        return str(refused.value)

    two_users.act(ALICE, lambda: save(run))
    two_users.act(BOB, lambda: put_another_there(run))
    said = two_users.act(ALICE, look)
    assert f"it belongs to user uid {BOB}, and can hold code that would run as you" in said
    assert "copy the checkpoint, if you trust that user, and load your copy" in said


@needs_root
@pytest.mark.parametrize("name", ["0.pt", "below", "below/1.pt", "below/deep/2.pt"])
def test_a_part_of_another_user_is_refused(two_users: TwoUsers, name: str) -> None:
    """It was put there as the directory was open, which it is not any more."""
    place = two_users.shared / "step-5-0"
    two_users.act(ALICE, lambda: (place / "below" / "deep").mkdir(parents=True))
    if name == "below":
        os.chown(place / name, BOB, -1)
    else:
        two_users.act(BOB, lambda: (place / name).write_text("evil"))

    def look() -> str:
        for each in (place, place / "below", place / "below" / "deep"):
            if each.stat().st_uid == ALICE:
                each.chmod(0o755)
        with pytest.raises(UnfitFileError) as refused:
            own_path(str(place))
        return str(refused.value)

    assert f"{place / name}: it belongs to user uid {BOB}" in two_users.act(ALICE, look)


@needs_root
@pytest.mark.parametrize("what", ["the directory", "a file"])
def test_a_part_that_others_can_write_to_is_refused(two_users: TwoUsers, what: str) -> None:
    """Unless a directory above is closed to them; the error has the command that mends it."""
    home, place = two_users.home(ALICE) / "step-5-0", two_users.shared / "step-5-0"

    def look() -> str:
        for each in (home, place):
            each.mkdir()
            (each / "0.pt").touch()
            (each / "0.pt").chmod(0o664 if what == "a file" else 0o644)
            each.chmod(0o775 if what == "the directory" else 0o755)
        assert str(home) == own_path(str(home))
        with pytest.raises(UnfitFileError, match="others can write to it") as refused:
            own_path(str(place))
        subprocess.run(["chmod", "-R", "go-w", str(place)], check=True)
        assert own_path(str(place)).startswith("/proc/self/fd/")
        return str(refused.value)

    assert f"chmod -R go-w {place}" in two_users.act(ALICE, look)


@needs_root
@pytest.mark.parametrize("kind", ["file", "directory"])
def test_what_the_umask_leaves_open_is_closed_as_it_is_saved(two_users: TwoUsers, kind: str) -> None:
    """A directory whole, as other ranks may still write into it; then it can be gone on from."""
    place = two_users.shared / "step-5-0"

    def act() -> tuple[int, str]:
        (os.mkdir if kind == "directory" else Path.touch)(place)
        close_to_others(str(place))
        close_to_others(str(place))
        if kind == "directory":
            (place / "of another rank").touch()
        return stat.S_IMODE(place.stat().st_mode) & 0o777, own_path(str(place))

    mode, path = two_users.act(ALICE, act)
    assert ((0o700 if kind == "directory" else 0o644), True) == (mode, path.startswith("/proc/self/fd/"))


def test_what_nobody_else_can_reach_keeps_its_mode(tmp_path: Path) -> None:
    """A directory above is closed, or there is nothing."""
    tmp_path.chmod(0o700)
    for name, mode in (("group", 0o775), ("all", 0o777)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
        close_to_others(str(tmp_path / name))
        assert mode == stat.S_IMODE((tmp_path / name).stat().st_mode)
    close_to_others(str(tmp_path / "none"))


@needs_root
def test_a_loop_loads_by_the_checked_path_and_ends_the_run_at_a_refusal(
    two_users: TwoUsers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No restart helps; the functions of the program are not called with a path that is refused."""
    run = two_users.shared / "run"
    path = save(run)
    loaded: list[str] = []
    ends: list[Any] = []
    in_run(run, monkeypatch)
    monkeypatch.setattr(worker, "attached", lambda: True)
    monkeypatch.setattr(worker, "give_up", ends.append)
    assert 5 == ElasticLoop(print, loaded.append).resume()
    assert loaded[0].startswith("/proc/self/fd/")
    assert os.path.samestat(os.stat(loaded[0]), os.stat(path))
    os.chown(path, BOB, -1)
    with pytest.raises(UnfitFileError):
        ElasticLoop(print, loaded.append).resume()
    assert (1, 1) == (len(loaded), len(ends))
    assert "it belongs to user" in ends[0]


def test_old_checkpoints_go_from_the_directory_that_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not from another one that somebody has moved to its place meanwhile: that is said."""
    saves = Saves(5, keep=1, environ=in_run(tmp_path / "run", monkeypatch))
    other = tmp_path / "other"
    (other / "step-5-0").mkdir(parents=True)
    (other / "step-5-0" / "0.pt").write_text("of another run")
    for step in (5, 10):
        Path(saves.path(step)).mkdir()
        saves.mark(step, saves.path(step))
    directory = Path(saves.directory)
    directory.rename(tmp_path / "away")
    other.rename(directory)
    saves.remove_old()
    assert "of another run" == (directory / "step-5-0" / "0.pt").read_text()
    assert f"no checkpoint is removed: {directory} is another directory now" in caplog.text
    directory.rename(other)
    (tmp_path / "away").rename(directory)
    saves.remove_old()
    assert ["step-10-0"] == os.listdir(directory)


def test_a_checkpoint_is_removed_with_all_below_and_nothing_beside(tmp_path: Path) -> None:
    """Of links the link alone."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "kept").touch()
    for name in ("a", "b"):
        (tmp_path / name / "x" / "y").mkdir(parents=True)
        (tmp_path / name / "x" / "file").touch()
        (tmp_path / name / "x" / "link").symlink_to(tmp_path / "mine")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    (tmp_path / "file").touch()
    here = os.open(tmp_path, os.O_RDONLY)
    remove_below(here, ["a", "link", "file", "none"])
    os.close(here)
    assert {"b", "mine"} == set(os.listdir(tmp_path))
    assert ["kept"] == os.listdir(tmp_path / "mine")


def _write_as(path: Path, mode: int) -> None:
    path.write_text("mine")
    path.chmod(mode)


@needs_root
def test_a_file_is_read_that_was_checked(two_users: TwoUsers) -> None:
    """A trainer's checkpoint may be one file: another one of its name is not read."""
    place = two_users.shared / "last.ckpt"
    two_users.act(ALICE, lambda: _write_as(place, 0o644))

    def attack() -> None:
        other = place.with_name("other")
        other.write_text("evil")
        other.rename(place)

    def act() -> str:
        os.setresuid(ALICE, ALICE, 0)
        path = own_path(str(place))
        os.seteuid(0)
        two_users.act(BOB, attack)
        os.seteuid(ALICE)
        return Path(path).read_text()

    assert "mine" == two_users.act(0, act)
    assert "evil" == place.read_text()


@needs_root
def test_a_link_of_another_user_leads_to_nothing_that_is_read(two_users: TwoUsers) -> None:
    """To a file that Bob may write, and that is Alice's."""
    notes, place = two_users.shared / "notes", two_users.shared / "last.ckpt"
    two_users.act(ALICE, lambda: _write_as(notes, 0o664))
    two_users.act(BOB, lambda: notes.write_text("evil"))
    two_users.act(BOB, lambda: place.symlink_to(notes))

    def look() -> str:
        with pytest.raises(UnfitFileError) as refused:
            own_path(str(place))
        return str(refused.value.strerror)

    assert "others can write to it" in two_users.act(ALICE, look)


@needs_root
@pytest.mark.parametrize("what", ["the directory", "a file"])
def test_what_an_acl_lets_another_user_write_is_refused(two_users: TwoUsers, what: str) -> None:
    """The group itself may not write; a single user of it may."""
    place = two_users.shared / "step-5-0"
    file = place / "0.pt"
    two_users.act(ALICE, lambda: place.mkdir(mode=0o755))
    two_users.act(ALICE, lambda: place.chmod(0o755))
    two_users.act(ALICE, lambda: _write_as(file, 0o644))
    try:
        os.setxattr(place if what == "the directory" else file, ACL, acl_for(BOB))
    except OSError:
        pytest.skip("the file system has no ACLs")

    def attack() -> None:
        (file.write_text if what == "a file" else place.joinpath("1.pt").write_text)("evil")

    def look() -> str:
        with pytest.raises(UnfitFileError) as refused:
            own_path(str(place))
        return str(refused.value.strerror)

    two_users.act(BOB, attack)
    assert "others can write to it" in two_users.act(ALICE, look)


@needs_root
def test_what_other_tests_left_is_not_collected_by_another_user(two_users: TwoUsers) -> None:
    """An object that waits for its threads as it ends waits for ever, or aborts, in a forked process."""

    class Left:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            (two_users.shared / "collected").touch()

    def collect() -> list[str]:
        gc.collect()
        return os.listdir(two_users.shared)

    gc.disable()
    try:
        Left()
        assert [] == two_users.act(ALICE, collect)
    finally:
        gc.enable()
    assert ["collected"] == collect()


@needs_root
@pytest.mark.torch
def test_a_directory_that_another_user_names_as_a_checkpoint_is_not_removed(two_users: TwoUsers) -> None:
    """It is the owner's, who alone can enter it, and lies in a directory in which both may rename it."""
    pytest.importorskip("torch")
    shared = two_users.shared

    def save(*steps: int) -> list[str]:
        from hpc_elastic.frameworks.torch import Checkpoints  # noqa: PLC0415 - of one test

        checkpoints = Checkpoints(shared, every=None, keep=1)
        checkpoints.load({"value": 1})
        for step in steps:
            checkpoints.save(step, {"value": 1})
            checkpoints.wait()
        return sorted(os.listdir(shared))

    def keep_results() -> None:
        (shared / "results").mkdir(mode=0o700)
        (shared / "results" / "year.csv").write_text("mine")

    two_users.act(ALICE, keep_results)
    assert ["results", "step-1-0"] == two_users.act(ALICE, lambda: save(1))
    two_users.act(BOB, lambda: os.rename(shared / "results", shared / "step-0-0"))
    assert ["step-0-0", "step-3-1"] == two_users.act(ALICE, lambda: save(2, 3))
    assert "mine" == (shared / "step-0-0" / "year.csv").read_text()
