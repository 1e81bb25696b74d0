"""Goodput, the cost of stops, the starts and the pace of a run."""

from __future__ import annotations

import pytest

from hpc_elastic.account.account import Pace, account_of, pace_of, seconds_of_nodes
from hpc_elastic.account.facts import Doing, NodeUse, RunUse, WorkFact, encode_fact, parse_facts, use_of
from hpc_elastic.account.in_order import SubmitTime
from hpc_elastic.account.spans import Bucket, History
from hpc_elastic.record.journal import (
    OWN_SCRIPT,
    AfterDrain,
    Answer,
    Asked,
    Cause,
    Decision,
    Drained,
    DrainRequested,
    Entry,
    Epoch,
    EpochStarted,
    HangSuspected,
    MarkedCheckpoint,
    Member,
    Note,
    Record,
    Requeued,
    Role,
    RoundEnded,
    RoundFormed,
    RunEnded,
    StopAgreed,
)
from hpc_elastic.report.explain.words import use_text

FIRST, SECOND = Epoch(0, 0, 0, 0), Epoch(0, 0, 1, 0)
MEMBERS = (Member("a.1", "a", 2), Member("b.1", "b", 2))


def _records(*entries: tuple[float, Entry]) -> list[Record]:
    return [Record(number, at, "a", entry) for number, (at, entry) in enumerate(entries, start=1)]


def _fact(number: int, doing: Doing, at: float, known: int, step: int | None = None) -> WorkFact:
    return WorkFact(number, doing, at, at, "a.1", known, step)


def _round(number: int, epoch: Epoch, step: int | None = None, lost: tuple[str, ...] = ()) -> RoundFormed:
    checkpoint = None if step is None else MarkedCheckpoint(step, None)
    return RoundFormed(number, epoch, MEMBERS, "a", 1, checkpoint, lost)


CRASHED = _records(
    (100.0, EpochStarted(FIRST, "7", ("a", "b", "c"))),
    (110.0, _round(1, FIRST)),
    (250.0, RoundEnded(1, Cause.CRASH, ("b",), None, 10)),
    (260.0, _round(2, FIRST, 10)),
    (400.0, RunEnded(Decision.DONE, 0, "", None)),
)
CRASHED_FACTS = [
    _fact(1, Doing.STARTED, 112.0, 2),
    _fact(1, Doing.IMPORTED, 120.0, 2),
    _fact(1, Doing.STEP, 140.0, 2, 1),
    _fact(1, Doing.STEP, 240.0, 2, 21),
    _fact(1, Doing.GONE, 255.0, 3),
    _fact(2, Doing.STARTED, 262.0, 4),
    _fact(2, Doing.IMPORTED, 270.0, 4),
    _fact(2, Doing.STEP, 280.0, 4, 11),
    _fact(2, Doing.STEP, 380.0, 4, 31),
]


def test_what_comes_before_the_first_start_of_the_run_is_of_its_submission() -> None:
    """The script of a task may write a note before any agent has begun the run."""
    records = _records(
        (103.0, Note(FIRST, "task 7_1: its agents are started again")),
        (104.0, EpochStarted(FIRST, "7", ("a", "b"))),
        (110.0, _round(1, FIRST)),
        (130.0, RunEnded(Decision.DONE, 0, "", None)),
    )
    assert 30.0 == account_of(History(records, [], [SubmitTime(0, 100.0)])).wall_s


@pytest.mark.parametrize("wrong", ["a", "b"])
def test_a_clock_that_is_an_hour_ahead_costs_no_goodput(wrong: str) -> None:
    """The script of a task has the clock of its node; two nodes disagree, and the submission fits one."""
    off = {wrong: 3600.0}
    members = (Member("a.1@7_0-0-0", "a", 1), Member("b.1@7_1-0-0", "b", 1))
    records = [
        Record(1, 105.0 + off.get("a", 0.0), "a", EpochStarted(FIRST, "7", ())),
        Record(2, 110.0 + off.get("a", 0.0), "a", RoundFormed(1, FIRST, members, "a", 1, None)),
        Record(3, 141.0 + off.get("a", 0.0), "7_0", RunEnded(Decision.DONE, 0, "", None), Role.SCRIPT),
    ]
    facts = [
        WorkFact(1, doing, at + off.get(node, 0.0), at, f"{node}.1", 2, step)
        for doing, at, step in (
            (Doing.STARTED, 111.0, None),
            (Doing.IMPORTED, 112.0, None),
            (Doing.STEP, 115.0, 1),
            (Doing.STEP, 125.0, 11),
            (Doing.STEP, 140.0, 26),
        )
        for node in "ab"
    ]
    account = account_of(History(records, facts, [SubmitTime(0, 100.0)]))
    assert 41.0 == pytest.approx(account.wall_s, abs=2.5)
    assert account.goodput is not None
    assert 25 / 41 == pytest.approx(account.goodput, abs=0.05)


