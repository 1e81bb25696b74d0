"""One field of another type in one file of a run: told, with the file, and the other runs are listed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.cli import app
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import (
    Cause,
    Decision,
    Entry,
    Epoch,
    EpochStarted,
    Member,
    RoundEnded,
    RoundFormed,
    RunEnded,
)
from hpc_elastic.record.run_log import open_log
from hpc_elastic.slurm.run_jobs import submissions
from hpc_elastic.slurm.run_jobs.submissions import Submission

EPOCH = Epoch(0, 0, 0, 0)
RECORDS: tuple[Entry, ...] = (
    EpochStarted(EPOCH, "7", ("n1", "n2")),
    RoundFormed(1, EPOCH, (Member("n1.1", "n1", 1), Member("n2.1", "n2", 1)), "n1", 1234, None),
    RoundEnded(1, Cause.CRASH, ("n1",), {"rank": 0, "exitcode": 3}),
    RunEnded(Decision.FAILED, 3, "a worker failed", {"rank": 0, "exitcode": 3}, EPOCH),
)
DEEP = "[" * 3000 + "]" * 3000
JOURNAL = "journal/000000/0000000{}"


def make(name: str) -> RunPaths:
    """Make a run that has failed."""
    paths = RunPaths(Path("hpc_elastic_runs") / name)
    for directory in paths.directories():
        os.makedirs(directory)
    Path(paths.identity).write_text(json.dumps({"format": 1, "run_id": name, "name": name}))
    Path(paths.job).write_text(json.dumps({"format": 1, "spec": {"command": ["train.py"], "name": name}}))
    submissions.record(paths, Submission(0, "hpc_elastic:ab", "7", "2026-01-01 00:00:00"))
    log = open_log(paths, "n1")
    for entry in RECORDS:
        log.commit(lambda _state, entry=entry: entry)  # type: ignore[misc]
    return paths


def change(path: Path, fields: Mapping[str, Any]) -> None:
    """Change fields of a file; ``!x`` stands for x as it is."""
    text = json.dumps({**json.loads(path.read_text()), **fields})
    for value in [value for value in fields.values() if isinstance(value, str) and value[:1] == "!"]:
        text = text.replace(json.dumps(value), value[1:])
    path.write_text(text)


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs, and no Slurm."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    make("sane")
    make("toy")


RECORD_CHANGES = [
    (JOURNAL.format(1), {"epoch": [0, 0, {}, 0]}, "epoch.restart is {}, not a whole number"),
    (JOURNAL.format(1), {"expected": ["n1", 1]}, "expected[1] is 1, not a text"),
    (JOURNAL.format(1), {"at": "!NaN"}, "it has NaN, which is no number"),
    (JOURNAL.format(2), {"members": [["n1.1", {}, 1]]}, "members[0].node is {}, not a text"),
    (JOURNAL.format(2), {"members": [["n1.1", "n1", True]]}, "members[0].slots is true, not a whole number"),
    (JOURNAL.format(2), {"master_port": "!" + "9" * 400}, "it has a number of 400 digits"),
    (JOURNAL.format(3), {"failure": "text"}, 'failure is "text", not an object'),
    (JOURNAL.format(3), {"saved": "!" + DEEP}, "arrays and objects inside each other"),
    (JOURNAL.format(4), {"decision": 1}, "decision is 1, not one of done"),
    ("submissions/000000.json", {"job_id": "../../x"}, 'job_id is "../../x", not the id of a job'),
    ("submissions/000000.json", {"token": [1]}, "token is [1], not a text"),
]


@pytest.mark.parametrize(("file", "fields", "words"), RECORD_CHANGES)
def test_a_wrong_record_costs_the_line_of_its_run(
    file: str, fields: dict[str, Any], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The listing has the sane run; the commands name the file and the field."""
    change(Path("hpc_elastic_runs/toy", file), fields)
    assert 0 == app.run(["status"])
    lines = capfd.readouterr().out.splitlines()
    assert ["sane"] == [line.split()[0] for line in lines if line.endswith("  failed")]
    assert any(line.startswith("toy ") and "cannot be read: " in line for line in lines)
    for command in ("status", "timeline"):
        assert 2 == app.run([command, "toy"])
        err = capfd.readouterr().err
        assert f"hpc_elastic_runs/toy/{file}" in err
        assert words in err


@pytest.mark.parametrize(
    ("file", "fields", "words"),
    [
        ("job.json", {"spec": "!" + '{"nodes": ' + "9" * 5000 + "}"}, "job.json cannot be read"),
        ("job.json", {"spec": {"nodes": "9" * 400}}, "which cannot be"),
        ("job.json", {"spec": {"max_requeues": True}}, "max_requeues = True, which cannot be"),
        ("job.json", {"spec": {"join_timeout": "soon"}}, "join_timeout = 'soon', which cannot be"),
        ("run.json", {"name": {}}, "run.json is damaged: name is {}, not a text"),
        ("run.json", {"format": "!" + DEEP}, "run.json is damaged: it has more than 32 arrays"),
    ],
)
def test_a_wrong_setting_is_told_and_passed_over(
    file: str, fields: dict[str, Any], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The journal says how the run stands, whatever became of these files."""
    change(Path("hpc_elastic_runs/toy", file), fields)
    assert 0 == app.run(["status"])
    lines = capfd.readouterr().out.splitlines()
    toy = f"  failed; damaged: {file}"
    assert ["sane", "toy"] == sorted(line.split()[0] for line in lines if line.endswith(("  failed", toy)))
    app.run(["status", "toy"])
    assert words in capfd.readouterr().out


@pytest.mark.parametrize("at", [1e18, -1e18, 1e300])
def test_a_time_that_no_calendar_has_is_no_time(at: float, capfd: pytest.CaptureFixture[str]) -> None:
    """It is shown as a question mark."""
    change(Path("hpc_elastic_runs/toy", JOURNAL.format(4)), {"at": at})
    assert 0 == app.run(["timeline", "toy"])
    assert capfd.readouterr().out.splitlines()[-1].startswith("?  failed: a worker failed")
    assert 0 == app.run(["status"])


def test_a_name_of_digits_that_are_none_is_passed_over(capfd: pytest.CaptureFixture[str]) -> None:
    """A superscript is a digit to Python, and no number."""
    Path("hpc_elastic_runs/toy/submissions/².json").write_text("{}")
    os.makedirs("hpc_elastic_runs/toy/logs/attempt_²/²")
    assert 0 == app.run(["status"])
    assert 2 == app.run(["logs", "toy"])
    assert "there are no logs yet" in capfd.readouterr().err
