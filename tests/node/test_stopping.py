"""What a node says that waits for the workers of others."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from hpc_elastic.node.drain.stop_policy import Stopping
from hpc_elastic.node.setup.agent_setup import AgentTimes
from hpc_elastic.node.setup.stop_request import StopRequest
from hpc_elastic.node.workers.local_group import KILL_AFTER_S
from hpc_elastic.record.journal import Cause, Decision, RoundEnded
from hpc_elastic.record.state import RunState
from tests.meet.build import E0, REQUEUED, after, crash, drain, ending, formed, loss, start


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


class Ending:
    """A node whose workers are to be ended; notes how.

    Args:
        state: of the run.
        wish: what this agent was asked for.
        told: the longest that workers have after they were told to end [s].
    """

    def __init__(self, state: RunState, wish: StopRequest = NOTHING, told: float = math.inf) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.said: list[str] = []
        self.now = 100.0
        run = SimpleNamespace(
            state=state,
            membership=SimpleNamespace(epoch=E0, node_id="n1.1"),
            blind_since=None,
            now=lambda: self.now,
        )
        parts: Any = SimpleNamespace(
            rendezvous=SimpleNamespace(run=run),
            log=SimpleNamespace(say=self.said.append),
            times=AgentTimes(shutdown=30.0, told=told, exit_barrier=300.0),
        )
        workers: Any = SimpleNamespace(
            wedge=None,
            is_held=False,
            stop=lambda timeout, hold_until=None: self.calls.append(("stop", timeout, hold_until)),
            stop_gently=lambda timeout, until: self.calls.append(("gently", timeout, until)),
        )
        self.workers = workers
        reports: Any = SimpleNamespace(
            show_failure=lambda _group: None,
            failed_too=lambda _group: self.calls.append(("failed too",)),
            failed_leaving=lambda _group: None,
        )
        signalled: Any = SimpleNamespace(wish=wish, end_sooner=lambda: self.calls.append(("sooner",)))
        self.run = run
        self.stopping = Stopping(parts, workers, signalled, reports)

    def end_round(self, *, is_stopping: bool = True) -> list[tuple[Any, ...]]:
        """End the workers of a round; return what was done."""
        group: Any = SimpleNamespace(is_stopping=is_stopping)
        self.stopping.end_round(group)
        return self.calls


def drained_until(deadline: float | None, *, stop_now: bool = True) -> Any:
    """Return a drain with a deadline."""
    return SimpleNamespace(deadline=deadline, stop_now=stop_now, step=lambda _now: None)


@pytest.mark.parametrize(
    ("ended", "timeout"),
    [(RoundEnded(1, Cause.HANG, ("n2",), None), KILL_AFTER_S), (crash(1), 30.0), (loss(1, "n2"), 30.0)],
    ids=["hang", "crash", "loss"],
)
def test_workers_of_a_round_that_is_over_are_ended_gently(ended: RoundEnded, timeout: float) -> None:
    """Who makes no progress has nothing to save, and is given less time."""
    node = Ending(after(start(), formed(1), ended))
    assert [("gently", timeout, None)] == node.end_round()
    node.stopping.of_round = drained_until(140.0)
    assert ("gently", timeout, 140.0) == node.end_round()[-1]


def test_before_the_round_has_ended_workers_have_their_time() -> None:
    """Another node may end it."""
    assert [("gently", 30.0, None)] == Ending(after(start(), formed(1))).end_round()


@pytest.mark.parametrize(
    ("state", "wish"),
    [
        (after(start(), formed(1), ending(Decision.CANCELLED)), StopRequest()),
        (after(start(), formed(1), start(REQUEUED)), StopRequest()),
        (after(start(), formed(1), crash(1)), StopRequest(Cause.INTERRUPT, "SIGINT", 1.0, at_once=True)),
    ],
    ids=["cancelled", "fenced", "Ctrl-C twice"],
)
def test_what_is_urgent_waits_for_no_critical_section(state: RunState, wish: StopRequest) -> None:
    """Others work already, or nobody wants the rest."""
    assert [("stop", 30.0, None)] == Ending(state, wish).end_round()


def test_a_node_with_a_wedged_worker_does_not_wait_for_the_others() -> None:
    """One of them never ends."""
    node = Ending(after(start(), formed(1), crash(1)))
    node.workers.wedge = object()
    assert [("stop", KILL_AFTER_S, None)] == node.end_round()


def test_a_second_failure_is_told_once_and_not_by_who_is_blind() -> None:
    """When the workers get the signal to end, not at each look after that."""
    node = Ending(after(start(), formed(1), crash(1)))
    assert ("failed too",) == node.end_round(is_stopping=False)[0]
    assert ("failed too",) not in node.end_round()[2:]
    node.run.blind_since = 90.0
    node.calls.clear()
    assert ("failed too",) not in node.end_round(is_stopping=False)


@pytest.mark.parametrize(
    ("deadline", "told", "timeout", "hold_until"),
    [
        (120.0, math.inf, 20.0, 120.0),
        (102.0, math.inf, KILL_AFTER_S, 102.0),
        (90.0, math.inf, KILL_AFTER_S, 90.0),
        (120.0, 3.0, 3.0, 120.0),
        (None, math.inf, KILL_AFTER_S, 100.0),
    ],
)
def test_a_drain_ends_workers_by_its_deadline(
    deadline: float | None, told: float, timeout: float, hold_until: float
) -> None:
    """But gives them a moment, and no longer than the site allows."""
    node = Ending(after(start(), formed(1)), told=told)
    node.stopping.of_round = drained_until(deadline)
    assert node.stopping.drain()
    assert [("stop", timeout, hold_until)] == node.calls
    assert ["the workers get the signal to end"] == node.said


def test_a_drain_that_is_held_up_is_looked_at_again_later() -> None:
    """A worker is in a critical section; nobody was told to end."""
    node = Ending(after(start(), formed(1)))
    node.stopping.of_round = drained_until(120.0)
    node.workers.is_held = True
    assert not node.stopping.drain()
    assert [] == node.said


def test_before_its_time_a_drain_ends_nobody() -> None:
    """Nor does one that there is not."""
    node = Ending(after(start(), formed(1)))
    assert not node.stopping.drain()
    node.stopping.of_round = drained_until(120.0, stop_now=False)
    assert not node.stopping.drain()
    assert [] == node.calls


@pytest.mark.parametrize(("cause", "done"), [(None, "gently"), (Cause.PREEMPTION, "sooner")])
def test_who_sees_nothing_ends_its_workers_by_what_was_asked(cause: Cause | None, done: str) -> None:
    """Else by what was read before."""
    node = Ending(after(start(), formed(1), crash(1)), StopRequest(cause, "SIGTERM", 120.0))
    group: Any = SimpleNamespace(is_stopping=True)
    node.stopping.end_blind(group)
    assert [done] == [call[0] for call in node.calls]


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
    """Who still saves is waited for, and for a moment more."""
    node = Ending(after(start(), formed(1), drain()))
    node.stopping.of_round = drained_until(deadline)
    assert waited is node.stopping.has_waited(100.0, now)
    node.run.state = after(start(), formed(1))
    assert (now >= 400.0) is node.stopping.has_waited(100.0, now)


def test_the_exit_barrier_of_a_node_without_a_drain_of_its_own_has_its_time() -> None:
    """Though the others drain."""
    node = Ending(after(start(), formed(1), drain()))
    assert [False, True] == [node.stopping.has_waited(100.0, now) for now in (399.9, 400.0)]
