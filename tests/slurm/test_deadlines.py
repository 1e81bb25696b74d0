"""How long workers have, by what Slurm says."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.record.journal import Answer, Cause, DrainExplained, Epoch
from hpc_elastic.record.why_left import EarlyNotice
from hpc_elastic.slurm.client import answers, deadlines
from hpc_elastic.slurm.client.deadlines import Site
from hpc_elastic.slurm.client.parse import between_s

RECORDED = Path(__file__).parent / "recorded" / "22.05"
CONFIG = answers.config((RECORDED / "scontrol_show_config.txt").read_text())
PARTITIONS = [
    answers.partition(line, "low")
    for line in (RECORDED / "scontrol_show_partition.txt").read_text().splitlines()
]
SITE = Site(kill_wait_s=30.0, grace_s=120.0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30 sec", 30),
        ("8", 8),
        (" 5 min ", 300),
        ("1 hour", 3600),
        ("00:02:00", 120),
        ("1-00:00:10", 86410),
        ("02:05", 125),
        ("UNLIMITED", None),
        ("NONE", None),
        ("3 parsecs", None),
        ("", None),
    ],
)
def test_times_as_slurm_prints_them(text: str, expected: float | None) -> None:
    """Numbers, units and clocks; anything else is no time."""
    assert expected == deadlines.seconds(text)


def test_a_recorded_site_is_read() -> None:
    """KillWait from the configuration, grace from the partition."""
    low, low0, *_ = PARTITIONS
    assert Site(5.0, 8.0) == deadlines.site_of(CONFIG, low)
    assert 0.0 == deadlines.site_of(CONFIG, low0).grace_s
    assert Site(5.0, 0.0) == deadlines.site_of(CONFIG, {})


def test_what_is_not_told_is_slurms_default() -> None:
    """KillWait is 30 s; nothing else is granted."""
    assert Site() == deadlines.site_of({}, {})


@pytest.mark.parametrize("name", ["SlurmctldParameters", "PreemptParameters"])
def test_other_settings_of_a_site(name: str) -> None:
    """Grace by QOS, a signal of the user's in place of SIGTERM."""
    config = {"PreemptType": "preempt/qos", name: "x,preempt_send_user_signal"}
    site = deadlines.site_of(config, {"GraceTime": "8"}, qos_grace_s=60.0)
    assert (60.0, True) == (site.grace_s, site.user_signal)
    assert 0.0 == deadlines.site_of(config, {"GraceTime": "8"}).grace_s


@pytest.mark.parametrize(("kill_wait_s", "expected"), [(30, 25), (120, 115), (8, 6), (1, 0.75)])
def test_the_time_after_a_signal_that_nobody_explains(kill_wait_s: float, expected: float) -> None:
    """KillWait without a margin, which is small where KillWait is."""
    assert expected == deadlines.stop_s(Site(kill_wait_s=kill_wait_s))


def job(**fields: str) -> dict[str, str]:
    """Return the fields of a running job with some changed."""
    usual = {"JobState": "RUNNING", "Reason": "None", "Restarts": "0", "PreemptTime": "None"}
    return {**usual, "EndTime": "2026-11-21T20:00:00", **fields}


@pytest.mark.parametrize(
    ("fields", "cause", "words", "left_s"),
    [
        (
            {"PreemptTime": "2026-02-28T23:59:50", "EndTime": "2026-03-01T00:00:20"},
            Cause.PREEMPTION,
            "preempted, with grace until 00:00:20",
            30 + 25,
        ),
        ({"PreemptTime": "2026-02-28T23:59:50", "EndTime": "Unknown"}, Cause.PREEMPTION, "grace", 120 + 25),
        ({}, None, "a user has sent the signal", None),
        ({"JobState": "COMPLETING", "Reason": "TimeLimit"}, Cause.TIME_LIMIT, "time limit is reached", 25),
        ({"JobState": "COMPLETING", "Reason": "NodeDown"}, Cause.NODE_LOSS, "node of the job is down", 25),
        ({"JobState": "COMPLETING"}, Cause.CANCEL, "the job was cancelled", 25),
        ({"JobState": "COMPLETING", "Restarts": "1"}, Cause.PREEMPTION, "the job is requeued", 25),
        ({"JobState": "COMPLETING", "PreemptTime": "2026-11-21T20:00:00"}, Cause.CANCEL, "was cancelled", 25),
        ({"JobState": "PREEMPTED"}, Cause.PREEMPTION, "preempted, and its grace is over", 25),
        ({"JobState": "COMPLETING", "Reason": "Odd"}, Cause.PREEMPTION, "(Slurm's reason: Odd)", 25),
    ],
)
def test_why_a_job_is_signalled(
    fields: dict[str, str], cause: Cause | None, words: str, left_s: float | None
) -> None:
    """One signal, many reasons: the job's state tells them apart, and how long there is."""
    why = deadlines.why(job(**fields), 0, SITE)
    assert (cause, left_s) == (why.cause, why.left_s)
    assert words in why.words


