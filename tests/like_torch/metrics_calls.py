"""Calls to a package `metrics`; each function returns what came of them."""

from __future__ import annotations

import contextlib
import io
import time
import warnings
from typing import Any

from tests.like_torch.outcomes import error_type, outcome, signatures


def call_signatures(metrics: Any) -> Any:
    """Names and defaults of all parameters."""
    return signatures(
        metrics,
        [
            *("configure", "getStream", "prof", "profile", "put_metric", "publish_metric"),
            *("get_elapsed_time_ms", "initialize_metrics", "MetricData", "MetricsConfig"),
            *("MetricHandler.emit", "ConsoleMetricHandler.emit", "NullMetricHandler.emit"),
            *("api.MetricStream", "api.MetricStream.add_value"),
        ],
    )


def call_public_names(metrics: Any) -> Any:
    """What ``import *`` brings."""
    return sorted(metrics.api.__all__)


def call_config(metrics: Any) -> Any:
    """The parameters of a site."""
    given = {"a": "b"}
    return [metrics.MetricsConfig().params, metrics.MetricsConfig(given).params, metrics.initialize_metrics()]


def call_routing(metrics: Any) -> Any:
    """Which handler gets which group, and when a stream takes its handler."""
    got: list[Any] = []

    class Named(metrics.MetricHandler):  # type: ignore[misc]
        def __init__(self, name: str) -> None:
            self.name = name

        def emit(self, metric_data: Any) -> None:
            got.append([self.name, *metric_data[1:], type(metric_data.timestamp).__name__])

    metrics.put_metric("nowhere", 0)
    metrics.configure(Named("all"))
    stream = metrics.getStream("g")
    metrics.configure(Named("g"), group="g")
    metrics.put_metric("a", 1)
    metrics.put_metric("b", 2, "g")
    metrics.put_metric(metric_name="c", metric_value=2.5, metric_group="h")
    stream.add_value("d", 3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        metrics.publish_metric("g", "e", 4)
    return [got, [[one.category.__name__, str(one.message)] for one in caught], stream.group_name]


def call_printed(metrics: Any) -> Any:
    """The line of the console handler, and a value's repr."""
    printed = io.StringIO()
    data = metrics.MetricData(1.25, "g", "n", 3)
    with contextlib.redirect_stdout(printed):
        metrics.ConsoleMetricHandler().emit(data)
        metrics.NullMetricHandler().emit(data)
    return [printed.getvalue(), repr(data), data._asdict()]


def call_prof(metrics: Any) -> Any:
    """What the decorator publishes, for all kinds of functions and ends."""
    got: list[Any] = []

    class Keep(metrics.MetricHandler):  # type: ignore[misc]
        def emit(self, metric_data: Any) -> None:
            value = "int" if metric_data.name.endswith("ms") and type(metric_data.value) is int else None
            got.append([metric_data.group_name, metric_data.name, value or metric_data.value])

    metrics.configure(Keep())

    class Method:
        @metrics.prof  # type: ignore[untyped-decorator]
        def run(self) -> str:
            """Return."""
            return "done"

        @metrics.prof(group="own")  # type: ignore[untyped-decorator]
        def fail(self) -> None:
            raise ValueError("no")

    def leave() -> None:
        raise SystemExit(3)

    leave.__qualname__ = "leave"
    results = [Method().run(), outcome(Method().fail), Method.run.__doc__, Method.run.__name__]
    with contextlib.suppress(SystemExit):
        metrics.prof(leave)()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        old = metrics.profile("old")(len)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results += [old("abc"), outcome(lambda: old(5))]
    return [got, results, [[one.category.__name__, str(one.message)] for one in caught]]


def call_handler_that_raises(metrics: Any) -> Any:
    """An error of a handler reaches the caller."""

    class Fail(metrics.MetricHandler):  # type: ignore[misc]
        def emit(self, metric_data: Any) -> None:
            raise RuntimeError(metric_data.name)

    metrics.configure(Fail(), "bad")
    return [outcome(lambda: metrics.put_metric("a", 1, "bad")), error_type(metrics.MetricHandler)]


def call_elapsed(metrics: Any) -> Any:
    """Whole milliseconds since a time."""
    elapsed = metrics.get_elapsed_time_ms(time.time() - 1)
    return [type(elapsed).__name__, 1000 <= elapsed < 60_000]
