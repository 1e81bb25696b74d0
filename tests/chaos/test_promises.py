"""The checks that scripts/chaos makes after each run: each finds the run that breaks its promise."""

from __future__ import annotations

import fcntl
import random
from pathlib import Path

import pytest
from chaos_lib import promises
from chaos_lib.course import killed_by_slurm
from chaos_lib.one_run import draw_shape
from chaos_lib.recovery import Strike, effects
from chaos_lib.summary import table
from chaos_lib.training import Mark, Shape

from hpc_elastic.account.account import account_of
from hpc_elastic.account.in_order import SubmitTime
from hpc_elastic.account.spans import History
from hpc_elastic.record.checkpoints import MarkName
from hpc_elastic.record.journal import (
    Cause,
    Decision,
    Entry,
    Epoch,
    EpochStarted,
    MarkedCheckpoint,
    Member,
    Record,
    RoundEnded,
    RoundFormed,
    RunEnded,
)
from hpc_elastic.record.state import RunState, fold

EPOCH = Epoch(0, 0, 0, 0)
MEMBERS = (Member("n1.1", "n1", 2),)
SHAPE = Shape("plain", "2", 100, 0.05, 20, max_restarts=1)
DONE = RunEnded(Decision.DONE, 0, "all workers succeeded", None)


def formed(number: int, step: int = 0) -> RoundFormed:
    """Return a round that goes on from a step."""
    return RoundFormed(number, EPOCH, MEMBERS, "n1", 1, MarkedCheckpoint(step, None) if step else None)


def ended(number: int) -> RoundEnded:
    """Return the end of a round by a crash."""
    return RoundEnded(number, Cause.CRASH, ("n1",), None)


def journal(*entries: Entry, apart_s: float = 10.0) -> list[Record]:
    """Return records that were written so far apart, the first at 0."""
    return [Record(place + 1, place * apart_s, "n1", entry) for place, entry in enumerate(entries)]


START = EpochStarted(EPOCH, "1", ("n1",))
GOOD = journal(START, formed(1), ended(1), formed(2, 40), DONE)
MARKS = [Mark(MarkName(20, 1, 0, 1), 12.0), Mark(MarkName(40, 1, 0, 1), 14.0)]


def state(records: list[Record]) -> RunState:
    """Return the state after some records."""
    return fold(RunState(), records)


def test_a_good_run_breaks_nothing() -> None:
    """A run that crashed once and is done keeps every promise."""
    assert [] == promises.journal(GOOD)
    assert [] == promises.steps(GOOD, MARKS, [])
    assert [] == promises.ending(state(GOOD), SHAPE, may_crash=1)
    assert [] == promises.result(state(GOOD), {"weights": 1}, {"weights": 1})
    assert [] == promises.job(state(GOOD), {"JobState": "COMPLETED"})
    assert [] == promises.job(state(GOOD), {"JobState": "PREEMPTED", "ExitCode": "0:0"})


def test_seconds_outside_the_account_are_found() -> None:
    """The spans of a run and of each of its nodes fill the time from its submission to its end."""
    history = History(GOOD, submissions=(SubmitTime(0, -5.0),))
    found = account_of(history)
    assert 45.0 == found.wall_s
    assert [] == promises.account(found, history)
    spans = found.series.spans
    less = found._replace(series=found.series._replace(spans=(*spans[:2], *spans[3:])))
    gap, node = promises.account(less, history)
    assert "has a gap or counts twice" in gap
    assert "the account of n1 has" in node
    late = history._replace(submissions=(SubmitTime(0, -7.0),))
    assert 2 == len(promises.account(found, late))
    assert 1 == len(promises.account(found, History(GOOD)))


def test_lost_and_invented_steps_are_found() -> None:
    """A round must go on from the newest checkpoint that was durable, and from one that exists."""
    (lost,) = promises.steps(journal(START, formed(1), ended(1), formed(2, 20), DONE), MARKS, [])
    assert "began at step 20, but step 40 was durable" in lost
    (invented,) = promises.steps(journal(START, formed(1), ended(1), formed(2, 60), DONE), MARKS, [])
    assert "which nobody had saved" in invented


def test_a_mark_of_the_last_moment_need_not_count() -> None:
    """What became durable while the round was being formed, or during a stall, may be missed."""
    late = [*MARKS, Mark(MarkName(60, 1, 0, 1), 25.0)]
    assert [] == promises.steps(GOOD, late, [])
    early = [*MARKS, Mark(MarkName(60, 1, 0, 1), 19.0)]
    assert 1 == len(promises.steps(GOOD, early, []))
    assert [] == promises.steps(GOOD, early, [(19.5, 30.0)])


