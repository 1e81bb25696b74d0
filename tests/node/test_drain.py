"""What asks for a drain, how long it may take, and what it waits for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpc_elastic.node.drain import LOOK_S, DurableWait, LocalDrain
from hpc_elastic.node.node_workers import SAY_AGAIN_S, SUFFIX, StopHold
from hpc_elastic.node.setup.notices import DrainFile, LaterNotices
from hpc_elastic.node.stop_rules import (
    DrainProgress,
    DrainStep,
    DrainTimes,
    StopRequest,
    Unasked,
    drain_step,
    first_words,
    granted,
    heard,
    turn_to_ask_s,
)
from hpc_elastic.node.workers.local_group import Busy
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.checkpoints import MarkName, write_mark
from hpc_elastic.record.journal import (
    AfterDrain,
    Cause,
    DrainRequested,
    Epoch,
    Member,
    RoundEnded,
    RoundFormed,
)
from hpc_elastic.record.state import RunState
from hpc_elastic.store.memory import MemoryStore
from hpc_elastic.testing.clock import FakeClock
from tests.meet.one_node import node_maker, together

EPOCH = Epoch(0, 0, 0, 0)
NODES = tuple(Member(f"n{i}.1", f"n{i}", 2) for i in range(5))
FORMED = RoundFormed(1, EPOCH, NODES, "n0", 1, None)
TIMES = DrainTimes()


def test_a_second_signal_only_makes_it_quicker() -> None:
    """The first one says why; of the limits the nearest holds; Ctrl-C twice does not wait."""
    wish = heard(StopRequest(), Cause.TIME_LIMIT, "SIGUSR2", 100.0)
    wish = heard(wish, Cause.PREEMPTION, "SIGTERM", 50.0)
    wish = heard(wish, Cause.TIME_LIMIT, "SIGUSR2", 200.0)
    assert StopRequest(Cause.TIME_LIMIT, "SIGUSR2", 50.0) == wish
    twice = heard(heard(StopRequest(), Cause.INTERRUPT, "SIGINT", 9.0), Cause.INTERRUPT, "SIGINT", 10.0)
    assert twice.at_once
    assert heard(twice, Cause.PREEMPTION, "SIGTERM", 8.0).at_once
    assert not heard(wish, Cause.INTERRUPT, "SIGINT", 10.0).at_once


def test_what_slurm_grants_replaces_what_was_feared() -> None:
    """More time or less; a signal after that counts from then on. Without a signal nothing is granted."""
    wish = heard(StopRequest(), Cause.PREEMPTION, "SIGTERM", 25.0)
    assert 300.0 == granted(wish, 300.0).deadline
    assert 60.0 == heard(granted(wish, 300.0), Cause.PREEMPTION, "SIGTERM", 60.0).deadline
    assert StopRequest() == granted(StopRequest(), 300.0)


def test_what_slurm_has_granted_only_shrinks() -> None:
    """A further signal may leave less time than the first one, never more."""
    wish = granted(heard(StopRequest(), Cause.PREEMPTION, "SIGTERM", 25.0), 60.0)
    assert 4.0 == granted(wish, 4.0).deadline
    assert 60.0 == granted(wish, 300.0).deadline


@pytest.mark.parametrize(
    ("asker", "expected"),
    [
        ("n0", [0.0, 2.0, 2.5, 3.0, 3.5]),
        ("n2", [2.0, 2.5, 0.0, 3.0, 3.5]),
        ("login", [0.0, 2.0, 2.5, 3.0, 3.5]),
    ],
)
def test_one_node_asks_slurm_and_the_others_in_turn(asker: str, expected: list[float]) -> None:
    """The one that has asked for the drain; where no node of the round has, the first of them."""
    asked = DrainRequested(Cause.STOP, asker, AfterDrain.LEAVE, "")
    state = RunState(epoch=EPOCH, rounds=1, round=FORMED, drain=asked)
    assert expected == [turn_to_ask_s(state, member.node_id) for member in NODES]


def test_a_node_without_a_round_asks_about_the_drain_it_has_asked_for() -> None:
    """It is signalled while it waits for the others."""
    asked = DrainRequested(Cause.PREEMPTION, "n7", AfterDrain.LEAVE, "SIGTERM")
    state = RunState(epoch=EPOCH, drain=asked)
    assert [0.0, 2.0] == [turn_to_ask_s(state, me) for me in ("n7.1", "n8.1")]


@pytest.mark.parametrize(
    ("cause", "below", "expected"),
    [
        (Cause.PREEMPTION, True, "preemption, scancel, the time limit or a failed node"),
        (Cause.PREEMPTION, False, "S received: workers have 25 s to save and leave"),
        (Cause.TIME_LIMIT, True, "a warning"),
        (Cause.TIME_LIMIT, False, "S received: workers have"),
        (Cause.STOP, True, "S received: workers have"),
        (Cause.INTERRUPT, True, "once more ends them now"),
    ],
)
def test_the_first_line_claims_no_more_than_is_known(cause: Cause, below: bool, expected: str) -> None:
    """SIGTERM has many meanings below Slurm, and none of them anywhere else."""
    assert expected in first_words("S", cause, 25.0, below_slurm=below)


def test_times_by_cause() -> None:
    """What wants the nodes back is in a hurry."""
    times = DrainTimes(stop=1, warning=2)
    asked = (Cause.PREEMPTION, Cause.INTERRUPT, Cause.TIME_LIMIT, Cause.STOP, Cause.MEMBERSHIP)
    assert [1, 1, 2, 2, 2] == [times.of(cause) for cause in asked]


def looking(paths: RunPaths, node_id: str) -> Callable[[float], bool]:
    """Return a function that looks for the drain file at a time."""
    file = DrainFile(paths, interval=1.0)
    return lambda now: file.asks(FORMED, node_id, now)


def test_the_drain_file_is_looked_for_once_per_interval(tmp_path: Path) -> None:
    """By the first nodes of a running round only."""
    paths = RunPaths(tmp_path)
    first, last = looking(paths, "n0.1"), looking(paths, "n4.1")
    assert not first(10.0)
    Path(paths.drain).touch()
    assert not first(10.9)
    assert first(11.0)
    assert not last(11.0)
    assert not DrainFile(paths, 1.0).asks(None, "n0.1", 11.0)


def test_the_drain_file_is_taken_away(tmp_path: Path) -> None:
    """Once it is in the journal: the next start of the run must not stop for it."""
    paths = RunPaths(tmp_path)
    Path(paths.drain).touch()
    file = DrainFile(paths, 1.0)
    file.heeded()
    assert Path(paths.drain).exists()
    assert file.asks(FORMED, "n0.1", 0.0)
    file.heeded()
    assert not Path(paths.drain).exists()
    assert not file.asks(FORMED, "n0.1", 99.0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's directory")
def test_a_directory_of_somebody_elses_in_the_place_of_the_runs_asks_for_nothing(tmp_path: Path) -> None:
    """It may be there for one look only, and the run would have ended without a word of it."""
    paths = RunPaths(tmp_path / "run")
    Path(paths.root).mkdir()
    Path(paths.drain).touch()
    look = looking(paths, "n0.1")
    os.chown(paths.root, 65534, 65534)
    assert not look(0.0)
    os.chown(paths.root, 0, 0)
    assert look(1.0)


def test_a_run_directory_that_does_not_answer_asks_for_nothing(tmp_path: Path) -> None:
    """What cannot be listed is looked at again later."""
    look = looking(RunPaths(tmp_path / "none"), "n0.1")
    assert not look(0.0)
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "drain").touch()
    assert look(1.0)


BUSY = (Busy(3, "saving", 88.0), Busy(4, "saving", 95.0))


def hold(tmp_path: Path) -> tuple[StopHold, list[str], Path]:
    """Return a hold, what it says, and the file that it shows."""
    said: list[str] = []
    return StopHold(said.append, str(tmp_path / "n1.1")), said, tmp_path / f"n1.1{SUFFIX}"


def test_a_critical_section_holds_the_end_up(tmp_path: Path) -> None:
    """It is said who, since when, and again after a while; when it is left the end goes on."""
    held, said, shown = hold(tmp_path)
    assert held.holds(BUSY, 100.0, until=160.0)
    assert held.holds(BUSY, 101.0, until=160.0)
    assert held.is_on
    assert shown.read_text().startswith("rank 3 is in 'saving' since 12 s and 1 more")
    assert held.holds(BUSY, 100.0 + SAY_AGAIN_S, until=160.0)
    assert not held.holds((), 115.0, until=160.0)
    assert (False, False) == (held.is_on, shown.exists())
    assert [
        "rank 3 is in 'saving' since 12 s and 1 more: the end of the workers waits for it, at most 60 s more",
        "rank 3 is in 'saving' since 22 s and 1 more: the end of the workers waits for it, at most 50 s more",
        "the critical section was left after 15.0 s",
    ] == said


def test_a_critical_section_has_its_time(tmp_path: Path) -> None:
    """Then the end comes all the same, which is said."""
    held, said, shown = hold(tmp_path)
    assert held.holds(BUSY, 100.0, until=110.0)
    assert not held.holds(BUSY, 110.0, until=110.0)
    assert "after 10.0 s its time is up" in said[-1]
    assert not shown.exists()


def test_nothing_is_said_when_nothing_is_held_up(tmp_path: Path) -> None:
    """Most ends meet no critical section; one that may not wait meets none either."""
    held, said, _ = hold(tmp_path)
    assert not held.holds((), 100.0, until=160.0)
    assert not held.holds(BUSY, 100.0, until=float("-inf"))
    assert [] == said


def stopping(step: int | None) -> RunState:
    """Return the state of a run whose ranks stop at a step."""
    asked = DrainRequested(Cause.STOP, "n0", AfterDrain.LEAVE, "")
    return RunState(epoch=EPOCH, rounds=1, round=FORMED, drain=asked, stop_step=step)


def mark(paths: RunPaths, step: int, rank: int, shards: int = 2) -> None:
    """Mark a rank's part of a checkpoint."""
    write_mark(paths, MarkName(step, 1, rank, shards), None, 4)


