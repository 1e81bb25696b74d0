"""Directories that several clients make at the same moment."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.store.files import PAUSES_S, make_directories, make_directory
from tests.store.os_calls import fail


def test_a_directory_is_made_once(tmp_path: Path) -> None:
    """Private to its owner; one that is there stays, and the one above must be there."""
    assert (True, False) == (make_directory(str(tmp_path / "a")), make_directory(str(tmp_path / "a")))
    assert 0o700 == (tmp_path / "a").stat().st_mode & 0o777
    with pytest.raises(FileNotFoundError):
        make_directory(str(tmp_path / "b" / "c"))


def test_a_directory_that_a_file_server_refuses_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some refuse before they look; one that is not there cannot be made."""
    fail(monkeypatch, "mkdir", errno.EROFS, 2)
    assert not make_directory(str(tmp_path))
    with pytest.raises(OSError, match="Read-only"):
        make_directory(str(tmp_path / "a"))


def test_those_above_are_made_too(tmp_path: Path) -> None:
    """All with the same permissions, whatever the umask; what is there stays as it is."""
    before = os.umask(0o002)
    try:
        make_directories(str(tmp_path / "a" / "b"))
        make_directories(str(tmp_path / "a" / "b"), 0o777)
    finally:
        os.umask(before)
    modes = [place.stat().st_mode & 0o777 for place in (tmp_path / "a", tmp_path / "a" / "b")]
    assert [0o700, 0o700] == modes


def test_those_above_a_relative_path_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of one from the root."""
    monkeypatch.chdir(tmp_path)
    make_directories("a/b/c")
    assert (tmp_path / "a" / "b" / "c").is_dir()


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ESTALE, errno.EEXIST])
def test_what_a_lost_race_looks_like_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Gluster says for seconds that what another client has just made is absent, stale or in the way."""
    path, make, answers = str(tmp_path / "a" / "b"), os.mkdir, [number] * len(PAUSES_S)
    slept: list[float] = []
    monkeypatch.setattr(SystemClock, "sleep", lambda _, seconds: slept.append(seconds))

    def mkdir(name: str, mode: int = 0o777) -> None:
        if name == path and answers:
            raise OSError(answers.pop(), "", name)
        make(name, mode)

    monkeypatch.setattr(os, "mkdir", mkdir)
    make_directories(path)
    assert os.path.isdir(path)
    assert answers == []
    assert list(PAUSES_S) == slept


@pytest.mark.parametrize("below", ["", "a/b"])
def test_what_is_in_the_way_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str
) -> None:
    """A file under the name, or above it, does not go away by waiting."""
    (tmp_path / "file").touch()
    tries: list[str] = []
    make = os.mkdir

    def mkdir(name: str, mode: int = 0o777) -> None:
        tries.append(name)
        make(name, mode)

    path = str(tmp_path / "file" / below).rstrip("/")
    monkeypatch.setattr("hpc_elastic.store.files.os.mkdir", mkdir)
    with pytest.raises((FileExistsError, NotADirectoryError)):
        make_directories(path)
    assert 1 == len(tries)
