"""What an agent hears from Slurm beside signals, from a Slurm that answers as it is told."""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.clock import Clock, SystemClock
from hpc_elastic.errors import SlurmCommandError, SlurmError, SlurmNotFoundError
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.checkpoints import MarkName, write_mark
from hpc_elastic.record.journal import Cause, Drained, Epoch, EpochStarted
from hpc_elastic.record.run_log import open_log
from hpc_elastic.record.why_left import EarlyNotice, Notice
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.client.deadlines import Site
from hpc_elastic.slurm.client.environment import SlurmEnv
from hpc_elastic.slurm.client.grace_times import keep_site, learn_site, read_site, refresh_site
from hpc_elastic.slurm.end import requeue
from hpc_elastic.slurm.run_jobs.run_files import drain_times
from hpc_elastic.slurm.watch import job_watch
from hpc_elastic.slurm.watch.job_watch import JobPlace, JobWatch, WatchOptions, place_of
from hpc_elastic.testing.clock import FakeClock
from hpc_elastic.testing.waiting import wait_until

LIMIT_S = 120.0
CONFIG = "KillWait = 20 sec\nPreemptType = preempt/partition_prio\n"
LOW = {"PartitionName": "low", "GraceTime": "60", "PreemptMode": "REQUEUE"}


class Answers(Slurm):
    """A Slurm that says what a test wants, and counts the questions."""

    def __init__(self, job: dict[str, str], left: Sequence[float | None] = ()) -> None:
        super().__init__({})
        self.job = dict(job)
        self.left = list(left)
        self.asked: list[str] = []
        self.draining: dict[str, str] = {}
        self.requeued: list[str] = []
        self.was_requeued, self.waits_for_requeue = threading.Event(), False
        self.goes_away_after: int | None = None  # how many questions about the limit

    @property
    def is_away(self) -> bool:
        """Whether slurmctld does not answer."""
        return self.goes_away_after is not None and self.asked.count("left") > self.goes_away_after

    def show_job(self, job_ref: str) -> dict[str, str] | None:
        """Return the job."""
        self.asked.append(f"job {job_ref}")
        if self.is_away:
            raise SlurmCommandError(("scontrol",), 1, "Unable to contact slurm controller (connect failure)")
        return {"Restarts": "0", "Reason": "None", "PreemptTime": "None", "Partition": "low", **self.job}

    def time_left_s(self, job_ref: str) -> float | None:  # noqa: ARG002 - there is one job
        """Return the next answer."""
        self.asked.append("left")
        if self.is_away:
            raise SlurmCommandError(("squeue",), 1, "Unable to contact slurm controller (connect failure)")
        if not self.left:
            raise SlurmNotFoundError("squeue")
        return self.left.pop(0)

    def show_config(self) -> str:
        """Return a configuration."""
        self.asked.append("config")
        assert not self.waits_for_requeue or self.was_requeued.wait(LIMIT_S)
        return CONFIG

    def show_partition(self, name: str) -> dict[str, str]:
        """Return a partition."""
        self.asked.append(f"partition {name}")
        return LOW

    def requeue(self, job_ref: str, *, hold: bool = False) -> None:
        """Take a job back."""
        assert not hold
        self.requeued.append(job_ref)
        self.was_requeued.set()

    def draining_nodes(self, names: Sequence[str]) -> dict[str, str]:
        """Return the nodes that are being drained."""
        self.asked.append(f"nodes {','.join(names)}")
        return self.draining


class Heard:
    """A watch, and what has been heard of it."""

    def __init__(
        self,
        paths: RunPaths,
        slurm: Slurm,
        clock: Clock | None = None,
        warning_s: float = 10.0,
        hands_back: bool = True,
        **place: object,
    ) -> None:
        self._woken = threading.Semaphore(0)
        self._notices: deque[Notice] = deque()
        self.held_up = 0.0
        self.slurm = slurm
        job = JobPlace(paths, "7", 0, ("n1", "n2"), None)._replace(**place)  # type: ignore[arg-type]
        options = WatchOptions(warning_s=warning_s, node_drain=True, hands_back=hands_back)
        self.watch = JobWatch(job, options, slurm, clock or SystemClock(), self)

    def hear(self, notice: Notice) -> None:
        """Take note of a notice."""
        self._notices.append(notice)
        self._woken.release()

    def wake(self) -> None:
        """Take note that a question is over."""
        self._woken.release()

    def take(self) -> Notice | None:
        """Return the next notice, None if there is none yet."""
        return self._notices.popleft() if self._notices else None

    def held_up_s(self) -> float:
        """Return for how long the agent's loop has been held up [s]."""
        return self.held_up

    def next(self) -> Notice:
        """Wait for the next notice; the end of a question wakes as well."""
        while (told := self.take()) is None:
            assert self._woken.acquire(timeout=LIMIT_S)
        return told