def test_a_local_run_waits_in_no_queue() -> None:
    """The time until its agents speak has another name; a run that was in Slurm once keeps the queue's."""
    account = account_of(History(CRASHED, CRASHED_FACTS, [SubmitTime(0, 40.0)]))
    assert "in the queue" == account.text_of(Bucket.QUEUED)
    starts = tuple(one._replace(facts=one.facts._replace(job_id="local-17")) for one in account.starts)
    local = account._replace(starts=starts)
    assert ("starting the job", "meeting") == (local.text_of(Bucket.QUEUED), local.text_of(Bucket.MEETING))
    assert "in the queue" == local._replace(starts=()).text_of(Bucket.QUEUED)


def test_a_crash_and_its_cost() -> None:
    """A crash costs the time from the last step until the work is where it was."""
    account = account_of(History(CRASHED, CRASHED_FACTS, [SubmitTime(0, 40.0)]))
    assert {
        Bucket.QUEUED: 60.0,
        Bucket.MEETING: 10.0 + 5.0,
        Bucket.STARTING: 2.0 + 2.0,
        Bucket.IMPORTING: 8.0 + 8.0,
        Bucket.LOADING: 20.0 + 10.0,
        Bucket.TRAINING: 100.0 + 50.0,
        Bucket.NOTICING: 10.0,
        Bucket.STOPPING: 5.0,
        Bucket.AGAIN: 50.0,
        Bucket.ENDING: 20.0,
    } == account.seconds
    assert (360.0, 150 / 360, 150 / 300) == (account.wall_s, account.goodput, account.goodput_on_nodes)
    (stop,) = account.stops
    assert (Cause.CRASH, ("b",), 21, 10, 11) == (
        *(stop.stop.cause, stop.stop.nodes, stop.stop.step, stop.stop.resumed),
        stop.lost_steps,
    )
    assert 10 + 5 + 5 + 2 + 8 + 10 + 50 == stop.seconds
    (cause,) = account.causes
    assert (Cause.CRASH, 1, 200.0) == (cause.cause, cause.times, cause.between_s)


@pytest.mark.parametrize(
    ("agreed", "saved", "lost"),
    [(None, 10, (11, True)), (-1, 10, (11, True)), (25, 10, (11, True)), (25, 25, (0, False))],
)
def test_a_killed_agent_leaves_steps_untold_up_to_the_one_to_stop_at(
    agreed: int | None, saved: int, lost: tuple[int, bool]
) -> None:
    """Workers that were to stop at a step have done none after it; where that was saved all are known."""
    stop = [] if agreed is None else [(145.0, StopAgreed(1, agreed))]
    drain = DrainRequested(Cause.PREEMPTION, "a", AfterDrain.LEAVE, "")
    records = _records(
        (100.0, EpochStarted(FIRST, "7", ("a",))),
        (110.0, _round(1, FIRST)),
        (144.0, drain),
        *stop,
        (150.0, Requeued(FIRST, Cause.PREEMPTION, "")),
        (160.0, EpochStarted(SECOND, "7", ("a",))),
        (170.0, _round(2, SECOND, saved)),
    )
    facts = [_fact(1, Doing.STARTED, 111.0, 2), _fact(1, Doing.STEP, 140.0, 2, 21)]
    account = account_of(History(records, facts))
    (one,) = account.stops
    assert lost == (one.lost_steps, one.lost_at_least)
    told = [*facts, _fact(1, Doing.GONE, 149.0, 3)]
    assert not account_of(History(records, told)).lost_at_least


def test_a_state_that_was_kept_in_memory_costs_no_steps() -> None:
    """The workers of the next round went on from step 21, which is newer than their checkpoint of step 10."""
    facts = [fact._replace(began=21) if fact.at == 280.0 else fact for fact in CRASHED_FACTS]
    assert facts != CRASHED_FACTS
    account = account_of(History(CRASHED, facts))
    (stop,) = account.stops
    assert (21, 0, 0) == (stop.stop.resumed, stop.lost_steps, account.lost_steps)


