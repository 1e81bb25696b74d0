"""Sizes and times of a dynamic rendezvous, as in torch."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from hpc_elastic.rendezvous.dynamic.rules import TimeLimits
from hpc_elastic.rendezvous.parameters import RendezvousParameters, seconds_of

_DEFAULTS = {
    "join": timedelta(seconds=600),
    "last_call": timedelta(seconds=30),
    "close": timedelta(seconds=30),
    "heartbeat": timedelta(seconds=5),
}


class RendezvousTimeout:
    """The timeouts of a rendezvous, each as a timedelta or in seconds; None for the default.

    Args:
        join: within which a round is to be complete; 600 s.
        last_call: how long enough nodes wait for more; 30 s.
        close: within which closing and leaving are to be done; 30 s.
        heartbeat: within which one sign of life is to be given; 5 s.

    Raises:
        ValueError: one of them is not positive.
    """

    def __init__(
        self,
        join: timedelta | float | None = None,
        last_call: timedelta | float | None = None,
        close: timedelta | float | None = None,
        heartbeat: timedelta | float | None = None,
    ) -> None:
        self._join = _positive("join", join)
        self._last_call = _positive("last_call", last_call)
        self._close = _positive("close", close)
        self._heartbeat = _positive("heartbeat", heartbeat)

    @property
    def join(self) -> timedelta:
        """How long a node waits for a round."""
        return self._join

    @property
    def last_call(self) -> timedelta:
        """How long enough nodes wait for more."""
        return self._last_call

    @property
    def close(self) -> timedelta:
        """How long closing and leaving may take."""
        return self._close

    @property
    def heartbeat(self) -> timedelta:
        """How long one sign of life may take."""
        return self._heartbeat


def _positive(name: str, value: timedelta | float | None) -> timedelta:
    if value is None:
        return _DEFAULTS[name]
    timeout = value if isinstance(value, timedelta) else timedelta(seconds=value)
    if timeout <= timedelta(0):
        raise ValueError(f"The {name} timeout ({timeout}) must be positive.")
    return timeout


@dataclass(frozen=True, eq=False)
class RendezvousSettings:
    """The settings of a rendezvous.

    Attributes:
        run_id: the id of the run.
        min_nodes: with fewer nodes no round is formed.
        max_nodes: more nodes are not taken into a round.
        timeout: the timeouts.
        keep_alive_interval: time between two signs of life.
        keep_alive_max_attempt: signs of life that may fail to come before a node is given up.
    """

    run_id: str
    min_nodes: int
    max_nodes: int
    timeout: RendezvousTimeout
    keep_alive_interval: timedelta
    keep_alive_max_attempt: int


def checked(settings: RendezvousSettings) -> RendezvousSettings:
    """Return settings.

    Raises:
        ValueError: they make no sense.
    """
    if not settings.run_id:
        raise ValueError("The run id must be a non-empty string.")
    if settings.min_nodes < 1:
        raise ValueError(f"The minimum number of nodes ({settings.min_nodes}) must be greater than zero.")
    if settings.max_nodes < settings.min_nodes:
        raise ValueError(
            f"The maximum number of nodes ({settings.max_nodes}) must be greater than or equal "
            f"to the minimum number of nodes ({settings.min_nodes})."
        )
    if settings.keep_alive_interval <= timedelta(0) or settings.keep_alive_max_attempt < 1:
        raise ValueError(
            f"The keep-alive interval ({settings.keep_alive_interval}) and the number of its attempts "
            f"({settings.keep_alive_max_attempt}) must be positive."
        )
    return settings


def limits_of(settings: RendezvousSettings) -> TimeLimits:
    """Return settings as the rules take them, in seconds."""
    interval = settings.keep_alive_interval.total_seconds()
    return TimeLimits(
        min_nodes=settings.min_nodes,
        max_nodes=settings.max_nodes,
        last_call=settings.timeout.last_call.total_seconds(),
        interval=interval,
        lease=interval * settings.keep_alive_max_attempt,
    )


def timeout_from(params: RendezvousParameters) -> RendezvousTimeout:
    """Return the timeouts in the options of a handler.

    ``join_timeout``, ``last_call_timeout``, ``close_timeout``, and ``heartbeat_timeout`` or ``heartbeat``,
    all in seconds; fractions are allowed.

    Raises:
        ValueError: one is no positive number.
    """
    beat = seconds_of(params, "heartbeat_timeout")
    return RendezvousTimeout(
        seconds_of(params, "join_timeout"),
        seconds_of(params, "last_call_timeout"),
        seconds_of(params, "close_timeout"),
        beat if beat is not None else seconds_of(params, "heartbeat"),
    )
