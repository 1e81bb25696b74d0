"""Numbers that a program publishes, and where they go.

The names and their behaviour are those of ``torch.distributed.elastic.metrics``; a script needs
only its import renamed. A metric is named by its group and its name. The destination of the metrics of
a group is the choice of the handler configured for it; without one they are dropped::

    from hpc_elastic import metrics

    metrics.configure(metrics.ConsoleMetricHandler(), group="my_app")
    metrics.put_metric("tokens", 4096, "my_app")

    @metrics.prof(group="my_app")
    def evaluate(): ...

Handlers for files and Prometheus are in ``metrics.file_handlers`` and ``metrics.prometheus``.
"""

from __future__ import annotations

from importlib import import_module

from hpc_elastic.lazy_names import lazy_names
from hpc_elastic.metrics.api import (
    ConsoleMetricHandler,
    ConsoleMetricsHandler,
    MetricData,
    MetricHandler,
    MetricsConfig,
    MetricStream,
    NullMetricHandler,
    NullMetricsHandler,
    configure,
    get_elapsed_time_ms,
    getStream,
    prof,
    profile,
    publish_metric,
    put_metric,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hpc_elastic.metrics.file_handlers import CsvMetricHandler, JsonLinesMetricHandler
    from hpc_elastic.metrics.prometheus import PrometheusHttpHandler, PrometheusTextfileHandler

__all__ = [
    "ConsoleMetricHandler",
    "ConsoleMetricsHandler",
    "CsvMetricHandler",
    "JsonLinesMetricHandler",
    "MetricData",
    "MetricHandler",
    "MetricStream",
    "MetricsConfig",
    "NullMetricHandler",
    "NullMetricsHandler",
    "PrometheusHttpHandler",
    "PrometheusTextfileHandler",
    "configure",
    "getStream",
    "get_elapsed_time_ms",
    "initialize_metrics",
    "prof",
    "profile",
    "publish_metric",
    "put_metric",
]

_HOMES = {
    "CsvMetricHandler": "file_handlers",
    "JsonLinesMetricHandler": "file_handlers",
    "PrometheusHttpHandler": "prometheus",
    "PrometheusTextfileHandler": "prometheus",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)


def initialize_metrics(cfg: MetricsConfig | None = None) -> None:
    """Do nothing: a place for a site to hook in, by a module ``hpc_elastic.metrics.static_init``."""


def _of_the_site() -> dict[str, object]:
    """Return the public names of the module ``static_init`` that a site may have added here."""
    name = f"{__name__}.static_init"
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return {}
    return {key: value for key, value in vars(module).items() if not key.startswith("_")}


globals().update(_of_the_site())