@pytest.mark.parametrize(
    ("grace_s", "since_s", "cause", "words"),
    [
        (0.0, 0.0, Cause.PREEMPTION, "preempted, without grace"),
        (120.0, 0.2, Cause.CANCEL, "the job was cancelled"),
        (120.0, 119.9, Cause.CANCEL, "the job was cancelled"),
        (120.0, 120.0, Cause.PREEMPTION, "preempted, and its grace is over"),
        (1.0, 1.0, Cause.PREEMPTION, "preempted, and its grace is over"),
    ],
)
def test_a_job_that_ends_in_the_second_of_its_preemption(
    grace_s: float, since_s: float, cause: Cause, words: str
) -> None:
    """Slurm shows the same of one that was cancelled then; the signal that began its grace tells which."""
    fields = job(JobState="COMPLETING", PreemptTime="2026-11-21T20:00:00")
    why = deadlines.why(fields, 0, Site(grace_s=grace_s), since_s=since_s)
    assert (cause, words) == why[:2]


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"JobState": "COMPLETING", "Restarts": "1"}, Cause.NODE_LOSS),
        ({"JobState": "COMPLETING", "Reason": "TimeLimit"}, Cause.TIME_LIMIT),
        ({"JobState": "COMPLETING"}, Cause.CANCEL),
        ({}, None),
    ],
    ids=["requeued", "time limit", "cancelled", "running"],
)
def test_why_slurm_requeued_matters_for_a_requeued_job_only(
    fields: dict[str, str], cause: Cause | None
) -> None:
    """What was told of another start explains nothing else."""
    assert cause is deadlines.why(job(**fields), 0, SITE, told=Cause.NODE_LOSS).cause
    is_unnamed = deadlines.why(job(**fields), 0, SITE).answer is Answer.REQUEUES
    assert is_unnamed == (cause is Cause.NODE_LOSS)
    assert Answer.REQUEUES is not deadlines.why(job(**fields), 0, SITE, told=Cause.NODE_LOSS).answer


DATES = st.datetimes(min_value=dt.datetime(2000, 1, 1), max_value=dt.datetime(2100, 1, 1))  # noqa: DTZ001


@given(DATES, DATES)
def test_the_time_between_two_dates(first: dt.datetime, last: dt.datetime) -> None:
    """As the calendar has it, over leap years; never negative."""
    first, last = first.replace(microsecond=0), last.replace(microsecond=0)
    expected = max(0.0, (last - first).total_seconds())
    assert expected == between_s(first.isoformat(), last.isoformat())


def test_each_year_has_its_days() -> None:
    """Over the years of a century, and over one that is no leap year."""
    for year in range(1990, 2111):
        days = 366 if year % 4 == 0 and year != 2100 else 365
        assert days * 86400.0 == between_s(f"{year}-01-01T00:00:00", f"{year + 1}-01-01T00:00:00")


def test_the_slowest_but_for_one_in_a_hundred() -> None:
    """Few samples: the slowest of all."""
    assert (None, 3.0) == (deadlines.p99([]), deadlines.p99([1.0, 3.0, 2.0]))
    assert 198.0 == deadlines.p99([float(number) for number in range(1, 201)])


def test_what_a_drain_needs() -> None:
    """Nothing is known without a measurement; the longer of saves and drains counts, and some more."""
    assert deadlines.needed_s([], []) is None
    assert 100 * 1.25 + 10 == deadlines.needed_s([100.0, 20.0], [30.0])
    assert 200 * 1.25 == deadlines.needed_s([100.0], [200.0])


@pytest.mark.parametrize(("save_s", "expected"), [(1.0, 120), (200.0, 260), (200.1, 261), (9000.0, 3600)])
def test_when_the_next_start_is_warned(save_s: float, expected: float) -> None:
    """Never later than by default, and at most a quarter of the time limit ahead."""
    assert expected == deadlines.warning_lead_s([save_s], [], default_s=120.0, limit_s=14400.0)