Listen = Callable[..., Heard]


@pytest.fixture
def listen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Listen]:
    """Return a function that makes watches in a hurry; all are closed afterwards."""
    for name, seconds in (("_SETTLE_S", 0.0), ("_WHY_PAUSE_S", 0.001), ("NODE_LOOK_S", 0.01)):
        monkeypatch.setattr(job_watch, name, seconds)
    with ExitStack() as stack:

        def new(slurm: Slurm, clock: Clock | None = None, **changes: Any) -> Heard:
            heard = Heard(RunPaths(tmp_path), slurm, clock, **changes)
            stack.callback(heard.watch.close)
            return heard

        yield new


def test_why_a_signal_came(listen: Listen) -> None:
    """The job's state is asked for until it shows; what the site grants is kept in the run directory."""
    heard = listen(Answers({"JobState": "COMPLETING", "Reason": "TimeLimit"}))
    heard.watch.ask_why(100.0, is_warning=False)
    told = heard.next()
    assert Notice(Cause.TIME_LIMIT, "the time limit is reached", 100.0 + 15, explains=True) == told
    assert Site(20.0, 60.0) == read_site(heard.watch._place.paths)
    assert heard.take() is None


def test_a_preemption_that_is_cancelled_at_once(listen: Listen) -> None:
    """PreemptTime and EndTime are the same second, as where there is no grace; the answers are in order."""
    slurm = Answers({"PreemptTime": "2026-11-21T20:00:00", "EndTime": "2026-11-21T20:01:00"})
    slurm.job["JobState"] = "RUNNING"
    heard = listen(slurm)
    heard.watch.ask_why(100.0, is_warning=False)
    told = heard.next()
    assert (Cause.PREEMPTION, "preempted, with grace until 20:01:00") == told[:2]
    slurm.job |= {"JobState": "COMPLETING", "EndTime": "2026-11-21T20:00:00"}
    heard.watch.ask_why(100.2, is_warning=False)
    told = heard.next()
    assert (Cause.CANCEL, "the job was cancelled", 115.2) == told[:3]
    slurm.job |= {"PreemptTime": "2026-11-21T20:01:00", "EndTime": "2026-11-21T20:01:00"}
    heard.watch.ask_why(160.0, is_warning=False)
    told = heard.next()
    assert (Cause.PREEMPTION, "preempted, and its grace is over") == told[:2]


