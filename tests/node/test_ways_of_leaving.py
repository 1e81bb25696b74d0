"""What an agent writes into the journal as it leaves, and how its part of the run ended; no processes."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpc_elastic.errors import InputError, StoreTimeoutError
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.meet import rules
from hpc_elastic.meet.member_names import Phase
from hpc_elastic.meet.rules import MeetingSettings
from hpc_elastic.meet.shared_fs import NoRound, OutOfReach
from hpc_elastic.node.decision import RestartBudgets
from hpc_elastic.node.drain import Leaving, stay_out
from hpc_elastic.node.outcome import FENCED, Outcome
from hpc_elastic.node.setup.journal_entries import Reports
from hpc_elastic.node.spec import WorkerState
from hpc_elastic.record.journal import AfterDrain, Answer, Cause, Decision, RoundFormed
from hpc_elastic.record.state import RunState
from hpc_elastic.record.why_left import Notice
from hpc_elastic.store.memory import MemoryStore
from hpc_elastic.testing.clock import FakeClock
from tests.meet.build import crash
from tests.meet.one_node import node_maker
from tests.node.signalled_agent import Agent


class Leaver:
    """An agent in a round of two nodes that is about to leave."""

    def __init__(self, tmp_path: Path, **changes: Any) -> None:
        on_timeout = changes.pop("on_timeout", AfterDrain.LEAVE)
        self.agent = Agent(tmp_path, **changes)
        self.run, self.other = self.agent.run, self.agent.other.run
        parts: Any = SimpleNamespace(**vars(self.agent.signalled._parts), on_timeout=on_timeout)
        self.workers: Any = self.agent.workers
        self.workers.last, self.workers.ending.wedge = ({}, {}), None
        reports = Reports(self.run, parts.log, RestartBudgets())
        self.leaving = Leaving(parts, self.workers, self.agent.signalled, reports)

    @property
    def formed(self) -> RoundFormed:
        """The newest round."""
        formed = self.run.state.round
        assert formed is not None
        return formed

    def end_round(self) -> None:
        """Let the round end, and both nodes be without workers."""
        self.run.commit(crash(self.formed.number))
        self.other.refresh()
        for run in (self.run, self.other):
            run.set_phase(Phase.STOPPED)
        self.run.membership.look()


@pytest.mark.parametrize(
    ("number", "cause"), [(signal.SIGTERM, Cause.PREEMPTION), (signal.SIGUSR1, Cause.TIME_LIMIT)]
)
def test_a_node_that_leaves_alone_records_why_and_the_others_go_on(
    tmp_path: Path, number: int, cause: Cause
) -> None:
    """By its signal, as long as Slurm has not answered."""
    one = Leaver(tmp_path, on_signal=AfterDrain.REJOIN)
    one.agent.hears(number)
    outcome = one.leaving.alone()
    assert {one.run.membership.node_id} == one.run.state.left
    ended = one.run.state.ended
    assert ended is not None
    assert (cause, ("n1",)) == (ended.cause, ended.nodes)
    assert outcome.reason.endswith("; the others go on without it")


def test_what_slurm_answers_is_the_reason(tmp_path: Path) -> None:
    """It counts, whatever the signal seemed to mean."""
    one = Leaver(tmp_path, on_signal=AfterDrain.REJOIN)
    one.agent.hears(signal.SIGTERM)
    one.agent.is_told(Notice(Cause.NODE_LOSS, "down", explains=True, answer=Answer.CONFIRMS))
    outcome = one.leaving.alone()
    ended = one.run.state.ended
    assert ended is not None
    assert Cause.NODE_LOSS is ended.cause
    assert outcome.reason.startswith("the node is down or unfit")


def test_the_last_node_says_that_nobody_is_left(tmp_path: Path) -> None:
    """The others have left before it."""
    one = Leaver(tmp_path, on_signal=AfterDrain.REJOIN)
    one.other.refresh()
    one.other.report_left(Cause.PREEMPTION, "SIGTERM")
    one.run.refresh()
    one.agent.hears(signal.SIGTERM)
    outcome = one.leaving.alone()
    assert (ExitCode.REQUEUE, True) == (outcome.exit_code, outcome.reason.endswith("; no other node is left"))


def test_who_leaves_a_run_that_has_ended_tells_its_end(tmp_path: Path) -> None:
    """Or that of this start of it."""
    done, drained = (Leaver(tmp_path / name, on_signal=AfterDrain.REJOIN) for name in ("done", "drained"))
    done.run.end_run(Decision.FAILED, exit_code=7, reason="why")
    drained.run.report_drained(Cause.JOIN_TIMEOUT, "too few")
    for one in (done, drained):
        one.agent.hears(signal.SIGTERM)
    assert (7, "why") == done.leaving.alone()[:2]
    assert "stopped for join timeout" in drained.leaving.alone().reason


@pytest.mark.parametrize("is_over", [True, False])
def test_a_start_without_workers_is_handed_back_when_nobody_has_any(tmp_path: Path, *, is_over: bool) -> None:
    """While the round of others runs, they say it."""
    one = Leaver(tmp_path)
    one.agent.hears(signal.SIGTERM)
    if is_over:
        one.end_round()
    one.leaving.without_workers()
    drained = one.run.state.drained
    assert (Cause.PREEMPTION if is_over else None) is (None if drained is None else drained.cause)


def test_a_start_is_not_handed_back_before_the_workers_of_others_have_ended(tmp_path: Path) -> None:
    """They may still save."""
    one = Leaver(tmp_path)
    one.agent.hears(signal.SIGTERM)
    one.run.commit(crash(one.formed.number))
    one.run.set_phase(Phase.STOPPED)
    one.leaving.without_workers()
    assert one.run.state.leaving
    assert None is one.run.state.drained


def test_a_start_that_never_had_a_round_is_handed_back(tmp_path: Path) -> None:
    """Nobody has workers then."""
    one = Leaver(tmp_path)
    clock = FakeClock()
    alone = node_maker(MemoryStore(), clock)("n1", expected=("n1",))
    alone.run.announce()
    agent = one.agent
    agent.signalled._run = one.leaving._run = one.leaving._reports._run = alone.run
    agent.hears(signal.SIGTERM)
    one.leaving.without_workers()
    drained = alone.run.state.drained
    assert drained is not None
    assert Cause.PREEMPTION is drained.cause


@pytest.mark.parametrize(("timed_out", "cause"), [(True, Cause.JOIN_TIMEOUT), (False, Cause.NODE_LOSS)])
def test_too_few_nodes_hand_the_job_back(tmp_path: Path, *, timed_out: bool, cause: Cause) -> None:
    """The names of those that are missing are recorded."""
    one = Leaver(tmp_path)
    outcome = one.leaving.refused(NoRound(rules.TooFew(1, ("n2",), timed_out=timed_out)))
    drained = one.run.state.drained
    assert drained is not None
    assert (cause, ("n2",)) == (drained.cause, drained.missing)
    assert (ExitCode.REQUEUE, True) == (outcome.exit_code, outcome.error is not None)


def test_too_few_nodes_end_a_run_that_nobody_hands_back(tmp_path: Path) -> None:
    """It has no job that could be requeued."""
    one = Leaver(tmp_path, on_timeout=AfterDrain.REJOIN)
    one.leaving.refused(NoRound(rules.TooFew(1, ("n2",), timed_out=True)))
    ending = one.run.state.ending
    assert ending is not None
    assert (Decision.FAILED, None) == (ending.decision, one.run.state.drained)


def test_other_refusals(tmp_path: Path) -> None:
    """A node that is not wanted leaves for the membership; an outdated one writes nothing."""
    one = Leaver(tmp_path)
    last = one.run.state.last
    assert FENCED == one.leaving.refused(NoRound(rules.Fenced()))._replace(error=None)
    assert last == one.run.state.last
    one.leaving.refused(NoRound(rules.Dismissed(1)))
    ended = one.run.state.ended
    assert ended is not None
    assert Cause.MEMBERSHIP is ended.cause


@pytest.mark.parametrize(
    ("error", "fails"), [(InputError("no such program"), True), (OSError("no processes left"), False)]
)
def test_workers_that_cannot_be_started(tmp_path: Path, error: InputError | OSError, *, fails: bool) -> None:
    """A command that works nowhere ends the run; what one node lacks ends its round."""
    one = Leaver(tmp_path)
    outcome = one.leaving.not_started(one.formed, error)
    state = one.run.state
    assert fails is (state.ending is not None)
    assert error is outcome.error
    if not fails:
        assert state.ended is not None
        assert (Cause.AGENT_ERROR, ("n1",)) == (state.ended.cause, state.ended.nodes)
        assert (ExitCode.FAILED, WorkerState.FAILED) == (outcome.exit_code, outcome.result.state)


@pytest.mark.parametrize(("has_group", "signalled"), [(True, False), (False, False), (True, True)])
def test_an_agent_out_of_touch_tells_what_it_knows(
    tmp_path: Path, *, has_group: bool, signalled: bool
) -> None:
    """The failures of its own workers are all that it has; one that was asked to leave has not failed."""
    one = Leaver(tmp_path)
    failures = {0: object()}
    group = SimpleNamespace(
        formed=one.formed, first_failure=lambda: None, failures=lambda: failures, is_stopping=False
    )
    one.workers.group = group if has_group else None
    one.agent.hears(*([signal.SIGTERM] if signalled else []))
    outcome = one.leaving.refused(OutOfReach(StoreTimeoutError("no answer")))
    assert (ExitCode.REQUEUE if signalled else ExitCode.FAILED) == outcome.exit_code
    assert (failures if has_group and not signalled else {}) == outcome.result.failures


def wedged(one: Leaver) -> Outcome:
    """Return the outcome of an agent whose workers take no signal."""
    stuck = Outcome(ExitCode.WEDGED, "a worker hangs in the kernel")
    one.workers.ending.wedge = SimpleNamespace(formed=one.formed, outcome=lambda: stuck)
    return stuck


@pytest.mark.parametrize("on_timeout", [AfterDrain.LEAVE, AfterDrain.REJOIN])
def test_a_node_with_stuck_workers_leaves_the_run_to_the_others(
    tmp_path: Path, on_timeout: AfterDrain
) -> None:
    """They may be alive in the round that is over."""
    one = Leaver(tmp_path, on_timeout=on_timeout)
    stuck = wedged(one)
    one.run.commit(crash(one.formed.number))
    last = one.run.state.last
    assert stuck == one.leaving.abandon()
    assert stuck == one.leaving.refused(OutOfReach(StoreTimeoutError("no answer")))._replace(error=None)
    assert last == one.run.state.last


@pytest.mark.parametrize("on_timeout", [AfterDrain.LEAVE, AfterDrain.REJOIN])
def test_the_only_node_with_stuck_workers_ends_its_start(tmp_path: Path, on_timeout: AfterDrain) -> None:
    """The job is handed back, or the run fails where nobody requeues it."""
    one = Leaver(tmp_path, on_timeout=on_timeout)
    wedged(one)
    one.run.commit(crash(one.formed.number))
    one.other.refresh()
    one.other.report_left(Cause.PREEMPTION, "SIGTERM")
    one.run.refresh()
    one.leaving.abandon()
    state = one.run.state
    assert (on_timeout is AfterDrain.LEAVE, on_timeout is not AfterDrain.LEAVE) == (
        state.drained is not None,
        state.ending is not None,
    )


def test_a_node_with_stuck_workers_sees_a_round_that_has_begun_meanwhile(tmp_path: Path) -> None:
    """Its own round runs on for all that is known, so it ends nothing."""
    one = Leaver(tmp_path)
    wedged(one)
    one.other.refresh()
    one.other.report_left(Cause.PREEMPTION, "SIGTERM")
    one.run.commit(crash(one.formed.number))
    again = one.formed._replace(number=2, members=one.formed.members[:1])
    one.run.commit(again)
    one.leaving.abandon()
    assert (None, None) == (one.run.state.drained, one.run.state.ending)


def unfit(
    expected: tuple[str, ...], min_nodes: int, on_timeout: AfterDrain, on_signal: AfterDrain
) -> tuple[RunState, Outcome]:
    """Return the state of a run, and the outcome, after a node has found itself unfit."""
    clock, settings = FakeClock(), MeetingSettings(min_nodes=min_nodes, max_nodes=3)
    node = node_maker(MemoryStore(), clock)("n1", expected=expected, settings=settings)
    parts: Any = SimpleNamespace(
        rendezvous=node,
        clock=clock,
        log=SimpleNamespace(say=lambda _text: None),
        loop=SimpleNamespace(wait=clock.advance, signals=()),
        times=SimpleNamespace(exit_barrier=2.0),
        on_signal=on_signal,
        on_timeout=on_timeout,
    )
    outcome = stay_out(parts, "disk full")
    return node.run.state, outcome


@pytest.mark.parametrize(
    ("expected", "min_nodes", "on_timeout", "detail"),
    [
        (("n1", "n2", "n3"), 3, AfterDrain.LEAVE, "2 of 3 nodes are left, 3 are needed; unfit: n1"),
        (("n1", "n2", "n3"), 2, AfterDrain.LEAVE, None),
        ((), 3, AfterDrain.LEAVE, None),
        (("n1", "n2", "n3"), 3, AfterDrain.REJOIN, None),
    ],
    ids=["too few", "enough", "nobody knows", "no job to hand back"],
)
def test_an_unfit_node_hands_the_job_back_when_too_few_are_left(
    expected: tuple[str, ...], min_nodes: int, on_timeout: AfterDrain, detail: str | None
) -> None:
    """Slurm gives other nodes for it."""
    state, outcome = unfit(expected, min_nodes, on_timeout, AfterDrain.LEAVE)
    assert ({"n1": "disk full"}, frozenset()) == (state.unfit, state.left)
    assert detail == (None if state.drained is None else state.drained.detail)
    words = detail if detail is not None else "others go on without it"
    assert (ExitCode.UNFIT, True) == (outcome.exit_code, outcome.reason.endswith(words))


def test_an_unfit_task_of_an_array_leaves_by_itself() -> None:
    """Its own job gets another node."""
    state, _ = unfit(("n1", "n2"), 1, AfterDrain.LEAVE, AfterDrain.REJOIN)
    assert {"n1.1"} == state.left
