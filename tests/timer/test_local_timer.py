"""Timers over a multiprocessing queue."""

from __future__ import annotations

import os
import queue
import signal
from collections.abc import Iterator
from multiprocessing.context import SpawnContext
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.clock import SystemClock
from hpc_elastic.testing.clock import FakeClock
from hpc_elastic.testing.waiting import wait_until
from hpc_elastic.timer import ExpiredWorker, LocalTimerClient, LocalTimerServer, TimerRequest
from hpc_elastic.timer.local_timer import MultiprocessingRequestQueue
from tests.timer import timed_workers
from tests.timer.conftest import Spawn

NEVER = 9_999_999_999.0


@pytest.fixture
def messages(spawning: SpawnContext) -> Iterator[Any]:
    """Return a queue between processes."""
    made = spawning.Queue()
    yield made
    made.close()
    made.join_thread()


@pytest.fixture
def server(messages: Any) -> Iterator[LocalTimerServer]:
    """Return a running server that waits a minute where it can."""
    made = LocalTimerServer(messages)
    made.start()
    yield made
    made.stop()


def test_a_stuck_worker_is_killed(
    server: LocalTimerServer, messages: Any, spawn: Spawn, tmp_path: Path
) -> None:
    """The worker prints where it is stuck and is killed, long before `max_interval` is over."""
    stderr = tmp_path / "stderr"
    child = spawn(timed_workers.get_stuck, LocalTimerClient(messages), 0.1, str(stderr))
    child.join(120)
    assert -signal.SIGKILL == child.exitcode
    assert "in stuck_in_here" in stderr.read_text()
    wait_until(lambda: not server._timers, "its timers are gone")


def test_workers_in_time_live(server: LocalTimerServer, messages: Any, spawn: Spawn) -> None:
    """Workers that leave their blocks in time end in their own way."""
    children = [spawn(timed_workers.finish_in_time, LocalTimerClient(messages), 20) for _ in range(2)]
    for child in children:
        child.join(120)
    assert [0, 0] == [child.exitcode for child in children]
    wait_until(lambda: not server._timers and not messages.qsize(), "no timer is left")


def test_stopping_does_not_wait_for_a_request(messages: Any) -> None:
    """A server that waits for requests stops at once."""
    server = LocalTimerServer(messages, max_interval=3600)
    server.start()
    thread = server._watchdog_thread
    server.stop()
    assert thread is not None
    assert not thread.is_alive()


def test_the_agent_ends_the_worker_if_it_wants(clock: FakeClock) -> None:
    """A callable ends the worker in place of a signal."""
    asked: list[ExpiredWorker] = []
    messages: queue.Queue[TimerRequest] = queue.Queue()

    def reap(worker: ExpiredWorker) -> bool:
        asked.append(worker)
        return True

    server = LocalTimerServer(messages, max_interval=0, reap=reap, clock=clock)
    for scope, after in (("late", 2), ("early", 1), ("far", 60)):
        messages.put(TimerRequest(os.getpid(), scope, clock.wall() + after))
    server._run_watchdog()
    clock.advance(2)
    for _ in range(3):
        server._run_watchdog()
    assert [ExpiredWorker(os.getpid(), signal.SIGKILL, ("early", "late"))] == asked
    assert {} == server._timers


@pytest.mark.parametrize("pid", [-1, 0, 2**22 + 1], ids=["all", "group", "nobody"])
def test_only_workers_are_killed(clock: FakeClock, pid: int) -> None:
    """A request that names nobody, or everybody, ends nobody and is dropped."""
    messages: queue.Queue[TimerRequest] = queue.Queue()
    messages.put(TimerRequest(pid, "a", clock.wall()))
    server = LocalTimerServer(messages, max_interval=0, clock=clock)
    server._run_watchdog()
    assert {} == server._timers


def test_a_queue_returns_what_is_there() -> None:
    """`get` returns as many as asked for, or those that came in time."""
    messages: queue.Queue[TimerRequest] = queue.Queue()
    requests = MultiprocessingRequestQueue(messages)
    sent = [TimerRequest(1, f"s{number}", NEVER) for number in range(3)]
    for request in sent:
        messages.put(request)
    assert 3 == requests.size()
    assert sent[:2] == requests.get(2, timeout=0)
    assert sent[2:] == requests.get(5, timeout=0.01)
    assert [] == requests.get(1, timeout=0)


def test_expired_timers_are_listed_by_worker() -> None:
    """A timer that expires at the deadline itself has expired."""
    server = LocalTimerServer(queue.Queue())
    now = SystemClock().wall()
    first, second, third = TimerRequest(1, "a", now), TimerRequest(1, "b", now), TimerRequest(2, "a", now + 9)
    server.register_timers([first, second, third])
    assert {1: [first, second]} == server.get_expired_timers(now)
    server.clear_timers({1})
    assert {2: [third]} == server.get_expired_timers(now + 9)
