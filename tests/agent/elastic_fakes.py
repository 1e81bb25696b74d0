"""A handler, workers and an agent that do what a test says, for tests of the agent's template."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

from hpc_elastic.agent import RunResult, SimpleElasticAgent, WorkerGroup, WorkerSpec, WorkerState
from hpc_elastic.errors import StoreTimeoutError
from hpc_elastic.multiprocessing import ProcessFailure
from hpc_elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo
from hpc_elastic.store.kv.store import KeyValueStore
from hpc_elastic.store.memory import MemoryStore
from hpc_elastic.testing.clock import FakeClock

Answer = Any
"""What a fake returns; an exception is raised."""


def answer(answers: Iterator[Answer]) -> Any:
    """Return the next answer, or raise it."""
    found = next(answers)
    if isinstance(found, BaseException):
        raise found
    return found


def new_store(timeout: float = 5.0) -> KeyValueStore:
    """Return a key-value store that threads can share."""
    return KeyValueStore(MemoryStore(), "kv", timeout=timeout)


class NeverStore:
    """A store in which no key ever appears; waiting passes the time of a clock."""

    timeout = timedelta(seconds=5)

    def __init__(self, clock: FakeClock, error: Exception | None = None, *, ours: bool = True) -> None:
        self.counts_writes = ours
        self._clock = clock
        self._error = error
        self.waits: list[float] = []

    def set(self, key: str, value: bytes) -> None:
        """Lose a value."""

    def wait(self, _keys: Sequence[str], timeout: timedelta) -> None:
        """Wait in vain."""
        self.waits.append(timeout.total_seconds())
        if self._error is not None:
            raise self._error
        self._clock.advance(timeout.total_seconds())
        raise StoreTimeoutError("too late", missing=("k",))


class FakeHandler(RendezvousHandler):
    """Gives one node its place in each round at once.

    Args:
        waiting: what `num_nodes_waiting` answers, one after the other; then 0.
        rounds: what `next_rendezvous` answers; by default a world of this node alone.
    """

    def __init__(self, waiting: Iterable[Answer] = (), rounds: Iterable[Answer] | None = None) -> None:
        self.waiting = iter(waiting)
        self.rounds = None if rounds is None else iter(rounds)
        self.count = 0

    def get_backend(self) -> str:
        """Return a name."""
        return "fake"

    def next_rendezvous(self) -> RendezvousInfo:
        """Return the next place."""
        self.count += 1
        if self.rounds is not None:
            return answer(self.rounds)  # type: ignore[no-any-return]
        return RendezvousInfo(new_store(), 0, 1, RendezvousStoreInfo("host", 1000 + self.count))

    def is_closed(self) -> bool:
        """Return that it is not."""
        return False

    def set_closed(self) -> None:
        """Do nothing."""

    def num_nodes_waiting(self) -> int:
        """Return the next number."""
        try:
            return int(answer(self.waiting))
        except StopIteration:
            return 0

    def get_run_id(self) -> str:
        """Return an id."""
        return "run-1"

    def shutdown(self) -> bool:
        """Do nothing."""
        return True


class FakeAgent(SimpleElasticAgent):
    """Has workers that do what a test says; notes what is done to them.

    Args:
        spec: what to run.
        looks: what looking at the workers returns, one after the other.
        clock: time passes only in it.
    """

    def __init__(
        self, spec: WorkerSpec, looks: Iterable[Answer], clock: FakeClock | None = None, **options: Any
    ) -> None:
        self.fake_clock = clock or FakeClock()
        super().__init__(spec, clock=self.fake_clock, **options)
        self.looks = iter(looks)
        self.done: list[str] = []
        self.shutdowns: list[tuple[int, float]] = []

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self.done.append("start")
        return {worker.local_rank: f"id{worker.global_rank}" for worker in worker_group.workers}

    def _stop_workers(self, worker_group: WorkerGroup) -> None:  # noqa: ARG002 - a hook
        self.done.append("stop")

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        found = answer(self.looks)
        return found(worker_group) if callable(found) else found  # type: ignore[no-any-return]

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: float = 30) -> None:
        self.done.append("shutdown")
        self.shutdowns.append((death_sig, timeout))


HEALTHY = RunResult(WorkerState.HEALTHY)


def succeeded(group: WorkerGroup) -> RunResult:
    """All workers have returned their rank."""
    return RunResult(
        WorkerState.SUCCEEDED, {worker.global_rank: worker.global_rank for worker in group.workers}
    )


def ended(state: WorkerState) -> Callable[[WorkerGroup], RunResult]:
    """Return a look at workers of which the first is the reason for a state."""

    def look(group: WorkerGroup) -> RunResult:
        return RunResult(state, {}, {group.workers[0].global_rank: ProcessFailure(0, 99, 7, "")})

    return look


FAILED = ended(WorkerState.FAILED)


def spec_of(handler: RendezvousHandler | None, **changes: Any) -> WorkerSpec:
    """Return a spec of two workers."""
    values = {"role": "trainer", "local_world_size": 2, "entrypoint": "prog", **changes}
    return WorkerSpec(rdzv_handler=handler, **values)
