"""Setting timers around blocks of code, and what every server does with requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hpc_elastic import timer
from hpc_elastic.clock import SystemClock
from hpc_elastic.testing.clock import FakeClock
from hpc_elastic.timer import RequestQueue, TimerClient, TimerRequest, TimerServer, api
from hpc_elastic.timer.api import SteadyTime
from hpc_elastic.timer.reaping import RETRY_S, TimerTable


class Calls(TimerClient):
    """A client that notes what it is asked for."""

    def __init__(self) -> None:
        self.made: list[tuple[str, str]] = []
        self.expirations: list[float] = []

    def acquire(self, scope_id: str, expiration_time: float) -> None:
        """Note it."""
        self.made.append(("acquire", scope_id))
        self.expirations.append(expiration_time)

    def release(self, scope_id: str) -> None:
        """Note it."""
        self.made.append(("release", scope_id))


class ListQueue(RequestQueue):
    """A queue that holds what a test puts in."""

    def __init__(self, *requests: TimerRequest) -> None:
        self.requests = list(requests)

    def size(self) -> int:
        """Return how many there are."""
        return len(self.requests)

    def get(self, size: int, timeout: float) -> list[TimerRequest]:  # noqa: ARG002 - never waits
        """Return the first ones."""
        taken, self.requests = self.requests[:size], self.requests[size:]
        return taken


class OwnServer(TimerServer):
    """A server as users write them, on the four abstract methods alone."""

    def __init__(self, queue: RequestQueue, clock: FakeClock, *answers: bool | Exception) -> None:
        super().__init__(queue, max_interval=0.01, clock=clock)
        self.timers: dict[tuple[Any, str], TimerRequest] = {}
        self.answers = list(answers)
        self.reaped: list[Any] = []

    def register_timers(self, timer_requests: list[TimerRequest]) -> None:
        """Keep them."""
        for request in timer_requests:
            self.timers[request.worker_id, request.scope_id] = request

    def clear_timers(self, worker_ids: set[Any]) -> None:
        """Drop them."""
        self.timers = {key: request for key, request in self.timers.items() if key[0] not in worker_ids}

    def get_expired_timers(self, deadline: float) -> dict[Any, list[TimerRequest]]:
        """Return them by worker."""
        found: dict[Any, list[TimerRequest]] = {}
        for request in self.timers.values():
            if request.expiration_time <= deadline:
                found.setdefault(request.worker_id, []).append(request)
        return found

    def _reap_worker(self, worker_id: Any) -> bool:
        self.reaped.append(worker_id)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class SteppedClock(FakeClock):
    """A clock whose wall time can be set, as an administrator does."""

    def set_wall(self, by_s: float) -> None:
        """Move the wall time alone."""
        self._wall_s += by_s


@pytest.fixture
def calls() -> Iterator[Calls]:
    """Return the configured client; nothing is configured afterwards."""
    client = Calls()
    timer.configure(client)
    yield client
    api._timer_client = None


def test_a_timer_needs_a_client() -> None:
    """Without a client the block is not entered."""
    entered = []
    nobody = pytest.raises(RuntimeError, match="Configure timer client before using countdown timers")
    with nobody, timer.expires(after=1):
        entered.append(1)
    assert [] == entered


def test_a_block_acquires_and_releases(calls: Calls) -> None:
    """The timer is set on entry to `after` seconds from now, and taken away at the end."""
    before = SystemClock().wall()
    with timer.expires(after=60, scope="step"):
        assert [("acquire", "step")] == calls.made
    assert [("acquire", "step"), ("release", "step")] == calls.made
    assert before + 60 <= calls.expirations[0] <= SystemClock().wall() + 60


def test_an_exception_releases(calls: Calls) -> None:
    """A block that raises takes its timer away, and the exception goes on."""
    with pytest.raises(ZeroDivisionError), timer.expires(after=60, scope="step"):
        raise ZeroDivisionError
    assert ("release", "step") == calls.made[-1]


def test_nested_blocks_have_their_own_timers(calls: Calls) -> None:
    """Blocks without a name of their own are told apart by file and line."""
    with timer.expires(after=60):
        with timer.expires(after=6):
            pass
        inner_done = list(calls.made)
    outer, inner = calls.made[0][1], calls.made[1][1]
    assert [("acquire", outer), ("acquire", inner), ("release", inner)] == inner_done
    assert [__file__, __file__] == [scope.partition("#")[0] for scope in (outer, inner)]
    assert int(outer.partition("#")[2]) + 1 == int(inner.partition("#")[2])


def test_a_function_can_be_timed(calls: Calls) -> None:
    """As a decorator it times each call."""

    @timer.expires(after=5)
    def step() -> str:
        return calls.made[-1][0]

    assert ["acquire", "acquire"] == [step(), step()]
    assert 4 == len(calls.made)
    assert __file__ == calls.made[0][1].partition("#")[0]


def test_a_client_may_be_named(calls: Calls) -> None:
    """A client that is handed over goes before the configured one."""
    other = Calls()
    with timer.expires(after=1, scope="step", client=other):
        pass
    assert ([], 2) == (calls.made, len(other.made))


def test_requests_are_equal_by_their_fields() -> None:
    """Requests with the same fields are equal, of the same kind and only then."""
    assert TimerRequest(1, "a", 2.0) == TimerRequest(1, "a", 2.0)
    assert TimerRequest(1, "a", 2.0) != TimerRequest(1, "a", 3.0)
    assert timer.FileTimerRequest(1, "a", 2.0, 9) != timer.FileTimerRequest(1, "a", 2.0, 15)
    assert timer.FileTimerRequest(1, "a", 2.0, 9) != (1, "a", 2.0, 9)


def test_an_expired_worker_is_reaped_once(clock: FakeClock) -> None:
    """A worker whose timer expires is reaped, and then has no timers."""
    early, late = TimerRequest("w1", "a", clock.wall() + 5), TimerRequest("w2", "a", clock.wall() + 50)
    server = OwnServer(ListQueue(early, late), clock, True)
    server._run_watchdog()
    assert [] == server.reaped
    clock.advance(5)
    server._run_watchdog()
    server._run_watchdog()
    assert (["w1"], [("w2", "a")]) == (server.reaped, list(server.timers))


@pytest.mark.parametrize(("answer", "tries"), [(False, 2), (RuntimeError("defect"), 1)], ids=["no", "raises"])
def test_reaping_that_fails(clock: FakeClock, answer: bool | Exception, tries: int) -> None:
    """A worker that could not be reaped is tried again; an exception counts as done."""
    server = OwnServer(ListQueue(TimerRequest("w", "a", clock.wall())), clock, answer, True)
    server._run_watchdog()
    server._run_watchdog()
    assert ["w"] * tries == server.reaped


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0], ids=["back", "forward"])
def test_setting_the_wall_clock_moves_no_timer(step_s: float) -> None:
    """A timer expires after its time, whatever is done to the wall clock meanwhile."""
    clock = SteppedClock()
    server = OwnServer(ListQueue(TimerRequest("before", "a", clock.wall() + 10)), clock, True, True)
    server._run_watchdog()
    clock.set_wall(step_s)
    assert isinstance(server._request_queue, ListQueue)
    server._request_queue.requests.append(TimerRequest("after", "a", clock.wall() + 20))
    seen = []
    for _ in range(3):
        server._run_watchdog()
        seen.append(list(server.reaped))
        clock.advance(10)
    assert [[], ["before"], ["before", "after"]] == seen


def test_steady_time_is_wall_time_until_a_step(clock: FakeClock) -> None:
    """Without a step the times of clients are taken as they are."""
    steady = SteadyTime(clock)
    clock.advance(5)
    assert (clock.wall(), 123.25) == (steady.now(), steady.of_wall(123.25))


def test_a_scope_has_one_timer() -> None:
    """A second request of a scope sets its timer anew, a negative time takes it away."""
    table: TimerTable[TimerRequest] = TimerTable()
    for time in (10.0, 20.0):
        table.apply(TimerRequest(1, "a", time))
    table.apply(TimerRequest(1, "b", 5.0))
    assert {1: [TimerRequest(1, "b", 5.0)]} == table.expired(10.0)
    assert ("b", "a") == table.expired_scopes(1, 20.0)
    table.apply(TimerRequest(1, "a", -1))
    table.apply(TimerRequest(1, "never set", -1))
    assert [(1, "b")] == list(table.timers)


def test_a_server_waits_for_the_next_timer() -> None:
    """Nothing is due before the next expiration; what could not be done is tried again soon."""
    table: TimerTable[TimerRequest] = TimerTable()
    assert float("inf") == table.seconds_to_next(0.0)
    table.apply(TimerRequest(1, "a", 30.0))
    assert 20.0 == table.seconds_to_next(10.0)
    assert RETRY_S == table.seconds_to_next(30.0)
