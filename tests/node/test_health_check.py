"""The health check: who asks over HTTP learns whether the agent is alive."""

from __future__ import annotations

import http.client
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hpc_elastic.metrics.http_server import MOST_OPEN
from hpc_elastic.node.listeners.health_check import (
    ADDRESS_ENV,
    PORT_ENV,
    HealthCheckServer,
    create_healthcheck_server,
    health_check_from_env,
)
from hpc_elastic.testing.clock import FakeClock
from hpc_elastic.testing.waiting import wait_until

LIMIT_S = 120.0
MODULE = "hpc_elastic.node.listeners.health_check"


class Alive:
    """When the agent last showed progress."""

    def __init__(self, at: float) -> None:
        self.at = at

    def __call__(self) -> int:
        """Return it."""
        return int(self.at)


@pytest.fixture
def clock() -> FakeClock:
    """The clock of the server."""
    return FakeClock()


@pytest.fixture
def alive(clock: FakeClock) -> Alive:
    """An agent that has just shown progress."""
    return Alive(clock.wall())


@pytest.fixture
def server(alive: Alive, clock: FakeClock) -> Iterator[HealthCheckServer]:
    """A server that listens at a free port, with a timeout of 60 s."""
    made = HealthCheckServer(alive, 0, 60, clock=clock)
    made.start()
    yield made
    made.stop()


def ask(port: int, path: str = "/", method: str = "GET") -> tuple[int, str]:
    """Return the status and the text of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path)
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, text


@pytest.mark.parametrize("path", ["/", "/health", "/healthz?verbose"])
def test_alive(server: HealthCheckServer, path: str) -> None:
    """200, whatever the path."""
    assert (200, "alive\n") == ask(server.port, path)


def test_head(server: HealthCheckServer) -> None:
    """HEAD gets the status alone."""
    assert (200, "") == ask(server.port, method="HEAD")


def test_other_methods_are_refused(server: HealthCheckServer) -> None:
    """There is nothing to post."""
    assert 501 == ask(server.port, method="POST")[0]


def test_without_progress_it_is_not_alive(server: HealthCheckServer, alive: Alive, clock: FakeClock) -> None:
    """503 once the timeout is over, 200 again after progress."""
    clock.advance(60)
    assert 200 == ask(server.port)[0]
    clock.advance(1)
    assert (503, "no sign of life for 61 s\n") == ask(server.port)
    alive.at = clock.wall()
    assert 200 == ask(server.port)[0]


def test_a_callback_that_raises(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    """It is not known whether the agent lives: 503, and the error is logged."""

    def broken() -> int:
        raise ValueError("no")

    server = HealthCheckServer(broken, 0, 60, clock=clock)
    server.start()
    try:
        assert (503, "unknown: ValueError\n") == ask(server.port)
    finally:
        server.stop()
    assert "alive callback" in caplog.text


def test_a_silent_client_holds_up_nobody(server: HealthCheckServer) -> None:
    """Somebody connects and says nothing: others are answered."""
    with socket.create_connection(("127.0.0.1", server.port)):
        assert 200 == ask(server.port)[0]


def test_many_silent_clients_leave_room_for_one_that_asks(server: HealthCheckServer) -> None:
    """Those that were first are let go; no more than a few take descriptors and threads of the agent."""
    with ExitStack() as stack:
        clients = []
        for _ in range(3 * MOST_OPEN):
            clients.append(stack.enter_context(socket.create_connection(("127.0.0.1", server.port))))
            clients[-1].sendall(b"GET / HTTP/1.1\r\n")
        assert 200 == ask(server.port)[0]
        for client in clients[: 2 * MOST_OPEN]:
            client.settimeout(LIMIT_S)
            assert b"" == client.recv(1)
        wait_until(lambda: len(handlers()) <= MOST_OPEN, "threads to end", timeout_s=LIMIT_S)


def handlers() -> list[str]:
    """Return the threads that serve clients."""
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if "process_request_thread" in name]


def test_stop_and_start_again(server: HealthCheckServer) -> None:
    """A stopped server does not answer; one that is started again listens at the same port."""
    port = server.port
    server.stop()
    with pytest.raises(ConnectionRefusedError):
        ask(port)
    server.stop()
    server.start()
    server.start()
    assert port == server.port
    assert 200 == ask(port)[0]


def test_only_this_machine_can_ask(server: HealthCheckServer) -> None:
    """Nobody is asked for a password, so it listens at the loopback address."""
    (listening,) = [
        line.split()[1]
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
        if line.split()[3] == "0A" and line.split()[1].endswith(f":{server.port:04X}")
    ]
    assert "0100007F" == listening.partition(":")[0]


@pytest.mark.parametrize("port", [-1, 70_000])
def test_no_such_port(alive: Alive, caplog: pytest.LogCaptureFixture, port: int) -> None:
    """One warning, and the agent goes on."""
    server = create_healthcheck_server(alive, port, 60)
    server.start()
    server.stop()
    (record,) = [record for record in caplog.records if record.name == MODULE]
    assert logging.WARNING == record.levelno
    assert str(port) in record.getMessage()


def test_a_port_that_is_taken(
    server: HealthCheckServer, alive: Alive, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning that names it; the other server goes on."""
    second = create_healthcheck_server(alive, server.port, 60)
    second.start()
    second.stop()
    (record,) = [record for record in caplog.records if record.name == MODULE]
    assert f"127.0.0.1:{server.port} cannot be listened at" in record.getMessage()
    assert 200 == ask(server.port)[0]


def test_the_environment_asks_for_it(alive: Alive) -> None:
    """By its port alone, or with an address."""
    assert health_check_from_env({}, alive) is None
    server = health_check_from_env({PORT_ENV: "0"}, alive)
    assert server is not None
    assert alive is server.alive_callback
    everywhere = health_check_from_env({PORT_ENV: "0", ADDRESS_ENV: "0.0.0.0"}, alive)  # noqa: S104
    assert everywhere is not None
    everywhere.start()
    assert everywhere.port > 0
    everywhere.stop()


def test_a_port_that_is_no_number(alive: Alive, caplog: pytest.LogCaptureFixture) -> None:
    """It is said as torch says it, and nothing is started."""
    caplog.set_level(logging.INFO, MODULE)
    assert health_check_from_env({PORT_ENV: "http"}, alive) is None
    expected = "Invalid healthcheck port value: 'http', expecting integer. Not starting healthcheck server."
    assert [expected] == [record.getMessage() for record in caplog.records]
