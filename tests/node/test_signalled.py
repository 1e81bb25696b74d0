"""What an agent makes of its signals and of what Slurm says about them."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from hpc_elastic.errors import StoreError
from hpc_elastic.node.signals import ANSWER_S
from hpc_elastic.node.stop_rules import DrainTimes
from hpc_elastic.record.journal import AfterDrain, Cause, DrainExplained
from hpc_elastic.record.why_left import Notice
from tests.meet.build import crash
from tests.node.signalled_agent import Agent


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    """An agent below Slurm."""
    return Agent(tmp_path)


def test_a_signal_gives_the_workers_their_time(agent: Agent) -> None:
    """By what it means; a second one is told, and only makes it quicker."""
    agent.hears(signal.SIGUSR1)
    assert (Cause.TIME_LIMIT, 90.0) == (agent.signalled.wish.cause, agent.left_s)
    agent.hears(signal.SIGTERM)
    assert (Cause.TIME_LIMIT, 25.0) == (agent.signalled.wish.cause, agent.left_s)
    assert "SIGTERM received" == agent.said[-1]


@pytest.mark.parametrize(
    ("until_s", "left_s", "words"),
    [(300.0, 300.0, "; workers have 300 s more"), (-5.0, -5.0, "; workers have 0 s more"), (None, 25.0, "")],
)
def test_what_slurm_leaves_replaces_what_was_feared(
    agent: Agent, until_s: float | None, left_s: float, words: str
) -> None:
    """The line says how much it is, if it is known."""
    agent.hears(signal.SIGTERM)
    until = None if until_s is None else agent.clock.monotonic() + until_s
    agent.is_told(Notice(Cause.PREEMPTION, "preempted", until, explains=True))
    assert (left_s, f"Slurm: preempted{words}") == (agent.left_s, agent.said[-1])


def test_a_time_that_the_user_gave_holds_whatever_slurm_says(tmp_path: Path) -> None:
    """And nothing is said of Slurm's."""
    agent = Agent(tmp_path, drain=DrainTimes(stop=10.0, is_stop_given=True))
    agent.hears(signal.SIGTERM)
    agent.is_told(Notice(Cause.PREEMPTION, "preempted", agent.clock.monotonic() + 300, explains=True))
    assert (10.0, "Slurm: preempted") == (agent.left_s, agent.said[-1])


def test_a_notice_asks_like_a_signal(agent: Agent) -> None:
    """With its own time if it knows one, which the others are told, else with that of its cause."""
    agent.is_told(Notice(Cause.TIME_LIMIT, "the time limit", agent.clock.monotonic() + 40))
    assert (40.0, True) == (agent.left_s, agent.signalled.wish.is_known)
    agent.signalled.tell()
    drain = agent.run.state.drain
    assert drain is not None
    assert (Cause.TIME_LIMIT, AfterDrain.LEAVE, 40.0) == (drain.cause, drain.then, drain.left_s)


def test_a_notice_without_a_time_has_that_of_its_cause(agent: Agent) -> None:
    """The others use their own flags."""
    agent.is_told(Notice(Cause.TIME_LIMIT, "the time limit"))
    assert (90.0, False) == (agent.left_s, agent.signalled.wish.is_known)
    agent.signalled.tell()
    drain = agent.run.state.drain
    assert drain is not None
    assert None is drain.left_s


def test_a_time_that_is_over_is_told_as_none(agent: Agent) -> None:
    """The others end their workers at once."""
    agent.is_told(Notice(Cause.TIME_LIMIT, "the time limit", agent.clock.monotonic() + 4))
    agent.clock.advance(5)
    agent.signalled.tell()
    drain = agent.run.state.drain
    assert drain is not None
    assert 0.0 == drain.left_s


def test_the_others_are_told_what_slurm_says_once(agent: Agent) -> None:
    """With how long is left at that moment."""
    agent.hears(signal.SIGTERM)
    agent.signalled.tell()
    agent.is_told(Notice(Cause.NODE_LOSS, "a node is down", agent.clock.monotonic() + 50, explains=True))
    agent.clock.advance(20)
    agent.signalled.tell()
    explained = agent.run.state.explained
    assert explained is not None
    assert (Cause.NODE_LOSS, "a node is down", 30.0) == (explained.cause, explained.detail, explained.left_s)
    last = agent.run.state.last
    agent.signalled.tell()
    assert last == agent.run.state.last


