"""What ``hpc-elastic drill`` refuses, and what it says to do instead."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hpc_elastic.cli import app
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import (
    Decision,
    DrillBegan,
    DrillCalledOff,
    Entry,
    Epoch,
    EpochStarted,
    Member,
    RoundFormed,
    RunEnded,
)
from hpc_elastic.record.run_log import open_log, read_records
from hpc_elastic.slurm.run_jobs import submissions
from hpc_elastic.slurm.run_jobs.submissions import Submission
from tests.slurm.stand_in import FakeJob

EPOCH = Epoch(0, 0, 0, 0)
ROUND = RoundFormed(1, EPOCH, (Member("n1.1", "n1", 2), Member("n2.1", "n2", 2)), "n1", 1, None)
HELD = {"JobState": "PENDING", "Reason": "JobHeldUser"}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeJob:
    """Return the job as Slurm knows it."""
    job = FakeJob(tmp_path / "slurm")
    monkeypatch.setenv("PATH", str(job.bin))
    return job


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    """Return the directory of a submitted run whose workers run, by its records."""
    paths = RunPaths(str(tmp_path / "toy-1"))
    for directory in paths.directories():
        os.makedirs(directory)
    Path(paths.identity).write_text(json.dumps({"format": 1, "run_id": "toy-1", "name": "toy", "user": "me"}))
    Path(paths.job).write_text(json.dumps({"format": 1, "spec": {"nodes": "2"}}))
    submissions.record(paths, Submission(0, "token", "7", "2026-11-21 10:00:00"))
    write(paths, EpochStarted(EPOCH, "7", ("n1", "n2"), sizes="2:2"), ROUND)
    return paths


def write(paths: RunPaths, *entries: Entry) -> None:
    """Write records."""
    log = open_log(paths, "n1")
    for entry in entries:
        log.commit(lambda _state, entry=entry: entry)  # type: ignore[misc]


def refused(paths: RunPaths, capfd: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the error of a drill; nothing is noted of it."""
    assert ExitCode.USAGE == app.run(["drill", paths.root, "--yes", *words])
    assert not [record for record in read_records(paths) if isinstance(record.entry, DrillBegan)]
    return capfd.readouterr().err


@pytest.mark.parametrize("drill", ["preempt", "timeout", "requeue", "node-loss"])
def test_a_rank_goes_with_what_strikes_one_worker(
    paths: RunPaths, job: FakeJob, capfd: pytest.CaptureFixture[str], drill: str
) -> None:
    """Else more would be struck than was named."""
    error = refused(paths, capfd, f"--{drill}", "--rank", "0")
    assert f"--rank: --{drill} strikes no single worker\n  fix: it goes with --crash and --hang\n" in error
    assert [] == job.calls


@pytest.mark.parametrize("drill", ["preempt", "timeout", "requeue"])
def test_a_node_does_not_go_with_what_strikes_the_whole_job(
    paths: RunPaths, job: FakeJob, capfd: pytest.CaptureFixture[str], drill: str
) -> None:
    """In array mode each node is a job of its own."""
    error = refused(paths, capfd, f"--{drill}", "--node", "n1")
    assert f"--node: --{drill} strikes the whole job, not a node of it\n  fix: leave it out" in error
    assert [] == job.calls


@pytest.mark.parametrize("held", [HELD, {"JobState": "COMPLETING", "Reason": "job_requeued_in_held_state"}])
def test_a_job_that_was_held_by_hand_is_released_first(
    paths: RunPaths, job: FakeJob, capfd: pytest.CaptureFixture[str], held: dict[str, str]
) -> None:
    """By ``scontrol requeuehold``; its agents may not even have written that they leave."""
    job.set(**held)
    error = refused(paths, capfd, "--crash")
    assert "job 7 is held in the queue, so the run has no workers\n  fix: scontrol release 7" in error


def test_a_drill_that_slurm_refuses_is_called_off_with_all_its_words(
    paths: RunPaths, job: FakeJob, capfd: pytest.CaptureFixture[str]
) -> None:
    """The timeline tells them, too; what the drill would have cost of a budget is told before it strikes."""
    spec = {"nodes": "2", "max_preemptions": 1}
    Path(paths.job).write_text(json.dumps({"format": 1, "spec": spec}))
    job.refuse(
        "scancel", "scancel: error: Kill job error\nUnable to contact slurm controller (connect failure)"
    )
    assert ExitCode.USAGE == app.run(["drill", paths.root, "--yes", "--preempt"])
    error = capfd.readouterr().err
    last = (
        "warning: this drill counts, and is the last preemption of max_preemptions = 1: the next one, be it"
    )
    assert error.startswith(last)
    assert "nothing was struck, and the run goes on as before:\n" in error.partition(last)[2]
    notes = [
        one.entry.detail for one in read_records(paths) if isinstance(one.entry, DrillBegan | DrillCalledOff)
    ]
    words = "scancel: error: Kill job error Unable to contact slurm controller (connect failure)"
    off = f"called off, nothing was struck: scancel failed with exit code 1; Slurm says: {words}"
    assert notes[-1].endswith(off)


def test_a_run_that_is_held_by_its_budget_is_released_first(
    paths: RunPaths, job: FakeJob, capfd: pytest.CaptureFixture[str]
) -> None:
    """It has not ended for good: its job waits in the queue."""
    job.set(**HELD)
    write(paths, RunEnded(Decision.HELD, 75, "2 of 2 node losses", None))
    error = refused(paths, capfd, "--crash")
    assert f"the run in {paths.root} is held: 2 of 2 node losses\n  fix: scontrol release 7; if that" in error
    assert "has ended" not in error
