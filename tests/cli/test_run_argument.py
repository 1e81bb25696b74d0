"""The run that is meant by a word on the command line."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest

from hpc_elastic.cli import app
from hpc_elastic.cli.run_argument import find_one_run, find_run
from hpc_elastic.errors import RunDirError
from hpc_elastic.ids import RUNS_FOLDER
from hpc_elastic.paths import RunPaths, closed_above
from hpc_elastic.record.journal import Epoch, EpochStarted
from hpc_elastic.record.run_log import open_log
from hpc_elastic.slurm.run_jobs import submissions
from hpc_elastic.slurm.run_jobs.submissions import Link, Submission

NAME = "toy-20261121-093000-77"


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """Return a submitted run below ./hpc_elastic_runs."""
    monkeypatch.chdir(tmp_path)
    paths = RunPaths(f"{RUNS_FOLDER}/{NAME}")
    for directory in paths.directories():
        os.makedirs(directory)
    Path(paths.identity).write_text(json.dumps({"format": 1, "run_id": NAME, "name": "toy", "user": "me"}))
    submissions.record(paths, Submission(0, "token", "4711", "2026-11-21 10:00:00"))
    return paths


@pytest.mark.parametrize("word", ["4711", "4712", "4712_3"])
def test_a_run_is_found_by_any_job_of_its_chain(paths: RunPaths, word: str) -> None:
    """Also by one that still waits: squeue shows its id."""
    submissions.record_link(paths, Link(0, 1, "other", "4712"))
    assert NAME == find_run(word).name


@pytest.mark.parametrize("word", ["4720", "4720_0"])
def test_a_run_is_found_by_an_array_that_was_added(paths: RunPaths, word: str) -> None:
    """By its batch logs: `scale` has queued it, which is no submission."""
    Path(paths.root, "slurm-4720_0.out").write_text("")
    assert NAME == find_run(word).name


def test_a_task_that_has_not_begun_is_not_the_array(paths: RunPaths) -> None:
    """`stop` and `cancel` would end all tasks, and `explain` tell of another one."""
    Path(paths.tasks, "1").mkdir(parents=True)
    Path(paths.tasks, "1", "run.json").write_text(Path(paths.identity).read_text())
    assert f"{NAME}_1" == find_run("4711_1").name
    for find in (find_run, find_one_run):
        with pytest.raises(RunDirError, match="no task 9 of this array has begun") as caught:
            find("4711_9")
        assert str(caught.value).endswith("one that waits leaves the queue by scancel 4711_9")


def test_a_run_of_a_users_own_script_is_found_by_its_jobs(paths: RunPaths) -> None:
    """Its agents have recorded them; also that of a later job which has gone on with it."""
    own = RunPaths(f"{RUNS_FOLDER}/run-5001")
    os.makedirs(own.journal)
    log = open_log(own, "n1")
    for job_id, epoch in (("5001", Epoch(0, 0, 0, 0)), ("5002", Epoch(1, 0, 0, 0))):
        log.commit(lambda _state, job_id=job_id, epoch=epoch: EpochStarted(epoch, job_id, ("n1",)))  # type: ignore[misc]
    for word in ("run-5001", "5001", "5002"):
        assert own.root == find_run(word).root, word
    assert NAME == find_run("4711").name


@pytest.mark.parametrize(
    ("word", "fix"),
    [
        ("toy-20261121-093000-78", f"fix: perhaps {RUNS_FOLDER}/{NAME}"),
        ("9999", "fix: hpc-elastic status shows those that are there"),
    ],
)
def test_only_a_name_that_is_near_is_proposed(paths: RunPaths, word: str, fix: str) -> None:
    """Any other run would be a guess."""
    with pytest.raises(RunDirError, match=fix):
        find_run(word)


@pytest.mark.parametrize("identity", ["{", "[]", '{"format": 1}'])
def test_a_run_with_a_damaged_identity_is_found_by_its_name(paths: RunPaths, identity: str) -> None:
    """The job spec has the name, too, and without it the directory."""
    Path(paths.identity).write_text(identity)
    if identity == '{"format": 1}':  # of a run without a name
        with pytest.raises(RunDirError):
            find_run("None")
        return
    assert NAME == find_run("toy").name
    Path(paths.job).write_text(json.dumps({"spec": {"name": "my toy"}}))
    assert NAME == find_run("my toy").name
    with pytest.raises(RunDirError, match="neither a directory"):
        find_run("my")


@pytest.mark.parametrize("name", ["a b/c", "here", "~/toy"])
def test_a_job_may_be_called_like_a_path(paths: RunPaths, name: str) -> None:
    """What is no run directory is looked for among the names; a folder of that name does not matter."""
    Path(paths.identity).write_text(json.dumps({"format": 1, "run_id": NAME, "name": name, "user": "me"}))
    Path("here").mkdir()
    assert NAME == find_run(name).name
    with pytest.raises(RunDirError, match="the directory a/b does not exist"):
        find_run("a/b")


def test_a_run_that_a_link_leads_to_is_found_by_its_jobs(paths: RunPaths, tmp_path: Path) -> None:
    """It may be kept elsewhere."""
    os.rename(paths.root, tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", paths.root)
    Path(paths.root, "slurm-4713.out").touch()
    assert [NAME] * 2 == [find_run(word).name for word in ("4711", "4713")]


def test_without_any_run_the_directory_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As from another directory than the one that submit ran in."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunDirError, match="fix: give the directory that submit printed"):
        find_run("9999")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
@pytest.mark.parametrize("command", ["status", "timeline", "logs", "stop"])
def test_somebody_elses_folder_is_no_run(
    paths: RunPaths, tmp_path: Path, capfd: pytest.CaptureFixture[str], command: str
) -> None:
    """That is to be seen, so nobody is sent to its owner; a link in it is not followed."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    assert 2 == app.run([command, str(folder)])
    assert f"RUN: {folder} is not a run directory: it has no run.json\n" in capfd.readouterr().err
    (folder / "run.json").symlink_to("/no/such/file")
    assert 2 == app.run([command, str(folder)])
    assert f"RUN: the run in {folder} belongs to user " in capfd.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_what_a_closed_folder_holds_is_not_guessed(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It may be a run, or not; root can look into it, other users cannot."""
    os.chown(paths.root, 65534, 65534)
    monkeypatch.setattr(os, "access", lambda *_words: False)
    assert 2 == app.run(["status", paths.root])
    said = capfd.readouterr().err
    assert f"RUN: {paths.root} belongs to user " in said
    assert "others cannot look into it\n  fix: ask its owner" in said


def test_a_run_behind_a_closed_directory_cannot_be_seen(
    paths: RunPaths, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whether it is there this user cannot know; root needs another user's eyes for it."""
    assert 0 == app.run(["timeline", paths.root])  # all that is needed is imported
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        assert 2 == app.run(["timeline", str(closed / "toy")])
    finally:
        os.seteuid(user)
    said = f"error: RUN: the directory {closed}/toy cannot be seen: no permission on /"
    assert capfd.readouterr().err.startswith(said)


def test_a_link_into_a_closed_directory_names_that_directory() -> None:
    """The directory of the link is not the one to be opened."""
    user = os.geteuid()
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:  # other users see it
        os.chmod(directory, 0o755)
        closed = Path(directory, "closed")
        closed.mkdir(mode=0)
        link = Path(directory, "link")
        link.symlink_to(closed)
        if user == 0:
            os.seteuid(65534)
        try:
            assert str(closed) == closed_above(str(link / "toy"))
        finally:
            os.seteuid(user)


def test_a_folder_that_is_named_by_dots_is_named_in_full(
    paths: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nobody has to think where that is."""
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert 2 == app.run(["timeline", ".."])
    assert f"RUN: {tmp_path} is not a run directory" in capfd.readouterr().err


def test_without_a_name_the_newest_run_is_shown(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """That which was submitted or started last, whatever its name; commands that change a run need a name."""
    other = RunPaths(f"{RUNS_FOLDER}/a-20261120-093000-78")
    for directory in other.directories():
        os.makedirs(directory)
    os.utime(other.submissions, (1, 1))
    assert NAME == find_run(None).name
    assert f"of 2 runs this is the newest, {NAME}\n" == capfd.readouterr().err
    os.utime(paths.submissions, (0, 0))
    assert other.name == find_run(None).name
    for command in ("logs", "explain", "report", "timeline", "checkpoints"):
        app.run([command])
        assert f"this is the newest, {other.name}" in capfd.readouterr().err, command
    for command in ("stop", "cancel", "scale", "drill"):
        assert 2 == app.run([command])
        assert "the following arguments are required: RUN" in capfd.readouterr().err, command


def test_without_a_name_and_without_a_run_the_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The error says where runs were looked for."""
    monkeypatch.chdir(tmp_path)
    assert 2 == app.run(["logs"])
    assert f"no run is named, and none is in {tmp_path}/{RUNS_FOLDER}" in capfd.readouterr().err
