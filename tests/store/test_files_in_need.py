"""What each error of the file system leads to, and what is left behind."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.store import files
from tests.store.os_calls import Calls, fail


@pytest.mark.parametrize("code", [errno.EINTR, errno.ESTALE, errno.ETXTBSY])
@pytest.mark.parametrize("call", ["link", "fsync", "open", "write"])
def test_an_error_that_passes_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    """What is to be published is published, and what is to be replaced is replaced."""
    fail(monkeypatch, call, code)
    assert files.publish_new(str(tmp_path / "record"), b"value")
    fail(monkeypatch, call, code)
    files.replace(str(tmp_path / "record"), b"other")
    assert b"other" == files.read(str(tmp_path / "record"))
    assert ["record"] == os.listdir(tmp_path)


@pytest.mark.parametrize("write", [files.publish_new, files.replace])
def test_a_private_file_that_is_there_already_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[str, bytes], object]
) -> None:
    """The reply to its creation was lost; the next try has another name."""
    real, left = os.open, [1]

    def create(path: str, flags: int, *mode: int, **options: Any) -> int:
        descriptor = real(path, flags, *mode, **options)
        if flags & os.O_EXCL and left[0]:
            left[0] -= 1
            os.close(descriptor)
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        return descriptor

    monkeypatch.setattr(os, "open", create)
    write(str(tmp_path / "record"), b"value")
    assert b"value" == files.read(str(tmp_path / "record"))


@pytest.mark.parametrize("write", [files.publish_new, files.replace])
def test_an_error_that_passes_each_time_is_one_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[str, bytes], object]
) -> None:
    """The file is written a few times, not for ever."""
    fail(monkeypatch, "write", errno.ESTALE, times=20)
    with pytest.raises(OSError, match="Stale"):
        write(str(tmp_path / "record"), b"value")
    assert [] == os.listdir(tmp_path)


@pytest.mark.parametrize("call", ["write", "fsync"])
@pytest.mark.parametrize("write", [files.publish_new, files.replace])
def test_what_could_not_be_written_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[str, bytes], object], call: str
) -> None:
    """A full disk is told at once, with the public path, and leaves no part behind."""
    tried: Calls = []
    real = getattr(os, call)

    def refuse(*arguments: Any) -> Any:
        tried.append(call)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(OSError, match="No space left") as caught:
        write(str(tmp_path / "record"), b"value")
    monkeypatch.setattr(os, call, real)
    assert str(tmp_path / "record") == caught.value.filename
    assert ([call], []) == (tried, os.listdir(tmp_path))


def test_what_is_written_in_parts_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system may take less than it was given."""
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:3]))
    assert files.publish_new(str(tmp_path / "record"), b"0123456789")
    assert b"0123456789" == files.read(str(tmp_path / "record"))


def fail_to_close(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Have each file tell when it is closed that this failed."""
    real = os.close

    def close(descriptor: int) -> None:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        real(descriptor)
        if is_file:
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "close", close)


def test_a_failure_that_is_told_at_the_end_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Network file systems tell only then that a write has failed."""
    (tmp_path / "value").write_bytes(b"old")
    fail_to_close(monkeypatch, errno.EDQUOT)
    with pytest.raises(OSError, match="quota"):
        files.replace(str(tmp_path / "value"), b"new", durable=False)
    assert b"old" == files.read(str(tmp_path / "value"))


@pytest.mark.parametrize(("code", "durable"), [(errno.EINTR, False), (errno.EIO, True)])
def test_a_failure_that_means_nothing_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, durable: bool
) -> None:
    """An interrupted close has closed; what is durable by then cannot be lost by it."""
    fail_to_close(monkeypatch, code)
    files.replace(str(tmp_path / "value"), b"new", durable=durable)
    assert b"new" == files.read(str(tmp_path / "value"))


@pytest.mark.parametrize("code", [errno.ENOENT, errno.ESTALE])
def test_a_name_that_is_gone_is_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Whoever took it away."""
    (tmp_path / "fact").touch()
    fail(monkeypatch, "unlink", code, times=10)
    files.remove_name(str(tmp_path), "fact")


def test_a_name_that_cannot_be_taken_away_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays, and the error names it."""
    (tmp_path / "fact").touch()
    fail(monkeypatch, "unlink", errno.EIO)
    with pytest.raises(OSError, match="Input/output") as caught:
        files.remove_name(str(tmp_path), "fact")
    assert str(tmp_path / "fact") == caught.value.filename


