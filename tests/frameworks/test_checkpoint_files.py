"""The files of a checkpoint: private as they are written, and read only if no other user could write them."""

from __future__ import annotations

import os
import stat
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_elastic.errors import InputError, UnfitFileError
from hpc_elastic.frameworks.torch.checkpoint_files import OwnFiles, damage, not_saved, text_at_end
from hpc_elastic.record.checkpoint_files import CheckpointFacts, SavedFile, write_facts

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
FILES = OwnFiles(None)


@pytest.fixture
def shared() -> Iterator[Path]:
    """Return a directory that a group shares, which other users can reach."""
    with tempfile.TemporaryDirectory(prefix="hpc-elastic-test-") as name:
        os.chown(name, -1, NOBODY if os.geteuid() == 0 else -1)
        Path(name).chmod(0o2775)
        yield Path(name)


@pytest.fixture
def saved(shared: Path) -> Path:
    """Return a file of a checkpoint there, as the umask of such users leaves it."""
    before = os.umask(0o002)
    try:
        FILES.mkdir(shared / "step-5-1")
        place = shared / "step-5-1" / ".metadata"
        with FILES.create_stream(place, "wb") as stream:
            stream.write(b"mine")
    finally:
        os.umask(before)
    return place


def content(place: Path) -> bytes:
    """Return the content of a file as the loader of checkpoints reads it."""
    with FILES.create_stream(place, "rb") as stream:
        found: bytes = stream.read()
    return found


def as_nobody(place: Path, mode: int = os.O_WRONLY | os.O_TRUNC) -> bool:
    """Tell whether another user, of the group of shared directories, could write to a file."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(os.open(place, mode, 0o664), b"evil")
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def test_what_is_saved_is_private(saved: Path) -> None:
    """Files and their directory, by their own modes."""
    assert b"mine" == content(saved)
    assert (0o700, 0o600) == tuple(0o777 & place.stat().st_mode for place in (saved.parent, saved))


@needs_root
def test_another_user_can_neither_change_nor_replace_it(saved: Path) -> None:
    """In a directory that the group shares: the checkpoint itself is closed to it."""
    assert as_nobody(saved.parent.with_name("their own"), os.O_WRONLY | os.O_CREAT), (
        "the group can write there"
    )
    assert not as_nobody(saved)
    assert not as_nobody(saved.with_name("more"), os.O_WRONLY | os.O_CREAT)
    assert b"mine" == content(saved)


@needs_root
@pytest.mark.parametrize("open_up", ["file", "directory"])
def test_what_another_user_could_write_is_not_read(saved: Path, open_up: str) -> None:
    """An older version has saved it, or its modes were changed: the error says how to mend it."""
    saved.parent.chmod(0o775 if open_up == "directory" else 0o755)
    saved.chmod(0o664 if open_up == "file" else 0o644)
    for place in (saved, saved.parent):
        os.chown(place, -1, NOBODY)
    assert as_nobody(saved) is (open_up == "file")
    with pytest.raises(UnfitFileError, match="others can write to it") as refused:
        content(saved)
    assert f"chmod -R go-w {saved.parent}" in str(refused.value)
    for place in (saved, saved.parent):
        place.chmod(0o755)
    assert content(saved) in (b"mine", b"evil")


@needs_root
@pytest.mark.parametrize("owned", ["file", "directory"])
def test_what_another_user_has_made_is_not_read(saved: Path, owned: str) -> None:
    """He has put it in the place of the user's."""
    os.chown(saved if owned == "file" else saved.parent, NOBODY, NOBODY)
    with pytest.raises(UnfitFileError, match="it belongs to user nobody, and can hold code"):
        content(saved)


def test_a_link_is_not_followed(saved: Path) -> None:
    """It may lead to a file that another user controls."""
    other = saved.with_name("other")
    other.write_bytes(b"evil")
    saved.unlink()
    saved.symlink_to(other)
    with pytest.raises(OSError, match="symbolic link"):
        content(saved)


def test_nothing_is_written_to_a_directory_that_was_exchanged(saved: Path) -> None:
    """A user who may rename a directory above puts another one there, with links to files of the owner."""
    precious = saved.parent.parent / "precious"
    precious.write_bytes(b"precious")
    saved.parent.rename(saved.parent.parent / "away")
    saved.parent.mkdir()
    saved.parent.chmod(0o777)
    for place in (saved, saved.with_name("__0_0.distcp")):
        place.symlink_to(precious)
        with pytest.raises(UnfitFileError, match="others can write"), FILES.create_stream(place, "wb"):
            pass
    assert b"precious" == precious.read_bytes()


def test_a_fifo_is_not_waited_for(saved: Path) -> None:
    """It is no plain file."""
    saved.unlink()
    os.mkfifo(saved, 0o600)
    with pytest.raises(UnfitFileError, match="it is no plain file"):
        content(saved)


@needs_root
def test_a_directory_of_another_user_is_not_saved_to(tmp_path: Path) -> None:
    """Nor a link of that user's to one of one's own."""
    for name in ("step-5-1", "step-6-1"):
        place = tmp_path / name
        if name == "step-5-1":
            place.mkdir(0o777)
        else:
            place.symlink_to(tmp_path)
        os.chown(place, NOBODY, NOBODY, follow_symlinks=False)
        with pytest.raises(InputError, match="it belongs to user nobody"):
            FILES.mkdir(place)


