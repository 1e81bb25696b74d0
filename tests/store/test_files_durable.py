"""What is made durable and in which order, and whose a name is when a reply was lost."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from hpc_elastic.store import files
from tests.store.os_calls import Calls, fail, note


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Return a list that gets the calls which give names or make something durable, in order."""
    return note(monkeypatch, "fsync", "link", "rename")


def test_a_record_is_durable_before_and_after_it_has_its_name(tmp_path: Path, calls: Calls) -> None:
    """First what is in it, then the directory with the name: a crash of the machine tears nothing."""
    assert files.publish_new(str(tmp_path / "record"), b"value")
    assert ["fsync file", "link", "fsync directory"] == calls


def test_a_replaced_file_is_durable_before_and_after_it_has_its_name(tmp_path: Path, calls: Calls) -> None:
    """As a record is; where that is not asked for nothing waits for the disk."""
    files.replace(str(tmp_path / "value"), b"1")
    assert ["fsync file", "rename", "fsync directory"] == calls
    calls.clear()
    files.replace(str(tmp_path / "value"), b"2", durable=False)
    assert ["rename"] == calls


def test_a_name_that_is_given_to_a_finished_file_is_durable(tmp_path: Path, calls: Calls) -> None:
    """The file was made durable by whoever wrote it."""
    (tmp_path / "private").write_bytes(b"value")
    files.move(str(tmp_path / "private"), str(tmp_path / "value"))
    assert ["rename", "fsync directory"] == calls
    assert ["value"] == os.listdir(tmp_path)


def test_the_names_of_a_directory_are_made_durable(tmp_path: Path, calls: Calls) -> None:
    """Those of the directory itself, not of the one around it."""
    files.sync_directory(str(tmp_path))
    assert ["fsync directory"] == calls


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOSYS, errno.ENOTSUP])
def test_a_file_system_that_cannot_sync_directories_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Some say so of directories; there is nothing more to be had from them."""
    fail(monkeypatch, "fsync", code)
    files.sync_directory(str(tmp_path))


def test_a_directory_that_could_not_be_synced_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the directory."""
    fail(monkeypatch, "fsync", errno.EIO)
    with pytest.raises(OSError, match="Input/output") as caught:
        files.sync_directory(str(tmp_path))
    assert str(tmp_path) == caught.value.filename


def test_the_same_content_of_another_writer_is_no_win(tmp_path: Path, calls: Calls) -> None:
    """Whose record it is does not depend on what is in it; the loser makes nothing durable."""
    assert files.publish_new(str(tmp_path / "record"), b"value")
    calls.clear()
    assert not files.publish_new(str(tmp_path / "record"), b"value")
    assert ["fsync file", "link"] == calls


def link_and_sweep(monkeypatch: pytest.MonkeyPatch, *, content: bytes | None = None) -> None:
    """Have the first link made and its reply lost, and the private file swept away before the second try.

    Args:
        monkeypatch: undoes it.
        content: what another writer has put under the name instead.
    """
    real, left = os.link, [1]

    def link(private: str, path: str, **options: bool) -> None:
        if not left[0]:
            real(private, path, **options)
            return
        left[0] -= 1
        if content is None:
            real(private, path, **options)
        else:
            Path(path).write_bytes(content)
        os.unlink(private)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), private)

    monkeypatch.setattr(os, "link", link)


def test_a_win_whose_reply_was_lost_is_known_by_its_content(
    tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The private file is gone as well, so the second try finds a taken name: it is its own, and durable."""
    link_and_sweep(monkeypatch)
    assert files.publish_new(str(tmp_path / "record"), b"value")
    assert "fsync directory" == calls[-1]


def test_a_loss_after_a_lost_reply_is_a_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content is another one's."""
    link_and_sweep(monkeypatch, content=b"theirs")
    assert not files.publish_new(str(tmp_path / "record"), b"value")
    assert b"theirs" == files.read(str(tmp_path / "record"))


@pytest.mark.parametrize("code", [errno.EEXIST, errno.ESTALE, errno.EIO])
def test_a_link_that_was_made_is_a_win_whatever_was_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Two links to the private file say so."""
    fail(monkeypatch, "link", code, done=True)
    assert files.publish_new(str(tmp_path / "record"), b"value")
    assert ["record"] == os.listdir(tmp_path)


def test_a_win_at_the_second_try_needs_no_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody reads what this process has just written."""
    path, real = str(tmp_path / "record"), os.open

    def open_others(name: str, *arguments: int) -> int:
        if name == path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
        return real(name, *arguments)

    monkeypatch.setattr(os, "open", open_others)
    fail(monkeypatch, "link", errno.EINTR)
    assert files.publish_new(path, b"value")


def test_an_error_that_stays_is_told_though_the_private_file_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a private file that was missed is written again."""
    tried: Calls = []

    def link(private: str, _path: str, **_: bool) -> None:
        tried.append("link")
        os.unlink(private)
        raise OSError(errno.EIO, os.strerror(errno.EIO), private)

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(OSError, match="Input/output"):
        files.publish_new(str(tmp_path / "record"), b"value")
    assert ["link"] == tried


def test_a_taken_name_may_be_told_as_a_forbidden_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By sshfs, for one; a listing tells the two apart."""
    path = str(tmp_path / "record")
    fail(monkeypatch, "link", errno.EPERM)
    with pytest.raises(PermissionError) as caught:
        files.publish_new(path, b"value")
    assert path == caught.value.filename
    (tmp_path / "record").write_bytes(b"theirs")
    fail(monkeypatch, "link", errno.EPERM)
    assert not files.publish_new(path, b"value")