@pytest.mark.parametrize("left_s", [7.0, None])
def test_what_another_node_has_found_out_counts_here_as_well(agent: Agent, left_s: float | None) -> None:
    """Once, and only if it knows how long there is."""
    agent.hears(signal.SIGTERM)
    agent.signalled.tell()
    agent.run.commit(DrainExplained(agent.run.state.epoch, Cause.NODE_LOSS, "down", left_s))
    agent.signalled.note()
    assert (left_s or 25.0) == agent.left_s
    agent.clock.advance(3)
    agent.signalled.note()
    assert (left_s or 25.0) - 3 == agent.left_s


def test_slurm_is_asked_once_for_each_kind_of_signal(agent: Agent) -> None:
    """About the first of its kind; about Ctrl-C nobody needs to ask."""
    began = agent.clock.monotonic()
    agent.hears(signal.SIGINT)
    agent.signalled.tell()
    assert [] == agent.asked
    agent.hears(signal.SIGUSR1)
    agent.clock.advance(1)
    agent.hears(signal.SIGTERM, signal.SIGUSR2)
    agent.signalled.tell()
    agent.signalled.tell()
    assert [(began, True), (began + 1, False)] == agent.asked


def test_who_was_signalled_after_another_has_told_does_not_ask(agent: Agent) -> None:
    """That one does."""
    agent.other.run.refresh()
    agent.other.run.request_drain(Cause.PREEMPTION, AfterDrain.LEAVE, "SIGTERM")
    agent.run.refresh()
    agent.hears(signal.SIGTERM)
    agent.signalled.tell()
    assert [] == agent.asked


def test_a_further_signal_is_asked_about_again(agent: Agent) -> None:
    """It may be for another reason, and leave less time."""
    agent.hears(signal.SIGTERM)
    agent.signalled.tell()
    agent.is_told(Notice(Cause.PREEMPTION, "preempted", agent.clock.monotonic() + 50, explains=True))
    agent.clock.advance(1)
    agent.hears(signal.SIGTERM)
    agent.signalled.tell()
    assert 2 == len(agent.asked)


def test_what_another_job_was_signalled_for_explains_nothing_here(tmp_path: Path) -> None:
    """Where each node is a job, another one's batch script may be killed as this one is requeued."""
    agent = Agent(tmp_path, on_signal=AfterDrain.REJOIN)
    agent.other.run.refresh()
    agent.other.run.request_drain(Cause.PREEMPTION, AfterDrain.REJOIN, "SIGTERM")
    agent.hears(signal.SIGTERM)
    agent.other.run.explain_drain(Cause.LAUNCH_FAILURE, "its batch script was killed", None)
    agent.run.refresh()
    agent.signalled.note()
    agent.signalled.tell()
    assert 1 == len(agent.asked)


def test_a_node_that_leaves_alone_asks_for_itself(tmp_path: Path) -> None:
    """The others stop for it, and go on without it; how long it has is no matter of theirs."""
    agent = Agent(tmp_path, on_signal=AfterDrain.REJOIN)
    agent.hears(signal.SIGTERM)
    agent.signalled.tell()
    drain = agent.run.state.drain
    assert drain is not None
    assert (Cause.PREEMPTION, AfterDrain.REJOIN) == (drain.cause, drain.then)
    assert 1 == len(agent.asked)
    agent.is_told(Notice(Cause.PREEMPTION, "preempted", agent.clock.monotonic() + 50, explains=True))
    agent.signalled.tell()
    explained = agent.run.state.explained
    assert explained is not None
    assert None is explained.left_s


def test_a_node_that_leaves_alone_explains_no_drain_of_another(tmp_path: Path) -> None:
    """What Slurm says of its own job is not why the other one leaves."""
    agent = Agent(tmp_path, on_signal=AfterDrain.REJOIN)
    agent.other.run.refresh()
    agent.other.run.request_drain(Cause.PREEMPTION, AfterDrain.REJOIN, "SIGTERM")
    agent.run.refresh()
    agent.hears(signal.SIGTERM)
    agent.is_told(Notice(Cause.TIME_LIMIT, "limit", agent.clock.monotonic() + 50, explains=True))
    agent.signalled.tell()
    assert agent.run.state.explained is None