def test_a_private_file_that_cannot_be_taken_away_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record stands; what is left over is swept up later."""
    fail(monkeypatch, "unlink", errno.EIO)
    assert files.publish_new(str(tmp_path / "record"), b"value")
    assert 2 == len(os.listdir(tmp_path))
    assert ["record"] == files.list_names(str(tmp_path))


def test_what_does_not_exist_is_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked for once, by its name and in a listing."""
    listed: Calls = []
    real = os.listdir

    def listing(path: str) -> list[str]:
        listed.append(path)
        return real(path)

    monkeypatch.setattr(os, "listdir", listing)
    assert None is files.read(str(tmp_path / "absent"))
    assert [str(tmp_path)] == listed
    assert None is files.read(str(tmp_path / "absent" / "directory"))
    assert [str(tmp_path), str(tmp_path / "absent")] == listed


def test_a_name_that_is_listed_and_never_found_is_nothing_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is looked for a few times, not for ever."""
    (tmp_path / "value").touch()
    opened: Calls = []

    def miss(path: str, *_: int) -> int:
        opened.append(path)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    monkeypatch.setattr(os, "open", miss)
    assert None is files.read(str(tmp_path / "value"))
    assert 1 < len(opened) < 100


def test_what_may_not_be_read_is_an_error_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Absence is a fact, and this is none."""
    (tmp_path / "value").touch()
    fail(monkeypatch, "open", errno.EACCES)
    with pytest.raises(PermissionError) as caught:
        files.read(str(tmp_path / "value"))
    assert str(tmp_path / "value") == caught.value.filename


def test_a_listing_has_published_names_only(tmp_path: Path) -> None:
    """In order; private files and those that NFS keeps for a reader are left out."""
    for name in ("b", "a", ".nfs0001", os.path.basename(files.private_name(str(tmp_path)))):
        (tmp_path / name).touch()
    assert ["a", "b"] == files.list_names(str(tmp_path))
    assert files.is_listed(str(tmp_path / "a"))
    assert not files.is_listed(str(tmp_path / "c"))


def test_private_names_are_never_the_same(tmp_path: Path) -> None:
    """Not within a process; with the machine and the process in it for those who clear up."""
    names = {files.private_name(str(tmp_path)) for _ in range(100)}
    assert 100 == len(names)
    assert all(f"{os.uname().nodename}.{os.getpid()}." in name for name in names)


def test_what_passes_is_tried_again_at_once_and_then_ever_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first time without waiting; the last error is told."""
    tried: Calls = []
    pauses: list[float] = []
    monkeypatch.setattr(SystemClock, "sleep", lambda _, seconds: pauses.append(seconds))

    def act() -> None:
        tried.append("once more")
        raise InterruptedError(errno.EINTR, "interrupted")

    with pytest.raises(InterruptedError):
        files.retry(act)
    assert len(pauses) + 2 == len(tried)
    assert 0 < pauses[0]
    assert sorted(pauses) == pauses


def test_what_does_not_pass_is_not_tried_again() -> None:
    """It would be the same the next time."""
    tried: Calls = []

    def act() -> None:
        tried.append("once")
        raise PermissionError(errno.EACCES, "no")

    with pytest.raises(PermissionError):
        files.retry(act)
    assert ["once"] == tried


def test_a_fact_told_by_a_name_is_private_and_may_be_there_already(tmp_path: Path) -> None:
    """Telling it twice is telling it once."""
    files.touch_name(str(tmp_path), "fact")
    files.touch_name(str(tmp_path), "fact")
    files.rename_name(str(tmp_path), "fact", "other")
    assert ["other"] == os.listdir(tmp_path)
    assert 0o600 == stat.S_IMODE((tmp_path / "other").stat().st_mode)


def test_a_directory_that_is_stirred_has_changed_and_is_as_before(tmp_path: Path) -> None:
    """Its time has; one that cannot be changed is left alone."""
    os.utime(tmp_path, (1, 1))
    files.stir(str(tmp_path))
    assert tmp_path.stat().st_mtime > 1
    assert [] == os.listdir(tmp_path)
    files.stir(str(tmp_path / "absent"))


@pytest.mark.parametrize("write", [files.publish_new, files.replace])
def test_an_interrupt_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[str, bytes], object]
) -> None:
    """Ctrl-C in the middle of a write is no error of the file system, and is not tried again."""

    def interrupt(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "write", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write(str(tmp_path / "record"), b"value")
    assert [] == os.listdir(tmp_path)


def test_no_descriptor_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is done, and whether it goes well or not."""
    path, before = str(tmp_path / "record"), os.listdir("/proc/self/fd")
    for _ in range(3):
        files.publish_new(path, b"value")
        files.replace(path, b"value")
        files.read(path)
        files.sync_directory(str(tmp_path))
        files.touch_name(str(tmp_path), "fact")
        files.stir(str(tmp_path))
        with monkeypatch.context() as patch:
            fail(patch, "write", errno.ENOSPC, times=2)
            for write in (files.publish_new, files.replace):
                with pytest.raises(OSError, match="No space"):
                    write(path, b"value")
    assert len(before) == len(os.listdir("/proc/self/fd"))