def test_a_signal_that_slurm_knows_nothing_of(listen: Listen, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while that is the answer: the job runs on, and nothing of the time changes."""
    monkeypatch.setattr(job_watch, "WHY_PATIENCE_S", 0.01)
    heard = listen(Answers({"JobState": "RUNNING"}))
    heard.watch.ask_why(100.0, is_warning=False)
    told = heard.next()
    assert (Cause.PREEMPTION, None, True) == (told.cause, told.until, told.explains)
    assert "a user has sent the signal" in told.detail


class Busy(Answers):
    """A Slurm whose controller does not answer the first questions."""

    def __init__(self, job: dict[str, str], failures: int) -> None:
        super().__init__(job)
        self.failures = failures

    def show_job(self, job_ref: str) -> dict[str, str] | None:
        """Answer late."""
        if self.failures:
            self.failures -= 1
            raise SlurmError("scontrol: Socket timed out on send/recv operation")
        return super().show_job(job_ref)


def test_a_busy_controller_is_asked_again(listen: Listen) -> None:
    """In a wave of preemptions it does not answer at once."""
    heard = listen(Busy({"JobState": "COMPLETING", "Reason": "TimeLimit"}, failures=3))
    keep_site(heard.watch._place.paths, Site(20.0))
    heard.watch.ask_why(100.0, is_warning=False)
    told = heard.next()
    assert (Cause.TIME_LIMIT, 115.0) == (told.cause, told.until)


def test_without_an_answer_the_settings_of_the_site_hold(
    listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How long Slurm waits before it kills is known from the submission, not only from an answer now."""
    monkeypatch.setattr(job_watch, "WHY_PATIENCE_S", 0.01)
    heard = listen(Busy({}, failures=10**6))
    heard.watch._tell_why(100.0, False)
    assert heard.take() is None  # nothing is known
    keep_site(heard.watch._place.paths, Site(kill_wait_s=120.0))
    heard.watch.ask_why(100.0, is_warning=False)
    told = heard.next()
    assert (215.0, True) == (told.until, told.explains)
    assert "no answer; SIGKILL may follow 120 s after SIGTERM" == told.detail


def test_a_warning_may_be_a_preemption(listen: Listen) -> None:
    """Where a site has preemption send the signal of --signal; else the warning is what it seems."""
    slurm = Answers({"JobState": "RUNNING"})
    heard = listen(slurm)
    heard.watch._tell_why(100.0, True)
    assert heard.take() is None
    slurm.job |= {"PreemptTime": "2026-11-21T20:00:00", "EndTime": "2026-11-21T20:00:40"}
    heard.watch.ask_why(100.0, is_warning=True)
    told = heard.next()
    assert (Cause.PREEMPTION, 100.0 + 40 + 15) == (told.cause, told.until)


PREEMPTED = {"JobState": "RUNNING", "PreemptTime": "2026-11-21T20:00:00", "EndTime": "2026-11-21T20:00:40"}


@pytest.mark.parametrize(
    ("job", "left", "is_told", "has_end"),
    [
        (PREEMPTED, [40.0], True, True),
        (PREEMPTED, [None], True, False),
        (PREEMPTED, [], False, False),  # Slurm does not answer
        ({"JobState": "RUNNING"}, [40.0], False, False),
    ],
)
def test_a_grace_that_began_before_the_agent_is_told(
    listen: Listen, job: dict[str, str], left: list[float | None], *, is_told: bool, has_end: bool
) -> None:
    """With its end, where Slurm knows one."""
    heard = listen(Answers(job, left))
    assert is_told == heard.watch._tell_grace()
    told = heard.take()
    assert is_told == (told is not None)
    if told is not None:
        assert (Cause.PREEMPTION, has_end) == (told.cause, told.until is not None)


@pytest.mark.parametrize(("left_s", "until"), [(40.0, 1055.0), (0.0, 1015.0), (-3.0, 1015.0)])
def test_a_grace_ends_when_slurm_kills(listen: Listen, left_s: float, until: float) -> None:
    """KillWait after the end of the grace, less what is kept back; a grace that is over has ended now."""
    clock = FakeClock(1000.0)
    heard = listen(Answers(PREEMPTED, [left_s]), clock)
    assert heard.watch._tell_grace()
    told = heard.take()
    assert told is not None
    assert until == told.until


class CountingClock(SystemClock):
    """A clock that counts how often it is read."""

    def __init__(self) -> None:
        self.reads = 0

    def monotonic(self) -> float:
        """Return the time [s]."""
        self.reads += 1
        return super().monotonic()


def test_a_watch_without_a_question_sleeps(listen: Listen) -> None:
    """It reads the clock a few times for a question, and not for ever in between."""
    clock = CountingClock()
    heard = listen(Answers({"JobState": "COMPLETING", "Reason": "TimeLimit"}), clock)
    for _ in range(5):
        heard.watch.ask_why(100.0, is_warning=False)
        heard.next()
    heard.watch.close()
    assert clock.reads < 100


def looks(heard: Heard, clock: FakeClock) -> list[float]:
    """Look at the limit until the drain begins; return how long it was to the end each time [s]."""
    ends_at, found = clock.monotonic() + 400.0, []
    while True:
        found.append(ends_at - clock.monotonic())
        look_at = heard.watch._look_at_limit()
        if look_at == float("inf"):
            return found
        clock.advance(look_at - clock.monotonic())


def test_a_drain_begins_before_the_end(listen: Listen) -> None:
    """The end is asked for once, and again when it comes near: it may have been moved."""
    clock, slurm = FakeClock(), Answers({"JobState": "RUNNING"}, left=[400.0, 205.0, 107.5, 60.0, 15.0])
    heard = listen(slurm, clock)
    assert [400.0, 205.0, 107.5, 58.75, 18.75, 13.75] == looks(heard, clock)
    told = heard.next()
    assert (Cause.TIME_LIMIT, False) == (told.cause, told.explains)
    assert told.detail.startswith("the time limit, ")
    assert 5 == slurm.asked.count("left")


def test_the_end_that_slurm_has_told_is_not_asked_for(listen: Listen) -> None:
    """From Slurm 23.02 on it is in the environment; after that Slurm is asked whether it was moved."""
    clock, slurm = FakeClock(), Answers({"JobState": "RUNNING"}, left=[9100.0])
    heard = listen(slurm, clock, end_time_s=clock.wall() + 10_000)
    clock.advance(heard.watch._look_at_limit() - clock.monotonic())
    assert "left" not in slurm.asked
    heard.watch._look_at_limit()
    assert ["left"] == slurm.asked[-1:]


def test_a_lowered_limit_of_which_nobody_warns_is_noticed(listen: Listen) -> None:
    """Slurm is asked every quarter of an hour: a script of a user's own may ask for no warning."""
    clock, slurm = (
        FakeClock(),
        Answers({"JobState": "RUNNING"}, left=[40_000.0, 1000.0, 505.0, 257.5, 133.75]),
    )
    heard = listen(slurm, clock)
    assert clock.monotonic() + 900.0 == heard.watch._look_at_limit()
    clock.advance(900.0)
    while (look_at := heard.watch._look_at_limit()) != float("inf"):
        clock.advance(look_at - clock.monotonic())
    assert "the time limit, 10 s from now" == heard.next().detail


@pytest.mark.parametrize("told_by", ["squeue", "the environment"])
def test_a_drain_begins_before_the_end_though_slurm_is_away(listen: Listen, told_by: str) -> None:
    """What was told last holds: no step is lost because slurmctld does not answer just then."""
    clock, slurm = FakeClock(), Answers({"JobState": "RUNNING"}, left=[400.0])
    heard = listen(slurm, clock, end_time_s=None if told_by == "squeue" else clock.wall() + 400.0)
    slurm.goes_away_after = 1 if told_by == "squeue" else 0
    assert 10.0 == pytest.approx(looks(heard, clock)[-1])
    told = heard.next()
    assert (Cause.TIME_LIMIT, "the time limit, 10 s from now") == told[:2]
    assert told.until is not None
    assert told.until > clock.monotonic() + 10.0


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"time": "00:06:40"}, 10.0),
        ({"time": 7}, 10.0),
        ({"time": "UNLIMITED"}, None),
        ({"time": "00:06:40", "sbatch": {"time-min": "00:01:00"}}, None),
        ({"time": "soon"}, None),
        ({}, None),
    ],
    ids=str,
)
def test_the_limit_of_the_submission_holds_where_slurm_has_never_answered(
    listen: Listen, tmp_path: Path, spec: dict[str, object], expected: float | None
) -> None:
    """Slurmctld was gone before the first question; what the submission leaves open is asked for again."""
    clock, slurm = FakeClock(), Answers({"JobState": "RUNNING"})
    slurm.goes_away_after = 0
    (tmp_path / "job.json").write_text(json.dumps({"format": 1, "spec": spec}))
    heard = listen(slurm, clock)
    if expected is None:
        assert clock.monotonic() + 60.0 == heard.watch._look_at_limit()
        return
    clock.advance(5.0)  # the workers are started
    while (look_at := heard.watch._look_at_limit()) != float("inf"):
        clock.advance(look_at - clock.monotonic())
    assert (Cause.TIME_LIMIT, "the time limit, 10 s from now") == heard.next()[:2]


