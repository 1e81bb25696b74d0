"""What is opened is a plain file of this user's, whatever stands under its name."""

from __future__ import annotations

import errno
import os
import pickle
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_elastic.errors import UnfitFileError
from hpc_elastic.store import files
from hpc_elastic.store.plain_file import list_plain, open_plain, open_to_append, read_given, read_plain
from hpc_elastic.store.shared_dir import SharedDirStore

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's files")
pytestmark = pytest.mark.timeout(120)  # nothing here waits


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(200 << 30)


ODD: dict[str, tuple[Callable[[Path], None], str, int]] = {
    "fifo": (os.mkfifo, "it is a FIFO, not a plain file", errno.EINVAL),
    "endless": (lambda path: path.symlink_to("/dev/zero"), "it is a link, not a plain file", errno.ELOOP),
    "dangling": (lambda path: path.symlink_to("nothing"), "it is a link, not a plain file", errno.ELOOP),
    "sparse": (_sparse, "it has 214,748,364,800 bytes; at most 16,777,216 are read", errno.EFBIG),
    "directory": (Path.mkdir, "it is a directory, not a plain file", errno.EISDIR),
    "socket": (_socket, "it is a socket, not a plain file", errno.EINVAL),
}


@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_plain_file_is_refused_at_once(tmp_path: Path, odd: str) -> None:
    """The error names the file, what is wrong and what to do; none of it is read."""
    make, what, number = ODD[odd]
    path = tmp_path / "a b"
    make(path)
    with pytest.raises(UnfitFileError) as caught:
        files.read(str(path))
    assert number == caught.value.errno
    fix = f"see where it comes from (ls -l '{path}'), and take it away"
    assert f"{path}: {what}\n  fix: {fix}" == str(caught.value)
    assert str(caught.value) == str(pickle.loads(pickle.dumps(caught.value)))  # noqa: S301 - its own


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_record_that_others_can_write_to_is_none_of_ours(tmp_path: Path, mode: int) -> None:
    """Others can give such a file of the user's a second name, in a place of theirs."""
    store = SharedDirStore(str(tmp_path))
    store.create("a b", "1", b"x")
    assert b"x" == store.get("a b", "1")
    (tmp_path / "a b" / "1").chmod(mode)
    with pytest.raises(UnfitFileError) as caught:
        store.get("a b", "1")
    assert f"others can write to it (mode {mode:o})" in str(caught.value)
    assert f"chmod -R go-w '{tmp_path}/a b'" in caught.value.fix
    path = str(tmp_path / "a b" / "1")
    for read in (files.read, read_plain):
        with pytest.raises(UnfitFileError, match="others can write to it"):
            read(path)
        assert b"x" == read(path, alone=False)


def test_a_file_that_grows_while_it_is_read_is_read_no_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its size is believed no longer than it holds."""
    path = tmp_path / "record"
    path.write_bytes(b"x")
    monkeypatch.setattr(os, "read", lambda _fd, size: b"x" * size)
    with pytest.raises(UnfitFileError, match="it has 131,072 bytes; at most 100,000 are read"):
        read_plain(str(path), limit=100_000)


@pytest.mark.parametrize(("size", "fits"), [(9, True), (10, True), (11, False)])
def test_the_limit_is_the_largest_size_that_is_read(tmp_path: Path, size: int, fits: bool) -> None:
    """Not one byte more."""
    path = tmp_path / "record"
    path.write_bytes(b"x" * size)
    if fits:
        assert b"x" * size == read_plain(str(path), limit=10)
        return
    with pytest.raises(UnfitFileError):
        read_plain(str(path), limit=10)


@needs_root
def test_a_file_of_somebody_else_is_refused(tmp_path: Path) -> None:
    """It is neither absent nor out of reach."""
    path = tmp_path / "record"
    path.write_bytes(b"{}")
    os.chown(path, NOBODY, NOBODY)
    with pytest.raises(UnfitFileError, match="it belongs to user nobody, not to you") as caught:
        files.read(str(path))
    assert errno.EPERM == caught.value.errno
    assert b"{}" == read_plain(str(path), own=False)


@needs_root
def test_a_file_of_roots_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that was brought back from a backup."""
    path = tmp_path / "record"
    path.write_bytes(b"{}")
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    assert b"{}" == files.read(str(path))
    assert ["record"] == files.list_names(str(tmp_path))


def test_what_is_not_there_is_still_absent(tmp_path: Path) -> None:
    """And a file above it is none of a run's errors."""
    assert files.read(str(tmp_path / "nothing")) is None
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotADirectoryError):
        open_plain(str(tmp_path / "file" / "record"))