def test_an_incomplete_journal_is_found() -> None:
    """A missing record and a round without an end are found."""
    (missing,) = promises.journal([GOOD[0], *GOOD[2:]])
    assert "records are missing" in missing
    endless = journal(START, formed(1), formed(2), DONE)
    assert ["round 1 has no end before round 2"] == promises.journal(endless)


@pytest.mark.parametrize(
    ("decision", "may_crash", "is_fine"),
    [
        (Decision.FAILED, 2, True),
        (Decision.HELD, 2, True),
        (Decision.FAILED, 1, False),
        (Decision.CANCELLED, 2, False),
    ],
)
def test_a_failure_must_be_explained(decision: Decision, may_crash: int, is_fine: bool) -> None:
    """A run may fail only when more workers were hit than it forgives."""
    records = journal(START, formed(1), ended(1), formed(2), ended(2), RunEnded(decision, 1, "crash", None))
    assert is_fine is (promises.ending(state(records), SHAPE, may_crash=may_crash) == [])


def test_a_run_without_an_ending_and_a_wrong_result_are_found() -> None:
    """Nothing that was cut short passes."""
    assert ["the run has no ending"] == promises.ending(state(GOOD[:-1]), SHAPE, may_crash=9)
    assert 1 == len(promises.result(state(GOOD), None, {"weights": 1}))
    assert 1 == len(promises.job(state(GOOD), {"JobState": "FAILED"}))
    assert 1 == len(promises.job(state(GOOD), {"JobState": "TIMEOUT", "ExitCode": "0:15"}))
    killed = {"JobState": "FAILED", "ExitCode": "0:9", "BatchHost": "n1", "NodeList": "n[1-3]"}
    assert 1 == len(promises.job(state(GOOD), killed))
    assert [] == promises.job(state(GOOD), {**killed, "NodeList": "n[2-3]"})


def test_what_is_left_behind_is_found(tmp_path: Path) -> None:
    """A held lock and an exception of our own are found, one of the training is not."""
    lock = tmp_path / "lock"
    assert [] == promises.lock(str(lock))
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert 1 == len(promises.lock(str(lock)))
    assert [] == promises.lock(str(lock))
    agents = tmp_path / "logs" / "agents"
    agents.mkdir(parents=True)
    trace = 'Traceback (most recent call last):\n  File "{}", line 1, in f\nValueError: x\n'
    (agents / "n1.log").write_text(trace.format("/home/me/train.py"))
    assert [] == promises.logs(tmp_path)
    (agents / "n2.log").write_text(trace.format("/env/hpc_elastic/agent/loop.py"))
    assert ["n2.log has a traceback of ours: ValueError: x"] == promises.logs(tmp_path)


def test_effects_are_told_apart() -> None:
    """Each fault owns what follows it until the next one; what nobody noticed is no disturbance."""
    strikes = [Strike("worker-kill", 19.0, "n1"), Strike("fs-stall", 33.0, "for 2 s")]
    killed, stalled = effects(strikes, GOOD[:-1])
    assert (1.0, 11.0) == (killed.noticed_s, killed.running_s)
    assert (None, None) == (stalled.noticed_s, stalled.running_s)


def test_a_round_that_does_not_hold_is_no_recovery() -> None:
    """What counts is the first round that goes on for a while, not the last one before the next fault."""
    records = journal(START, formed(1), ended(1), formed(2), ended(2), formed(3), apart_s=1.0)
    later = Record(7, 60.0, "n1", ended(3))
    again = Record(8, 61.0, "n1", formed(4))
    (effect,) = effects([Strike("worker-kill", 1.5, "n1")], [*records, later, again])
    assert 5.0 - 1.5 == effect.running_s


def test_the_same_seed_gives_the_same_runs() -> None:
    """What is run depends on the seed alone."""
    shapes = [
        [draw_shape(random.Random(f"7/{number}"), "plain", "step") for number in range(20)] for _ in range(2)
    ]
    assert shapes[0] == shapes[1]
    assert len(set(shapes[0])) > 5


def test_the_table_has_a_line_per_fault() -> None:
    """The summary is a Markdown table."""
    assert table([]).count("\n") == 1


def test_what_slurm_itself_has_killed_to_the_last_is_told_apart() -> None:
    """The step was aborted by srun, and the script's node taken for lost; one of both leaves a process."""
    aborted = "srun: Job step aborted: Waiting up to 7 seconds for job step to finish."
    killed = "[2026-11-26T20:27:55.000] Killing JobId=1069 StepId=batch due to failed node node2"
    assert killed_by_slurm("1069", aborted, killed)
    assert not killed_by_slurm("106", aborted, killed)
    assert not killed_by_slurm("1069", "", killed)
    assert not killed_by_slurm("1069", aborted, killed.replace("batch", "0"))
