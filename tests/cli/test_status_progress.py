"""How far a run is, how fast it gets on and where its time goes, as ``status`` tells it."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_elastic.account.account import Account, NewestStep
from hpc_elastic.account.facts import Doing, WorkFact, encode_fact
from hpc_elastic.account.spans import Bucket, Crew, Series, Span
from hpc_elastic.cli import app
from hpc_elastic.meet.member_names import MemberName, Phase
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.checkpoint_files import CheckpointFacts
from hpc_elastic.record.checkpoint_files import write_facts as write_facts_of_save
from hpc_elastic.record.checkpoints import MarkName, write_mark
from hpc_elastic.record.journal import (
    Cause,
    Decision,
    MarkedCheckpoint,
    RoundEnded,
    RoundFormed,
    RunEnded,
)
from hpc_elastic.record.save_interval import Disturbances, SaveTimes, best_interval_s
from hpc_elastic.report.explain.words import progress_facts, still_text
from hpc_elastic.slurm.run_jobs.newest_step import still_s
from tests.cli.recorded_runs import (
    BEGAN,
    EPOCH,
    MEMBERS,
    NAN,
    STARTED,
    crashed_once,
    paths,
    preempted,
    write,
    write_facts,
)

__all__ = ["paths"]


def shown(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> str:
    """Return what status prints."""
    assert 0 == app.run(["status", paths.root])
    return capfd.readouterr().out


def test_goodput_and_what_cost_most(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """A run with starts in vain shows its goodput, the costs by size, and how many starts led nowhere."""
    write(paths, *(entry for number in range(5) for entry in preempted(number)))
    write_facts(
        paths,
        *(
            (number + 1, 1000.0 * number + at, 3 * number + 2, step)
            for number in range(5)
            for at, step in ((50, 1), (600, 90))
        ),
    )
    out = shown(paths, capfd)
    # the run waits in the queue since its last start, until today
    costs = r"  goodput     0\.\d % \(16 % of the time on nodes\); cost most: in the queue (99|100) %"
    assert re.search(costs, out)
    assert "  saves       the last 5 starts in a row began from step 0; nothing is known of its saves" in out
    assert 1 == out.count("in a row")


def test_the_time_left_counts_everything_that_went_wrong(
    paths: RunPaths, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of 1021 steps 31 are done in 240 s with a crash, so the rest takes 30 times as long as the last 30."""
    write(paths, *crashed_once())
    steps = ((1, 40.0, 2, 1), (1, 140.0, 2, 21), (2, 180.0, 4, 11), (2, 280.0, 4, 31))
    os.makedirs(paths.account)
    lines = [
        WorkFact(number, Doing.STEP, BEGAN + at, at, "n1.1", known, step, total=931)
        for number, at, known, step in steps
    ]
    (Path(paths.account) / "n1.log").write_bytes(b"".join(map(encode_fact, lines)))
    out = shown(paths, capfd)
    assert (
        "  progress    step 31 of 931; 7.5 steps/min over 4 min 0 s, 38 % of that time without a new step\n"
        in out
    )
    assert "              about 2 h 0 min left at this rate\n" in out