def test_an_answer_takes_the_place_of_the_submissions_limit(listen: Listen, tmp_path: Path) -> None:
    """An administrator may have moved it."""
    clock, slurm = FakeClock(), Answers({"JobState": "RUNNING"}, left=[1000.0])
    slurm.goes_away_after = 0
    (tmp_path / "job.json").write_text(json.dumps({"format": 1, "spec": {"time": "00:06:40"}}))
    heard = listen(slurm, clock)
    look_at = heard.watch._look_at_limit()
    assert clock.monotonic() + 195.0 == look_at
    slurm.goes_away_after = None
    clock.advance(look_at - clock.monotonic())
    assert clock.monotonic() + 495.0 == heard.watch._look_at_limit()


LOWERED = {"JobState": "RUNNING", "StartTime": "2026-11-21T20:00:00", "EndTime": "2026-11-21T20:02:00"}


def warned(heard: Heard, clock: FakeClock) -> Notice:
    """Let the warning of Slurm come, and be answered; return what is told."""
    heard.watch._tell_why(clock.monotonic(), True)
    told = heard.take()
    assert told is not None
    return told


@pytest.mark.parametrize("finds_out", ["this node", "another node"])
def test_a_lowered_limit_moves_the_drain_by_the_clock(listen: Listen, finds_out: str) -> None:
    """The warning that shows it is held: the end is looked at now, and the new limit says how early."""
    clock, slurm = FakeClock(), Answers(LOWERED, left=[1200.0])
    heard = listen(slurm, clock, warning_s=60.0)
    old = heard.watch._look_at_limit()
    assert old > clock.monotonic() + 110
    clock.advance(10.0)
    ends_at = clock.monotonic() + 110.0
    if finds_out == "this node":
        slurm.left = [110.0]
        assert EarlyNotice(110.0, 30.0) == warned(heard, clock).early
    else:
        heard.watch.hear_limit(110.0)
    assert heard.watch._limit_at == clock.monotonic()
    slurm.left = [110.0, 70.0, 40.0]
    while (look_at := heard.watch._look_at_limit()) != float("inf"):
        clock.advance(look_at - clock.monotonic())
    assert (Cause.TIME_LIMIT, "the time limit, 30 s from now") == heard.next()[:2]
    assert 30.0 == ends_at - clock.monotonic()