def test_a_half_saved_checkpoint_is_waited_for(tmp_path: Path) -> None:
    """Until all parts are marked; one that nobody has begun is not waited for, nor one before the stop."""
    paths = RunPaths(tmp_path)
    os.mkdir(paths.checkpoints)
    wait = DurableWait(paths)
    mark(paths, 8, 0)
    assert not wait.waits(stopping(9), 0.0)
    mark(paths, 9, 0)
    assert wait.waits(stopping(9), 1.0)
    mark(paths, 9, 1)
    assert not wait.waits(stopping(9), 2.0)


def test_workers_that_do_not_ask_are_not_waited_for(tmp_path: Path) -> None:
    """There is no stop step, or none yet; nor is there anything to see without marks."""
    paths = RunPaths(tmp_path)
    for step in (None, -1, 5):
        assert not DurableWait(paths).waits(stopping(step), 0.0)
    os.mkdir(paths.checkpoints)
    mark(paths, 9, 0)
    assert not DurableWait(paths).waits(stopping(None), 0.0)
    assert not DurableWait(paths).waits(stopping(-1), 0.0)
    assert not DurableWait(paths).waits(RunState(), 0.0)


class Counted:
    """Notices that count what they are told."""

    is_below_slurm = True
    is_asking = False

    def __init__(self, told: list[str]) -> None:
        self._told = told

    def begin(self, *, is_first: bool) -> None:
        """Note it."""
        self._told.append(f"begin {is_first}")

    def ask_why(self, signalled_at: float, *, is_warning: bool) -> None:
        """Note it."""
        self._told.append(f"why {signalled_at} {is_warning}")

    def hear_limit(self, left_s: float) -> None:
        """Note it."""
        self._told.append(f"limit {left_s}")

    def close(self) -> None:
        """Note it."""
        self._told.append("close")