def test_steps_count_as_lost_once_the_next_round_has_told_where_it_begins() -> None:
    """Workers that tell where they begin may have a newer state in memory: until then a file is a bound."""
    told = [fact._replace(began=0) if fact.at == 140.0 else fact for fact in CRASHED_FACTS]
    (stop,) = account_of(History(CRASHED[:4], told[:6], now=275.0)).stops
    assert (10, True, None, 11) == (stop.stop.resumed, stop.stop.is_least, stop.lost_steps, stop.perhaps_lost)
    (stop,) = account_of(History(CRASHED[:4], told[:8], now=290.0)).stops
    assert (10, False, 11, 0) == (stop.stop.resumed, stop.stop.is_least, stop.lost_steps, stop.perhaps_lost)


def test_a_round_that_fails_before_its_first_step_does_not_settle_what_is_lost() -> None:
    """A state that is kept in memory outlives a round whose workers are killed as they start."""
    records = _records(
        (100.0, EpochStarted(FIRST, "7", ("a",))),
        (110.0, _round(1, FIRST)),
        (200.0, RoundEnded(1, Cause.CRASH, ("a",), None)),
        (210.0, _round(2, FIRST)),
        (220.0, RoundEnded(2, Cause.CRASH, ("a",), None)),
        (230.0, _round(3, FIRST)),
    )
    first, third = _fact(1, Doing.STEP, 150.0, 2, 5), _fact(3, Doing.STEP, 250.0, 6, 6)
    told = [first._replace(began=0), third._replace(began=5)]
    account = account_of(History(records, told, now=260.0))
    assert [(5, 0), (5, None)] == [(one.stop.resumed, one.lost_steps) for one in account.stops]
    assert 0 == account.lost_steps


@pytest.mark.parametrize(("decision", "lost"), [(Decision.DONE, 0), (Decision.CANCELLED, 11)])
def test_the_end_of_a_run_settles_what_is_lost(decision: Decision, lost: int) -> None:
    """A run that is done without another step has lost none; the memory of one that is cancelled is gone."""
    told = [fact._replace(began=0) if fact.at == 140.0 else fact for fact in CRASHED_FACTS[:6]]
    records = [*CRASHED[:4], Record(5, 400.0, "a", RunEnded(decision, 0, "", None))]
    (stop,) = account_of(History(records, told)).stops
    assert (lost, 0) == (stop.lost_steps, stop.perhaps_lost)


def test_steps_after_the_end_of_their_round_count() -> None:
    """Ranks that go on until they are ended have done their steps, which the run then has lost."""
    late = [_fact(1, Doing.STEP, 249.0, 3, 41) if fact.at == 240.0 else fact for fact in CRASHED_FACTS]
    account = account_of(History(CRASHED, late))
    assert (249.0, 41) == account.series.progress[1]
    assert 31 == account.causes[0].lost_steps


def test_a_node_that_stands_by_is_a_spare() -> None:
    """A node of the allocation outside of the round has the seconds of the round as a spare."""
    account = account_of(History(CRASHED, CRASHED_FACTS))
    nodes = seconds_of_nodes(account.series.spans)
    assert {"a", "b", "c"} == set(nodes)
    assert nodes["a"] == nodes["b"]
    in_rounds_s = (250.0 - 110.0) + (400.0 - 260.0)
    assert {Bucket.SPARE: in_rounds_s, Bucket.MEETING: 15.0, Bucket.STOPPING: 5.0} == nodes["c"]


def test_a_loss_behind_a_crash_is_called_a_loss() -> None:
    """Workers that fail for want of a lost peer are no crash: the next round names the lost node."""
    records = _records(
        (100.0, EpochStarted(FIRST, "7", ("a", "b"))),
        (110.0, _round(1, FIRST)),
        (200.0, RoundEnded(1, Cause.CRASH, ("a",), None)),
        (210.0, _round(2, FIRST, None, ("b",))),
    )
    (stop,) = account_of(History(records, now=250.0)).stops
    assert (Cause.NODE_LOSS, ("b",)) == (stop.stop.cause, stop.stop.nodes)


