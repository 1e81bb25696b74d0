"""The names of torch.distributed.elastic.rendezvous.utils."""

from __future__ import annotations

import random

from hpc_elastic.clock import SystemClock
from hpc_elastic.rendezvous.dynamic.periodic_timer import PeriodicTimer as _PeriodicTimer
from hpc_elastic.rendezvous.endpoint import matches_this_machine as _matches_machine_hostname
from hpc_elastic.rendezvous.endpoint import parse_rendezvous_config as _parse_rendezvous_config
from hpc_elastic.rendezvous.endpoint import parse_rendezvous_endpoint
from hpc_elastic.rendezvous.endpoint import try_parse_port as _try_parse_port

__all__ = [
    "_PeriodicTimer",
    "_delay",
    "_matches_machine_hostname",
    "_parse_rendezvous_config",
    "_try_parse_port",
    "parse_rendezvous_endpoint",
]

_SHORTEST_S = 0.01


def _delay(seconds: float | tuple[float, float]) -> None:
    """Sleep [s], or for a random time between two bounds; less than 10 ms is not slept."""
    length = random.uniform(*seconds) if isinstance(seconds, tuple) else seconds  # noqa: S311 - no secret
    if length >= _SHORTEST_S:
        SystemClock().sleep(length)
