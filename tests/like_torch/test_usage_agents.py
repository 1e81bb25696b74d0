"""What agents out there that derive from ours do beside filling in the hooks."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.agent import LocalElasticAgent, RunResult, Worker, WorkerGroup, WorkerState
from hpc_elastic.multiprocessing import DefaultLogsSpecs
from hpc_elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo
from hpc_elastic.store.kv.store import KeyValueStore
from tests.agent.elastic_fakes import HEALTHY, FakeAgent, FakeHandler, new_store, spec_of, succeeded

WHERE = RendezvousStoreInfo("host", 1)


class OwnRendezvous(FakeAgent):
    """Meets the others in its own way, and puts what came of it into the worker group."""

    own_store: KeyValueStore

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        worker_group.workers = [Worker(rank, rank, rank, 2, 2) for rank in range(2)]
        worker_group.store = self._store = self.own_store
        worker_group.group_rank, worker_group.group_world_size = 0, 1
        worker_group.master_addr, worker_group.master_port = "host", 1


def test_agents_with_a_rendezvous_of_their_own_wait_for_each_other(caplog: pytest.LogCaptureFixture) -> None:
    """At the end, in the store that they have told."""
    agent = OwnRendezvous(spec_of(FakeHandler()), [HEALTHY, succeeded])
    agent.own_store = new_store()
    assert {0: 0, 1: 1} == agent.run().return_values
    assert agent.own_store.num_keys() > 0
    assert "Error waiting on exit barrier" not in caplog.text


def test_an_exit_barrier_needs_a_rendezvous(caplog: pytest.LogCaptureFixture) -> None:
    """Without one that is told, and nothing else happens."""
    agent = FakeAgent(spec_of(FakeHandler()), [])
    assert not agent._exit_barrier()
    assert "there was no rendezvous" in caplog.text


class Stages(FakeAgent):
    """Runs one group of workers after the other."""

    def _invoke_run(self, role: str = "") -> RunResult:
        self._initialize_workers(self._worker_group)
        self._worker_group = WorkerGroup(spec_of(FakeHandler(), local_world_size=1, role=role or "last"))
        self._initialize_workers(self._worker_group)
        return self._monitor_workers(self._worker_group)


def test_an_agent_may_change_its_worker_group() -> None:
    """What it records is about the group that it has."""
    agent = Stages(spec_of(FakeHandler()), [succeeded])
    assert {0: 0} == agent.run("second").return_values
    assert "second" == agent.get_event_succeeded().metadata["role"]


class SimpleStore:
    """A store that can be set and read, where reading waits.

    Args:
        wait: what waiting without reading does.
    """

    timeout = timedelta(seconds=5)

    def __init__(self, wait: Callable[[], None]) -> None:
        self._values: dict[str, bytes] = {}
        self._wait = wait

    def set(self, key: str, value: bytes | str) -> None:
        """Set a value."""
        self._values[key] = value.encode() if isinstance(value, str) else value

    def get(self, key: str) -> bytes:
        """Return a value."""
        return self._values[key]

    def multi_set(self, keys: Sequence[str], values: Sequence[str]) -> None:
        """Set values."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Return values."""
        return [self.get(key) for key in keys]

    def wait(self, _keys: Sequence[str], _timeout: timedelta) -> None:
        """Wait for values."""
        self._wait()


def _as_torchs_base() -> None:
    raise RuntimeError('Tried to call pure virtual function "::c10d::Store::wait"')


def _not_implemented() -> None:
    raise NotImplementedError


@pytest.mark.parametrize("wait", [_as_torchs_base, _not_implemented])
def test_stores_that_can_only_be_read_do_for_a_round(wait: Callable[[], None]) -> None:
    """A store of a handler's own need not be able to wait without reading."""
    place = RendezvousInfo(SimpleStore(wait), 0, 1, WHERE)
    agent = FakeAgent(spec_of(FakeHandler(rounds=[place])), [succeeded])
    assert {0: 0, 1: 1} == agent.run().return_values


def test_a_store_that_waits_in_vain_is_none_of_them() -> None:
    """What goes wrong there for other reasons is an error."""

    def fail() -> None:
        raise RuntimeError("connection reset")

    agent = FakeAgent(spec_of(FakeHandler(rounds=[RendezvousInfo(SimpleStore(fail), 0, 1, WHERE)])), [])
    with pytest.raises(RuntimeError, match="connection reset"):
        agent.run()


class Closing(LocalElasticAgent):
    """Ends its workers by itself, and forgets them."""

    def _shutdown(
        self, death_sig: signal.Signals = signal.SIGTERM, timeout: float | None = None, *, again: bool = False
    ) -> None:
        if self._pcontext is not None:
            self._pcontext.close(death_sig, timeout)
            self._pcontext = None
        self.was_again = again

    def _stop_workers(self, worker_group: WorkerGroup, *, is_restart: bool = False) -> None:
        assert worker_group is self._worker_group
        self._shutdown(again=not is_restart)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        if self._pcontext is None:
            return RunResult(WorkerState.FAILED)
        result = super()._monitor_workers(worker_group)
        if result.state == WorkerState.FAILED:
            result.state = WorkerState.UNHEALTHY
        return result


def test_an_agent_may_forget_its_workers(tmp_path: Path) -> None:
    """What it does in its own `_shutdown` is enough, before a restart and at the end."""
    mark = tmp_path / "mark"
    program = f"test -e {mark} || {{ touch {mark}; exit 3; }}"
    args: dict[str, Any] = {"entrypoint": "sh", "args": ("-c", program), "local_world_size": 1}
    agent = Closing(spec_of(FakeHandler(), **args), DefaultLogsSpecs(str(tmp_path)))
    assert RunResult(WorkerState.SUCCEEDED, {0: None}) == agent.run()
    assert (None, 2) == (agent._pcontext, agent._remaining_restarts)
