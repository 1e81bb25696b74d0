"""Publishing, replacing and reading small files."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_elastic.store import files

LARGE = b"x" * (32 << 20)  # takes long enough to write that a thread can act meanwhile


class ReplyLost(threading.Thread):
    """Links a writer's private file to its public name before the writer can.

    That is what the writer of a network file system sees when the server made the link, the reply
    got lost and the client asked again: "exists", and it is its own.
    """

    def __init__(self, directory: Path, name: str) -> None:
        super().__init__()
        self._directory = directory
        self._name = name
        self._given_up = threading.Event()
        self.linked = False

    def run(self) -> None:
        """Wait for the private file and link it."""
        while not self.linked and not self._given_up.is_set():
            for name in os.listdir(self._directory):
                if name.startswith(files.TEMPORARY):
                    os.link(self._directory / name, self._directory / self._name)
                    self.linked = True

    def stop(self) -> None:
        """End the thread."""
        self._given_up.set()
        self.join()


def test_a_lost_reply_is_a_win(tmp_path: Path) -> None:
    """The writer whose own link is there has won, whatever the file system answered."""
    saboteur = ReplyLost(tmp_path, "record")
    saboteur.start()
    try:
        assert files.publish_new(str(tmp_path / "record"), LARGE)
    finally:
        saboteur.stop()
    assert saboteur.linked
    assert len(LARGE) == (tmp_path / "record").stat().st_size
    assert ["record"] == os.listdir(tmp_path)


def test_a_taken_name_is_kept(tmp_path: Path) -> None:
    """The loser of a race changes nothing and leaves nothing behind."""
    assert files.publish_new(str(tmp_path / "record"), b"first")
    assert not files.publish_new(str(tmp_path / "record"), b"second")
    assert b"first" == files.read(str(tmp_path / "record"))
    assert ["record"] == os.listdir(tmp_path)


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    """A symbolic link under the public name is a taken name, and what it points to stays as it is."""
    (tmp_path / "elsewhere").write_bytes(b"theirs")
    (tmp_path / "record").symlink_to(tmp_path / "elsewhere")
    assert not files.publish_new(str(tmp_path / "record"), b"ours")
    assert b"theirs" == (tmp_path / "elsewhere").read_bytes()


def test_replace_changes_the_value_at_once(tmp_path: Path) -> None:
    """A reader that has the file open keeps the old value; who opens it anew gets the new one."""
    path = str(tmp_path / "value")
    files.replace(path, b"old")
    with open(path, "rb") as reader:
        files.replace(path, b"new", durable=False)
        assert b"old" == reader.read()
    assert b"new" == files.read(path)
    assert ["value"] == os.listdir(tmp_path)


def test_a_large_value_is_read_whole(tmp_path: Path) -> None:
    """A value larger than one read comes back whole."""
    value = os.urandom(300_000)
    files.replace(str(tmp_path / "value"), value, durable=False)
    assert value == files.read(str(tmp_path / "value"))


def test_a_vanished_name_is_made_again(tmp_path: Path) -> None:
    """Changing a fact whose old name somebody took away still tells the new one."""
    files.rename_name(str(tmp_path), "old", "new")
    assert ["new"] == files.list_names(str(tmp_path))
    files.remove_name(str(tmp_path), "new")
    files.remove_name(str(tmp_path), "new")
    assert [] == files.list_names(str(tmp_path))


def test_an_absent_directory_has_no_names(tmp_path: Path) -> None:
    """Listing a directory that nobody has made gives nothing."""
    assert [] == files.list_names(str(tmp_path / "absent"))


def _sweep_before(monkeypatch: pytest.MonkeyPatch, call: str, times: int) -> list[str]:
    """Have a writer's private file removed just before it gets its name, so many times."""
    real = getattr(os, call)
    swept: list[str] = []

    def act(private: str, path: str, **options: bool) -> None:
        if len(swept) < times:
            os.unlink(private)
            swept.append(private)
        real(private, path, **options)

    monkeypatch.setattr(os, call, act)
    return swept


WRITERS = pytest.mark.parametrize(("write", "call"), [(files.publish_new, "link"), (files.replace, "rename")])


@WRITERS
def test_a_writer_gets_over_a_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[str, bytes], object], call: str
) -> None:
    """A writer that was taken for dead writes its private file again, under another name."""
    swept = _sweep_before(monkeypatch, call, times=2)
    assert write(str(tmp_path / "record"), b"value") in (True, None)
    assert 2 == len(set(swept))
    assert ["record"] == os.listdir(tmp_path)
    assert b"value" == files.read(str(tmp_path / "record"))


@WRITERS
def test_a_writer_does_not_try_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[str, bytes], object], call: str
) -> None:
    """If all its private files are taken away, it says so and names the public path."""
    swept = _sweep_before(monkeypatch, call, times=1000)
    with pytest.raises(FileNotFoundError) as caught:
        write(str(tmp_path / "record"), b"value")
    assert files._TRIES == len(swept)
    assert (str(tmp_path / "record"), None) == (caught.value.filename, caught.value.filename2)
    assert [] == os.listdir(tmp_path)


def test_a_swept_writer_loses_to_whoever_was_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it was frozen somebody took the name: that is a lost race, no error."""
    _sweep_before(monkeypatch, "link", times=1)
    (tmp_path / "record").write_bytes(b"theirs")
    assert not files.publish_new(str(tmp_path / "record"), b"ours")
    assert b"theirs" == files.read(str(tmp_path / "record"))


def test_errors_name_the_public_file(tmp_path: Path) -> None:
    """Wherever the call was made: on a descriptor, a private file or a listing."""
    gone = tmp_path / "gone"
    for act in (
        lambda: files.publish_new(str(gone / "a"), b""),
        lambda: files.replace(str(gone / "a"), b"", durable=False),
        lambda: files.touch_name(str(gone), "a"),
        lambda: files.rename_name(str(gone), "b", "a"),
    ):
        with pytest.raises(FileNotFoundError) as caught:
            act()
        assert str(gone / "a") == caught.value.filename


def test_what_cannot_be_listed_is_not_empty(tmp_path: Path) -> None:
    """An error is no fact about who is there."""
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        files.list_names(str(tmp_path / "file"))


def test_a_name_that_is_listed_but_not_found_is_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Network file systems show a file that is being replaced as absent for a moment."""
    files.replace(str(tmp_path / "value"), b"there")
    real, misses = os.open, [2]

    def open_late(path: str, *arguments: int) -> int:
        if misses[0]:
            misses[0] -= 1
            raise FileNotFoundError(2, "No such file or directory", path)
        return real(path, *arguments)

    monkeypatch.setattr(os, "open", open_late)
    assert b"there" == files.read(str(tmp_path / "value"))


@pytest.mark.parametrize("code", [errno.EINTR, errno.ESTALE])
def test_what_does_not_pass_is_an_error_after_some_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Reading and listing tell no emptiness that they did not see."""

    def refuse(path: str, *_: int) -> None:
        tried.append(path)
        raise OSError(code, os.strerror(code), path)

    tried: list[str] = []
    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(os, "listdir", refuse)
    for act in (lambda: files.read(str(tmp_path / "a")), lambda: files.list_names(str(tmp_path))):
        tried.clear()
        with pytest.raises(OSError, match=os.strerror(code)):
            act()
        assert 1 < len(tried) < 100
