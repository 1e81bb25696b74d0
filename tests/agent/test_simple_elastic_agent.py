"""The agent's template: when workers are started, restarted and given up."""

from __future__ import annotations

import logging
import signal
from typing import Any

import pytest

from hpc_elastic.agent import RunResult, WorkerState
from hpc_elastic.errors import (
    InputError,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
    StoreError,
)
from hpc_elastic.multiprocessing import SignalException
from hpc_elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo
from hpc_elastic.testing.clock import FakeClock
from tests.agent.elastic_fakes import (
    FAILED,
    HEALTHY,
    FakeAgent,
    FakeHandler,
    NeverStore,
    ended,
    new_store,
    spec_of,
    succeeded,
)

PLACE = RendezvousInfo(new_store(), 0, 1, RendezvousStoreInfo("host", 1))


def test_workers_that_succeed() -> None:
    """They are started once; their values are the result; the agent cleans up."""
    agent = FakeAgent(spec_of(FakeHandler()), [HEALTHY, HEALTHY, succeeded])
    result = agent.run("role")
    assert RunResult(WorkerState.SUCCEEDED, {0: 0, 1: 1}) == result
    assert ["start", "shutdown"] == agent.done
    assert WorkerState.SUCCEEDED is agent.get_worker_group().state
    assert ["id0", "id1"] == [worker.id for worker in agent.get_worker_group().workers]


@pytest.mark.parametrize("state", [WorkerState.FAILED, WorkerState.UNHEALTHY])
def test_restarts_last_and_then_the_run_has_failed(state: WorkerState) -> None:
    """Each failure takes one restart; the last one is the result, whatever was wrong with the workers."""
    handler = FakeHandler()
    agent = FakeAgent(spec_of(handler, max_restarts=2), [ended(state)] * 3)
    result = agent.run()
    assert result.is_failed()
    assert (WorkerState.FAILED, [0], 7) == (result.state, [*result.failures], result.failures[0].exitcode)
    assert ["start", "stop", "start", "stop", "start", "stop", "shutdown"] == agent.done
    assert (0, 3) == (agent._remaining_restarts, handler.count)
    assert WorkerState.FAILED is agent.get_worker_group().state


def test_a_restart_saves_the_run() -> None:
    """Workers that succeed after a restart have succeeded."""
    agent = FakeAgent(spec_of(FakeHandler(), max_restarts=1), [FAILED, succeeded])
    assert not agent.run().is_failed()
    assert 0 == agent._remaining_restarts


def test_a_change_of_membership_is_no_restart() -> None:
    """Nodes that wait have all workers started again; the budget stays."""
    handler = FakeHandler(waiting=[0, 2, 0])
    agent = FakeAgent(spec_of(handler, max_restarts=0), [HEALTHY] * 3 + [succeeded])
    assert not agent.run().is_failed()
    assert ["start", "stop", "start", "shutdown"] == agent.done
    assert 1002 == agent.get_worker_group().master_port  # of the newest round


def test_healthy_workers_outlive_a_silent_rendezvous(caplog: pytest.LogCaptureFixture) -> None:
    """They go on while nobody knows whether nodes wait; it is told once, and when it is over."""
    silence = RendezvousConnectionError("no answer")
    handler = FakeHandler(waiting=[silence, silence, RendezvousTimeoutError("none"), 0])
    agent = FakeAgent(spec_of(handler), [HEALTHY] * 4 + [succeeded])
    with caplog.at_level(logging.WARNING):
        assert not agent.run().is_failed()
    assert ["start", "shutdown"] == agent.done
    assert [
        "The rendezvous does not answer, the workers go on: no answer",
        "The rendezvous answers again",
    ] == (caplog.messages)


def test_a_damaged_rendezvous_ends_the_agent() -> None:
    """What does not pass is no reason to go on; the workers are ended."""
    agent = FakeAgent(spec_of(FakeHandler(waiting=[RendezvousStateError("damaged")])), [HEALTHY])
    with pytest.raises(RendezvousStateError):
        agent.run()
    assert ["start", "shutdown"] == agent.done


@pytest.mark.parametrize("state", [WorkerState.UNKNOWN, WorkerState.STOPPED, WorkerState.INIT])
def test_lost_workers_end_the_agent(state: WorkerState) -> None:
    """Nobody knows what they do; no restart is tried."""
    agent = FakeAgent(spec_of(FakeHandler(), max_restarts=9), [RunResult(state)])
    with pytest.raises(RuntimeError, match=rf"\[trainer\] Worker group in {state.name} state"):
        agent.run()
    assert 9 == agent._remaining_restarts


def test_a_node_that_is_not_needed_leaves_with_a_result() -> None:
    """It has neither succeeded nor failed."""
    handler = FakeHandler(rounds=[RendezvousGracefulExitError("enough nodes")])
    result = FakeAgent(spec_of(handler), []).run()
    assert RunResult(WorkerState.STOPPED) == result
    assert not result.is_failed()