def test_a_start_has_the_steps_that_it_began_from_reached_and_saved() -> None:
    """Two starts from step 0 reach step 5 without a checkpoint."""
    records = _records(
        (100.0, EpochStarted(FIRST, "7", ("a",))),
        (110.0, _round(1, FIRST)),
        (200.0, Requeued(FIRST, Cause.PREEMPTION)),
        (300.0, EpochStarted(SECOND, "7", ("a",))),
        (310.0, _round(2, SECOND)),
        (390.0, Requeued(SECOND, Cause.PREEMPTION)),
    )
    facts = [_fact(number, Doing.STEP, at, known, 5) for number, at, known in ((1, 150.0, 2), (2, 350.0, 5))]
    account = account_of(History(records, facts))
    assert [(0, 5, None)] * 2 == [
        (start.facts.began, start.facts.reached, start.facts.saved) for start in account.starts
    ]
    assert 100.0 == account.seconds[Bucket.QUEUED]


def test_from_which_step_a_job_script_begins_is_not_known() -> None:
    """It goes on from a file of its own; a first step of 0 would tell of lost work."""
    script = RoundFormed(1, FIRST, (Member("a.0", "a", 1, OWN_SCRIPT),), "a", 0, None)
    records = _records(
        (100.0, EpochStarted(FIRST, "7", ("a",))),
        (110.0, script),
        (200.0, Requeued(FIRST, Cause.PREEMPTION)),
        (300.0, EpochStarted(SECOND, "7", ("a",))),
        (310.0, script._replace(number=2, epoch=SECOND)),
    )
    account = account_of(History(records, now=390.0))
    assert [(1, None)] * 2 == [(start.facts.rounds, start.facts.began) for start in account.starts]


def test_an_end_without_a_word_is_down_time() -> None:
    """A start whose records just end is down from its last line to the next start; its stop has no cause."""
    records = _records(
        (100.0, EpochStarted(FIRST, "7", ("a",))),
        (110.0, _round(1, FIRST)),
        (500.0, EpochStarted(SECOND, "7", ("a",))),
    )
    account = account_of(History(records, [_fact(1, Doing.STEP, 150.0, 2, 5)]))
    assert 350.0 == account.seconds[Bucket.DOWN]
    (stop,) = account.stops
    assert (None, 150.0, True) == (stop.stop.cause, stop.stop.at, stop.stop.left)


def test_workers_that_tell_nothing_have_no_goodput() -> None:
    """Without steps the time of a round is work as far as the agents know, and goodput is not known."""
    records = _records((100.0, EpochStarted(FIRST, "7", ("a",))), (110.0, _round(1, FIRST)))
    account = account_of(History(records, now=210.0))
    assert {Bucket.MEETING: 10.0, Bucket.WORKING: 100.0} == account.seconds
    assert account.goodput is None
    assert pytest.approx(100 / 110) == account.at_most


@pytest.mark.parametrize(("failure", "cost_s"), [({"silent_s": 60.0}, 70.0), ({}, 10.0), (None, 10.0)])
def test_a_hang_of_workers_that_tell_nothing_costs_their_silence(
    failure: dict[str, float] | None, cost_s: float
) -> None:
    """The time since their last sign of life is no work; a record without it says nothing of that."""
    records = _records(
        (100.0, EpochStarted(FIRST, "7", ("a",))),
        (110.0, _round(1, FIRST)),
        (200.0, HangSuspected(1, 1, "a", "rank 0")),
        (210.0, RoundEnded(1, Cause.HANG, ("a",), failure)),
        (220.0, _round(2, FIRST)),
        (320.0, RunEnded(Decision.DONE, 0, "", None)),
    )
    account = account_of(History(records))
    (stop,) = account.stops
    assert (cost_s, 210.0) == (stop.seconds, stop.stop.at)
    assert 210.0 - cost_s == account.seconds[Bucket.WORKING]
    assert 220.0 == account.wall_s


def test_a_user_who_goes_back_on_purpose_loses_no_steps_by_the_stop() -> None:
    """Only the steps behind the newest checkpoint were lost; later ones count from the step gone back to."""
    records = [
        *_records(
            (100.0, EpochStarted(FIRST, "7", ("a",))),
            (110.0, _round(1, FIRST)),
            (250.0, RoundEnded(1, Cause.CRASH, ("a",), None, 20)),
            (255.0, RunEnded(Decision.FAILED, 1, "", None)),
        ),
        Record(5, 300.0, "a", EpochStarted(Epoch(1, 0, 0, 0), "8", ("a",))),
        Record(6, 310.0, "a", _round(2, Epoch(1, 0, 0, 0), 5)),
        Record(7, 400.0, "a", RoundEnded(2, Cause.CRASH, ("a",), None, 5)),
        Record(8, 410.0, "a", _round(3, Epoch(1, 0, 0, 0), 5)),
    ]
    facts = [_fact(1, Doing.STEP, 140.0, 2, 1), _fact(1, Doing.STEP, 240.0, 2, 21)]
    facts += [_fact(2, Doing.STEP, 320.0, 6, 6), _fact(2, Doing.STEP, 390.0, 6, 9)]
    blamed, back = (account_of(History(records, facts, backs=backs)) for backs in ({}, {2: 5}))
    assert [(16, None), (4, None)] == [(one.lost_steps, one.stop.kept) for one in blamed.stops]
    assert [(1, 20), (4, None)] == [(one.lost_steps, one.stop.kept) for one in back.stops]