@pytest.mark.parametrize(
    ("number", "then"), [(signal.SIGTERM, True), (signal.SIGUSR1, True), (signal.SIGINT, False)]
)
def test_ctrl_c_is_for_all(tmp_path: Path, number: int, then: bool) -> None:
    """Only what concerns one node lets it leave alone."""
    agent = Agent(tmp_path, on_signal=AfterDrain.REJOIN)
    agent.hears(number)
    assert (then, True) == (agent.signalled.leaves_alone, agent.signalled.asks_to_leave)


def test_nobody_leaves_before_anything_was_asked(agent: Agent) -> None:
    """Nothing is told to anybody."""
    agent.signalled.note()
    agent.signalled.tell()
    assert (False, False, None) == (
        agent.signalled.asks_to_leave, agent.signalled.leaves_alone, agent.run.state.drain
    )  # fmt: skip


def test_a_signal_makes_the_end_of_workers_quicker_that_are_ending(agent: Agent) -> None:
    """By its deadline; a second Ctrl-C ends them now."""
    agent.hears(signal.SIGINT)
    assert [] == agent.stopped_at
    agent.group.is_stopping = True
    agent.signalled.note()
    assert [] == agent.stopped_at
    agent.hears(signal.SIGTERM)
    agent.hears(signal.SIGINT)
    assert [agent.clock.monotonic() + 25, agent.clock.monotonic()] == agent.stopped_at


def test_the_drain_file_asks_for_the_end(agent: Agent, tmp_path: Path) -> None:
    """With the time of a stop; it is taken away when all have been told."""
    (tmp_path / "drain").touch()
    agent.clock.advance(10)
    agent.signalled.note()
    assert (Cause.STOP, 90.0) == (agent.signalled.wish.cause, agent.left_s)
    agent.signalled.tell()
    assert not (tmp_path / "drain").exists()


def test_who_leaves_alone_hears_why_first(tmp_path: Path) -> None:
    """Its cause is recorded once: a budget counts it. Workers that end at once must not make it a guess."""
    agent = Agent(tmp_path, on_signal=AfterDrain.REJOIN)
    agent.hears(signal.SIGTERM)
    agent.is_asking, agent.later = True, [Notice(Cause.NODE_LOSS, "the node is down", explains=True)]
    agent.signalled.hear_why()
    assert [False] == [is_warning for _at, is_warning in agent.asked]
    assert agent.signalled.answer is not None
    assert (Cause.NODE_LOSS, [ANSWER_S]) == (agent.signalled.answer.cause, agent.waited)


@pytest.mark.parametrize(("left_s", "waits_s"), [(None, ANSWER_S), (0.5, 0.5), (0.0, None)])
def test_an_answer_is_waited_for_no_longer_than_there_is_time(
    tmp_path: Path, left_s: float | None, waits_s: float | None
) -> None:
    """Slurm may not answer at all, and the workers' time is the agent's."""
    agent = Agent(tmp_path, on_signal=AfterDrain.REJOIN)
    agent.hears(signal.SIGTERM)
    if left_s is not None:
        agent.is_told(Notice(Cause.PREEMPTION, "preempted", agent.clock.monotonic() + left_s, explains=True))
    agent.is_asking = True
    agent.signalled.hear_why()
    assert ([] if waits_s is None else [waits_s]) == agent.waited


def test_nobody_waits_where_nobody_is_asked(tmp_path: Path) -> None:
    """Slurm's commands may be missing on a node, or the question is over."""
    agent = Agent(tmp_path, on_signal=AfterDrain.REJOIN)
    agent.hears(signal.SIGTERM)
    agent.signalled.hear_why()
    assert [] == agent.waited


