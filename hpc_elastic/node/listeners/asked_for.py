"""Which services and listeners the environment of an agent asks for; others are never imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from hpc_elastic.ids import Env
from hpc_elastic.node.listeners.telemetry_hooks import Services, Surroundings, TelemetryMaker, tell_nobody

_SERVICES = (Env.ENABLE_FILE_TIMER, Env.HEALTH_CHECK_PORT, Env.STATE_TIMEOUT)
_SITE = os.path.join(os.path.dirname(__file__), "..", "..", "metrics", "static_init.py")


def services_for(around: Surroundings) -> Services:
    """Return the services that the environment asks for; without any nothing more is imported."""
    if not any(name in around.environ for name in _SERVICES):
        return Services()
    from hpc_elastic.node.listeners.node_services import NodeServices  # noqa: PLC0415 - only if asked for

    return NodeServices(around)


def telemetry_for(around: Surroundings) -> TelemetryMaker:
    """Return the maker of the agent's telemetry; without a possible listener nothing more is imported.

    Raises:
        InputError: a listener cannot be made.
    """
    asked = around.destination != "null" or Env.METRICS in around.environ or Env.EVENTS in around.environ
    configured = "hpc_elastic.metrics.api" in sys.modules or "hpc_elastic.events.handlers" in sys.modules
    if not (asked or configured or os.path.exists(_SITE)):
        return tell_nobody
    from hpc_elastic.node.listeners.listeners import telemetry_maker  # noqa: PLC0415 - only if asked for

    return telemetry_maker(around, initialize=not configured)


def check_telemetry(environ: Mapping[str, str]) -> None:
    """Refuse metrics and events that cannot be delivered, before anything is made for the run.

    Raises:
        InputError: a listener cannot be made.
    """
    if Env.METRICS in environ or Env.EVENTS in environ:
        from hpc_elastic.node.listeners.listeners import check_asked  # noqa: PLC0415 - only if asked for

        check_asked(environ)


def base_env_for(environ: Mapping[str, str]) -> Mapping[str, str] | None:
    """Return the workers' environment without a pipe of timers that has no reader; None: no change."""
    if Env.TIMER_FILE not in environ:
        return None
    from hpc_elastic.node.listeners.watchdog import without_dead_pipe  # noqa: PLC0415 - only if asked for

    return without_dead_pipe(environ)
