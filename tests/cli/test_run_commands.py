"""``status``, ``timeline``, ``logs``, ``stop`` and ``cancel`` as they are typed, on real run directories."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_elastic.cli import app
from hpc_elastic.clock import SystemClock, date_text
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.checkpoints import MarkName, write_mark
from hpc_elastic.record.journal import (
    AfterDrain,
    Cause,
    Decision,
    Entry,
    Epoch,
    EpochStarted,
    Member,
    NeverAsked,
    RoundEnded,
    RoundFormed,
    RunEnded,
)
from hpc_elastic.record.run_log import open_log, read_state
from hpc_elastic.slurm.run_jobs import submissions
from hpc_elastic.slurm.run_jobs.submissions import Submission
from hpc_elastic.slurm.submit.run_dir import read_request
from hpc_elastic.testing.waiting import wait_until
from tests.slurm.stand_in import FakeJob

EPOCH = Epoch(0, 0, 0, 0)
STARTED = EpochStarted(EPOCH, "4711", ("n1", "n2"))
OOPS = "[2:rank 3 err] oops"
MEMBERS = (Member("n1.1", "n1", 2), Member("n2.1", "n2", 2))


def round_of(number: int) -> RoundFormed:
    """Return a round of two nodes with two workers each."""
    return RoundFormed(number, EPOCH, MEMBERS, "n1", 1, None)


def write(paths: RunPaths, *entries: Entry) -> None:
    """Write records as the agents do."""
    log = open_log(paths, "n1")
    for entry in entries:
        log.commit(lambda _state, entry=entry: entry)  # type: ignore[misc]


def log(paths: RunPaths, attempt: int, rank: int, text: str, name: str = "stdout.log") -> None:
    """Write a worker's log."""
    directory = Path(paths.attempt_logs(attempt), str(rank))
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / name).open("a") as file:
        file.write(text)


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """Return a submitted run below ./hpc_elastic_runs; there is no Slurm here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "no-slurm"))
    paths = RunPaths("hpc_elastic_runs/toy-1")
    for directory in paths.directories():
        os.makedirs(directory)
    Path(paths.identity).write_text(json.dumps({"format": 1, "run_id": "toy-1", "name": "toy", "user": "me"}))
    Path(paths.job).write_text(json.dumps({"format": 1, "spec": {"name": "toy", "max_restarts": 5}}))
    Path(paths.script).write_text("#!/bin/bash\n")
    submissions.record(paths, Submission(0, "token", "4711", "2026-11-21 10:00:00"))
    return paths


@pytest.mark.parametrize("run", ["hpc_elastic_runs/toy-1", "toy-1", "4711", "4711_3", "toy"])
def test_a_run_is_found_by_directory_run_id_job_id_and_name(
    paths: RunPaths, capfd: pytest.CaptureFixture[str], run: str
) -> None:
    """All three are printed by submit."""
    assert 0 == app.run(["status", run])
    assert paths.root in capfd.readouterr().out


def test_status_tells_state_budgets_checkpoint_and_the_next_command(
    paths: RunPaths, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without Slurm it says so and tells what the records know."""
    write(paths, STARTED, round_of(1), RoundEnded(1, Cause.CRASH, ("n1",), {"rank": 1}), round_of(2))
    write_mark(paths, MarkName(80, 2, 0, 1), "/ckpt/80", 4)
    assert 0 == app.run(["status", "toy-1"])
    out = capfd.readouterr().out
    assert "toy: running round 2 on n1, n2 (4 workers)" in out
    assert "1 of 5 restarts" in out
    assert "step 80, saved" in out
    assert "/ckpt/80" in out
    assert "not on PATH" in out
    assert f"next: hpc-elastic logs -f {paths.root}" in out
    assert "\x1b" not in out