def test_a_time_that_is_over_is_told_to_the_others_as_none(agent: Agent) -> None:
    """Slurm has answered late; nobody has less than no time."""
    agent.hears(signal.SIGTERM)
    agent.signalled.tell()
    agent.is_told(Notice(Cause.NODE_LOSS, "a node is down", agent.clock.monotonic() + 5, explains=True))
    agent.clock.advance(20)
    agent.signalled.tell()
    explained = agent.run.state.explained
    assert explained is not None
    assert 0.0 == explained.left_s


def test_only_the_first_thing_that_asks_can_promise_a_time(agent: Agent) -> None:
    """What comes after a signal shortens an assumption, which the other nodes make for themselves."""
    agent.hears(signal.SIGTERM)
    agent.is_told(Notice(Cause.TIME_LIMIT, "the time limit", agent.clock.monotonic() + 10))
    agent.signalled.tell()
    drain = agent.run.state.drain
    assert drain is not None
    assert (10.0, None) == (agent.left_s, drain.left_s)


def test_a_warning_to_workers_that_are_ending_is_heeded_at_once(agent: Agent) -> None:
    """Nothing would be gained by asking how early it is."""
    agent.group.is_stopping = agent.is_asking = True
    agent.hears(signal.SIGUSR2)
    assert agent.signalled.asks_to_leave
    assert [agent.clock.monotonic() + 90] == agent.stopped_at


def test_a_warning_after_a_signal_is_heeded_at_once(agent: Agent) -> None:
    """The workers are being asked to leave anyway."""
    agent.is_asking = True
    agent.hears(signal.SIGTERM)
    agent.clock.advance(1)
    agent.hears(signal.SIGUSR2)
    assert "SIGUSR2 received" == agent.said[-1]


@pytest.mark.parametrize(("signals", "tries"), [((), 2), ((signal.SIGTERM,), 25)])
def test_a_signalled_agent_writes_no_longer_than_its_workers_have(
    agent: Agent, signals: tuple[int, ...], tries: int
) -> None:
    """Another one gives up after the exit barrier's time."""
    agent.hears(*signals)
    tried = []

    def write() -> None:
        tried.append(agent.clock.monotonic())
        raise StoreError("the file system is away")

    agent.signalled.insist(write)
    assert tries == tried[-1] - tried[0]
    assert "left without a word: the file system is away" == agent.said[-1]


class Listener(Agent):
    """One that notes how it began to listen."""

    def begin(self, *, is_first: bool) -> None:
        """Listen."""
        self.limits.append(float(is_first))


def test_the_first_node_of_a_round_listens_for_all(tmp_path: Path) -> None:
    """Only one looks at the clock."""
    agents = Listener(tmp_path), Listener(tmp_path, is_second=True)
    for agent in agents:
        formed = agent.run.state.running
        assert formed is not None
        agent.signalled.begin(formed)
    assert [[1.0], [0.0]] == [agent.limits for agent in agents]


def test_the_drain_file_adds_nothing_to_a_signal(agent: Agent, tmp_path: Path) -> None:
    """The workers have been asked already."""
    agent.hears(signal.SIGTERM)
    said = list(agent.said)
    (tmp_path / "drain").touch()
    agent.clock.advance(10)
    agent.signalled.note()
    assert (said, 15.0) == (agent.said, agent.left_s)


def test_a_node_that_leaves_alone_after_the_round_explains_nothing(tmp_path: Path) -> None:
    """There is no drain: nobody has workers."""
    agent = Agent(tmp_path, on_signal=AfterDrain.REJOIN)
    agent.run.commit(crash(1))
    agent.hears(signal.SIGTERM)
    agent.is_told(Notice(Cause.NODE_LOSS, "down", explains=True))
    agent.signalled.tell()
    assert (None, None) == (agent.run.state.drain, agent.run.state.explained)


def test_a_signal_turns_a_pause_into_leaving(agent: Agent) -> None:
    """The others have paused for a node that joins."""
    agent.other.run.refresh()
    agent.other.run.request_drain(Cause.MEMBERSHIP, AfterDrain.REJOIN)
    agent.run.refresh()
    agent.hears(signal.SIGTERM)
    agent.signalled.tell()
    drain = agent.run.state.drain
    assert drain is not None
    assert (Cause.PREEMPTION, AfterDrain.LEAVE) == (drain.cause, drain.then)