def test_steps_that_are_counted_anew_are_not_lost() -> None:
    """A program that counts its steps from 0 in each epoch of its data computes nothing again."""
    records = _records((100.0, EpochStarted(FIRST, "7", ("a",))), (110.0, _round(1, FIRST)))
    steps = ((120.0, 1), (160.0, 40), (200.0, 2))
    facts = [_fact(1, Doing.STEP, at, 2, step) for at, step in steps]
    account = account_of(History(records, facts))
    assert 80.0 == account.seconds[Bucket.TRAINING]


def test_a_held_run_waits() -> None:
    """The time after a run was held is no time in the queue, and the run goes on with its release."""
    records = _records(
        (100.0, EpochStarted(FIRST, "7", ("a",))),
        (110.0, RunEnded(Decision.HELD, 75, "", None)),
        (400.0, EpochStarted(SECOND, "7", ("a",))),
    )
    account = account_of(History(records, now=420.0))
    assert {Bucket.MEETING: 10.0 + 20.0, Bucket.HELD: 290.0} == account.seconds


def test_a_held_run_has_lost_what_is_not_durable() -> None:
    """Steps that nothing has saved are no goodput of a held run, and count as lost from step 0 on."""
    records = _records(
        (100.0, EpochStarted(FIRST, "7", ("a",))),
        (110.0, _round(1, FIRST)),
        (220.0, RoundEnded(1, Cause.CRASH, ("a",), None)),
        (230.0, RunEnded(Decision.HELD, 75, "", None)),
    )
    facts = [_fact(1, Doing.STEP, 120.0, 2, 18), _fact(1, Doing.STEP, 220.0, 2, 41)]
    account = account_of(History(records, facts, now=300.0))
    assert (0.0, 100.0) == (account.goodput, account.seconds[Bucket.LOST])
    assert 41 == account.lost_steps == account.series.unsaved


def test_the_time_after_an_end_is_no_part_of_the_run() -> None:
    """A run that is submitted again after it has failed has no time between the two."""
    records = _records(
        (100.0, EpochStarted(FIRST, "7", ("a",))),
        (110.0, RunEnded(Decision.FAILED, 1, "", None)),
        (900.0, EpochStarted(Epoch(1, 0, 0, 0), "8", ("a",))),
    )
    account = account_of(History(records, (), [SubmitTime(0, 90.0), SubmitTime(1, 880.0)], now=950.0))
    assert {Bucket.QUEUED: 10.0 + 20.0, Bucket.MEETING: 10.0 + 50.0} == account.seconds
    assert 770.0 == account.paused_s


def test_pace_counts_everything_that_went_wrong() -> None:
    """The pace is the new steps of all the time between the first and the newest one, restarts included."""
    pace = pace_of(account_of(History(CRASHED, CRASHED_FACTS)).series)
    assert pace is not None
    assert (30, 240.0, 150.0) == (pace.steps, pace.seconds, pace.training_s)
    assert pytest.approx([30 / 240, 90 / 240]) == [pace.per_s, pace.lost_share]


def test_a_script_that_ends_a_run_tells_nothing_of_the_agents() -> None:
    """When the batch script ends the run of silent agents, they were down since their last line."""
    records = _records((100.0, EpochStarted(FIRST, "7", ("a",))), (110.0, _round(1, FIRST)))
    records.append(Record(3, 300.0, "batch", RunEnded(Decision.FAILED, 1, "", None), Role.SCRIPT))
    account = account_of(History(records, [_fact(1, Doing.STEP, 150.0, 2, 5)]))
    assert 150.0 == account.seconds[Bucket.DOWN]


def test_a_mark_may_be_newer_than_any_line() -> None:
    """While workers run, the newest checkpoint counts as a step that is done now."""
    records = _records((100.0, EpochStarted(FIRST, "7", ("a",))), (110.0, _round(1, FIRST)))
    account = account_of(History(records, [_fact(1, Doing.STEP, 150.0, 2, 5)], newest_saved=40, now=200.0))
    assert (200.0, 40) == account.series.progress[-1]
    assert 40 == account.series.current
    assert 50.0 == account.seconds[Bucket.TRAINING]