def test_who_asks_slurm_is_made_when_it_is_needed() -> None:
    """On the first node of a round, where each node is a job, and where a signal is to be explained."""
    told: list[str] = []

    def make() -> Counted:
        told.append("made")
        return Counted(told)

    idle = LaterNotices(make, is_alone=False)
    idle.begin(is_first=False)
    idle.close()
    assert [] == told
    idle.ask_why(7.0, is_warning=True)
    idle.begin(is_first=False)
    idle.close()
    assert ["made", "why 7.0 True", "begin False", "close"] == told
    told.clear()
    LaterNotices(make, is_alone=True).begin(is_first=False)
    LaterNotices(make, is_alone=False).begin(is_first=True)
    assert ["made", "begin False", "made", "begin True"] == told


def test_a_node_beside_the_round_asks_after_its_members() -> None:
    """Unless it is the one that has asked for the drain; without a drain the first member goes first."""
    state = RunState(epoch=EPOCH, rounds=1, round=FORMED)
    assert [0.0, 2.0, 3.5] == [turn_to_ask_s(state, me) for me in ("n0.1", "n1.1", "n4.1")]
    assert 4.0 == turn_to_ask_s(state, "n9.1")
    asked = state._replace(drain=DrainRequested(Cause.STOP, "n9", AfterDrain.LEAVE, ""))
    assert [0.0, 0.0, 2.0] == [turn_to_ask_s(asked, me) for me in ("n9.1", "n0.1", "n1.1")]