def test_a_lowered_limit_lets_a_short_start_be_used(listen: Listen) -> None:
    """Of two minutes a quarter is kept for the end, though it was ten minutes at the first look."""
    clock, slurm = FakeClock(), Answers(LOWERED, left=[600.0])
    heard = listen(slurm, clock, warning_s=90.0)
    heard.watch._look_at_limit()
    slurm.left = [120.0]
    assert EarlyNotice(120.0, 30.0) == warned(heard, clock).early
    slurm.left = [120.0, 75.0, 40.0]
    while (look_at := heard.watch._look_at_limit()) != float("inf"):
        clock.advance(look_at - clock.monotonic())
    assert "the time limit, 30 s from now" == heard.next().detail


def test_a_warning_may_come_too_late(listen: Listen) -> None:
    """Where the limit was lowered to less than it promises; else nothing is told of it."""
    clock, slurm = FakeClock(), Answers(LOWERED, left=[40.0, 80.0])
    heard = listen(slurm, clock, warning_s=90.0)
    told = warned(heard, clock)
    assert (Cause.TIME_LIMIT, "the time limit, 40 s from now", True) == (
        told.cause,
        told.detail,
        told.explains,
    )
    assert 40.0 + 15.0 == told.until - clock.monotonic()  # type: ignore[operator]
    slurm.job["EndTime"] = "2026-11-21T20:10:00"
    heard.watch._tell_why(clock.monotonic(), True)
    assert heard.take() is None


def test_nobody_is_asked_when_the_drain_has_to_begin(listen: Listen) -> None:
    """An answer that takes its time, or never comes, would take it from the workers."""
    clock, slurm = FakeClock(), Answers({"JobState": "RUNNING"}, left=[60.0, 20.0])
    heard = listen(slurm, clock)
    clock.advance(heard.watch._look_at_limit() - clock.monotonic())
    clock.advance(heard.watch._look_at_limit() - clock.monotonic())
    assert float("inf") == heard.watch._look_at_limit()
    assert 2 == slurm.asked.count("left")


