"""What leads to a run directory, on a real file system."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from hpc_elastic.errors import RunDirError
from hpc_elastic.store.plain_file import given_file
from hpc_elastic.store.trust import TrustLevel, exposures, other_owner, refuse_open, shared_text, way_to

NOBODY = 65534
GROUP = 54321  # nobody's
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's files")


def shared(folder: Path, mode: int = 0o2775) -> Path:
    """Return a new directory that members of a group can write to."""
    folder.mkdir()
    os.chown(folder, 0, GROUP)
    folder.chmod(mode)
    return folder


def test_a_directory_of_ones_own_below_tmp_is_private(tmp_path: Path) -> None:
    """The sticky /tmp counts, and what is not there yet."""
    assert [] == exposures(str(tmp_path / "runs" / "a"))


@pytest.mark.parametrize("is_of_many", [False, True])
def test_a_group_of_ones_own_is_nobody_else(tmp_path: Path, is_of_many: bool) -> None:
    """As many systems make one for each user; agents ask for it as well before they refuse."""
    folder = tmp_path / "hpc_elastic_runs"
    folder.mkdir()
    folder.chmod(0o775)
    refuse_open(str(folder / "run"), "run_dir", is_of_many=is_of_many)
    os.chown(folder, 0, GROUP)
    with pytest.raises(RunDirError, match=f"members of group gid {GROUP} can write to {folder}"):
        refuse_open(str(folder / "run"), "run_dir", is_of_many=is_of_many)


def test_every_directory_above_counts(tmp_path: Path) -> None:
    """A private one below a shared one is renamed with it."""
    (shared(tmp_path / "proj") / "me").mkdir(mode=0o700)
    (found,) = exposures(str(tmp_path / "proj" / "me" / "run"))
    assert (TrustLevel.SHARED, str(tmp_path / "proj" / "me")) == (found.level, found.place.entry)
    assert f"members of group gid {GROUP} can rename {tmp_path / 'proj' / 'me'}" in shared_text([found])


def test_what_links_lead_through_counts(tmp_path: Path) -> None:
    """Relative, absolute, and from link to link."""
    (shared(tmp_path / "proj") / "me").mkdir(mode=0o700)
    (tmp_path / "home").mkdir(mode=0o700)
    (tmp_path / "home" / "runs").symlink_to("../proj/./me")
    (tmp_path / "home" / "more").symlink_to(tmp_path / "home" / "runs")
    (found,) = exposures(str(tmp_path / "home" / "more" / "run"))
    assert str(tmp_path / "proj") == found.place.path


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    """As for the kernel."""
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert list(way_to(str(tmp_path / "a" / "run")))


def test_an_open_directory_is_refused_by_name(tmp_path: Path) -> None:
    """With owner, mode and what mends it."""
    place = shared(tmp_path / "all;of us", 0o777)
    with pytest.raises(RunDirError) as caught:
        refuse_open(str(place / "run"), "run_dir")
    assert f"everybody can write to {place} (owner root, mode 777)" in caught.value.message
    assert f"chmod go-w '{place}'" in caught.value.fix
    assert [TrustLevel.OPEN] == [
        each.level for each in refuse_open(str(place / "run"), "", spares_public=True)
    ]


def test_a_folder_with_our_name_of_somebody_else_is_refused(tmp_path: Path) -> None:
    """The fix is a directory that works."""
    folder = shared(tmp_path / "hpc_elastic_runs", 0o755)
    os.chown(folder, NOBODY, NOBODY)
    with pytest.raises(RunDirError) as caught:
        refuse_open(str(folder / "run"), "run_dir", spares_public=True)
    assert f"{folder} (owner nobody, mode 755) belongs to another user" in caught.value.message
    own = f"{folder}_root/run"
    assert f"--run-dir {own}" in caught.value.fix
    assert [] == refuse_open(own, "run_dir")


def test_a_folder_that_cannot_be_looked_into_is_refused_by_its_owner() -> None:
    """As that of a colleague who was first in a shared project; the fix is a directory that works."""
    with TemporaryDirectory() as place:
        Path(place).chmod(0o711)
        folder = shared(Path(place) / "proj", 0o2777) / "hpc_elastic_runs"
        folder.mkdir(mode=0o700)
        os.chown(folder, NOBODY, NOBODY)
        os.seteuid(GROUP)
        try:
            with pytest.raises(RunDirError, match=r"owner nobody, mode 2700\) belongs to another") as caught:
                refuse_open(str(folder / "run"), "run_dir", spares_public=True)
        finally:
            os.seteuid(0)
    assert f"--run-dir {folder}_{GROUP}/run" in caught.value.fix


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_the_owner_of_a_given_file_is_told_if_that_is_another_user(tmp_path: Path) -> None:
    """Not of one's own files, nor of those of root."""
    file = tmp_path / "job.toml"
    file.write_text("x")
    assert "" == other_owner(given_file(str(file)))
    os.chown(file, 65534, 65534)
    assert "user nobody" == f"user {other_owner(given_file(str(file)))}"