def test_a_drain_that_is_over_takes_no_step() -> None:
    """The others may have ended the round, or have begun another one that nobody asks to stop."""
    clock = FakeClock()
    group: Any = SimpleNamespace(formed=FORMED)
    make = node_maker(MemoryStore(), clock)
    drain = LocalDrain(make("n9").run, group, DrainTimes())
    drain.step(0.0, None)
    first, _ = together(node_maker(MemoryStore(), clock), clock)
    LocalDrain(first.run, group, DrainTimes()).step(0.0, None)
    first.run.request_drain(Cause.PREEMPTION, AfterDrain.LEAVE, "SIGTERM")
    first.run.commit(RoundEnded(1, Cause.CRASH, ("n2",), None))
    drain = LocalDrain(first.run, group, DrainTimes())
    drain.step(0.0, None)
    assert not drain.stop_now


class Workers:
    """Workers of a round that note what they are told, and can stop at a step that the test sets."""

    def __init__(self, formed: RoundFormed | None) -> None:
        assert formed is not None
        self.formed = formed
        self.bound: int | None = None
        self.told: list[tuple[str, float]] = []
        self.until: list[float] = []

    def request_drain(self, _now: Callable[[], float]) -> None:
        """Warn of the end."""

    def set_until(self, deadline: float) -> None:
        """Note it."""
        self.until.append(deadline)

    def stop_bound(self, _now: float) -> int | None:
        """Return the first step at which all can stop."""
        return self.bound

    def set_stop_step(self, step: int) -> None:
        """Note it."""
        self.told.append(("stop after", step))

    def signal(self, number: int) -> None:
        """Note it."""
        self.told.append(("signal", number))


def drains(
    left_s: float | None = None, cause: Cause = Cause.PREEMPTION, times: DrainTimes = TIMES
) -> list[tuple[LocalDrain, Any, Workers]]:
    """Return the drains of two nodes of a round that the first has asked to leave, with their runs."""
    clock = FakeClock()
    nodes = together(node_maker(MemoryStore(), clock), clock)
    nodes[0].run.request_drain(cause, AfterDrain.LEAVE, "why", left_s)
    found = []
    for node in nodes:
        node.run.refresh()
        workers = Workers(node.run.state.running)
        group: Any = workers
        found.append((LocalDrain(node.run, group, times), node.run, workers))
    return found


