"""When it is told that workers never ask whether to stop."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hpc_elastic.errors import InputError
from hpc_elastic.node.decision import Group
from hpc_elastic.node.drain import LOOK_AFTER_S, UnaskedWatch, never_ask_text
from hpc_elastic.node.stop_rules import DrainTimes, Unasked
from hpc_elastic.record.journal import (
    AfterDrain,
    Cause,
    DrainRequested,
    Entry,
    Epoch,
    EpochStarted,
    Member,
    NeverAsked,
    Record,
    RoundFormed,
    StopAgreed,
)
from hpc_elastic.record.state import RunState, fold
from hpc_elastic.slurm.job.script import agent_flags
from hpc_elastic.slurm.job.spec import JobSpec

EPOCH = Epoch(0, 0, 0, 0)
STARTED = EpochStarted(EPOCH, "7", ("n1", "n2"))
ROUND = RoundFormed(1, EPOCH, (Member("n1.1", "n1", 1), Member("n2.1", "n2", 1)), "n1", 1, None)
DRAIN = DrainRequested(Cause.PREEMPTION, "n1", AfterDrain.LEAVE, "")


def state_of(*entries: Entry) -> RunState:
    """Return the state after these entries."""
    return fold(RunState(), [Record(number, 0.0, "n1", entry) for number, entry in enumerate(entries, 1)])


class World:
    """A watch, what it rests on, and what it says."""

    def __init__(self, me: str = "n1.1", *, runs_on: bool = False, in_job: bool = True) -> None:
        self.now = 0.0
        self.said: list[str] = []
        self.told: list[int] = []
        self.taken_back: list[int] = []
        self.run: Any = SimpleNamespace(
            state=state_of(STARTED, ROUND),
            membership=SimpleNamespace(node_id=me),
            commit=self.tell,
        )
        parts: Any = SimpleNamespace(
            clock=SimpleNamespace(monotonic=lambda: self.now),
            log=SimpleNamespace(say=self.said.append),
            times=SimpleNamespace(drain=DrainTimes(unasked=Unasked(runs_on=runs_on))),
            rendezvous=SimpleNamespace(run=self.run),
            notices=SimpleNamespace(is_below_slurm=in_job),
            environ={},
        )
        self.channel = SimpleNamespace(asks_should_stop=False)
        self.group: Any = SimpleNamespace(formed=ROUND, channels=[self.channel])
        self._watch = UnaskedWatch(parts)

    def tell(self, found: NeverAsked) -> None:
        """Take note of a report."""
        (self.taken_back if found.asks_now else self.told).append(found.number)
        self.run.state = state_of(STARTED, ROUND, found)

    def look(
        self, after_s: float = 0.0, status: Group = Group.RUNNING, deadline: float | None = None
    ) -> bool:
        """Let time pass and look; return whether anything was said."""
        self.now += after_s
        before = len(self.said)
        self._watch.look(self.group, status, deadline)
        return len(self.said) > before


def test_it_is_told_once_after_the_first_minute() -> None:
    """Of workers that have had the time for imports and a first step."""
    world = World()
    assert [False, False, True, False] == [world.look(s) for s in (0.0, LOOK_AFTER_S - 1, 1.0, 1000.0)]
    assert [1] == world.told
    assert "a preemption and the time limit end them at once, unsaved" in world.said[0]
    assert "--unasked run-on" in world.said[0]


def test_outside_a_job_it_is_told_in_one_line_when_the_workers_are_to_stop() -> None:
    """Before that nothing may want the node back, and torchrun says nothing either."""
    world = World(in_job=False)
    assert [False, False] == [world.look(s) for s in (0.0, LOOK_AFTER_S)]
    assert [] == world.told
    world.run.state = state_of(STARTED, ROUND, DRAIN, StopAgreed(1, -1))
    assert world.look()
    assert [1] == world.told
    (said,) = world.said
    assert "a signal and hpc-elastic stop end them at once, unsaved" in said
    assert 1 == len(said.splitlines())
    told = never_ask_text(DrainTimes(unasked=Unasked(runs_on=True)), is_job=False)
    assert told.endswith("let them run on until the time is up (hpc-elastic help stopping)")


def test_the_time_that_workers_run_on_is_told_once() -> None:
    """By the node that speaks for all; the record has the time that a stop leaves them."""
    world, other = World(runs_on=True), World("n2.1", runs_on=True)
    for one in (world, other):
        one.look()
        one.look(LOOK_AFTER_S)
        one.run.state = state_of(STARTED, ROUND, NeverAsked(1, runs_on_s=90.0), DRAIN, StopAgreed(1, -1))
    assert [True, False] == [world.look(deadline=world.now + left_s) for left_s in (80.0, 70.0)]
    assert "the workers run on until their time is up, in 80 s (--unasked)" == world.said[-1]
    assert not other.look(deadline=other.now + 80.0)
    never_asked = world.run.state.never_asked
    assert never_asked is not None
    assert 90.0 == never_asked.runs_on_s


def test_workers_that_ask_after_a_long_start_are_believed() -> None:
    """The report is taken back, once; one without a report needs no such word."""
    world = World()
    world.look()
    world.look(LOOK_AFTER_S)
    assert ([1], []) == (world.told, world.taken_back)
    world.channel.asks_should_stop = True
    assert [True, False] == [world.look(1.0), world.look(1.0)]
    assert ([1], [1]) == (world.told, world.taken_back)


def test_workers_that_ask_are_believed_by_the_agent_of_a_later_start() -> None:
    """Those of the start that was reported have ended before they have asked."""
    world, other = World(), World("n2.1")
    for one in (world, other):
        one.run.state = state_of(STARTED, ROUND, NeverAsked(1))
        one.channel.asks_should_stop = True
    assert [True, False] == [world.look(1.0), world.look(1.0)]
    assert not other.look(1.0)
    assert ([], [1], []) == (world.told, world.taken_back, other.taken_back)


def test_a_new_round_has_its_own_minute() -> None:
    """Its workers have started anew."""
    world = World()
    world.look()
    world.group = SimpleNamespace(formed=ROUND, channels=[world.channel])
    assert not world.look(LOOK_AFTER_S)
    assert world.look(LOOK_AFTER_S)


def test_a_drain_is_told_of_when_all_have_said_that_they_do_not_ask() -> None:
    """Not while that is being found out."""
    world = World(runs_on=True)
    world.run.state = state_of(STARTED, ROUND, DRAIN)
    assert not world.look(LOOK_AFTER_S)
    assert not world.look(LOOK_AFTER_S)
    world.run.state = state_of(STARTED, ROUND, DRAIN, StopAgreed(1, -1))
    assert world.look()
    assert "let them run on until the time is up" in world.said[0]
    assert "--unasked run-on" not in world.said[0]


@pytest.mark.parametrize("why", ["asks", "another node's turn", "gone"])
def test_nothing_is_told(why: str) -> None:
    """Of who asks, by who is not first, of who has ended."""
    world = World("n2.1" if why == "another node's turn" else "n1.1")
    world.channel.asks_should_stop = why == "asks"
    status = Group.SUCCEEDED if why == "gone" else Group.RUNNING
    assert [False, False] == [world.look(s, status) for s in (0.0, LOOK_AFTER_S)]
    assert [] == world.told


@pytest.mark.parametrize(
    ("entries", "never"),
    [
        ((NeverAsked(1),), True),
        ((NeverAsked(2),), False),
        ((NeverAsked(1), NeverAsked(1, asks_now=True)), False),
        ((NeverAsked(1), EpochStarted(Epoch(0, 0, 1, 0), "7", ())), True),
        ((NeverAsked(1), EpochStarted(Epoch(1, 0, 0, 0), "8", ())), False),
        ((NeverAsked(1), DRAIN, StopAgreed(1, 7)), False),
        ((NeverAsked(1), DRAIN, StopAgreed(1, -1)), True),
    ],
)
def test_it_is_known_in_this_submission(entries: tuple[Entry, ...], *, never: bool) -> None:
    """Until they tell a step."""
    assert never is state_of(STARTED, ROUND, *entries).never_asks


@pytest.mark.parametrize("value", ["term", "run-on", "signal:USR1", "signal:SIGUSR2"])
def test_a_job_hands_the_setting_to_its_agents(value: str) -> None:
    """As it was written."""
    assert f"--unasked={value}" in agent_flags(JobSpec(command="train.py", unasked=value))
    assert not [flag for flag in agent_flags(JobSpec(command="train.py")) if "unasked" in flag]


@pytest.mark.parametrize("value", ["kill", "signal", "signal:", "signal:1", "run_on", 7, "term "])
def test_a_setting_that_means_nothing_is_refused(value: object) -> None:
    """Before anything is queued."""
    with pytest.raises(InputError, match="says nothing about workers that never ask"):
        JobSpec(command="train.py", unasked=value)
