"""Something else in the place of a run's file: each command says so at once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_elastic.cli import app
from hpc_elastic.cli.say import hand_out, say
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import Epoch, EpochStarted, Member, RoundFormed
from hpc_elastic.record.run_log import open_log
from hpc_elastic.slurm.run_jobs import submissions
from hpc_elastic.slurm.run_jobs.submissions import Submission

EPOCH = Epoch(0, 0, 0, 0)
pytestmark = pytest.mark.timeout(120)  # nothing here waits


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """Return a submitted run below ./hpc_elastic_runs that has begun; there is no Slurm here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "no-slurm"))
    paths = RunPaths("hpc_elastic_runs/toy-1")
    for directory in paths.directories():
        os.makedirs(directory)
    Path(paths.identity).write_text(json.dumps({"format": 1, "run_id": "toy-1", "name": "toy", "user": "me"}))
    Path(paths.job).write_text(json.dumps({"format": 1, "spec": {"name": "toy"}}))
    Path(paths.script).write_text("#!/bin/bash\n")
    submissions.record(paths, Submission(0, "token", "4711", "2026-11-21 10:00:00"))
    log = open_log(paths, "n1")
    for entry in (EpochStarted(EPOCH, "4711", ("n1",)), _round()):
        log.commit(lambda _state, entry=entry: entry)  # type: ignore[misc]
    worker = Path(paths.attempt_logs(1), "0")
    worker.mkdir(parents=True)
    (worker / "stdout.log").write_text("\x1b[31mloss\x1b[0m 0.5\x1b]0;OWNED\x07\n")
    return paths


def _round() -> RoundFormed:
    return RoundFormed(1, EPOCH, (Member("n1.1", "n1", 1),), "n1", 1, None)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(200 << 30)


ODD: dict[str, Callable[[Path], None]] = {
    "fifo": os.mkfifo,
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "sparse": _sparse,
}
NEEDED = ("journal/000000/00000001", "submissions/000000.json")
SPARED = (
    *("run.json", "job.json", "site.json", "nodes/batch.beat", "slurm-4711.out"),
    *("checkpoints/000000000005.1.0.1.json", "nodes/n1.1.held", "job.sbatch"),
)


def _put(path: Path, odd: str) -> None:
    path.unlink(missing_ok=True)
    ODD[odd](path)


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("command", ["status", "timeline", "logs", "stop", "cancel"])
@pytest.mark.parametrize("name", NEEDED)
def test_a_record_that_is_none_is_named(
    paths: RunPaths, capfd: pytest.CaptureFixture[str], odd: str, command: str, name: str
) -> None:
    """With what it is and what to do; the run is not touched."""
    _put(Path(paths.root, name), odd)
    assert 2 == app.run([command, "toy-1"])
    said = capfd.readouterr().err
    assert f"error: {paths.root}/{name}: it " in said
    assert "  fix: see where it comes from (ls -l " in said


@pytest.mark.parametrize("name", NEEDED)
def test_a_record_that_others_can_write_to_is_named(
    paths: RunPaths, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    """They could have given it any content, such as another job, and a name in a directory of theirs."""
    Path(paths.root, name).chmod(0o664)
    assert 2 == app.run(["cancel", "toy-1"])
    assert f"{paths.root}/{name}: others can write to it (mode 664)" in capfd.readouterr().err


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", SPARED)
def test_what_a_command_can_do_without_holds_nothing_up(
    paths: RunPaths, capfd: pytest.CaptureFixture[str], odd: str, name: str
) -> None:
    """The rest is told; only what is found by its name needs the identity."""
    _put(Path(paths.root, name), odd)
    for command in (["status"], ["status", "4711"], ["timeline", "4711"], ["logs", "4711"]):
        assert 0 == app.run(command), capfd.readouterr().err
    assert 0 == app.run(["stop", "4711"])


@pytest.mark.parametrize("odd", ["fifo", "endless"])
def test_one_odd_run_does_not_hide_the_others(
    paths: RunPaths, capfd: pytest.CaptureFixture[str], odd: str
) -> None:
    """It costs its own line."""
    Path("hpc_elastic_runs/odd-1/journal/000000").mkdir(parents=True)
    for name in ("run.json", "journal/000000/00000001"):
        _put(Path("hpc_elastic_runs/odd-1", name), odd)
    assert 0 == app.run(["status"])
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].startswith("toy-1 ")
    assert lines[1].startswith("odd-1 ")
    assert "cannot be read: " in lines[1]
    assert lines[2].startswith("next: ")


@pytest.mark.parametrize("odd", ["fifo", "endless"])
def test_a_log_that_is_none_is_left_out(paths: RunPaths, capfd: pytest.CaptureFixture[str], odd: str) -> None:
    """The others are shown."""
    other = Path(paths.attempt_logs(1), "1")
    other.mkdir()
    _put(other / "stdout.log", odd)
    assert 0 == app.run(["logs", "toy-1"])
    said = capfd.readouterr()
    assert "0.5" in said.out
    assert f"left out: {other}/stdout.log: it is a " in said.err


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_log_is_shown_as_it_is_but_on_a_terminal(
    paths: RunPaths, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    """There it may have colours, and no more."""
    monkeypatch.setattr(os, "isatty", lambda _fd: is_terminal)
    assert 0 == app.run(["logs", "toy-1"])
    title = r"\x1b]0;OWNED\x07" if is_terminal else "\x1b]0;OWNED\x07"
    assert f"[1:rank 0] \x1b[31mloss\x1b[0m 0.5{title}\n" == capfd.readouterr().out


@pytest.mark.parametrize("odd", ["fifo", "sparse"])
def test_a_job_file_that_is_none_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], odd: str
) -> None:
    """Nobody waits for a writer, and nothing endless is read."""
    path = tmp_path / "job.toml"
    ODD[odd](path)
    assert 2 == app.run(["render", str(path)])
    assert f"error: {path}: the job file cannot be read: it " in capfd.readouterr().err


def test_an_error_acts_on_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    """Whatever it repeats of what was given."""
    assert 2 == app.run(["status", "no\x1b]0;OWNED\x07/run\u202e"])
    said = capfd.readouterr().err
    assert "\x1b" not in said
    assert r"no\x1b]0;OWNED\x07/run\u202e" in said


def test_what_a_program_may_read_is_handed_out_to_the_byte(capfd: pytest.CaptureFixture[str]) -> None:
    """A job script is piped to sbatch; people get the same words as they are seen."""
    hand_out("#!/bin/bash\n: \x1b[2J\r\n")
    assert "#!/bin/bash\n: \x1b[2J\r\n" == capfd.readouterr().out
    say("a \x1b[2J\nb")
    assert "a \\x1b[2J\nb\n" == capfd.readouterr().out