def test_the_status_of_a_failed_run_names_the_root_cause(
    paths: RunPaths, capfd: pytest.CaptureFixture[str]
) -> None:
    """And how to take it up again."""
    failure = {"rank": 3, "node": "n2", "exitcode": 1, "message": "ValueError: bad"}
    write(paths, STARTED, round_of(1), RunEnded(Decision.FAILED, 1, "no restarts are left", failure))
    app.run(["status", "toy-1"])
    out = capfd.readouterr().out
    assert "failed: no restarts are left; rank 3 on n2: exit code 1: ValueError: bad" in out
    assert "submit --resume" in out


def test_a_job_that_ended_by_itself_names_its_batch_log(
    paths: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A setup line that failed is seen nowhere else."""
    job = FakeJob(tmp_path / "slurm")
    job.set(JobState="FAILED")
    monkeypatch.setenv("PATH", str(job.bin))
    Path(paths.root, "slurm-4711.out").write_text("module: not found\n")
    assert 0 == app.run(["status", "toy-1"])
    out = capfd.readouterr().out
    assert "job 4711 ended as FAILED, and its agents have recorded no end" in out
    assert f"next: read {paths.root}/slurm-4711.out\n      hpc-elastic submit --resume" in out


@pytest.mark.parametrize(("days", "is_told"), [(1, True), (365, False)])
def test_a_start_a_year_ahead_is_no_estimate(
    paths: RunPaths,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    days: int,
    is_told: bool,
) -> None:
    """Slurm says so when it has none; logs come only when the job has started."""
    start = date_text(SystemClock().wall() + days * 86400).replace(" ", "T")
    job = FakeJob(tmp_path / "slurm")
    job.set(JobState="PENDING", StartTime=start)
    monkeypatch.setenv("PATH", str(job.bin))
    assert 0 == app.run(["status", "toy-1"])
    out = capfd.readouterr().out
    assert is_told == ("expected to start" in out)
    assert out.endswith("once the job has started\n")


def test_status_without_a_run_lists_all_runs(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """The one that changed last comes first; nobody asks Slurm."""
    older = RunPaths("hpc_elastic_runs/run-1")
    os.makedirs(older.journal)
    write(paths, STARTED, round_of(1), RunEnded(Decision.FAILED, 1, "no restarts are left", None))
    assert 0 == app.run(["status"])
    first, second, last = capfd.readouterr().out.splitlines()
    assert first.split()[0::3] == ["toy-1", "failed"]
    assert second.split() == ["run-1", "?", "unknown"]
    assert last.startswith("next: hpc-elastic status toy-1")


def test_status_without_any_run_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """And where it has looked."""
    monkeypatch.chdir(tmp_path)
    assert 0 == app.run(["status"])
    assert f"no runs below {tmp_path}/hpc_elastic_runs" in capfd.readouterr().out


def test_a_run_that_is_done_is_not_queued_again(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """There is nothing to go on with."""
    Path(paths.job).write_text(json.dumps({"format": 1, "spec": {"command": ["train.py"], "name": "toy"}}))
    submissions.record(paths, Submission(1, "token", f"local-{os.getpid()}", ""))
    write(
        paths,
        EpochStarted(Epoch(1, 0, 0, 0), "x", ()),
        RunEnded(Decision.DONE, 0, "all workers succeeded", None),
    )
    assert 2 == app.run(["submit", "--resume", "toy-1", "--local", "1"])
    assert "is done: all workers succeeded\n  fix: there is nothing to go on with" in capfd.readouterr().err


def test_a_damaged_identity_is_told_and_can_be_done_without(
    paths: RunPaths, capfd: pytest.CaptureFixture[str]
) -> None:
    """Journal, checkpoints and job are intact; without run.json the directory's name is the run id."""
    Path(paths.job).write_text(json.dumps({"format": 1, "spec": {"command": ["train.py"], "name": "toy"}}))
    Path(paths.identity).write_text("{")
    assert 0 == app.run(["status", "toy-1"])
    out = capfd.readouterr().out
    assert f"  damaged     {paths.identity} is damaged: it is no JSON (" in out
    assert f"\n{'':14}fix: nothing of the run is lost: rm " in out
    assert 2 == app.run(["submit", "--resume", "toy-1"])
    assert f"rm {paths.identity}" in capfd.readouterr().err
    os.unlink(paths.identity)
    assert "toy-1" == read_request(paths).run_id


def test_the_timeline_begins_with_the_submission(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """A second submission stands before the starts that belong to it."""
    write(paths, STARTED, RunEnded(Decision.STOPPED, 0, "", None))
    submissions.record(paths, Submission(1, "token", "4712", "2026-11-21 12:00:00"))
    write(paths, EpochStarted(Epoch(1, 0, 0, 0), "4712", ()))
    assert 0 == app.run(["timeline", "toy-1"])
    texts = [line[21:] for line in capfd.readouterr().out.splitlines()]
    assert [
        "submitted as job 4711",
        "job 4711 started on n1, n2",
        "stopped",
        "submitted as job 4712",
        "job 4712 started",
    ] == texts


@pytest.fixture
def logged(paths: RunPaths) -> RunPaths:
    """Return a run with two rounds of logs."""
    write(paths, STARTED, round_of(1), RoundEnded(1, Cause.CRASH, (), {}), round_of(2))
    Path(paths.agent_log("n1")).write_text("[10:00:00 n1] round 2\n")
    Path(paths.agent_log("n2")).write_text("[10:00:00 n2] round 2\n")
    for rank in range(4):
        log(paths, 1, rank, f"old {rank}\n")
        log(paths, 2, rank, f"first {rank}\nnew {rank}\n")
    log(paths, 2, 3, "oops", "stderr.log")
    return paths


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (
            [],
            [
                "[10:00:00 n1] round 2",
                "[10:00:00 n2] round 2",
                *(f"[2:rank {rank}] {age} {rank}" for rank in range(4) for age in ("first", "new")),
                OOPS,
            ],
        ),
        (["-n", "2"], ["[2:rank 3] new 3", OOPS]),
        (["--rank", "3"], ["[2:rank 3] first 3", "[2:rank 3] new 3", OOPS]),
        (
            ["--node", "n2", "-n", "4"],
            ["[2:rank 2] new 2", "[2:rank 3] first 3", "[2:rank 3] new 3", OOPS],
        ),
        (["--attempt", "1", "--rank", "0"], ["[1:rank 0] old 0"]),
    ],
    ids=["all", "newest", "rank", "node", "attempt"],
)
def test_logs_are_chosen_and_prefixed(
    logged: RunPaths, capfd: pytest.CaptureFixture[str], flags: list[str], expected: list[str]
) -> None:
    """The newest round and the agents, unless something else is asked for."""
    assert 0 == app.run(["logs", "toy-1", *flags])
    assert expected == capfd.readouterr().out.splitlines()