@needs_root
def test_an_open_directory_is_closed_before_anything_is_saved(tmp_path: Path) -> None:
    """It is this user's, and a group could write to it."""
    place = tmp_path / "step-5-1"
    place.mkdir()
    os.chown(place, -1, NOBODY)
    place.chmod(0o775)
    FILES.mkdir(place)
    assert 0o755 == stat.S_IMODE(place.stat().st_mode)


def test_a_complete_checkpoint_is_never_written_into(saved: Path) -> None:
    """A save that fails would leave a broken one in its place."""
    FILES.mkdir(saved.parent)
    write_facts(str(saved.parent), CheckpointFacts(5, 1, 0.0, 0.1, 0.2))
    with pytest.raises(FileExistsError, match="there is a complete checkpoint of this step"):
        FILES.mkdir(saved.parent)


def test_a_file_that_is_not_as_it_was_written_is_damage(saved: Path) -> None:
    """The first one of those that are looked at is named, with what is wrong."""
    other = saved.with_name("__0_0.distcp")
    with FILES.create_stream(other, "wb") as stream:
        stream.write(b"more ")
        stream.write(b"bytes")
    mine, more = (
        SavedFile(saved.name, 4, zlib.crc32(b"mine")),
        SavedFile(other.name, 10, zlib.crc32(b"more bytes")),
    )
    place = str(saved.parent)
    assert {mine, more} <= {*FILES.written()}
    assert ["", "", ""] == [damage(place, files) for files in ([], [mine], [mine, more])]
    assert "the checksum of .metadata does not fit" == damage(place, [more, mine._replace(checksum=1)])
    assert "the checksum of .metadata does not fit" == damage(place, [mine._replace(size=5), more])
    other.write_bytes(b"more Bytes")
    assert f"the checksum of {other.name} does not fit" == damage(place, [mine, more])
    other.unlink()
    assert f"{other.name}: No such file or directory" == damage(place, [mine, more])


def test_a_file_that_others_could_write_is_no_damage(saved: Path) -> None:
    """The load refuses it, with a text of its own."""
    saved.chmod(0o666)
    assert "" == damage(str(saved.parent), [SavedFile(saved.name, 1, 1)])


def test_checksums_of_large_files_are_of_all_their_bytes(saved: Path) -> None:
    """They are read in pieces."""
    data, files = bytes(range(256)) * 20_000, OwnFiles(None)
    with files.create_stream(saved, "wb") as stream:
        stream.write(data)
    file = SavedFile(saved.name, len(data), zlib.crc32(data))
    assert "" == damage(str(saved.parent), [file])
    assert [file] == files.written()


def test_a_file_keeps_its_checksum_under_another_name(saved: Path) -> None:
    """As PyTorch renames the metadata once it is whole."""
    files = OwnFiles(_Renames())
    draft = saved.with_name(".metadata.tmp")
    with files.create_stream(draft, "wb") as stream:
        stream.write(b"draft")
    files.rename(draft, saved)
    assert [SavedFile(saved.name, 5, zlib.crc32(b"draft"))] == files.written()
    assert b"draft" == saved.read_bytes()


class _Renames:
    """PyTorch's access to files, as far as it renames them."""

    def rename(self, path: Path, new_path: Path) -> None:
        """Give a file another name."""
        os.rename(path, new_path)


def test_no_descriptor_stays_open(saved: Path) -> None:
    """Neither of a file nor of its directory, also where the file is refused."""
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        assert b"mine" == content(saved)
        with FILES.create_stream(saved, "wb") as stream:
            stream.write(b"mine")
        saved.parent.chmod(0o777)
        with pytest.raises(UnfitFileError):
            content(saved)
        saved.parent.chmod(0o700)
        saved.chmod(0o666)
        with pytest.raises(UnfitFileError):
            content(saved)
        saved.chmod(0o600)
    assert before == len(os.listdir("/proc/self/fd"))


def test_a_fifo_in_the_place_of_the_directory_is_not_waited_for(saved: Path) -> None:
    """It is no directory; a user who may rename a directory above can make one."""
    moved = saved.parent.rename(saved.parent.with_name("moved"))
    os.mkfifo(saved.parent, 0o600)
    with pytest.raises(NotADirectoryError):
        content(saved)
    assert b"mine" == content(moved / saved.name)


class _SaveError(Exception):
    """The error of a save, as PyTorch tells it of all ranks."""

    def __init__(self, **failures: BaseException) -> None:
        super().__init__("many lines")
        self.failures = {int(rank[1:]): (error, "its stack") for rank, error in failures.items()}


@pytest.mark.parametrize(
    ("error", "words", "number"),
    [
        (OSError(28, "No space left on device"), "not saved: OSError: [Errno 28] No space", 28),
        (ValueError("odd"), "not saved: ValueError: odd: /x", None),
        (
            _SaveError(r3=OSError(5, "I/O error"), r4=ValueError("x")),
            "not saved on rank 3: OSError: [Errno 5]",
            5,
        ),
        (_SaveError(), "not saved: _SaveError: many lines: /x", None),
    ],
)
def test_a_save_that_has_failed_says_where_and_why(
    error: BaseException, words: str, number: int | None
) -> None:
    """In one line, with the number of the error if it has one."""
    found = not_saved(7, "/x", error)
    assert f"the checkpoint of step 7 was {words}" in str(found)
    assert number == found.errno
    assert "fix: call checkpoints.wait() before the program ends" in text_at_end(found)