@pytest.mark.parametrize(
    ("warning_s", "needed", "left_s", "expected"),
    [(90, None, 14400, 90), (90, 600, 14400, 600), (90, 5, 14400, 90), (90, None, 60, 15), (0, None, 60, 0)],
)
def test_when_a_drain_begins_by_itself(
    warning_s: float, needed: float | None, left_s: float, expected: float
) -> None:
    """As early as the workers need; but a short job is not all drain."""
    assert expected == deadlines.begin_before_s(warning_s, needed, left_s)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2 days", 172800),
        ("3 hours", 10800),
        ("1 min", 60),
        ("1-02:03:04", 93784),
        ("0", 0),
        ("1:2:3:4", None),
        ("-5", None),
        ("2 weeks", None),
    ],
)
def test_each_part_and_unit_of_a_time_counts(text: str, expected: float | None) -> None:
    """Days, hours, minutes, seconds."""
    assert expected == deadlines.seconds(text)


def test_what_a_site_grants_where_several_settings_tell() -> None:
    """The grace of a QOS counts only where preemption goes by it."""
    config = {"KillWait": "0 sec"}
    assert Site(0.0, 8.0) == deadlines.site_of(config, {"GraceTime": "8"}, qos_grace_s=60.0)
    assert Site(0.0, 0.0) == deadlines.site_of({**config, "PreemptType": "preempt/qos"}, {})
    assert (30.0, 0.0, False) == tuple(Site())


def test_the_margin_of_kill_wait() -> None:
    """A quarter of it, and five seconds at most."""
    assert [0.0, 2.5, 5.0, 5.0] == [deadlines.margin_s(wait_s) for wait_s in (0.0, 10.0, 20.0, 21.0)]


def test_dates_that_are_none() -> None:
    """Then nothing is known; one date after itself is no time."""
    date = "2026-11-21T20:00:00"
    assert [None, None] == [between_s(date, "Unknown"), between_s("", date)]
    assert 0.0 == between_s(date, date)
    assert 1.0 == between_s(date, "2026-11-21T20:00:01")


def test_which_sample_is_the_slowest_but_for_one_in_a_hundred() -> None:
    """The next one with each hundred."""
    cases = {1: 1.0, 99: 99.0, 100: 99.0, 101: 100.0, 200: 198.0, 201: 199.0}
    for count, expected in cases.items():
        assert expected == deadlines.p99([float(number) for number in range(count, 0, -1)])


def test_a_warning_ahead_without_measurements() -> None:
    """What holds by default, and drains count as saves do."""
    assert 120.0 == deadlines.warning_lead_s([], [], default_s=120.0, limit_s=14400.0)
    assert 250.0 == deadlines.warning_lead_s([], [200.0], default_s=120.0, limit_s=14400.0)
    assert 120.0 == deadlines.warning_lead_s([], [200.0], default_s=120.0, limit_s=400.0)


@pytest.mark.parametrize(
    ("limit_s", "left_s", "warning_s", "needed", "before_s"),
    [
        (120.0, 118.0, 90.0, None, 30.0),  # lowered from 10 min: half a minute of it is for the end
        (120.0, 118.0, 90.0, 11.0, 30.0),
        (120.0, 61.0, 90.0, 30.0, 30.0),
        (120.0, 118.0, 90.0, 31.0, None),  # a save does not fit into that
        (120.0, 60.0, 90.0, None, None),  # half of it is over
        (600.0, 155.0, 90.0, None, None),  # as it is meant
        (200.0, 156.0, 90.0, None, None),  # earlier than Slurm warns: somebody has sent the signal
        (200.0, 155.0, 90.0, None, 50.0),
        (60.0, 59.0, 10.0, None, 10.0),
    ],
)
def test_a_warning_may_come_too_early(
    limit_s: float, left_s: float, warning_s: float, needed: float | None, before_s: float | None
) -> None:
    """It is held where most of a start would be spent on its end, and a save fits in later."""
    found = deadlines.early_warning(limit_s, left_s, warning_s, needed)
    assert (None if before_s is None else EarlyNotice(left_s, before_s)) == found


@pytest.mark.parametrize(
    ("nodes", "cause"),
    [("n2", Cause.NODE_LOSS), ("n[1-2]", Cause.LAUNCH_FAILURE), ("", Cause.LAUNCH_FAILURE)],
)
def test_a_script_that_died_with_its_node_was_not_killed(nodes: str, cause: Cause) -> None:
    """Slurm goes on with the other nodes for a moment, and then ends the job for want of its script."""
    fields = job(JobState="COMPLETING", Reason="JobLaunchFailure", NodeList=nodes)
    why = deadlines.why(fields, 0, SITE, batch_host="n1")
    assert (cause, deadlines.stop_s(SITE)) == (why.cause, why.left_s)
    assert not why.words.startswith("Slurm")  # the timeline has them behind "Slurm says: "
    assert DrainExplained(Epoch(0, 0, 0, 0), cause, why.words, answer=why.answer).is_end_of_script
    assert Cause.LAUNCH_FAILURE is deadlines.why(fields, 0, SITE).cause