def test_a_link_is_no_directory_of_a_run(tmp_path: Path) -> None:
    """Except where logs may be kept elsewhere."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "name").touch()
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(UnfitFileError, match="it is a link, not a directory"):
        files.list_names(str(tmp_path / "link"))
    assert ["name"] == list_plain(str(tmp_path / "link"), links=True)


@needs_root
def test_the_names_in_a_directory_of_somebody_else_are_not_told(tmp_path: Path) -> None:
    """Whoever made it can make any name in it."""
    (tmp_path / "members").mkdir()
    os.chown(tmp_path / "members", NOBODY, NOBODY)
    with pytest.raises(UnfitFileError, match="it belongs to user nobody"):
        files.list_names(str(tmp_path / "members"))


@pytest.mark.parametrize("has_reader", [False, True])
def test_nothing_is_written_into_a_pipe_in_the_place_of_a_log(tmp_path: Path, has_reader: bool) -> None:
    """Nor is a reader waited for, who would hold up an agent as long as he likes."""
    path = tmp_path / "log"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK) if has_reader else -1
    with pytest.raises(UnfitFileError, match="it is a FIFO, not a plain file"):
        open_to_append(str(path))
    if has_reader:
        os.close(reader)


def test_nothing_is_appended_through_a_link(tmp_path: Path) -> None:
    """Somebody else's link may lead to any file of the user's."""
    (tmp_path / "log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnfitFileError, match="it is a link"):
        open_to_append(str(tmp_path / "log"))
    assert not (tmp_path / "elsewhere").exists()


@needs_root
def test_nothing_is_appended_to_a_file_of_somebody_else(tmp_path: Path) -> None:
    """He could read it."""
    path = tmp_path / "log"
    path.touch()
    os.chown(path, NOBODY, NOBODY)
    with pytest.raises(UnfitFileError, match="it belongs to user nobody"):
        open_to_append(str(path))


def test_a_log_is_made_and_goes_on(tmp_path: Path) -> None:
    """Programs that inherit it write to it as to any file."""
    path = tmp_path / "log"
    for text in (b"one\n", b"two\n"):
        fd = open_to_append(str(path))
        assert os.get_blocking(fd)
        os.write(fd, text)
        os.close(fd)
    assert (b"one\ntwo\n", 0o600) == (path.read_bytes(), path.stat().st_mode & 0o777)


def test_a_fact_is_not_told_through_a_link(tmp_path: Path) -> None:
    """Nothing is made where somebody else's link leads to."""
    (tmp_path / "name").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        files.touch_name(str(tmp_path), "name")
    assert not (tmp_path / "elsewhere").exists()


def test_a_file_that_the_user_names_may_be_a_link_or_a_stream(tmp_path: Path) -> None:
    """A pipe by another name is none that anybody meant."""
    (tmp_path / "real").write_bytes(b"text")
    (tmp_path / "link").symlink_to("real")
    assert b"text" == read_given(str(tmp_path / "link"))
    reading, writing = os.pipe()
    os.write(writing, b"from a pipe")
    os.close(writing)
    assert b"from a pipe" == read_given(f"/dev/fd/{reading}")
    os.close(reading)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UnfitFileError, match="it is a FIFO"):
        read_given(str(tmp_path / "fifo"))
    reading, writing = os.pipe()
    os.write(writing, bytes(200))
    with pytest.raises(UnfitFileError, match="at most 100 are read"):
        read_given(f"/dev/fd/{reading}", limit=100)
    os.close(writing)
    os.close(reading)
    with pytest.raises(UnfitFileError, match="it is a device"):
        read_given("/dev/zero")


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no directory in memory here")
def test_a_pipe_in_a_directory_of_everybodys_is_none_of_the_streams(tmp_path: Path) -> None:
    """Anybody can make one below /dev, too, and it would be waited for."""
    fifo = f"/dev/shm/{tmp_path.parent.name}-{tmp_path.name}"
    os.mkfifo(fifo)
    try:
        with pytest.raises(UnfitFileError, match="it is a FIFO"):
            read_given(fifo)
    finally:
        os.unlink(fifo)


def test_a_file_that_was_replaced_is_found_through_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a client of NFS 4 has it: a name stands for the old file until the directory is opened."""
    path = tmp_path / "value"
    path.write_bytes(b"new")
    real_open, real_stat = os.open, os.fstat
    asked: list[str] = []

    def open_it(name: str, flags: int, *mode: int) -> int:
        asked.append(name)
        return real_open(name, flags, *mode)

    def stat_it(fd: int) -> os.stat_result:
        if str(tmp_path) not in asked:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return real_stat(fd)

    monkeypatch.setattr(os, "open", open_it)
    monkeypatch.setattr(os, "fstat", stat_it)
    assert b"new" == read_plain(str(path))
    assert [str(path), str(tmp_path), str(path)] == asked
