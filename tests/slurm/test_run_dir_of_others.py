"""The run directory at submission, where other users have been before."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpc_elastic.errors import RunDirError
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.run_directory import prepare_run_dir
from hpc_elastic.slurm.submit import run_dir
from hpc_elastic.slurm.submit.run_dir import read_request
from tests.slurm.test_run_dir import NOBODY, refusal, request_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's files")


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """Work where a group may write to all that is made."""
    before = os.umask(0o002)
    yield
    os.umask(before)


def foreign_directory(place: Path) -> None:
    """Make a directory of another user's."""
    place.mkdir()
    os.chown(place, NOBODY, NOBODY)


def foreign_link(place: Path) -> None:
    """Make a link of another user's."""
    place.symlink_to("/root")
    os.lchown(place, NOBODY, NOBODY)


def foreign_pipe(place: Path) -> None:
    """Make a pipe of another user's."""
    os.mkfifo(place)
    os.chown(place, NOBODY, NOBODY)


def open_directory(place: Path) -> None:
    """Make a directory of one's own that others can write to."""
    place.mkdir()
    place.chmod(0o775)


Plant = Callable[[Path], None]
PLANTS = [foreign_directory, foreign_link, foreign_pipe, open_directory]


@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("name", ["nodes", "logs", "job.sbatch"])
def test_what_others_have_put_under_a_name_of_the_runs_is_refused(
    tmp_path: Path, plant: Plant, name: str
) -> None:
    """By its path, with what to do."""
    run = tmp_path / "run"
    run.mkdir()
    plant(run / name)
    error = refusal(run)
    assert error.message.startswith(f"{run / name} ")
    assert "or choose another --run-dir" in error.fix


@pytest.mark.parametrize("plant", PLANTS)
def test_agents_refuse_it_too(tmp_path: Path, plant: Plant) -> None:
    """Also in a directory that nobody has submitted."""
    (tmp_path / "run").mkdir(mode=0o700)
    plant(tmp_path / "run" / "members")
    with pytest.raises(RunDirError, match="run/members "):
        prepare_run_dir(RunPaths(tmp_path / "run"))


def test_what_is_put_there_between_check_and_creation_is_refused(tmp_path: Path) -> None:
    """After the directory was closed to others."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(0o777)
    request = request_for(tmp_path)
    run_dir.check(request.paths.root, allow_local=True)
    foreign_directory(tmp_path / "run" / "nodes")
    with pytest.raises(RunDirError, match="run/nodes belongs to user"):
        run_dir.create(request, now_s=0)


def test_an_empty_directory_that_a_group_can_write_to_is_closed(tmp_path: Path) -> None:
    """The user has made it with mkdir; a link of the user's in it is fine."""
    (tmp_path / "run").mkdir()
    (tmp_path / "logs").mkdir()
    (tmp_path / "run" / "logs").symlink_to(tmp_path / "logs")
    request = request_for(tmp_path)
    assert [] == run_dir.check(request.paths.root, allow_local=True)
    run_dir.create(request, now_s=0)
    assert 0o700 == stat.S_IMODE(os.stat(request.paths.root).st_mode)


def test_all_that_is_made_on_the_way_is_private(tmp_path: Path) -> None:
    """Whatever the umask: who can write to one of them can exchange what is below."""
    request = request_for(tmp_path / "hpc_elastic_runs" / "a")
    run_dir.create(request, now_s=0)
    made = [tmp_path / "hpc_elastic_runs", tmp_path / "hpc_elastic_runs" / "a", Path(request.paths.root)]
    made += [Path(each) for each in request.paths.directories()]
    assert {0o700} == {stat.S_IMODE(os.stat(each).st_mode) for each in made}


def test_a_run_that_was_opened_to_others_does_not_go_on(tmp_path: Path) -> None:
    """Until its user has closed it again, and looked at what is in it."""
    request = request_for(tmp_path)
    run_dir.create(request, now_s=0)
    root = Path(request.paths.root)
    (root / "slurm-7.out").touch(mode=0o664)
    assert request.run_id == read_request(request.paths).run_id
    root.chmod(0o770)
    with pytest.raises(RunDirError, match="others can write to it"):
        read_request(request.paths)
    root.chmod(0o700)
    foreign_pipe(root / "drain")
    with pytest.raises(RunDirError, match="drain belongs to user"):
        read_request(request.paths)


def test_a_shared_place_is_a_warning_in_one_line(tmp_path: Path) -> None:
    """It says who, what they can do, and what they can not."""
    os.chown(tmp_path, 0, 54321)
    tmp_path.chmod(0o2775)
    (warning,) = run_dir.check(str(tmp_path / "run"), allow_local=True)
    assert "members of group gid 54321 can rename" in warning
    assert "they can end the run" in warning
    assert warning.endswith("they cannot run code as you in it, nor read it")
    assert "\n" not in warning