def test_logs_before_the_first_agent_show_the_batch_script(
    paths: RunPaths, capfd: pytest.CaptureFixture[str]
) -> None:
    """A setup line that fails is seen nowhere else."""
    Path(paths.root, "slurm-4711.out").write_text("module: not found\n")
    assert 0 == app.run(["logs", "toy-1"])
    assert "[batch] module: not found\n" == capfd.readouterr().out


def test_following_shows_new_lines_and_rounds_until_the_run_has_ended(
    logged: RunPaths, tmp_path: Path
) -> None:
    """It goes on over a new round and ends with the run."""
    output = tmp_path / "followed"
    argv = [sys.executable, "-m", "hpc_elastic", "logs", "-f", "toy-1", "--rank", "0"]
    with output.open("wb") as file:
        process = subprocess.Popen(
            argv, stdout=file, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        )
    wait_until(lambda: "new 0" in output.read_text(), "what is there", timeout_s=120)
    log(logged, 2, 0, "later 0\n")
    wait_until(lambda: "later 0" in output.read_text(), "a new line")
    write(logged, RoundEnded(2, Cause.CRASH, (), {}), round_of(3))
    log(logged, 3, 0, "third 0\n")
    wait_until(lambda: "[3:rank 0] third 0" in output.read_text(), "a new round")
    write(logged, RunEnded(Decision.DONE, 0, "all workers succeeded", None))
    assert 0 == process.wait(120)
    assert "--- done: all workers succeeded" == output.read_text().splitlines()[-1]


