"""``status`` of a folder that holds several runs, and what it says of runs that wait or are silent."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hpc_elastic.cli import app
from hpc_elastic.meet.member_names import MemberName, Phase
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Decision, Entry, Epoch, EpochStarted, Member, RoundFormed, RunEnded
from hpc_elastic.record.run_log import open_log
from hpc_elastic.slurm.run_jobs import submissions
from hpc_elastic.slurm.run_jobs.submissions import Submission

EPOCH = Epoch(0, 0, 0, 0)
STARTED = EpochStarted(EPOCH, "4711", ("n1", "n2"))
ROUND = RoundFormed(1, EPOCH, (Member("n1.1", "n1", 2),), "n1", 1, None)
DONE = RunEnded(Decision.DONE, 0, "", None)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder for runs where there is no Slurm."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "no-slurm"))
    return tmp_path / "mine"


def make(folder: Path, name: str, *entries: Entry) -> RunPaths:
    """Make a run with these records."""
    paths = RunPaths(folder / name)
    for directory in paths.directories():
        os.makedirs(directory)
    log = open_log(paths, "n1")
    for entry in entries:
        log.commit(lambda _state, entry=entry: entry)  # type: ignore[misc]
    return paths


def test_a_folder_of_runs_is_listed_newest_first(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One line each, and the command that tells more."""
    make(folder, "a", STARTED, ROUND, DONE)
    make(folder, "b", STARTED, ROUND)
    assert 0 == app.run(["status", str(folder)])
    lines = capfd.readouterr().out.splitlines()
    assert {"a", "b"} == {line.split()[0] for line in lines[:2]}
    assert lines[0].split()[1:3] >= lines[1].split()[1:3]
    assert {"done", "running"} == {line.split()[3] for line in lines[:2]}
    assert lines[2].startswith(f"next: hpc-elastic status {folder}/")
    assert 2 == app.run(["stop", str(folder)])
    assert f"it holds runs; name one of them, such as {folder}/b" in capfd.readouterr().err


def test_a_run_whose_files_cannot_be_used_is_damaged(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its state is told as far as it is known; its name can be pasted though it would act on a terminal."""
    paths = make(folder, "esc-\x1b[31m", STARTED, ROUND, DONE)
    assert 0 == app.run(["status", str(folder)])
    assert "damaged" not in capfd.readouterr().out
    os.mkfifo(paths.identity)
    Path(paths.job).write_text("{")
    assert 0 == app.run(["status", str(folder)])
    listed, then = capfd.readouterr().out.splitlines()
    assert listed.endswith("  done; damaged: run.json and job.json")
    assert f"next: hpc-elastic status $'{folder}/esc-\\x1b[31m'  (asks Slurm, too)" == then


def test_a_folder_without_runs_is_no_run_directory(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The error says what is missing."""
    folder.mkdir()
    assert 2 == app.run(["status", str(folder)])
    assert "is not a run directory" in capfd.readouterr().err


def test_nodes_that_have_not_come_are_named(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """While the agents meet."""
    paths = make(folder, "a", STARTED)
    Path(paths.members, MemberName("n1.1", EPOCH, Phase.JOINING, 1, 3).text()).touch()
    assert 0 == app.run(["status", paths.root])
    assert "waits       for n2 (1 of 2 nodes), since 20" in capfd.readouterr().out


def test_a_run_that_waits_for_its_first_start_was_submitted(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whether it waits or starts just now only Slurm knows."""
    paths = make(folder, "a")
    submissions.record(paths, Submission(0, "token", "4711", "2026-11-21 10:00:00"))
    assert 0 == app.run(["status", str(folder)])
    assert ["a", "2026-11-21", "10:00:00", "submitted"] == capfd.readouterr().out.splitlines()[0].split()


def test_runs_right_here_are_pointed_at(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Job scripts of one's own keep them beside the script."""
    make(folder, "a", STARTED, ROUND)
    monkeypatch.chdir(folder)
    assert 0 == app.run(["status"])
    assert "next: hpc-elastic status ." in capfd.readouterr().out


def test_of_runs_with_one_name_the_newest_is_named(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """So that nobody stops another one than he thinks."""
    runs = folder.parent / "hpc_elastic_runs"
    for name in ("toy-20260101-1", "toy-20260102-1"):
        paths = make(runs, name, STARTED, ROUND)
        Path(paths.identity).write_text(
            json.dumps({"format": 1, "run_id": name, "name": "toy", "user": "me"})
        )
    assert 0 == app.run(["timeline", "toy"])
    assert "2 runs are called toy; this is the newest, toy-20260102-1" in capfd.readouterr().err


def test_a_folder_that_cannot_be_listed_is_not_empty(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason is told; a working directory that is gone is named, too."""
    (folder.parent / "hpc_elastic_runs").mkdir(exist_ok=True)
    with monkeypatch.context() as refused:
        refused.setattr(os, "listdir", _refuse)
        for words in (["status"], ["logs"], ["logs", "train"], ["stop", "train"]):
            assert 2 == app.run(words)
            said = capfd.readouterr().err
            assert "cannot be listed: Permission denied" in said
            assert "chmod u+rx " in said
    gone = folder.parent / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert 2 == app.run(["status"])
    assert "the working directory does not exist any more" in capfd.readouterr().err


def _refuse(_path: str) -> list[str]:
    raise PermissionError(13, "Permission denied")


def test_the_events_of_a_run_are_a_document_too(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """With the times as numbers, and the texts as people see them."""
    paths = make(folder, "toy", STARTED, ROUND)
    assert 0 == app.run(["timeline", "--json", paths.root])
    found = json.loads(capfd.readouterr().out)
    assert (1, "timeline", paths.root) == (found["format"], found["kind"], found["run"])
    assert ["started on", "round 1:"] == [
        word for one in found["events"] for word in ("started on", "round 1:") if word in one["text"]
    ]
    assert all(isinstance(one["at"], float) for one in found["events"])


def test_a_run_of_an_earlier_format_is_one_line(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It says which version wrote it; the other runs are listed beside it."""
    make(folder, "a", STARTED, ROUND)
    (record,) = Path(make(folder, "old", STARTED).journal).glob("*/*")
    record.write_text(record.read_text().replace('"format": 2', '"format": 1'))
    assert 0 == app.run(["status", str(folder)])
    lines = capfd.readouterr().out.splitlines()
    (told,) = [line for line in lines if line.startswith("old")]
    assert "has format 1, which an earlier hpc_elastic (" in told
    assert told.endswith("reads format 2 only")
    assert any(line.startswith("a ") for line in lines)
