"""``status`` of runs that `submit` has not made: an agent started by hand or by a user's own job script."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpc_elastic.cli import app
from hpc_elastic.meet.member_names import MemberName, Phase
from hpc_elastic.meet.membership import RUN_ID
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import (
    Cause,
    Decision,
    Drained,
    Entry,
    Epoch,
    EpochStarted,
    Member,
    RoundFormed,
    RunEnded,
)
from hpc_elastic.record.run_log import open_log

EPOCH = Epoch(0, 0, 0, 0)
STARTED = EpochStarted(EPOCH, "4711", ("n1",))
ROUND = RoundFormed(1, EPOCH, (Member("n1.1", "n1", 2),), "n1", 1, None)
FAILED = RunEnded(Decision.FAILED, 1, "no restarts are left", None)


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """Return a run directory below ./hpc_elastic_runs as agents make it; there is no Slurm here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "no-slurm"))
    paths = RunPaths("hpc_elastic_runs/toy-1")
    for directory in paths.directories():
        os.makedirs(directory)
    return paths


def write(paths: RunPaths, *entries: Entry) -> None:
    """Write records as the agents do."""
    log = open_log(paths, "n1")
    for entry in entries:
        log.commit(lambda _state, entry=entry: entry)  # type: ignore[misc]


def test_a_run_outside_slurm_is_started_again_by_its_command(
    paths: RunPaths, capfd: pytest.CaptureFixture[str]
) -> None:
    """It has no script to queue, and nobody knows its budget."""
    write(paths, STARTED._replace(job_id=""), ROUND, FAILED)
    assert 0 == app.run(["status", paths.root])
    out = capfd.readouterr().out
    assert "used        0 failures, 0 requeues\n" in out
    assert f"the same command again, with another --run-dir; all that it has saved is in {paths.root}" in out
    assert "--resume" not in out
    assert 2 == app.run(["submit", "--resume", paths.root])
    assert "was not started by submit" in capfd.readouterr().err
    assert 2 == app.run(["stop", paths.root])
    assert "the same command again" in capfd.readouterr().err


def test_a_run_of_a_job_script_is_taken_up_by_the_next_job(
    paths: RunPaths, capfd: pytest.CaptureFixture[str]
) -> None:
    """Unlike a run outside Slurm, of which nobody can tell whether the same start is meant or another."""
    write(paths, STARTED, ROUND, FAILED)
    assert 0 == app.run(["status", paths.root])
    wanted = f"the same job script again, with --run-dir {paths.root}; one that adopt has"
    assert wanted in capfd.readouterr().out
    assert 2 == app.run(["submit", "--resume", paths.root])
    assert wanted in capfd.readouterr().err


def test_a_drained_run_is_stopped(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """Nobody requeues it; the same command goes on with it."""
    write(paths, STARTED, ROUND, Drained(EPOCH, Cause.PREEMPTION, 9, ""))
    assert 0 == app.run(["status", paths.root])
    out = capfd.readouterr().out
    assert "toy-1: stopped: preemption, saved step 9\n" in out
    assert f"next: the same command again, with --run-dir {paths.root}\n" in out
    assert 0 == app.run(["status"])
    assert "  stopped\n" in capfd.readouterr().out


def test_a_run_of_torchruns_says_what_is_known_and_what_is_not(
    paths: RunPaths, capfd: pytest.CaptureFixture[str]
) -> None:
    """Once its agents have left, it does not run; nothing is made up about failures, budgets and logs."""
    write(paths, STARTED._replace(job_id="", expected=()), ROUND)
    Path(paths.nodes, RUN_ID).write_text('{"run_id": "toy-1"}')
    Path(paths.members, MemberName("n1.1", EPOCH, Phase.SUCCEEDED, 1, 3).text()).touch()
    assert 0 == app.run(["status", "--timeline", paths.root])
    out = capfd.readouterr().out
    left = "all agents have left after round 1 (n1); how their workers ended is not recorded here"
    assert out.startswith(f"toy-1: {left}\n")
    assert "  node        n1 has left after round 1, " in out
    assert "  agents      torchrun, whose agents only meet here: restarts, checkpoints, logs and how" in out
    assert "used" not in out
    assert "round 1: 1 node (n1) met in" in out
    assert f"the same torchrun command again, with --rdzv-endpoint={paths.root}\n" in out
    assert 0 == app.run(["status"])
    assert "torchrun's agents have left\n" in capfd.readouterr().out
    assert 2 == app.run(["logs", "-f", paths.root])
    assert "started by torchrun, which keeps their output to itself" in capfd.readouterr().err