@pytest.mark.parametrize(
    ("cause", "left_s", "slurm_s", "deadline"),
    [
        (Cause.PREEMPTION, None, 300.0, 300.0),
        (Cause.PREEMPTION, None, 4.0, 4.0),
        (Cause.PREEMPTION, 60.0, 300.0, 60.0),
        (Cause.PREEMPTION, 60.0, 4.0, 4.0),
        (Cause.STOP, None, 300.0, 90.0),
        (Cause.STOP, None, 4.0, 4.0),
    ],
)
def test_what_slurm_says_replaces_only_what_was_assumed(
    cause: Cause, left_s: float | None, slurm_s: float, deadline: float
) -> None:
    """Time that was promised, or that a user gives, only becomes less."""
    (drain, run, workers), _ = drains(left_s, cause)
    drain.step(100.0, None)
    assert 100.0 + (left_s or DrainTimes().of(cause)) == drain.deadline
    run.explain_drain(cause, "Slurm says why", slurm_s)
    drain.step(100.0, None)
    assert 100.0 + deadline == drain.deadline == workers.until[-1]
    assert [False, True] == [drain.is_over(100.0 + deadline - 0.1), drain.is_over(100.0 + deadline)]


@pytest.mark.parametrize(("times", "left_s"), [(DrainTimes(), None), (DrainTimes(is_stop_given=True), 300.0)])
def test_a_time_that_slurm_does_not_change_stays(times: DrainTimes, left_s: float | None) -> None:
    """Slurm may not know how long there is, and a user's flag holds whatever it says."""
    (drain, run, _), _ = drains(times=times)
    drain.step(100.0, None)
    run.explain_drain(Cause.PREEMPTION, "Slurm says why", left_s)
    drain.step(101.0, None)
    assert 100.0 + times.stop == drain.deadline


def test_what_this_node_was_asked_for_and_the_journal_both_count() -> None:
    """The nearer of the two deadlines holds."""
    (drain, _, workers), _ = drains(left_s=60.0)
    drain.heed(StopRequest(Cause.PREEMPTION, "SIGTERM", 150.0), 100.0)
    drain.step(100.0, None)
    drain.heed(StopRequest(Cause.PREEMPTION, "SIGTERM", 170.0), 100.0)
    assert [150.0, 150.0, 160.0] == workers.until


@pytest.mark.parametrize(("runs_on", "number"), [(False, None), (True, 10), (True, None)])
def test_workers_that_never_ask_may_run_on_until_their_time_is_up(runs_on: bool, number: int | None) -> None:
    """With a signal of their own; in a drain of workers that ask, nobody is signalled."""
    times = DrainTimes(unasked=Unasked(runs_on=runs_on, number=number))
    (first, run, one), (second, _, other) = drains(times=times)
    one.bound = other.bound = -1
    second.step(0.0, None)
    run.tick(look=True)
    first.step(0.0, run.common_step())
    assert ("signal", number) in one.told
    assert runs_on is not first.stop_now
    first.step(times.stop, None)
    assert first.stop_now


def test_all_nodes_stop_after_the_last_step_that_one_of_them_needs() -> None:
    """Each tells its step once; one whose workers cannot say yet is waited for."""
    (first, run, one), (second, other_run, other) = drains()
    one.bound = 5
    first.step(0.0, None)
    one.bound = 9
    first.step(1.0, None)
    second.step(1.0, None)
    assert [5] == list(run.membership.told_steps(1).values())
    assert ([], None) == (one.told, run.state.stop_step)
    other.bound = 7
    second.step(2.0, None)
    run.tick(look=True)
    first.step(2.0, run.common_step())
    other_run.refresh()
    second.step(3.0, None)
    assert {("stop after", 7)} == {*one.told, *other.told}
    assert (1, 1) == (len(one.told), len(set(other.told)))
    assert not first.stop_now


def test_workers_that_never_ask_are_signalled_once() -> None:
    """They stop at no step, so they are ended at once."""
    (first, run, one), (second, _, other) = drains()
    one.bound = other.bound = -1
    second.step(0.0, None)
    run.tick(look=True)
    for now in (0.0, 1.0):
        first.step(now, run.common_step())
    assert 1 == len([what for what, _ in one.told if what == "signal"])
    assert first.stop_now


