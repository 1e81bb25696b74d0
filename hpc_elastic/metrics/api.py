"""Publishing metrics, with the names of torch.distributed.elastic.metrics."""

from __future__ import annotations

import functools
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

from hpc_elastic.clock import SystemClock
from hpc_elastic.named_tuple import NamedTuple

__all__ = [
    "ConsoleMetricHandler",
    "MetricData",
    "MetricHandler",
    "MetricStream",
    "MetricsConfig",
    "NullMetricHandler",
    "configure",
    "getStream",
    "get_elapsed_time_ms",
    "prof",
    "profile",
    "publish_metric",
    "put_metric",
]

P = ParamSpec("P")
R = TypeVar("R")
_CLOCK = SystemClock()


class MetricData(NamedTuple):
    """One value of a metric."""

    timestamp: float
    """Wall time [s since the epoch]."""
    group_name: str
    name: str
    value: Any
    """A number; what kind is between publisher and handler."""


class MetricsConfig:
    """The argument of a site's `initialize_metrics` is given.

    Args:
        params: the site's own.
    """

    __slots__ = ["params"]

    def __init__(self, params: dict[str, str] | None = None) -> None:
        self.params = params if params is not None else {}


class MetricHandler(ABC):
    """Takes metrics to where they belong."""

    @abstractmethod
    def emit(self, metric_data: MetricData) -> None:
        """Take one value; an exception reaches the code that published it."""


class ConsoleMetricHandler(MetricHandler):
    """Prints ``[timestamp][group]: name=value`` to stdout."""

    def emit(self, metric_data: MetricData) -> None:
        """Print one value."""
        timestamp, group, name, value = metric_data
        print(f"[{timestamp}][{group}]: {name}={value}")  # noqa: T201 - its purpose


class NullMetricHandler(MetricHandler):
    """Drops all metrics."""

    def emit(self, metric_data: MetricData) -> None:
        """Drop one value."""


ConsoleMetricsHandler = ConsoleMetricHandler  # as older documents of torchelastic spell it
NullMetricsHandler = NullMetricHandler


class MetricStream:
    """The metrics of one group, on their way to one handler.

    Args:
        group_name: the group.
        handler: takes the values.
    """

    def __init__(self, group_name: str, handler: MetricHandler) -> None:
        self.group_name = group_name
        self.handler = handler

    def add_value(self, metric_name: str, metric_value: Any) -> None:
        """Publish a value, with the wall time of now."""
        self.handler.emit(MetricData(_CLOCK.wall(), self.group_name, metric_name, metric_value))


class MetricRouter:
    """Which handler takes the metrics of which group; the functions below share one per process."""

    def __init__(self) -> None:
        self._default: MetricHandler = NullMetricHandler()
        self._by_group: dict[str, MetricHandler] = {}

    def configure(self, handler: MetricHandler, group: str | None = None) -> None:
        """Choose the handler of a group; without a group, of all groups that have none."""
        if not isinstance(handler, MetricHandler):
            raise TypeError(f"metrics.configure wants a MetricHandler, not {handler!r}")
        if group is None:
            self._default = handler
        else:
            self._by_group[group] = handler

    def stream(self, group: str) -> MetricStream:
        """Return the stream of a group to its handler of now."""
        return MetricStream(group, self._by_group.get(group, self._default))


_router = MetricRouter()


def configure(handler: MetricHandler, group: str | None = None) -> None:
    """Choose the handler of a group; without a group, of all groups that have none of their own.

    Raises:
        TypeError: it is no `MetricHandler`.
    """
    _router.configure(handler, group)


def getStream(group: str) -> MetricStream:  # noqa: N802 - torch's name
    """Return the stream of a group; it keeps the handler that is configured now."""
    return _router.stream(group)


def put_metric(metric_name: str, metric_value: Any, metric_group: str = "torchelastic") -> None:
    """Publish one value of a metric."""
    getStream(metric_group).add_value(metric_name, metric_value)


def publish_metric(metric_group: str, metric_name: str, metric_value: Any) -> None:
    """Publish one value of a metric; deprecated, `put_metric` does the same."""
    warnings.warn(
        "Deprecated, use `put_metric(metric_group)(metric_name, metric_value)` instead",
        FutureWarning,
        stacklevel=2,
    )
    getStream(metric_group).add_value(metric_name, metric_value)


def get_elapsed_time_ms(start_time_in_seconds: float) -> int:
    """Return the whole milliseconds since a wall time [s since the epoch]."""
    return int((_CLOCK.wall() - start_time_in_seconds) * 1000)


def _get_metric_name(fn: Callable[..., Any]) -> str:
    """Return ``Class.method`` for a method and ``leaf_module.function`` for a function."""
    name = fn.__qualname__
    return f"{fn.__module__.split('.')[-1]}.{name}" if "." not in name and fn.__module__ else name


def _measured(fn: Callable[P, R], key: str, group: str) -> Callable[P, R]:
    @functools.wraps(fn)
    def measured(*args: P.args, **kwargs: P.kwargs) -> R:
        began = _CLOCK.monotonic()
        try:
            result = fn(*args, **kwargs)
        except Exception:
            put_metric(f"{key}.failure", 1, group)
            raise
        else:
            put_metric(f"{key}.success", 1, group)
            return result
        finally:
            put_metric(f"{key}.duration.ms", int((_CLOCK.monotonic() - began) * 1000), group)

    return measured


@overload
def prof(fn: Callable[P, R], group: str = "torchelastic") -> Callable[P, R]: ...


@overload
def prof(fn: None = None, group: str = "torchelastic") -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def prof(fn: Callable[..., Any] | None = None, group: str = "torchelastic") -> Callable[..., Any]:
    """Publish ``<key>.success`` or ``<key>.failure`` (1) and ``<key>.duration.ms`` for each call.

    A decorator, with or without arguments. The key is ``Class.method`` for a method and
    ``module.function`` for a function, with the last part of the module's name. An exception that is no
    `Exception` (Ctrl-C, `SystemExit`) counts as neither success nor failure.

    Args:
        fn: the function, when used without parentheses.
        group: group of the metrics.
    """
    if fn is None:
        return lambda function: _measured(function, _get_metric_name(function), group)
    return _measured(fn, _get_metric_name(fn), group)


def profile(group: str | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Publish the metrics of `prof`, under the bare name of the function; deprecated."""
    warnings.warn("Deprecated, use `@prof` instead", FutureWarning, stacklevel=2)
    # a group of None gets the default handler, as one without a configuration does
    return lambda function: _measured(function, function.__name__, group)  # type: ignore[arg-type]