def test_the_end_of_the_run_hides_no_failure() -> None:
    """If the others have ended the run, the failure that was to be restarted is the result."""
    handler = FakeHandler(rounds=[PLACE, RendezvousClosedError("over")])
    agent = FakeAgent(spec_of(handler), [FAILED])
    result = agent.run()
    assert result.is_failed()
    assert 7 == result.failures[0].exitcode


def test_a_closed_run_cannot_be_joined() -> None:
    """Who comes too late is told."""
    with pytest.raises(RendezvousClosedError):
        FakeAgent(spec_of(FakeHandler(rounds=[RendezvousClosedError("over")])), []).run()


def test_an_agent_needs_a_handler() -> None:
    """A spec without one is good for looking at, not for running."""
    agent = FakeAgent(spec_of(None), [])
    with pytest.raises(InputError, match="no rdzv_handler"):
        agent.run()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_node_lost_before_the_ranks_are_known(rank: int) -> None:
    """The others do not wait for it until the store gives up: they meet again."""
    clock = FakeClock()
    half = RendezvousInfo(NeverStore(clock), rank, 2, RendezvousStoreInfo("host", 1))
    agent = FakeAgent(spec_of(FakeHandler(waiting=[0, 1], rounds=[half, PLACE])), [succeeded], clock)
    assert [0, 1] == list(agent.run().return_values)
    assert 1 == agent.get_worker_group().group_world_size


def test_a_silent_node_ends_the_agent_in_the_end() -> None:
    """If the round stands all the same, the store's timeout is the limit; the error names what is missing."""
    clock = FakeClock()
    half = RendezvousInfo(NeverStore(clock), 1, 2, RendezvousStoreInfo("host", 1))
    agent = FakeAgent(spec_of(FakeHandler(rounds=[half])), [], clock)
    with pytest.raises(StoreError, match=r"not within 5 s: key k"):
        agent.run()


def test_a_death_signal_reaches_the_workers() -> None:
    """They get the same signal and the agent's own time of grace, once."""
    error = SignalException("told to end", signal.SIGHUP)
    agent = FakeAgent(spec_of(FakeHandler()), [error], shutdown_timeout=7)
    with pytest.raises(SignalException):
        agent.run()
    assert [(signal.SIGHUP, 7)] == agent.shutdowns


class OldAgent(FakeAgent):
    """Written for a version in which hooks took fewer arguments."""

    def _shutdown(self) -> None:  # type: ignore[override]
        self.done.append("old shutdown")


@pytest.mark.parametrize("look", [succeeded, SignalException("told to end", signal.SIGTERM)])
def test_older_hooks_are_called_as_they_are(look: Any) -> None:
    """A hook without parameters gets no arguments."""
    agent = OldAgent(spec_of(FakeHandler()), [look])
    try:
        agent.run()
    except SignalException:
        pass
    assert "old shutdown" == agent.done[-1]


def test_older_handlers_return_a_triple() -> None:
    """Agents then agree on address and port by themselves."""
    handler = FakeHandler(rounds=[(new_store(), 0, 1)])
    agent = FakeAgent(spec_of(handler, local_addr="10.0.0.7"), [succeeded])
    agent.run()
    group = agent.get_worker_group()
    assert "10.0.0.7" == group.master_addr
    assert 0 < (group.master_port or 0)


def test_address_of_the_spec_goes_before_that_of_the_round() -> None:
    """A fixed address and port are used."""
    agent = FakeAgent(spec_of(FakeHandler(), master_addr="fixed", master_port=7), [succeeded])
    agent.run()
    assert ("fixed", 7) == (agent.get_worker_group().master_addr, agent.get_worker_group().master_port)


def test_time_between_looks_is_the_monitor_interval() -> None:
    """An agent that is not told of exits looks that often."""
    agent = FakeAgent(spec_of(FakeHandler(), monitor_interval=2.5), [HEALTHY] * 3 + [succeeded])
    began = agent.fake_clock.monotonic()
    agent.run()
    assert began + 10.0 == agent.fake_clock.monotonic()
    assert 10 == agent._total_execution_time


@pytest.mark.parametrize(("name", "default"), [("exit_barrier_timeout", 300), ("shutdown_timeout", 30)])
def test_timeouts_come_from_argument_or_environment(
    name: str, default: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The argument goes before the variable, the variable before the default."""
    variable = f"TORCH_ELASTIC_{name.upper()}"

    def found(**options: Any) -> float:
        return float(getattr(FakeAgent(spec_of(FakeHandler()), [], **options), f"_{name}"))

    monkeypatch.delenv(variable, raising=False)
    assert default == found()
    monkeypatch.setenv(variable, "4.5")
    assert 4.5 == found()
    assert 0 == found(**{name: 0})
    with pytest.raises(ValueError, match=f"{name} must be non-negative, got -1"):
        found(**{name: -1})
    monkeypatch.setenv(variable, "soon")
    with pytest.raises(InputError, match=rf"{variable}: {name} must be a number of seconds, got 'soon'"):
        found()
