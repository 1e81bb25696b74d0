"""What a node says that waits for the workers of others."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from hpc_elastic.node.drain import Stopping
from hpc_elastic.node.setup.agent_setup import AgentTimes
from hpc_elastic.node.stop_rules import (
    ASK_AFTER_S,
    KILL_AFTER_S,
    RESCUE_S,
    DrainProgress,
    DrainTimes,
    EndFacts,
    StopOrder,
    StopRequest,
    barrier_is_over,
    drain_step,
    end_for_request,
    end_of_drain,
    end_of_round,
    end_sooner,
    follow,
    told,
    turn_to_ask_s,
)
from hpc_elastic.record.journal import Cause, Decision, DrainExplained, RoundEnded
from hpc_elastic.record.state import RunState
from tests.meet.build import E0, REQUEUED, after, crash, drain, ending, formed, loss, member, start


def stopping(me: str, working: list[str], said: list[str]) -> Stopping:
    """Return that of a node in a round of three, whose own workers have ended."""
    run = SimpleNamespace(
        state=SimpleNamespace(round=formed(1)),
        membership=SimpleNamespace(node_id=f"{me}.1"),
        working_members=lambda _formed: [f"{node}.1" for node in working],
    )
    parts: Any = SimpleNamespace(
        rendezvous=SimpleNamespace(run=run),
        log=SimpleNamespace(say=said.append),
        times=AgentTimes(exit_barrier=300.0),
    )
    others: Any = None
    return Stopping(parts, others, others, others)


def test_whoever_waits_names_whom_for() -> None:
    """After 10 s, then every 30 s, and anew in the next round; not for a wait of a moment."""
    said: list[str] = []
    mine = stopping("n1", ["n2", "n3"], said)
    for now in (100.0, 109.0, 110.0, 139.0, 141.0):
        mine.tell_wait(100.0, now)
    assert [
        "all workers here have ended; waiting for those of n2, n3, 10 s so far, for at most 290 s more",
        "all workers here have ended; waiting for those of n2, n3, 41 s so far, for at most 259 s more",
    ] == said
    mine.tell_wait(150.0, 155.0)
    mine.tell_wait(150.0, 160.0)
    assert 3 == len(said)


@pytest.mark.parametrize(
    ("me", "working"), [("n2", ["n3"]), ("n1", [])], ids=["another speaks", "nobody is waited for"]
)
def test_one_node_speaks_for_all(me: str, working: list[str]) -> None:
    """The first of those that wait."""
    said: list[str] = []
    stopping(me, working, said).tell_wait(100.0, 200.0)
    assert [] == said


def test_who_is_done_as_well_leaves_the_word_to_the_first() -> None:
    """Which is this node, whoever else has ended."""
    said: list[str] = []
    stopping("n1", ["n2"], said).tell_wait(100.0, 200.0)
    assert 1 == len(said)


NOTHING = StopRequest()
NOW = 100.0


def order_for(state: RunState, **changes: Any) -> StopOrder:
    """Return how workers are ended whose round is over: 30 s to end, 60 s for critical sections."""
    facts = EndFacts(state, E0, NOTHING, is_stuck=False, deadline=None, asked_at=90.0, now=NOW)
    return end_of_round(facts._replace(**changes), shutdown_s=30.0, critical_s=60.0)


@pytest.mark.parametrize(
    ("ended", "timeout"),
    [(RoundEnded(1, Cause.HANG, ("n2",), None), KILL_AFTER_S), (crash(1), 30.0), (loss(1, "n2"), 30.0)],
    ids=["hang", "crash", "loss"],
)
def test_workers_of_a_round_that_is_over_are_ended_gently(ended: RoundEnded, timeout: float) -> None:
    """Critical sections have their time from the first order on; hanging workers have less to end."""
    state = after(start(), formed(1), ended)
    rescue_until = 90.0 + RESCUE_S
    assert StopOrder(NOW + timeout, 150.0, rescue_until) == order_for(state)
    assert StopOrder(NOW + timeout, 140.0, rescue_until) == order_for(state, deadline=140.0)
    assert StopOrder(NOW + timeout, 150.0, rescue_until) == order_for(state, deadline=200.0)
    assert StopOrder(NOW + timeout, 95.0, 95.0) == order_for(state, deadline=95.0)


def test_before_the_round_has_ended_workers_have_their_time() -> None:
    """Another node may end it."""
    assert StopOrder(130.0, 150.0, 90.0 + RESCUE_S) == order_for(after(start(), formed(1)))


def test_a_run_that_is_over_needs_no_state() -> None:
    """Nobody is going to begin from it."""
    state = after(start(), formed(1), crash(1), ending(Decision.FAILED))
    assert StopOrder(130.0, 150.0) == order_for(state)


@pytest.mark.parametrize(
    ("state", "request_"),
    [
        (after(start(), formed(1), ending(Decision.CANCELLED)), NOTHING),
        (after(start(), formed(1), start(REQUEUED)), NOTHING),
        (after(start(), formed(1), crash(1)), StopRequest(Cause.INTERRUPT, "SIGINT", 1.0, at_once=True)),
    ],
    ids=["cancelled", "fenced", "Ctrl-C twice"],
)
def test_an_urgent_end_waits_for_no_critical_section(state: RunState, request_: StopRequest) -> None:
    """Others work already, or the user wants the end now."""
    assert StopOrder(130.0) == order_for(state, request=request_)


def test_workers_of_a_run_that_has_ended_otherwise_have_their_time() -> None:
    """Only a cancelled run is in a hurry."""
    assert StopOrder(130.0, 150.0) == order_for(after(start(), formed(1), ending(Decision.STOPPED)))


def test_a_request_without_a_time_ends_nobody_sooner() -> None:
    """There is none to end them by."""
    assert None is end_sooner(NOTHING, NOW)
    assert not DrainProgress().is_over(NOW)


def test_the_first_time_that_slurm_names_is_taken_as_it_is() -> None:
    """Nothing is known before it that it could shorten."""
    assert 30.0 == told(None, 30.0, is_known=True)


def test_a_second_answer_of_slurm_leaves_no_more_time() -> None:
    """The first one replaces an assumption in both directions; a later one only shortens it."""
    asked, times, progress = drain(), DrainTimes(), DrainProgress()
    for left_s, until in ((60.0, 160.0), (90.0, 160.0), (20.0, 120.0)):
        explained = DrainExplained(E0, Cause.PREEMPTION, f"{left_s:g} s", left_s)
        progress = follow(progress, asked, explained, times, NOW)
        assert until == progress.agreed


def test_of_two_agents_on_the_node_that_asks_for_a_drain_one_asks_slurm() -> None:
    """The second one waits for its turn."""
    members = (member("n1"), member("n1")._replace(node_id="n1.2"), member("n2"))
    state = after(start(), formed(1)._replace(members=members), drain())
    turns = [turn_to_ask_s(state, me) for me in ("n1.1", "n1.2", "n2.1")]
    assert [0.0, ASK_AFTER_S, ASK_AFTER_S + 0.5] == turns


def test_no_step_is_agreed_on_in_a_round_that_is_over() -> None:
    """Its workers stop for another reason."""
    over = after(start(), formed(1), drain(), crash(1))
    step = drain_step(DrainProgress(), over, DrainTimes(), proposes=True, bound=5, now=NOW)
    assert (None, False) == (step.tells, step.proposes)


def test_a_node_with_a_stuck_worker_does_not_wait_for_the_others() -> None:
    """The stuck worker never ends."""
    assert StopOrder(NOW + KILL_AFTER_S) == order_for(after(start(), formed(1), crash(1)), is_stuck=True)


@pytest.mark.parametrize(
    ("deadline", "told", "expected"),
    [
        (120.0, math.inf, StopOrder(120.0, 120.0)),
        (102.0, math.inf, StopOrder(NOW + KILL_AFTER_S, 102.0)),
        (90.0, math.inf, StopOrder(NOW + KILL_AFTER_S, 90.0)),
        (120.0, 3.0, StopOrder(103.0, 120.0)),
        (None, math.inf, StopOrder(NOW + KILL_AFTER_S, NOW)),
    ],
)
def test_a_drain_ends_workers_by_its_deadline(
    deadline: float | None, told: float, expected: StopOrder
) -> None:
    """But gives them a moment, and no longer than the site allows."""
    assert expected == end_of_drain(deadline, told, NOW)


@pytest.mark.parametrize(
    ("request_", "is_over", "expected"),
    [
        (StopRequest(Cause.PREEMPTION, "SIGTERM", 120.0), False, None),
        (StopRequest(Cause.PREEMPTION, "SIGTERM", 100.0), True, StopOrder(103.0)),
        (StopRequest(Cause.INTERRUPT, "SIGINT", 120.0, at_once=True), False, StopOrder(NOW)),
    ],
    ids=["has time", "over", "Ctrl-C twice"],
)
def test_a_request_to_one_agent_ends_its_workers_when_their_time_is_over(
    request_: StopRequest, is_over: bool, expected: StopOrder | None
) -> None:
    """A second Ctrl-C does so at once; the site bounds the time to SIGKILL."""
    assert expected == end_for_request(request_, 3.0, NOW, is_over=is_over)


@pytest.mark.parametrize(
    ("deadline", "now", "waited"),
    [
        (None, 399.9, False),
        (None, 400.0, True),
        (395.0, 404.9, False),
        (395.0, 405.0, True),
        (200.0, 399.9, False),
        (200.0, 400.0, True),
    ],
)
def test_the_exit_barrier_has_its_time_and_in_a_drain_that_of_the_others(
    deadline: float | None, now: float, waited: bool
) -> None:
    """Nodes that still save are waited for, and for a moment more."""
    assert waited is barrier_is_over(NOW, 300.0, deadline, now)


class Ending:
    """A node whose workers are to be ended; notes the orders.

    Args:
        state: of the run.
        wish: the request to this agent.
    """

    def __init__(self, state: RunState, wish: StopRequest = NOTHING) -> None:
        self.calls: list[Any] = []
        self.said: list[str] = []
        self.now = NOW
        self.run = SimpleNamespace(
            state=state,
            membership=SimpleNamespace(epoch=E0, node_id="n1.1"),
            blind_since=None,
            now=lambda: self.now,
            drain_began=None,
        )
        parts: Any = SimpleNamespace(
            rendezvous=SimpleNamespace(run=self.run),
            clock=SimpleNamespace(monotonic=lambda: self.now),
            log=SimpleNamespace(say=self.said.append),
            times=AgentTimes(shutdown=30.0, exit_barrier=300.0),
            paths=SimpleNamespace(checkpoints="checkpoints"),
        )
        self.ending = SimpleNamespace(
            wedge=None,
            is_held=False,
            asked_at=lambda now: now,
            stop=lambda _group, order: self.calls.append(order),
        )
        workers: Any = SimpleNamespace(ending=self.ending)
        reports: Any = SimpleNamespace(
            show_failure=lambda _group: None,
            failed_too=lambda _group: self.calls.append("failed too"),
            failed_leaving=lambda _group: None,
        )
        signalled: Any = SimpleNamespace(wish=wish, end_sooner=lambda: self.calls.append("sooner"))
        self.stopping = Stopping(parts, workers, signalled, reports)
        self.group: Any = SimpleNamespace(
            formed=formed(1),
            is_stopping=True,
            request_drain=lambda _now: None,
            set_until=lambda _until: None,
            stop_bound=lambda _now: None,
            set_stop_step=lambda _step: None,
        )

    def end_round(self, *, is_stopping: bool = True) -> list[Any]:
        """End the workers of a round; return the acts so far."""
        self.group.is_stopping = is_stopping
        self.stopping.end_round(self.group)
        return self.calls


def test_a_second_failure_is_told_once_and_not_by_a_blind_node() -> None:
    """When the workers get the signal to end, not at each look after that."""
    node = Ending(after(start(), formed(1), crash(1)))
    assert "failed too" == node.end_round(is_stopping=False)[0]
    assert "failed too" not in node.end_round()[2:]
    node.run.blind_since = 90.0
    node.calls.clear()
    assert "failed too" not in node.end_round(is_stopping=False)


def draining() -> Ending:
    """Return a node in a drain whose workers have had their time of 25 s."""
    node = Ending(after(start(), formed(1), drain()))
    node.stopping.begin(node.group)
    assert not node.stopping.drain(node.group, None)
    assert [] == node.calls
    node.now += 25.0
    return node


def test_a_drain_ends_workers_when_their_time_is_over() -> None:
    """Not before; without a round it ends none."""
    node = draining()
    assert node.stopping.drain(node.group, None)
    assert [StopOrder(125.0 + KILL_AFTER_S, 125.0)] == node.calls
    assert ["the workers get the signal to end"] == node.said
    assert not Ending(node.run.state).stopping.drain(node.group, None)


def test_a_drain_that_is_held_up_is_looked_at_again_later() -> None:
    """A worker is in a critical section; no worker was asked to end."""
    node = draining()
    node.ending.is_held = True
    assert not node.stopping.drain(node.group, None)
    assert [] == node.said


@pytest.mark.parametrize(
    ("cause", "done"),
    [(None, StopOrder(130.0, NOW + AgentTimes().drain.critical, NOW + RESCUE_S)), (Cause.STOP, "sooner")],
)
def test_a_blind_node_ends_its_workers_by_its_own_request(cause: Cause | None, done: Any) -> None:
    """Without one, by the last state that it has read."""
    node = Ending(after(start(), formed(1), crash(1)), StopRequest(cause, "SIGTERM", 120.0))
    node.stopping.end_blind(node.group)
    assert [done] == node.calls


def test_the_exit_barrier_knows_the_drain_of_its_own_round_alone() -> None:
    """A node without workers in the drain has the barrier's time; so has one without a drain."""
    node = Ending(after(start(), formed(1), drain()))
    assert [False, True] == [node.stopping.has_waited(100.0, now) for now in (399.9, 400.0)]
    node.stopping.begin(node.group)
    node.now = 380.0
    node.stopping.drain(node.group, None)
    assert [False, True] == [node.stopping.has_waited(100.0, now) for now in (414.9, 415.0)]
    node.run.state = after(start(), formed(1))
    assert node.stopping.has_waited(100.0, 400.0)
