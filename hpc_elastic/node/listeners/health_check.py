"""Answers over HTTP whether the agent is alive, for a site that watches its services so.

The names are those of ``torch.distributed.elastic.agent.server.health_check_server``, where nothing
listens. The answer is 200 while the agent has shown progress within the timeout, else 503. Nothing
is encrypted and there is no password: by default only this machine can ask.
"""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from hpc_elastic.clock import Clock, SystemClock
from hpc_elastic.ids import Env

if TYPE_CHECKING:
    from http.server import HTTPServer

__all__ = ["HealthCheckServer", "create_healthcheck_server", "health_check_from_env"]

PORT_ENV = Env.HEALTH_CHECK_PORT
ADDRESS_ENV = Env.HEALTH_CHECK_ADDRESS
LOOPBACK = "127.0.0.1"
DEFAULT_TIMEOUT_S = 60

logger = logging.getLogger(__name__)

AliveCallback = Callable[[], int]
"""Returns when the agent last showed progress [s since the epoch, by this machine's clock]."""


class HealthCheckServer:
    """Answers in a thread of its own; derive from it to answer in another way.

    Args:
        alive_callback: see `AliveCallback`.
        port: where to listen; 0 takes a free one, see `port`.
        timeout: how long the agent may show no progress [s].
        address: where to listen.
        clock: the clocks of this machine.
    """

    def __init__(
        self,
        alive_callback: AliveCallback,
        port: int,
        timeout: int,
        *,
        address: str = LOOPBACK,
        clock: Clock | None = None,
    ) -> None:
        self._alive_callback = alive_callback
        self._port = port
        self._timeout = timeout
        self._address = address
        self._clock = clock or SystemClock()
        self._server: HTTPServer | None = None
        self._thread: threading.Thread | None = None
        self._wake_fd = -1

    @property
    def alive_callback(self) -> AliveCallback:
        """Returns when the agent last showed progress."""
        return self._alive_callback

    @property
    def port(self) -> int:
        """Where it listens; before `start`, where it is to."""
        return self._port if self._server is None else self._server.server_port

    def silence_s(self) -> float:
        """Return for how long the agent has shown no progress [s]."""
        return max(0.0, self._clock.wall() - self._alive_callback())

    def answer(self) -> tuple[int, str]:
        """Return the HTTP status and a line of text."""
        try:
            silence_s = self.silence_s()
        except Exception as error:
            logger.exception("the alive callback of the health check raised")
            return 503, f"unknown: {type(error).__name__}\n"
        if silence_s <= self._timeout:
            return 200, "alive\n"
        return 503, f"no sign of life for {silence_s:.0f} s\n"

    def start(self) -> None:
        """Start to listen; where it cannot, that is logged and the agent goes on without."""
        from hpc_elastic.metrics.http_server import make_server  # noqa: PLC0415 - heavy, and rarely asked for

        if self._server is not None:
            return
        try:
            self._server = make_server(self._address, self._port, self.answer)
        except (OSError, OverflowError) as error:
            where = f"{self._address}:{self._port}"
            logger.warning("No health check server started: %s cannot be listened at (%s)", where, error)
            return
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._serve, args=(self._server, self._wake_fd), daemon=True)
        self._thread.start()
        logger.info("Health check server listens at %s:%s", self._address, self.port)

    def stop(self) -> None:
        """Stop to listen; does nothing when it does not."""
        if self._server is None or self._thread is None:
            return
        os.eventfd_write(self._wake_fd, 1)
        self._thread.join()
        os.close(self._wake_fd)
        self._port = self.port  # so that it listens there again when it is started again
        self._server.server_close()
        self._server = self._thread = None

    @staticmethod
    def _serve(server: HTTPServer, wake_fd: int) -> None:
        """Hand each request to a thread of its own; wakes for nothing else."""
        poller = select.poll()
        poller.register(server.fileno(), select.POLLIN)
        poller.register(wake_fd, select.POLLIN)
        while not any(fd == wake_fd for fd, _ in poller.poll()):
            server.handle_request()


def create_healthcheck_server(alive_callback: AliveCallback, port: int, timeout: int) -> HealthCheckServer:
    """Return a server that is not started yet; the arguments are those of `HealthCheckServer`."""
    return HealthCheckServer(alive_callback, port, timeout)


def health_check_from_env(
    environ: Mapping[str, str], alive_callback: AliveCallback
) -> HealthCheckServer | None:
    """Return a server, not started yet, if the environment asks for one.

    Args:
        environ: TORCHELASTIC_HEALTH_CHECK_PORT names the port; HPC_ELASTIC_HEALTH_CHECK_ADDRESS the
            address, by default this machine's own (``0.0.0.0``: any machine may ask).
        alive_callback: see `AliveCallback`.
    """
    value = environ.get(PORT_ENV)
    if value is None:
        logger.info("Environment variable '%s' not found. Do not start health check.", PORT_ENV)
        return None
    try:
        port = int(value)
    except ValueError:
        logger.info(
            "Invalid healthcheck port value: '%s', expecting integer. Not starting healthcheck server.", value
        )
        return None
    address = environ.get(ADDRESS_ENV) or LOOPBACK
    if address == LOOPBACK:
        return create_healthcheck_server(alive_callback, port, DEFAULT_TIMEOUT_S)
    return HealthCheckServer(alive_callback, port, DEFAULT_TIMEOUT_S, address=address)