@pytest.mark.parametrize("command", ["status", "timeline", "logs", "stop", "cancel"])
@pytest.mark.parametrize(
    ("run", "words"),
    [
        ("nix", "neither a directory nor a run id, job id or job name"),
        ("no/such/dir", "the directory no/such/dir does not exist"),
        (".", "is not a run directory"),
    ],
    ids=["unknown", "absent", "foreign"],
)
def test_a_run_that_is_none_is_refused_with_a_fix(
    paths: RunPaths, capfd: pytest.CaptureFixture[str], command: str, run: str, words: str
) -> None:
    """One block: what is wrong and what to do."""
    assert 2 == app.run([command, run])
    captured = capfd.readouterr()
    assert "" == captured.out
    assert words in captured.err
    assert "fix: " in captured.err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_the_run_of_somebody_else_is_refused(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """Its owner is named."""
    os.chown(paths.root, 65534, 65534)
    assert 2 == app.run(["stop", "toy-1"])
    assert "RUN: hpc_elastic_runs/toy-1 belongs to user " in capfd.readouterr().err


def test_logs_that_match_nothing_name_the_rounds_there_are(
    logged: RunPaths, capfd: pytest.CaptureFixture[str]
) -> None:
    """The error says what to choose from."""
    assert 2 == app.run(["logs", "toy-1", "--rank", "9"])
    assert "rounds with logs: 1, 2" in capfd.readouterr().err


@pytest.mark.parametrize("flags", [("--rank", "3"), ("--node", "n2", "--attempt", "2", "--rank", "2")])
def test_workers_that_have_written_nothing_are_no_error(
    logged: RunPaths, capfd: pytest.CaptureFixture[str], flags: tuple[str, ...]
) -> None:
    """They were there: their empty files are gone with their round."""
    for rank in (2, 3):
        shutil.rmtree(Path(logged.attempt_logs(2), str(rank)))
    assert 0 == app.run(["logs", "toy-1", *flags])
    captured = capfd.readouterr()
    assert ("", "the workers that are meant have written nothing\n") == (captured.out, captured.err)
    assert 2 == app.run(["logs", "toy-1", "--rank", "4"])
    assert 2 == app.run(["logs", "toy-1", "--node", "n3", "--rank", "3"])


def test_stop_works_without_slurm(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """The journal carries the request; a local run has no Slurm."""
    write(paths, STARTED, round_of(1))
    assert 0 == app.run(["stop", "4711"])
    assert "asked to save and stop" in capfd.readouterr().out
    assert 0 == app.run(["status", "4711"])
    assert "draining: stopped by the user" in capfd.readouterr().out
    assert 0 == app.run(["stop", "4711", "--json"])
    told = json.loads(capfd.readouterr().out)
    assert ("status", "draining") == (told["kind"], told["phase"])


def test_stop_tells_how_long_workers_run_on(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """Those that do not ask whether to stop, where they may: status has the same, and advises nothing."""
    write(paths, STARTED, round_of(1), NeverAsked(1, runs_on_s=120.0))
    assert 0 == app.run(["stop", "4711"])
    said = capfd.readouterr().out
    assert "the workers do not ask whether to stop: they run on for up to 2 min 0 s\n" in said
    assert "to end them now: hpc-elastic cancel" in said
    assert 0 == app.run(["status", "4711"])
    told = " ".join(capfd.readouterr().out.split())
    assert "they run on until their time is up (--unasked), 2 min 0 s after a stop" in told
    assert "--unasked run-on lets" not in told
    assert 0 == app.run(["stop", "4711"])
    assert "its workers have not ended yet" in capfd.readouterr().out


def test_stop_tells_that_workers_may_run_on_before_it_is_known_whether_they_ask(
    paths: RunPaths, capfd: pytest.CaptureFixture[str]
) -> None:
    """By the setting of the job; with the usual one nothing is said."""
    write(paths, STARTED, round_of(1))
    Path(paths.job).write_text(json.dumps({"format": 1, "spec": {"name": "toy", "unasked": "run-on"}}))
    assert 0 == app.run(["stop", "4711"])
    said = capfd.readouterr().out
    assert "run on until their time is up (--unasked run-on); hpc-elastic status tells how long" in said


def test_scale_pauses_a_larger_round_and_is_kept(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """The wanted size is on record; workers save before the next, smaller round."""
    Path(paths.job).write_text(json.dumps({"format": 1, "spec": {"name": "toy", "nodes": "1:3"}}))
    write(paths, STARTED, round_of(1))
    assert 0 == app.run(["scale", "4711", "--nodes", "1"])
    assert "the next round has 1 of 2 nodes" in capfd.readouterr().out
    state = read_state(paths)
    assert 1 == state.wanted
    assert state.drain is not None
    assert AfterDrain.REJOIN is state.drain.then
    assert 0 == app.run(["timeline", "4711"])
    assert "1 node wanted (hpc-elastic scale), in place of 2" in capfd.readouterr().out
    assert 0 == app.run(["status", "4711"])
    assert "  size        1 of 2 nodes (hpc-elastic scale)\n" in capfd.readouterr().out


def test_scale_beyond_the_nodes_of_the_job_says_that_nothing_changes(
    paths: RunPaths, capfd: pytest.CaptureFixture[str]
) -> None:
    """No node is promised that does not stand by."""
    Path(paths.job).write_text(json.dumps({"format": 1, "spec": {"name": "toy", "nodes": "1:3"}}))
    write(paths, STARTED, round_of(1))
    assert 0 == app.run(["scale", "4711", "--nodes", "3"])
    assert "no node stands by, so the run goes on with 2: " in capfd.readouterr().out
    assert 0 == app.run(["status", "4711"])
    assert "  size        3 nodes wanted (hpc-elastic scale), 2 are there\n" in capfd.readouterr().out


def test_scale_before_the_start_holds_for_it(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """A job that waits starts with the size that is wanted; a requeue keeps it, a new submission does not."""
    assert 0 == app.run(["scale", "4711", "--nodes", "1"])
    assert "the next round has up to 1 node" in capfd.readouterr().out
    write(paths, STARTED)
    assert 1 == read_state(paths).wanted
    write(paths, EpochStarted(Epoch(0, 0, 1, 0), "4711", ()))
    assert 1 == read_state(paths).wanted
    write(paths, EpochStarted(Epoch(1, 0, 0, 0), "4712", ()))
    assert read_state(paths).wanted is None


@pytest.mark.parametrize(
    ("nodes", "wanted", "fix"),
    [
        ("2:3", "4", "a number from 2 to 3"),
        ("2:3", "1", "a number from 2 to 3"),
        ("2", "1", "--nodes MIN:MAX"),
    ],
)
def test_scale_keeps_to_what_was_submitted(
    paths: RunPaths, capfd: pytest.CaptureFixture[str], nodes: str, wanted: str, fix: str
) -> None:
    """A size outside the job's bounds is refused, with the bounds."""
    Path(paths.job).write_text(json.dumps({"format": 1, "spec": {"name": "toy", "nodes": nodes}}))
    assert 2 == app.run(["scale", "4711", "--nodes", wanted])
    assert fix in capfd.readouterr().err
    assert read_state(paths).wanted is None


def test_a_run_that_has_ended_has_no_size(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """There is nothing to scale any more."""
    write(paths, STARTED, round_of(1), RunEnded(Decision.DONE, 0, "", None))
    assert 2 == app.run(["scale", "4711", "--nodes", "1"])
    assert "has ended already: done" in capfd.readouterr().err
