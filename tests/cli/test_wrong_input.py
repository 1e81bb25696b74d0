"""What the commands of a login node say about runs that are damaged, moved, over, or of another version."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.cli import app
from hpc_elastic.ids import LOCAL_JOB
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Decision, Epoch, EpochStarted, RunEnded
from hpc_elastic.record.run_log import open_log
from hpc_elastic.slurm.run_jobs import submissions
from hpc_elastic.slurm.run_jobs.submissions import Submission

GONE_PID = 2**22 + 1  # above what the kernel gives


class Said:
    """Runs commands and keeps what they print."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd

    def __call__(self, *words: str) -> tuple[int, str]:
        """Return the exit code and all that was printed."""
        code = app.run(list(words))
        shown = self._capfd.readouterr()
        return code, shown.out + shown.err


@pytest.fixture
def said(capfd: pytest.CaptureFixture[str]) -> Said:
    """Return what runs commands."""
    return Said(capfd)


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """Return a local run that has failed, and is over."""
    monkeypatch.chdir(tmp_path)
    paths = RunPaths(str(tmp_path / "toy-1"))
    for directory in paths.directories():
        os.makedirs(directory)
    identity = {"format": 1, "version": "0.0.1", "run_id": "toy-1", "name": "toy", "user": "me"}
    Path(paths.identity).write_text(json.dumps(identity))
    store_spec(paths, {"command": ["train.py"]})
    Path(paths.script).write_text(f"export HPC_ELASTIC_RUN_DIR={shlex.quote(paths.root)}\n")
    submissions.record(paths, Submission(0, "token", f"{LOCAL_JOB}{GONE_PID}", "2026-11-21 10:00:00"))
    log = open_log(paths, "n1")
    log.commit(lambda _: EpochStarted(Epoch(0, 0, 0, 0), f"{LOCAL_JOB}{GONE_PID}", ("n1",)))
    return paths


def store_spec(paths: RunPaths, spec: dict[str, Any]) -> None:
    """Write the stored job spec."""
    Path(paths.job).write_text(json.dumps({"format": 1, "spec": spec}))


def end(paths: RunPaths, decision: Decision) -> None:
    """End the run."""
    open_log(paths, "n1").commit(lambda _: RunEnded(decision, 0, "", None))


def test_a_run_that_is_done_is_not_taken_up_again(paths: RunPaths, said: Said) -> None:
    """No command sends its user to one that refuses."""
    end(paths, Decision.DONE)
    for words in (["drill", paths.root, "--crash", "--yes"], ["scale", paths.root, "-N", "2"]):
        code, text = said(*words)
        assert 2 == code
        assert f"the run in {paths.root} has ended already: done\n" in text
        assert "fix: there is nothing to go on with; submit a new run" in text


def test_a_run_that_has_failed_may_be_taken_up_again(paths: RunPaths, said: Said) -> None:
    """The same commands name what does it."""
    end(paths, Decision.FAILED)
    _, text = said("scale", paths.root, "-N", "2")
    assert f"fix: to run it again: hpc-elastic submit --resume {paths.root}" in text


@pytest.mark.parametrize("text", ["{", "[]", '{"spec": 1}'])
def test_a_damaged_job_file(paths: RunPaths, said: Said, text: str) -> None:
    """The status is shown and tells of it; the run cannot be queued again, for one reason, with one fix."""
    end(paths, Decision.FAILED)
    Path(paths.job).write_text(text)
    code, shown = said("status", paths.root)
    assert 0 == code
    assert f"damaged     {paths.job} cannot be read" in shown
    assert "fix: mend the file, or bring it back from a backup" in shown
    code, shown = said("submit", "--resume", paths.root)
    assert 2 == code
    assert f"{paths.job} is damaged: " in shown
    assert "fix: bring the file back from a backup" in shown


@pytest.mark.parametrize(
    "spec", [{"max_restarts": "x"}, {"nodes": "x"}, {"max_hangs": []}, {"chain": "2 jobs"}], ids=repr
)
def test_a_job_file_that_was_edited_badly(paths: RunPaths, said: Said, spec: dict[str, Any]) -> None:
    """A value that cannot be is named, and used for nothing."""
    store_spec(paths, {"command": ["train.py"], **spec})
    code, shown = said("status", paths.root)
    assert 0 == code
    ((name, value),) = spec.items()
    assert f"damaged     {paths.job} has {name} = {value!r}, which cannot be" in shown
    assert 0 == said("scale", paths.root, "-N", "1")[0]


def test_a_setting_of_another_version(paths: RunPaths, said: Said) -> None:
    """The file, the setting and the version that knows it are named."""
    end(paths, Decision.FAILED)
    store_spec(paths, {"command": ["train.py"], "bygone": 1})
    code, shown = said("submit", "--resume", paths.root)
    assert 2 == code
    assert (
        f"{paths.job} holds a value that this version does not take: bygone: there is no setting 'bygone'"
        in shown
    )
    assert "fix: use hpc_elastic 0.0.1 for this run, or mend that setting in the file" in shown


def test_a_run_that_was_moved_is_refused_before_it_waits_in_the_queue(
    paths: RunPaths, said: Said, tmp_path: Path
) -> None:
    """Its script would look for it in the old place; a link there is enough."""
    end(paths, Decision.FAILED)
    moved = tmp_path / "moved"
    os.rename(paths.root, moved)
    code, shown = said("submit", "--resume", str(moved), "--local", "1")
    assert 2 == code
    assert f"the run was made in {paths.root} and is in {moved} now" in shown
    assert f"ln -s {moved} {paths.root}" in shown
    os.symlink(moved, paths.root)
    assert "the run was made in" not in said("submit", "--resume", str(moved), "--local", "7")[1]


def test_a_damaged_submission(paths: RunPaths, said: Said) -> None:
    """What is left to do is told, with the file."""
    record = Path(paths.submissions, "000000.json")
    record.write_text("{")
    code, shown = said("status", paths.root)
    assert code != 0
    assert f"{record} is damaged, which tells of a job" in shown
    assert f"then: rm {record}" in shown


def test_logs_are_named_though_the_records_cannot_be_read(paths: RunPaths, said: Said) -> None:
    """They are plain files."""
    (record,) = Path(paths.journal).glob("*/*")
    record.write_text(record.read_text().replace('"format": 2', '"format": 0'))
    code, shown = said("logs", paths.root)
    assert code != 0
    assert "has format 0" in shown
    assert f"the logs themselves are in {paths.logs}" in shown


def test_a_ledger_of_a_file_and_a_damaged_one(paths: RunPaths, said: Said, tmp_path: Path) -> None:
    """A file is not said to be missing; a damaged event is named with what to do about it."""
    (tmp_path / "file").touch()
    assert "--project: file is not a directory\n" in said("nodes", "--project", "file")[1]
    assert 0 == said("nodes", "suspect", "n3", "--reason", "slow", "--project", paths.root)[0]
    (event,) = (tmp_path / ".hpc_elastic" / "nodes").iterdir()
    event.write_text("{")
    shown = said("nodes", "--project", paths.root)[1]
    assert f"damaged: {event.name}; they do not count and may be removed" in shown
