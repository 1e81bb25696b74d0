"""What ``status`` tells below its first line: budgets, the jobs of a chain, jobs that are over."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hpc_elastic.cli import app
from hpc_elastic.clock import SystemClock
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import (
    Cause,
    Decision,
    Entry,
    RoundEnded,
    RoundFormed,
    RunEnded,
)
from hpc_elastic.record.run_log import open_log
from hpc_elastic.slurm.run_jobs import submissions
from hpc_elastic.slurm.run_jobs.submissions import Link, Submission
from hpc_elastic.store.node_events import Fault, NodeEvent
from hpc_elastic.store.node_ledger import place_for, remember
from tests.cli.recorded_runs import EPOCH, MEMBERS, STARTED
from tests.slurm.stand_in import FakeJob


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """Return a submitted run whose job Slurm knows as cancelled."""
    monkeypatch.chdir(tmp_path)
    job = FakeJob(tmp_path / "slurm")
    job.set(JobState="CANCELLED", ExitCode="130:0")
    monkeypatch.setenv("PATH", str(job.bin))
    paths = RunPaths(str(tmp_path / "toy-1"))
    for directory in paths.directories():
        os.makedirs(directory)
    Path(paths.identity).write_text(json.dumps({"format": 1, "run_id": "toy-1", "name": "toy", "user": "me"}))
    submissions.record(paths, Submission(0, "token", "7", "2026-11-21 10:00:00"))
    return paths


def told(paths: RunPaths, capfd: pytest.CaptureFixture[str], spec: dict[str, object], *entries: Entry) -> str:
    """Return what status prints of a run with this job spec and these records."""
    Path(paths.job).write_text(json.dumps({"format": 1, "spec": spec}))
    log = open_log(paths, "n1")
    for entry in entries:
        log.commit(lambda _state, entry=entry: entry)  # type: ignore[misc]
    assert 0 == app.run(["status", paths.root])
    return capfd.readouterr().out


def crashes(number: int) -> list[Entry]:
    """Return as many rounds that crash."""
    rounds: list[Entry] = []
    for at in range(1, number + 1):
        rounds += [RoundFormed(at, EPOCH, MEMBERS, "n1", 1, None), RoundEnded(at, Cause.CRASH, ("n1",), {})]
    return rounds


def test_a_failure_after_which_nothing_was_started_is_no_restart(
    paths: RunPaths, capfd: pytest.CaptureFixture[str]
) -> None:
    """The same failure three times ends a run that has started its workers again twice."""
    failed = RunEnded(Decision.FAILED, 1, "the same failure 3 times in a row", {})
    assert "2 of 5 restarts" in told(paths, capfd, {"max_restarts": 5}, STARTED, *crashes(3), failed)


def test_the_code_of_a_cancelled_job_is_not_explained(
    paths: RunPaths, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is that of our script, and no signal."""
    out = told(paths, capfd, {}, STARTED, RunEnded(Decision.CANCELLED, 130, "the job was cancelled", None))
    assert "7: CANCELLED" in out
    assert "SIGINT" not in out


def test_the_jobs_that_come_next_in_a_chain_are_told(
    paths: RunPaths, capfd: pytest.CaptureFixture[str]
) -> None:
    """As long as the run goes on."""
    for number, job_id in ((1, "8"), (2, "9")):
        submissions.record_link(paths, Link(0, number, f"token{number}", job_id))
    assert "  chain       then 2 jobs: 8, 9\n" in told(paths, capfd, {}, STARTED)
    assert "chain" not in told(paths, capfd, {}, RunEnded(Decision.DONE, 0, "all workers succeeded", None))


@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_chain_that_is_used_up_says_how_to_go_on(
    paths: RunPaths,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    is_recorded: bool,
) -> None:
    """Its last job has ended before the run did; nothing is going to be requeued."""
    job = FakeJob(tmp_path / "ended")
    job.set(JobState="FAILED", ExitCode="75:0")
    monkeypatch.setenv("PATH", str(job.bin))
    Path(paths.script).touch()
    ending = RunEnded(Decision.STOPPED, 75, "the time limit, and the chain is used up", None)
    out = told(paths, capfd, {"chain": 2}, STARTED, *([ending] if is_recorded else []))
    assert "exit code 75 (left before the run had ended)" in out
    again = f"hpc-elastic submit --resume {paths.root}"
    assert f"  chain       used up, 7 was its last job; {again} queues 2 more\n" in out
    assert f"{again}\n" in out.splitlines(keepends=True)[-1]


def test_a_failure_is_told_once_and_mended_first(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The last thing that happened is the headline; whoever submits again at once fails again."""
    job = FakeJob(tmp_path / "ended")
    job.set(JobState="FAILED", ExitCode="1:0")
    monkeypatch.setenv("PATH", str(job.bin))
    Path(paths.script).touch()
    out = told(
        paths, capfd, {}, STARTED, *crashes(1), RunEnded(Decision.FAILED, 1, "no restarts are left", {})
    )
    assert 1 == out.count("no restarts are left")
    assert out.splitlines()[-3].endswith(" ago) failed")
    mended = (
        f"next: hpc-elastic logs {paths.root}\n"
        f"      when it is mended: hpc-elastic submit --resume {paths.root}\n"
    )
    assert out.endswith(mended)


def test_a_node_that_was_forgiven_is_not_held_against_the_job(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Slurm leaves it out until the job is requeued or changed; `nodes` has nothing against it."""
    job = FakeJob(tmp_path / "excluding")
    job.set(JobState="PENDING", ExcNodeList="n[1-2]")
    monkeypatch.setenv("PATH", str(job.bin))
    place, now = place_for(paths.root), SystemClock().wall()
    events = [NodeEvent(host, Fault.UNFIT, now - 60, "a") for host in ("n1", "n2")]
    remember(place, events)
    assert "  excluded    n[1-2] (hpc-elastic nodes tells why)\n" in told(paths, capfd, {})
    remember(place, [NodeEvent("n1", Fault.FORGIVEN, now - 30, "b")])
    out = told(paths, capfd, {})
    assert "  excluded    n2 (hpc-elastic nodes tells why)\n" in out
    update = "scontrol update JobId=7 ExcNodeList=n2"
    assert f"  excluded    n1: forgiven since; to let this job have them: {update}\n" in out