def test_an_end_that_nobody_could_tell_is_asked_for_again(listen: Listen) -> None:
    """Slurm was away at the first look."""
    clock, slurm = FakeClock(), Answers({"JobState": "RUNNING"}, left=[0.0])
    slurm.goes_away_after = 0
    heard = listen(slurm, clock)
    assert heard.watch._look_at_limit() == clock.monotonic() + 60.0
    slurm.goes_away_after = None
    heard.watch._look_at_limit()
    assert Cause.TIME_LIMIT is heard.next().cause


def test_other_nodes_ask_nothing(listen: Listen) -> None:
    """The first node of a round asks for all; the first of a later round may be another one."""
    slurm = Answers({"JobState": "RUNNING"}, left=[0.001, 0.0])
    heard = listen(slurm)
    heard.watch.begin(is_first=False)
    assert heard.watch._thread is None
    heard.watch.begin(is_first=True)
    assert Cause.TIME_LIMIT is heard.next().cause


def test_another_node_that_hears_a_signal_asks_about_that_alone(listen: Listen) -> None:
    """However long it has listened: the limit and the nodes are the first one's."""
    slurm, clock = Answers({"JobState": "COMPLETING", "Reason": "TimeLimit"}, left=[100.0]), FakeClock()
    heard = listen(slurm, clock)
    heard.watch.begin(is_first=False)
    for _ in range(2):
        clock.advance(1000.0)
        heard.watch.ask_why(clock.monotonic(), is_warning=False)
        assert heard.next().explains
        wait_until(lambda: not heard.watch.is_asking, "the answer", timeout_s=LIMIT_S)
    heard.watch.close()
    assert heard.watch._thread is not None
    heard.watch._thread.join(LIMIT_S)
    assert "left" not in slurm.asked
    assert not [one for one in slurm.asked if one.startswith("nodes ")]


def test_the_first_node_looks_at_the_limit_when_it_is_time(listen: Listen) -> None:
    """A signal that comes before is asked about, and moves nothing."""
    slurm, clock = Answers({"JobState": "COMPLETING", "Reason": "TimeLimit"}, left=[100_000.0]), FakeClock()
    heard = listen(slurm, clock)
    heard.watch.begin(is_first=True)
    wait_until(lambda: "left" in slurm.asked, "the first look", timeout_s=LIMIT_S)
    wait_until(lambda: heard.watch._limit_at < float("inf"), "the plan of the next one", timeout_s=LIMIT_S)
    heard.watch.ask_why(clock.monotonic(), is_warning=False)
    assert heard.next().explains
    heard.watch.close()
    assert heard.watch._thread is not None
    heard.watch._thread.join(LIMIT_S)
    assert 1 == slurm.asked.count("left")


def test_who_becomes_the_first_node_again_looks_at_the_end(listen: Listen) -> None:
    """A node that had come later has been the first one meanwhile, and is lost."""
    slurm = Answers({"JobState": "COMPLETING", "Reason": "TimeLimit"}, left=[0.001, 0.0])
    heard = listen(slurm)
    heard.watch.ask_why(100.0, is_warning=False)  # has the thread wait for more questions only
    assert heard.next().explains
    heard.watch.begin(is_first=True)
    told = heard.next()
    assert (Cause.TIME_LIMIT, False) == (told.cause, told.explains)


def test_no_question_is_lost(listen: Listen) -> None:
    """A signal and a warning that come together are both asked about."""
    heard = listen(Answers({"JobState": "COMPLETING", "Reason": "TimeLimit"}))
    heard.watch._start = lambda: None  # type: ignore[method-assign]
    heard.watch.ask_why(100.0, is_warning=False)
    del heard.watch._start
    heard.watch.ask_why(105.0, is_warning=True)
    assert {115.0, 120.0} == {heard.next().until, heard.next().until}


def test_nodes_that_are_being_drained(listen: Listen) -> None:
    """Each is told once, with the administrator's reason."""
    slurm = Answers({"JobState": "RUNNING"}, left=[None])
    slurm.draining = {"n2": "fan broken [root@2026-11-21T20:00:00]"}
    heard = listen(slurm)
    heard.watch.begin(is_first=True)
    told = heard.next()
    assert (Cause.NODE_DRAIN, "the drain of n2 (fan broken [root@2026-11-21T20:00:00])") == told[:2]
    slurm.draining["n1"] = ""
    assert "the drain of n1 (no reason given)" == heard.next().detail


