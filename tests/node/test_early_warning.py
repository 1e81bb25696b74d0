"""A warning before the time limit may come long before it: where an administrator has lowered the limit."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from hpc_elastic.node.signals import WEIGH_S
from hpc_elastic.node.stop_rules import ASK_AFTER_S
from hpc_elastic.record.journal import (
    AfterDrain,
    Asked,
    Cause,
    WarningHeld,
)
from hpc_elastic.record.why_left import EarlyNotice, Notice
from tests.meet.build import crash
from tests.node.signalled_agent import Agent

EARLY = Notice(Cause.TIME_LIMIT, "118 s before the time limit", early=EarlyNotice(118.0, 30.0))
PREEMPTED = Notice(Cause.PREEMPTION, "preempted, with grace", explains=True)


class Late(Agent):
    """One whose question is answered just before the loop looks whether it is."""

    _is_asking = False

    @property
    def is_asking(self) -> bool:
        """Whether the question is open; the answer that is next comes now."""
        came, self.later = self.later, []
        self.notices += came
        self._is_asking = self._is_asking and not came
        return self._is_asking

    @is_asking.setter
    def is_asking(self, is_asking: bool) -> None:
        self._is_asking = is_asking


def warned(tmp_path: Path, **changes: object) -> Agent:
    """Return an agent that has just been warned; Slurm has not answered yet."""
    agent = Agent(tmp_path, **changes)
    agent.is_asking = True
    agent.hears(signal.SIGUSR2)
    return agent


def answers(agent: Agent, *notices: Notice) -> None:
    """Have the question answered, and the loop go on."""
    agent.is_asking = False
    agent.notices += notices
    agent.signalled.note()
    agent.signalled.tell()


def test_workers_go_on_where_the_clock_says_that_it_is_early(tmp_path: Path) -> None:
    """It is told and recorded, once; the first node asks for the drain in time by itself."""
    agent = warned(tmp_path)
    assert ([(agent.clock.monotonic(), True)], None) == (agent.asked, agent.signalled.wish.cause)
    answers(agent, EARLY)
    assert not agent.signalled.asks_to_leave
    assert ["SIGUSR2 received 118 s before the time limit"] == agent.said
    held = agent.run.state.held_warning
    assert WarningHeld(1, agent.run.node, 118.0, 30.0) == held
    last = agent.run.state.last
    agent.signalled.tell()
    assert (last, None) == (agent.run.state.last, agent.run.state.drain)


def test_a_warning_in_time_is_heeded(tmp_path: Path) -> None:
    """With the time from its coming on; that Slurm was asked takes nothing of it, and nobody asks again."""
    agent = warned(tmp_path)
    agent.clock.advance(1)
    answers(agent)
    assert (Cause.TIME_LIMIT, 89.0) == (agent.signalled.wish.cause, agent.left_s)
    drain = agent.run.state.drain
    assert drain is not None
    assert (Cause.TIME_LIMIT, Asked("SIGUSR2"), "") == (drain.cause, drain.asked, drain.detail)


def test_an_answer_that_comes_as_the_question_ends_is_taken(tmp_path: Path) -> None:
    """Whoever asks in a thread ends the question a moment after the answer."""
    agent = Late(tmp_path)
    agent.is_asking = True
    agent.hears(signal.SIGUSR2)
    agent.later = [EARLY]
    for _ in range(2):
        agent.signalled.note()
        assert not agent.signalled.asks_to_leave
    assert ["SIGUSR2 received 118 s before the time limit"] == agent.said


def test_slurm_has_only_so_long_to_answer(tmp_path: Path) -> None:
    """After that the warning is what it seems."""
    agent = warned(tmp_path)
    agent.clock.advance(WEIGH_S - 0.1)
    agent.signalled.note()
    assert not agent.signalled.asks_to_leave
    agent.clock.advance(0.2)
    agent.signalled.note()
    assert Cause.TIME_LIMIT is agent.signalled.wish.cause
    agent.signalled.tell()
    assert 1 == len(agent.asked)
    assert 90.0 - WEIGH_S - 0.1 == pytest.approx(agent.left_s)


def test_preemption_may_send_the_same_signal(tmp_path: Path) -> None:
    """Where the site says so; then that is why, and it is heeded."""
    agent = warned(tmp_path)
    answers(agent, PREEMPTED)
    assert agent.signalled.asks_to_leave
    assert agent.signalled.answer is PREEMPTED
    assert 1 == len(agent.asked)


def test_a_warning_that_comes_too_late_leaves_less(tmp_path: Path) -> None:
    """The limit was lowered to less than the warning promises; all nodes hear how long there is."""
    agent = warned(tmp_path)
    near = Notice(
        Cause.TIME_LIMIT, "the time limit, 20 s from now", agent.clock.monotonic() + 25.0, explains=True
    )
    answers(agent, near)
    assert 25.0 == agent.left_s
    agent.other.run.refresh()
    explained = agent.other.run.state.explained
    assert explained is not None
    assert (Cause.TIME_LIMIT, 25.0) == (explained.cause, explained.left_s)
    assert 1 == len(agent.asked)


def test_one_node_asks_for_all(tmp_path: Path) -> None:
    """The others wait for what it writes; if it writes nothing, the next one asks."""
    agent = warned(tmp_path, is_second=True)
    assert [] == agent.asked
    agent.other.run.report_warning_held(1, 118.0, 30.0)
    agent.run.refresh()
    agent.signalled.note()
    assert ([], False) == (agent.asked, agent.signalled.asks_to_leave)
    assert "too early, as another node has found out; the workers go on" in agent.said[-1]


def test_what_one_node_has_found_out_moves_the_look_of_the_first(tmp_path: Path) -> None:
    """By the old limit it would look too late; it looks at once, also if it was not warned."""
    agent = Agent(tmp_path)
    agent.other.run.refresh()
    agent.other.run.report_warning_held(1, 118.0, 30.0)
    agent.run.refresh()
    agent.signalled.note()
    agent.signalled.note()
    assert ([118.0], []) == (agent.limits, agent.asked)


def test_the_next_node_asks_if_the_first_one_does_not(tmp_path: Path) -> None:
    """It may be gone, or may not have been warned."""
    agent = warned(tmp_path, is_second=True)
    agent.clock.advance(ASK_AFTER_S + 0.1)
    agent.signalled.note()
    assert 1 == len(agent.asked)
    answers(agent)
    assert agent.signalled.asks_to_leave


def test_a_drain_that_another_node_asks_for_ends_the_weighing(tmp_path: Path) -> None:
    """Then the time limit is near, or it ends for something else."""
    agent = warned(tmp_path, is_second=True)
    agent.other.run.refresh()
    agent.other.run.request_drain(Cause.TIME_LIMIT, AfterDrain.LEAVE, "the time limit, 20 s from now")
    agent.run.refresh()
    agent.signalled.note()
    assert agent.signalled.asks_to_leave


def test_a_task_of_an_array_has_a_limit_of_its_own(tmp_path: Path) -> None:
    """What another one has found out is nothing to it, and it asks at once."""
    agent = Agent(tmp_path, on_signal=AfterDrain.REJOIN, is_second=True)
    agent.other.run.refresh()
    agent.other.run.report_warning_held(1, 118.0, 30.0)
    agent.run.refresh()
    agent.is_asking = True
    agent.hears(signal.SIGUSR2)
    assert 1 == len(agent.asked)
    answers(agent)
    assert agent.signalled.asks_to_leave


@pytest.mark.parametrize(("later_s", "leaves"), [(1.0, False), (4.9, False), (5.0, True), (60.0, True)])
def test_a_second_warning_is_somebodys_wish(tmp_path: Path, later_s: float, leaves: bool) -> None:
    """Slurm warns once; what comes at once after it is the same one, from a slower hand."""
    agent = warned(tmp_path)
    answers(agent, EARLY)
    agent.clock.advance(later_s)
    agent.hears(signal.SIGUSR2)
    assert leaves == agent.signalled.asks_to_leave
    assert 1 == len(agent.asked)


def test_without_workers_nothing_is_weighed(tmp_path: Path) -> None:
    """Nothing would be gained; so it is while they end."""
    agent = Agent(tmp_path)
    agent.workers.group = None
    agent.is_asking = True
    agent.hears(signal.SIGUSR2)
    assert agent.signalled.asks_to_leave


def test_a_new_round_weighs_anew(tmp_path: Path) -> None:
    """What was held belongs to the round before it."""
    agent = warned(tmp_path, on_signal=AfterDrain.REJOIN)
    answers(agent, EARLY)
    formed = agent.run.state.running
    assert formed is not None
    agent.clock.advance(60)
    agent.signalled.begin(formed)
    agent.is_asking = True
    agent.hears(signal.SIGUSR2)
    assert not agent.signalled.asks_to_leave
    assert 2 == len(agent.asked)


def test_a_second_warning_while_the_first_is_weighed_gives_no_more_time(tmp_path: Path) -> None:
    """Slurm has as long to answer as from the first one on."""
    agent = warned(tmp_path)
    agent.clock.advance(WEIGH_S - 1)
    agent.hears(signal.SIGUSR2)
    assert not agent.signalled.asks_to_leave
    agent.clock.advance(1)
    agent.signalled.note()
    assert agent.signalled.asks_to_leave
    assert 90.0 - WEIGH_S == agent.left_s


def test_who_has_not_asked_waits_for_its_turn(tmp_path: Path) -> None:
    """That nothing is being asked here says nothing of the warning."""
    agent = Agent(tmp_path, is_second=True)
    agent.hears(signal.SIGUSR2)
    assert (False, []) == (agent.signalled.asks_to_leave, agent.asked)


def test_an_answer_to_no_question_holds_nothing(tmp_path: Path) -> None:
    """The warning was followed meanwhile, or the round is over."""
    agent = Agent(tmp_path)
    agent.is_told(EARLY)
    agent.signalled.tell()
    over = warned(tmp_path)
    over.run.commit(crash(1))
    answers(over, EARLY)
    assert ([], []) == (agent.said, over.said)
    assert (None, None) == (agent.run.state.held_warning, over.run.state.held_warning)


def test_a_warning_is_followed_at_once_when_the_workers_end(tmp_path: Path) -> None:
    """There is nothing left to weigh."""
    agent = warned(tmp_path)
    agent.group.is_stopping = True
    agent.signalled.note()
    assert agent.signalled.asks_to_leave


def test_a_warning_about_which_nobody_asked_is_asked_about_when_it_is_followed(tmp_path: Path) -> None:
    """This node's turn has come and gone while its loop was held up."""
    agent = warned(tmp_path, is_second=True)
    agent.clock.advance(WEIGH_S)
    agent.signalled.note()
    assert (True, []) == (agent.signalled.asks_to_leave, agent.asked)
    agent.signalled.tell()
    assert [True] == [is_warning for _at, is_warning in agent.asked]


def test_a_warning_without_slurm_is_followed_at_once(tmp_path: Path) -> None:
    """Nobody could tell how early it is."""
    agent = Agent(tmp_path)
    agent.is_below_slurm, agent.is_asking = False, True
    agent.hears(signal.SIGUSR2)
    assert agent.signalled.asks_to_leave
