"""Metrics for Prometheus, by the package prometheus-client (extra ``metrics``).

A metric becomes ``<prefix>_<name>`` with the label ``group``. ``gpu.<number>.<name>`` becomes
``<prefix>_gpu_<name>`` with the label ``gpu``, too. A count of `prof` (``.success`` or
``.failure``) becomes a counter; every other metric is a gauge that shows the last value.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import socket
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hpc_elastic.clock import Clock, SystemClock
from hpc_elastic.errors import InputError
from hpc_elastic.metrics.api import MetricData, MetricHandler

if TYPE_CHECKING:
    from types import ModuleType
    from wsgiref.simple_server import WSGIServer

    from prometheus_client import CollectorRegistry, Counter, Gauge

logger = logging.getLogger(__name__)
_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_:]")
_OF_A_GPU = re.compile(r"gpu\.([^.]+)\.(\w+)")
_COUNTED = ("_success", "_failure")


def _client() -> ModuleType:
    """Return prometheus_client.

    Raises:
        InputError: it is not installed.
    """
    try:
        import prometheus_client  # noqa: PLC0415 - optional
    except ImportError:
        raise InputError(
            "metrics for Prometheus need the package prometheus-client, which is not installed",
            where="hpc_elastic.metrics.prometheus",
            fix="pip install prometheus-client, or with hpc_elastic, in its clone: pip install '.[metrics]'",
        ) from None
    return prometheus_client


class PrometheusMetrics:
    """The last values of all metrics, as Prometheus knows them.

    Args:
        prefix: first part of all names.
        labels: on every metric, e.g. ``{"rank": "3"}``; node_exporter refuses a node whose
            processes publish the same metric with the same labels.

    Raises:
        InputError: prometheus-client is not installed.
    """

    def __init__(self, prefix: str, labels: Mapping[str, str]) -> None:
        self._client = _client()
        self.registry: CollectorRegistry = self._client.CollectorRegistry()
        self._prefix = prefix
        self._labels = {"group": "", **labels}
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}

    def take(self, metric_data: MetricData) -> None:
        """Take one value."""
        labels = {**self._labels, "group": str(metric_data.group_name)}
        own, of_a_gpu = metric_data.name, _OF_A_GPU.fullmatch(metric_data.name)
        if of_a_gpu is not None:
            labels["gpu"], own = of_a_gpu[1], f"gpu.{of_a_gpu[2]}"
        name = _NOT_IN_A_NAME.sub("_", f"{self._prefix}_{own}")
        about = (name, own, tuple(labels))
        if name.endswith(_COUNTED):
            if name not in self._counters:
                self._counters[name] = self._client.Counter(*about, registry=self.registry)
            self._counters[name].labels(**labels).inc(float(metric_data.value))
        else:
            if name not in self._gauges:
                self._gauges[name] = self._client.Gauge(*about, registry=self.registry)
            self._gauges[name].labels(**labels).set(float(metric_data.value))


class PrometheusTextfileHandler(MetricHandler):
    """Writes a file that node_exporter's textfile collector reads; readers see it whole.

    The file is replaced at most every `interval_s` and when the process ends in order. It stays
    then, with the last values: remove it when they are not needed any more.

    Args:
        path: ends with ``.prom`` (others are not collected); one file per process.
        labels: on every metric; processes of one node need different ones, e.g. their rank.
        prefix: first part of all names.
        interval_s: shortest time between two replacements [s].
        clock: the clocks of this machine.

    Raises:
        InputError: prometheus-client is not installed, or the path does not end with ``.prom``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        labels: Mapping[str, str] | None = None,
        prefix: str = "hpc_elastic",
        interval_s: float = 5.0,
        clock: Clock | None = None,
    ) -> None:
        self._metrics = PrometheusMetrics(prefix, labels or {})
        self.path = os.fspath(path)
        if not self.path.endswith(".prom"):
            raise InputError(
                f"{self.path!r} would not be collected",
                where="PrometheusTextfileHandler(path)",
                fix="end the name with .prom, as node_exporter wants it",
            )
        self._interval_s = interval_s
        self._clock = clock or SystemClock()
        self._due = self._clock.monotonic()
        self._lock = threading.Lock()
        self._warned = False
        atexit.register(self.flush)

    def emit(self, metric_data: MetricData) -> None:
        """Take one value, and replace the file if it is time."""
        with self._lock:
            self._metrics.take(metric_data)
            if self._clock.monotonic() >= self._due:
                self._write()

    def flush(self) -> None:
        """Replace the file now."""
        with self._lock:
            self._write()

    def close(self) -> None:
        """Replace the file for the last time."""
        atexit.unregister(self.flush)
        self.flush()

    def _write(self) -> None:
        self._due = self._clock.monotonic() + self._interval_s
        try:
            _client().write_to_textfile(self.path, self._metrics.registry)
        except OSError as error:
            if not self._warned:
                logger.warning("Metrics cannot be written to %s: %s", self.path, error)
            self._warned = True


class PrometheusHttpHandler(MetricHandler):
    """Serves the metrics of this process over HTTP, for a Prometheus that asks for them.

    There is no encryption and no password: by default only this machine can ask.

    Args:
        port: to listen at; 0 takes a free one, see `port`.
        address: to listen at.
        labels: on every metric.
        prefix: first part of all names.

    Raises:
        InputError: prometheus-client is not installed.
        OSError: the port is taken.
    """

    def __init__(
        self,
        port: int,
        *,
        address: str = "127.0.0.1",
        labels: Mapping[str, str] | None = None,
        prefix: str = "hpc_elastic",
    ) -> None:
        self._metrics = PrometheusMetrics(prefix, labels or {})
        self._server = _server(address, port, _client().make_wsgi_app(self._metrics.registry))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.port: int = self._server.server_port
        self._lock = threading.Lock()

    def emit(self, metric_data: MetricData) -> None:
        """Take one value."""
        with self._lock:
            self._metrics.take(metric_data)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _server(address: str, port: int, application: Callable[..., Any]) -> WSGIServer:
    """Return a server of the metrics that is not started yet.

    Raises:
        OSError: it cannot listen there.
    """
    from wsgiref.simple_server import WSGIRequestHandler, WSGIServer  # noqa: PLC0415 - only if asked for

    from hpc_elastic.metrics.http_server import SLOW_CLIENT_S, FewConnections  # noqa: PLC0415 - as above

    class Handler(WSGIRequestHandler):
        timeout = SLOW_CLIENT_S

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named so by http.server
            """Log nothing: Prometheus asks every few seconds."""

    class Server(FewConnections, WSGIServer):
        address_family = socket.AF_INET6 if ":" in address else socket.AF_INET

    made = Server((address, port), Handler)
    made.set_app(application)
    return made