def test_without_slurm_nothing_is_asked_again(listen: Listen) -> None:
    """Where there is no squeue there is no limit to be known."""
    heard = listen(Answers({"JobState": "RUNNING"}))
    assert float("inf") == heard.watch._look_at_limit()


def test_what_a_drain_of_the_run_takes_moves_its_beginning(tmp_path: Path, listen: Listen) -> None:
    """Drains before it have taken longer than the warning leaves: this one begins earlier."""
    paths = RunPaths(tmp_path)
    log, epoch = open_log(paths, "n1"), Epoch(0, 0, 0, 0)
    log.commit(lambda _state: EpochStarted(epoch, "7", ()))
    log.commit(lambda _state: Drained(epoch, Cause.STOP, 5, "", 100.0))
    assert [100.0] == drain_times(paths)
    heard = listen(Answers({}, left=[1000.0]))
    clock = SystemClock()
    at = heard.watch._look_at_limit() - clock.monotonic()
    assert pytest.approx((1000.0 - 125.0) / 2, abs=5) == at


def test_slow_saves_are_noticed_while_the_job_runs(tmp_path: Path, listen: Listen) -> None:
    """At each look, halfway to the beginning of the drain, what has been measured till then counts."""
    paths, clock = RunPaths(tmp_path), FakeClock()
    os.mkdir(paths.checkpoints)
    heard = listen(Answers({}, left=[1000.0, 500.0]), clock)
    assert (1000.0 - 10.0) / 2 == heard.watch._look_at_limit() - clock.monotonic()
    write_mark(paths, MarkName(5, 1, 0, 1), None, 1, 80.0)
    clock.advance(500.0)
    assert (500.0 - 110.0) / 2 == heard.watch._look_at_limit() - clock.monotonic()
    clock.advance(430.0)
    heard.watch._look_at_limit()
    assert Cause.TIME_LIMIT is heard.next().cause


def test_the_site_is_learned_at_submit(tmp_path: Path) -> None:
    """What is kept is used; what cannot be learned any more is forgotten, and damaged it is nothing."""
    paths, slurm = RunPaths(tmp_path), Answers({})
    learn_site(paths, slurm, "low", "")
    assert 20.0 == refresh_site(paths, slurm, {}).kill_wait_s
    assert ["config", "partition low"] == slurm.asked
    learn_site(paths, Slurm({"PATH": ""}), "low", "")
    assert read_site(paths) is None
    Path(paths.site).write_text('{"format": 1}')
    assert read_site(paths) is None
    assert Site() == refresh_site(paths, Slurm({"PATH": ""}), {})
    keep_site(RunPaths(tmp_path / "none"), Site())


