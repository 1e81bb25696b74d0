"""The private directory of an agent: who removes it when nobody of the agent is left."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.errors import RunDirError
from hpc_elastic.start.kept_state import RECORD, KeptState
from hpc_elastic.start.scratch import kept_name, remove_left, scratch_directory
from tests.docs.pages import REPOSITORY

EPILOG = REPOSITORY / "sbatch_templates" / "batch.sh"
needs_memory = pytest.mark.skipif(not os.path.ismount("/dev/shm"), reason="no file system in memory here")


def left_by_a_dead_agent(place: Path) -> Path:
    """Return the directory of an agent that has ended without removing it, with a state in it."""
    agent = os.fork()
    if agent == 0:
        try:  # a forked child must never return into pytest
            with scratch_directory([str(place)]) as path:
                Path(path, "rescued-1-5-0-2-1").write_bytes(b"state")
                for run in ("a", "b"):
                    Path(path, f"copy-{run}-0-0").write_bytes(b"copy")
                os._exit(0)
        finally:
            os._exit(1)
    assert 0 == os.waitpid(agent, 0)[1]
    (found,) = [*folder(place).glob(f"{agent}-*"), *place.glob(f"hpc_elastic-*-{agent}-*")]
    return found


def folder(place: Path) -> Path:
    """Return where the directories of this user's agents are."""
    return place / f"hpc_elastic-{os.geteuid()}"


@contextmanager
def named_for_the_dead(place: Path) -> Iterator[Path]:
    """Give the directory of a living agent whose process id nobody has here, as in another container."""
    dead = left_by_a_dead_agent(place)
    other = dead.with_name(f"{dead.name[:-8]}01234567")
    with scratch_directory([str(place)]) as path:
        os.rename(path, other)
        yield other
    for file in other.iterdir():
        file.unlink()
    other.rmdir()


def test_the_next_agent_removes_what_a_dead_one_has_left(tmp_path: Path) -> None:
    """Its own directory, and files of other names, stay as they are."""
    left = left_by_a_dead_agent(tmp_path)
    (tmp_path / "hpc_elastic-notes").mkdir()
    with scratch_directory([str(tmp_path)]) as path:
        assert not left.exists()
        assert folder(tmp_path) == Path(path).parent
        assert [Path(path).name] == os.listdir(folder(tmp_path))
        assert 0o700 == os.stat(path).st_mode & 0o777
        remove_left(str(tmp_path))
        assert os.path.isdir(path)
    assert ["hpc_elastic-notes"] == os.listdir(tmp_path)


@pytest.mark.parametrize("begin", ["", "other-", "hpc_elastic-"])
def test_a_directory_of_another_program_stays_though_its_name_ends_so(tmp_path: Path, begin: str) -> None:
    """Beside the user's folder a name has to begin as this package's do for that user."""
    left = left_by_a_dead_agent(tmp_path)
    other = left.rename(tmp_path / f"{begin}{left.name}")
    remove_left(str(tmp_path))
    assert 3 == len(os.listdir(other))


def test_an_agent_of_another_container_keeps_its_directory(tmp_path: Path) -> None:
    """Its process id is not known here, but it holds the lock."""
    with named_for_the_dead(tmp_path) as living:
        remove_left(str(tmp_path))
        assert [living.name] == os.listdir(folder(tmp_path))


def test_a_link_with_the_name_of_a_directory_is_not_followed(tmp_path: Path) -> None:
    """Another user may have made it in a place where all can write."""
    left = left_by_a_dead_agent(tmp_path)
    moved = tmp_path / "kept"
    left.rename(moved)
    left.symlink_to(moved)
    remove_left(str(tmp_path))
    assert {"rescued-1-5-0-2-1", "copy-a-0-0", "copy-b-0-0"} == set(os.listdir(moved))