TOLD = DrainProgress(Cause.PREEMPTION, agreed=50.0, has_told=True)


@pytest.mark.parametrize(
    ("agreed", "bound", "proposes", "now", "expected"),
    [
        (None, None, True, 1.0, DrainStep()),
        (None, 7, False, 1.0, DrainStep(tells=7)),
        (None, 7, True, 1.0, DrainStep(tells=7, proposes=True)),
        (9, None, True, 1.0, DrainStep(stop_after=9)),
        (9, None, True, 50.0, DrainStep(stop_after=9, stop_now=True)),
        (None, 7, True, 50.0, DrainStep(tells=7, proposes=True, stop_now=True)),
        (-1, None, True, 1.0, DrainStep(stop_after=-1, signals=True, stop_now=True)),
    ],
    ids=["too early", "last node", "first node", "agreed", "over", "not agreed in time", "never asks"],
)
def test_a_drain_step_follows_from_the_facts(
    agreed: int | None, bound: int | None, proposes: bool, now: float, expected: DrainStep
) -> None:
    """One of the first three nodes proposes the common step; all stop after it, or when the time is over.

    A node that has published its step goes on in the same way, and publishes it once.
    """
    state, times, untold = stopping(agreed), DrainTimes(), TOLD._replace(has_told=False)
    assert expected == drain_step(untold, state, times, proposes=proposes, bound=bound, now=now)
    later = drain_step(TOLD, state, times, proposes=proposes, bound=None, now=now)
    assert expected._replace(tells=None, proposes=agreed is None and proposes) == later


def test_workers_that_run_on_are_signalled_and_not_ended() -> None:
    """Until their time is over; the signal comes once."""
    times, state = DrainTimes(unasked=Unasked(runs_on=True)), stopping(-1)
    now_or_later = [drain_step(TOLD, state, times, proposes=True, bound=None, now=now) for now in (1.0, 50.0)]
    assert [(True, False), (True, True)] == [(step.signals, step.stop_now) for step in now_or_later]
    again = drain_step(TOLD._replace(has_signalled=True), state, times, proposes=True, bound=None, now=2.0)
    assert not again.signals


def test_marks_are_looked_at_ten_times_a_second(tmp_path: Path) -> None:
    """Step 0 is one like any other; without a drain nobody waits."""
    paths = RunPaths(tmp_path)
    os.mkdir(paths.checkpoints)
    mark(paths, 0, 0)
    wait = DurableWait(paths)
    assert not wait.waits(stopping(0)._replace(drain=None), 0.0)
    assert wait.waits(stopping(0), 0.0)
    mark(paths, 0, 1)
    assert (True, False) == (wait.waits(stopping(0), LOOK_S / 2), wait.waits(stopping(0), LOOK_S))


def test_processes_that_workers_have_left_are_kept_while_shards_are_missing(tmp_path: Path) -> None:
    """Until the time of the drain is over; the drain began when it was first heard of."""
    paths, clock = RunPaths(tmp_path), FakeClock()
    os.mkdir(paths.checkpoints)
    mark(paths, 9, 0)
    run = together(node_maker(MemoryStore(), clock), clock)[0].run
    workers: Any = Workers(run.state.running)
    drain = LocalDrain(run, workers, DrainTimes(stop=25.0), DurableWait(paths))
    run.request_drain(Cause.PREEMPTION, AfterDrain.LEAVE, "SIGTERM")
    run.agree_stop(1, 9)
    began = clock.monotonic()
    for _ in range(2):
        drain.step(clock.monotonic(), None)
        clock.advance(1)
    assert began == run.drain_began
    keeps = workers.keeps_left_overs
    assert (True, False) == (keeps(began + 24), keeps(began + 25))
    mark(paths, 9, 1)
    assert not keeps(began + 24 + LOOK_S)
    plain: Any = Workers(run.state.running)
    LocalDrain(run, plain, DrainTimes())
    assert not hasattr(plain, "keeps_left_overs")