def test_a_signal_that_no_slurm_sent_is_named() -> None:
    """A drain for a signal keeps the signal, as long as Slurm has not confirmed a preemption."""
    asked = Asked("SIGTERM", Answer.DENIES)
    records = _records(
        (100.0, EpochStarted(FIRST, "7", ("a",))),
        (110.0, _round(1, FIRST)),
        (150.0, DrainRequested(Cause.PREEMPTION, "a", AfterDrain.LEAVE, "", FIRST, asked=asked)),
        (160.0, Drained(FIRST, Cause.PREEMPTION, None, "", asked=asked)),
    )
    (stop,) = account_of(History(records)).stops
    assert "a SIGTERM that a user sent" == stop.stop.asker.text


GIB = 1 << 30


def _used(number: int, agent: str, at: float, use: NodeUse | None, doing: Doing = Doing.GONE) -> WorkFact:
    return WorkFact(number, doing, at, at, agent, 1, use=use)


def test_the_use_of_nodes_is_that_of_the_rounds_of_both_writers() -> None:
    """Of each round and node the newest line counts; the peak of memory is the highest of a node."""
    facts = [
        _used(1, "a.1", 100.0, None, Doing.STARTED),
        _used(1, "a.1", 160.0, NodeUse(100.0, 4, 2 * GIB, 8 * GIB), Doing.STEP),
        _used(1, "a.1", 200.0, NodeUse(200.0, 4, 2 * GIB, 8 * GIB)),
        _used(1, "b.7", 5.0, None, Doing.STARTED),
        _used(1, "b.7", 105.0, NodeUse(100.0, 4, 3 * GIB, 8 * GIB)),
        _used(2, "a.1", 210.0, None, Doing.STARTED),
    ]
    use = use_of(facts)
    assert RunUse(("a", "b"), 300.0, 800.0, 3 * GIB, "b", 8 * GIB) == use
    assert (
        "CPU time 5 min 0 s of 13 min 20 s (38 %), memory up to 3G of 8G with cached files; measured on a, b"
    ) == use_text(use)
    assert use == use_of(parse_facts(b"".join(map(encode_fact, facts))))


def test_of_the_use_only_what_is_known_is_told() -> None:
    """Without Slurm's count of CPUs there is no share, and without a control group no line at all."""
    facts = [_used(1, "a.1", 0.0, None, Doing.STARTED), _used(1, "a.1", 9.0, NodeUse(4.0))]
    assert "CPU time 4.0 s; measured on a" == use_text(use_of(facts))
    assert "memory up to 1.5G with cached files; measured on a" == use_text(
        use_of([_used(1, "a.1", 9.0, NodeUse(None, 4, GIB + GIB // 2))])
    )
    assert "" == use_text(use_of(facts[:1]))


@pytest.mark.parametrize(
    "use", ["[1]", '["x",1,1,1]', "[1,1.5,1,1]", "[-1,1,1,1]", "[1,1,-1,1]", "7", "[1,true,1,1]"]
)
def test_a_damaged_use_is_left_out(use: str) -> None:
    """The rest of the line counts."""
    line = encode_fact(_used(1, "a.1", 9.0, NodeUse(4.0, 1, 1, 1))).replace(b"[4.0,1,1,1]", use.encode())
    (fact,) = parse_facts(line)
    assert (None, 9.0) == (fact.use, fact.at)


def test_training_that_is_longer_than_its_time_loses_nothing() -> None:
    """Two clocks may differ by a moment: a share is never negative."""
    assert 0.0 == Pace(10, 100.0, 100.5).lost_share


def test_a_stop_with_an_unknown_loss_adds_no_steps_to_those_of_its_cause() -> None:
    """Workers that tell no step may have lost some, or none."""
    (cause,) = account_of(History(CRASHED, [])).causes
    assert (Cause.CRASH, 1, 0) == (cause.cause, cause.times, cause.lost_steps)


def test_memory_alone_tells_nothing_of_allocated_cpus() -> None:
    """An agent that cannot count CPU time has no share of it, and none of zero either."""
    use = use_of([_used(1, "a.1", 9.0, NodeUse(None, 4, GIB))])
    assert use is not None
    assert (None, None) == (use.cpu_s, use.of_cpu_s)