def test_the_time_left_counts_the_steps_that_are_computed_again(
    paths: RunPaths, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of 41 steps 21 are done, 20 in 140 s, 100 s of it training; the run is at step 3: 140 s and 90 s."""
    write(
        paths,
        (0.0, STARTED),
        (10.0, RoundFormed(1, EPOCH, MEMBERS, "n1", 1, None)),
        (150.0, RoundEnded(1, Cause.CRASH, ("n2",), NAN, None)),
        (160.0, RoundFormed(2, EPOCH, MEMBERS, "n1", 1, None)),
    )
    os.makedirs(paths.account)
    lines = [
        WorkFact(number, Doing.STEP, BEGAN + at, at, "n1.1", known, step, total=41)
        for number, at, known, step in ((1, 40.0, 2, 1), (1, 140.0, 2, 21), (2, 180.0, 4, 3))
    ]
    (Path(paths.account) / "n1.log").write_bytes(b"".join(map(encode_fact, lines)))
    assert "              about 3 min 50 s left at this rate\n" in shown(paths, capfd)


def test_steps_that_are_computed_again_are_not_called_new(
    paths: RunPaths, capfd: pytest.CaptureFixture[str]
) -> None:
    """A round that began from an older step shows where it is, beside the step that the run has reached."""
    write(
        paths,
        (0.0, STARTED),
        (10.0, RoundFormed(1, EPOCH, MEMBERS, "n1", 1, None)),
        (150.0, RoundEnded(1, Cause.CRASH, ("n2",), NAN, None)),
        (160.0, RoundFormed(2, EPOCH, MEMBERS, "n1", 1, None)),
    )
    write_facts(paths, (1, 40.0, 2, 1), (1, 140.0, 2, 21), (2, 180.0, 4, 3))
    assert "  progress    again at step 3, has reached step 21; " in shown(paths, capfd)


def test_a_run_that_ended_behind_its_newest_step_shows_both(
    paths: RunPaths, capfd: pytest.CaptureFixture[str]
) -> None:
    """As after it has gone back to an earlier checkpoint: its workers were last at the lower one."""
    again = EPOCH._replace(submission=EPOCH.submission + 1)
    write(
        paths,
        (0.0, STARTED),
        (10.0, RoundFormed(1, EPOCH, MEMBERS, "n1", 1, None)),
        (150.0, RunEnded(Decision.STOPPED, 0, "on request", None)),
        (155.0, STARTED._replace(epoch=again)),
        (160.0, RoundFormed(2, again, MEMBERS, "n1", 1, None)),
        (190.0, RunEnded(Decision.STOPPED, 0, "on request", None)),
    )
    write_facts(paths, (1, 40.0, 2, 1), (1, 140.0, 2, 21), (2, 180.0, 5, 3))
    assert "  progress    last at step 3, has reached step 21; " in shown(paths, capfd)


def test_heartbeats_tell_a_newer_step_than_the_account(
    paths: RunPaths, capfd: pytest.CaptureFixture[str]
) -> None:
    """The account has a line now and then only."""
    write(paths, (0.0, STARTED), (10.0, RoundFormed(1, EPOCH, MEMBERS, "n1", 1, None)))
    write_facts(paths, (1, 40.0, 2, 1), (1, 140.0, 2, 21))
    for member in MEMBERS:
        name = MemberName(member.node_id, EPOCH, Phase.RUNNING, 1, 7, 2, "29-01")
        (Path(paths.members) / name.text()).touch()
    assert "  progress    step 30; 12 steps/min over" in shown(paths, capfd)


@pytest.mark.parametrize(
    ("step", "since_s", "expected"),
    [
        (21, 9.0, None),
        (21, 24.0, None),  # five steps
        (21, 60.0, 60.0),
        (31, 60.0, None),  # ten more, in 50 s
        (31, 80.0, 30.0),
        (81, 340.0, None),  # 40 s of 340 s: the rate is not known that well
        (20, 60.0, None),  # the heartbeat is older than the line
    ],
)
def test_a_run_without_new_steps_is_noticed_in_one_look(
    step: int, since_s: float, expected: float | None
) -> None:
    """By the steps since the last line of the account, at the rate before it: one in 5 s."""
    lines = [
        WorkFact(1, Doing.STEP, BEGAN + at, at, "n1.1", 2, done) for at, done in ((40.0, 1), (140.0, 21))
    ]
    assert expected == still_s(lines, step, since_s)
    assert (since_s if step == 21 and since_s >= 10 else None) == still_s(lines[1:], step, since_s)


def test_status_tells_that_no_steps_come() -> None:
    """In front of the rate, which is that of the time before."""
    spans = (Span(BEGAN, 100.0, Bucket.TRAINING, 0, -1, Crew(), 21, 20),)
    series = Series(spans, (), (), ticks=True, progress=((BEGAN, 1), (BEGAN + 100.0, 21)), current=21)
    account = Account(100.0, {Bucket.TRAINING: 100.0}, 1.0, 1.0, 0, (), (), (), series)
    (told,) = progress_facts(account, None, None, NewestStep(21, 60.0))
    assert still_text(60.0, "20m").startswith("no new step for about 1 min 0 s: a long save")
    assert still_text(60.0, "20m").endswith("which the agents find after 20m (hang_timeout)")
    assert still_text(60.0, "off").endswith("which no agent finds (hang_timeout = off)")
    assert "step 21; no new step for about 1 min 0 s; 12 steps/min over 1 min 40 s" in told[1]


def test_the_advised_interval_is_that_of_checkpoints(
    paths: RunPaths, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It follows from the time that a save holds up the loop, not from the time until it is durable."""
    saved = tmp_path / "step_10"
    saved.mkdir()
    write_facts_of_save(str(saved), CheckpointFacts(10, 4, BEGAN, 0.5, 60.0))
    write(
        paths,
        (0.0, STARTED),
        (10.0, RoundFormed(1, EPOCH, MEMBERS, "n1", 1, None)),
        (3610.0, RoundEnded(1, Cause.CRASH, ("n2",), NAN, 10)),
        (3620.0, RoundFormed(2, EPOCH, MEMBERS, "n1", 1, MarkedCheckpoint(10, str(saved)))),
        (7220.0, RoundEnded(2, Cause.CRASH, ("n2",), NAN, 10)),
        (7230.0, RunEnded(Decision.FAILED, 1, "a worker failed", NAN)),
    )
    write_facts(paths, (1, 40.0, 2, 1), (1, 3600.0, 2, 900), (2, 3700.0, 4, 11), (2, 7200.0, 4, 910))
    write_mark(paths, MarkName(10, 1, 0, 1), str(saved), 4, 60.0)
    faults = Disturbances(trained_s=7200.0, faults=2)
    save = SaveTimes(0.5, 60.0)
    best_s = best_interval_s(save, faults.between_s(save))
    assert 300.0 == best_s
    assert "  a save about every 5 min 0 s would waste least\n" in shown(paths, capfd)


def test_workers_that_tell_no_steps_have_a_bound(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """Without steps status shows the share of time in which workers ran, and says why it knows no more."""
    write(paths, (0.0, STARTED), (10.0, RoundFormed(1, EPOCH, MEMBERS, "n1", 1, None)))
    assert "  goodput     at most " in (out := shown(paths, capfd))
    assert "(no step is reported so far)" in out


def test_lines_fit_a_terminal(paths: RunPaths) -> None:
    """On a terminal each fact is broken into lines of 80 columns; only paths and commands are longer."""
    write(paths, *(entry for number in range(5) for entry in preempted(number)))
    write_mark(paths, MarkName(10, 1, 0, 1), None, 4)
    leader, follower = pty.openpty()
    try:
        argv = [sys.executable, "-m", "hpc_elastic", "status", paths.root]
        subprocess.run(argv, stdout=follower, check=True, timeout=150)
        os.close(follower)
        data = b""
        while chunk := _read(leader):
            data += chunk
    finally:
        os.close(leader)
    lines = data.decode().splitlines()
    assert len(lines) > 5
    assert [] == [line for line in lines if len(line) > 80 and paths.root not in line and "\x1b" not in line]


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 65536)
    except OSError:  # the end, of a terminal
        return b""


def test_programs_get_the_status_as_json(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """The document has state, account and the facts for people; that of a folder has each run."""
    write(paths, *preempted(0))
    write_facts(paths, (1, 50.0, 2, 1), (1, 600.0, 2, 90))
    assert 0 == app.run(["status", "--json", paths.root])
    found = json.loads(capfd.readouterr().out)
    assert (1, "status", "requeued", 90) == (
        *(found["format"], found["kind"]),
        *(found["phase"], found["account"]["step"]),
    )
    assert {"label": "run", "text": paths.root} == found["facts"][0]
    assert 0 == app.run(["status", "--json", os.path.dirname(paths.root)])
    listed = json.loads(capfd.readouterr().out)
    assert ("runs", [paths.root]) == (listed["kind"], [one["run"] for one in listed["runs"]])
    assert 550.0 == listed["runs"][0]["account"]["seconds"]["training"]


def test_the_list_of_runs_tells_step_and_goodput(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """Behind the state of a run there is how far it is, and how much of its time has brought steps."""
    write(paths, *preempted(0))
    write_facts(paths, (1, 50.0, 2, 1), (1, 600.0, 2, 90))
    assert 0 == app.run(["status", os.path.dirname(paths.root)])
    assert "  step 90, goodput 79 %\n" in capfd.readouterr().out