def test_the_next_agent_of_a_run_takes_over_the_copies_of_a_dead_one(tmp_path: Path) -> None:
    """Of its own run and node alone; all else goes, and at its end the copies do too."""
    left = left_by_a_dead_agent(tmp_path)
    with scratch_directory([str(tmp_path)], copies="copy-a-") as path:
        assert not left.exists()
        assert ["copy-a-0-0"] == os.listdir(path)
    assert [] == os.listdir(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_with_such_a_name_stays(tmp_path: Path) -> None:
    """The number of a user in a name proves nothing: in a place where all can write anybody may make it."""
    left = left_by_a_dead_agent(tmp_path)
    os.chown(left, 65534, 65534)
    remove_left(str(tmp_path))
    assert {"copy-a-0-0", "copy-b-0-0", "rescued-1-5-0-2-1"} == {*os.listdir(left)}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_files_of_others_cost_an_agent_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's own folder is looked through, and where another user has taken its name, few entries."""
    left = left_by_a_dead_agent(tmp_path)
    for number in range(1, 2000):
        (tmp_path / f"hpc_elastic-{os.geteuid()}-{number}-{number:08x}").touch()
    looked_at: list[str] = []
    monkeypatch.setattr(os.path, "exists", lambda path: looked_at.append(path) is not None)  # type: ignore[func-returns-value]
    with scratch_directory([str(tmp_path)]):
        assert not left.exists()
    assert len(looked_at) <= 2 + 1000  # the dead one, the living one
    folder(tmp_path).mkdir()
    os.chown(folder(tmp_path), 65534, 65534)
    beside = f"{folder(tmp_path)}-{os.getpid()}-"
    with scratch_directory([str(tmp_path)]) as path:
        assert path.startswith(beside)
        assert os.path.isdir(path)


def test_the_folder_and_the_directory_are_the_users_alone_with_any_umask(tmp_path: Path) -> None:
    """Also a directory beside the folder; another name than that of an agent stays beside it."""
    own = f"{folder(tmp_path).name}-"
    for name in (f"{own}notes", f"{own}{2**22 + 1}-0123abcd", f"{own}{os.getpid()}-0123abcd"):
        (tmp_path / name).mkdir(mode=0o700)
    before = os.umask(0)
    try:
        with scratch_directory([str(tmp_path)]) as path:
            assert (0o700, 0o700) == (os.stat(path).st_mode & 0o777, folder(tmp_path).stat().st_mode & 0o777)
    finally:
        os.umask(before)
    assert {f"{own}notes", f"{own}{os.getpid()}-0123abcd"} == set(os.listdir(tmp_path))


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_folder_that_goes_while_an_agent_starts_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_taken: bool
) -> None:
    """An agent that ends removes it. Where others can then write to one of its name, none is made there."""
    made, mkdir = folder(tmp_path), os.mkdir

    def goes_first(path: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        if os.path.basename(path).startswith(f"{os.getpid()}-"):
            monkeypatch.undo()
            made.rmdir()
            if is_taken:
                made.mkdir()
                made.chmod(0o777)
        mkdir(path, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", goes_first)
    with scratch_directory([str(tmp_path)]) as path:
        assert path.startswith(f"{made}-{os.getpid()}-" if is_taken else f"{made}/{os.getpid()}-")
        assert os.path.isdir(path)
        assert [] == (os.listdir(made) if is_taken else [])


def test_the_first_place_that_can_be_written_to_is_taken(tmp_path: Path) -> None:
    """Without one the error names the way out."""
    with scratch_directory([str(tmp_path / "none"), str(tmp_path)]) as path:
        assert folder(tmp_path) == Path(path).parent
    with pytest.raises(RunDirError, match="no node-local directory"), scratch_directory([]):
        pass


@needs_memory
def test_the_epilog_removes_what_agents_have_left_in_memory(tmp_path: Path) -> None:
    """Slurm runs it on each node after it has killed an agent and its guard; the living keep theirs.

    So does the next start, until the time of what is kept for it is over. The record of another run has the
    agents that start on this machine meanwhile leave it.
    """
    left = left_by_a_dead_agent(Path("/dev/shm"))
    env = {"PATH": os.environ["PATH"], "HPC_ELASTIC_RUN_DIR": str(tmp_path / "none")}
    now = SystemClock().wall()
    kept, expired, future = (
        folder(Path("/dev/shm")) / kept_name(now + begin, now + end)
        for begin, end in ((-60, 600), (-60, -30), (600, 900))
    )
    with named_for_the_dead(Path("/dev/shm")) as living:
        made = living.with_name(f"made{os.getpid()}")
        made.mkdir(0o700)
        other = KeptState("other", str(tmp_path / "other"), "n1", 1, 0, 1, 1, (), now - 60, now + 600).sealed
        (made / RECORD).write_text(json.dumps(other._asdict()))
        made.rename(kept)
        for path in (expired, future):
            path.mkdir(0o700)
        try:
            subprocess.run(["/bin/bash", "-p", EPILOG], env=env, check=True)
            assert (False, True) == (left.exists(), living.exists())
            assert [True, False, False] == [path.exists() for path in (kept, expired, future)]
        finally:
            shutil.rmtree(kept, ignore_errors=True)


def test_an_agent_whose_folder_is_taken_has_a_directory_beside_it(tmp_path: Path) -> None:
    """Another user may have made the folder, or a file of its name; the place itself may be a link."""
    place = tmp_path / "shm"
    place.mkdir()
    (tmp_path / "link").symlink_to(place)
    folder(place).write_text("taken")
    with scratch_directory([str(tmp_path / "link")]) as path:
        assert Path(path).parent == tmp_path / "link"
        assert Path(path).name.startswith(f"{folder(place).name}-{os.getpid()}-")
        assert 0o700 == os.stat(path).st_mode & 0o777
    assert [folder(place).name] == os.listdir(place)