def test_an_agent_that_is_held_up_has_its_job_requeued(
    listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the batch script is killed and the shared directory stalls nobody else does."""
    monkeypatch.setattr(requeue, "LOOK_S", 0.001)
    slurm = Answers({"JobState": "FAILED", "Reason": "JobLaunchFailure"})
    heard = listen(slurm, end_time_s=None)
    heard.held_up = 5.0
    heard.watch.begin(is_first=True)
    told = heard.next()
    while not told.explains:  # of the drain of a node
        told = heard.next()
    assert (Cause.LAUNCH_FAILURE, None) == (told.cause, told.until)
    assert ["7"] == slurm.requeued


def test_a_job_without_its_script_is_requeued_before_slurm_is_asked_for_more(listen: Listen) -> None:
    """Its agents have KillWait: what they have to save, and whom they wait for, may take longer."""
    heard = listen(slurm := Answers({"JobState": "COMPLETING", "Reason": "JobLaunchFailure"}))
    slurm.waits_for_requeue = True
    heard.watch.ask_why(SystemClock().monotonic(), is_warning=False)
    assert Cause.LAUNCH_FAILURE is heard.next().cause
    assert ["7"] == slurm.requeued


def test_a_job_of_a_script_of_the_users_own_is_not_requeued(
    listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing in it says that it wants that; its user learns why the agents leave."""
    monkeypatch.setattr(requeue, "LOOK_S", 0.001)
    heard = listen(slurm := Answers({"JobState": "FAILED", "Reason": "JobLaunchFailure"}), hands_back=False)
    heard.held_up = 5.0
    heard.watch.ask_why(SystemClock().monotonic(), is_warning=False)
    assert Cause.LAUNCH_FAILURE is heard.next().cause
    heard.watch.close()
    assert [] == slurm.requeued
    assert "last-resort" not in {thread.name for thread in threading.enumerate()}


def test_a_question_without_an_answer_is_asked_again(listen: Listen) -> None:
    """In the next moment Slurm may tell that the script was killed; nobody else would give the job back."""
    heard = listen(slurm := Busy({"JobState": "COMPLETING", "Reason": "JobLaunchFailure"}, failures=1))
    heard.watch.ask_why(SystemClock().monotonic(), is_warning=False)
    assert Cause.LAUNCH_FAILURE is heard.next().cause
    assert ["7"] == slurm.requeued


def test_slurm_is_asked_on_where_it_has_not_answered_in_time(
    listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers save meanwhile, as the agent cannot wait for an answer."""
    monkeypatch.setattr(job_watch, "WHY_PATIENCE_S", 0.0)
    monkeypatch.setattr(requeue, "LOOK_S", 0.001)
    heard = listen(slurm := Busy({"JobState": "COMPLETING", "Reason": "JobLaunchFailure"}, failures=1))
    heard.watch.ask_why(SystemClock().monotonic(), is_warning=False)
    assert Cause.LAUNCH_FAILURE is heard.next().cause
    assert ["7"] == slurm.requeued
    assert not heard.watch.is_asking


def test_nobody_is_woken_after_the_end(listen: Listen) -> None:
    """An answer that comes too late is dropped: the agent's loop is gone."""
    heard = listen(Answers({"JobState": "COMPLETING"}))
    heard.watch.close()
    heard.watch._tell(Notice(Cause.STOP, "late"))
    heard.watch._close_question()
    assert heard.take() is None
    assert not heard._woken.acquire(blocking=False)


def test_a_job_by_the_environment() -> None:
    """The start is counted as Slurm counts it."""
    environ = {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "3", "SLURM_JOB_NODELIST": "n[1-2]"}
    slurm = SlurmEnv.from_environ(environ)
    assert slurm is not None
    assert JobPlace(RunPaths("/r"), "7", 3, ("n1", "n2"), None) == place_of(RunPaths("/r"), slurm)


class Missing(Answers):
    """No Slurm's commands, which takes a while to find out."""

    def __init__(self) -> None:
        super().__init__({})
        self.may_answer = threading.Event()

    def show_job(self, job_ref: str) -> dict[str, str] | None:  # noqa: ARG002 - there is none
        """Find none."""
        assert self.may_answer.wait(LIMIT_S)
        raise SlurmNotFoundError("scontrol")


def test_a_question_is_under_way_until_it_is_known_that_there_is_no_answer(listen: Listen) -> None:
    """Who waits for one is woken."""
    slurm = Missing()
    heard = listen(slurm)
    assert not heard.watch.is_asking
    heard.watch.ask_why(100.0, is_warning=False)
    assert heard.watch.is_asking
    slurm.may_answer.set()
    assert heard._woken.acquire(timeout=LIMIT_S)
    assert not heard.watch.is_asking
    assert heard.take() is None


def test_a_warning_that_comes_as_the_job_starts_is_too_early(listen: Listen) -> None:
    """An administrator has lowered the limit; Slurm cannot be told to warn later."""
    times = {"StartTime": "2026-11-21T20:00:00", "EndTime": "2026-11-21T20:01:00"}
    heard = listen(Answers({"JobState": "RUNNING", **times}, left=[58.0, 29.0]))
    heard.watch.ask_why(100.0, is_warning=True)
    told = heard.next()
    assert (Cause.TIME_LIMIT, EarlyNotice(58.0, 10.0), False) == (told.cause, told.early, told.explains)
    assert told.detail.startswith("58 s before the time limit")
    heard.watch._tell_why(100.0, True)
    assert heard.take() is None  # half of it is over
    heard.watch._tell_why(100.0, True)
    assert heard.take() is None  # nobody says how long there is
