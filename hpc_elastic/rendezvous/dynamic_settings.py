"""Sizes and times of a dynamic rendezvous, as in torch."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import NamedTuple

from hpc_elastic.data_fields import DataFields, DataParams
from hpc_elastic.rendezvous.dynamic_rules import Limits
from hpc_elastic.rendezvous.parameters import RendezvousParameters

_LONGEST_S = 1e9  # 31 years
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


class RendezvousSettings(NamedTuple):
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

    def checked(self) -> RendezvousSettings:
        """Return the settings.

        Raises:
            ValueError: they make no sense.
        """
        if not self.run_id:
            raise ValueError("The run id must be a non-empty string.")
        if self.min_nodes < 1:
            raise ValueError(f"The minimum number of nodes ({self.min_nodes}) must be greater than zero.")
        if self.max_nodes < self.min_nodes:
            raise ValueError(
                f"The maximum number of nodes ({self.max_nodes}) must be greater than or equal "
                f"to the minimum number of nodes ({self.min_nodes})."
            )
        if self.keep_alive_interval <= timedelta(0) or self.keep_alive_max_attempt < 1:
            raise ValueError(
                f"The keep-alive interval ({self.keep_alive_interval}) and the number of its attempts "
                f"({self.keep_alive_max_attempt}) must be positive."
            )
        return self

    @property
    def limits(self) -> Limits:
        """The settings as the rules take them, in seconds."""
        interval = self.keep_alive_interval.total_seconds()
        return Limits(
            min_nodes=self.min_nodes,
            max_nodes=self.max_nodes,
            last_call=self.timeout.last_call.total_seconds(),
            interval=interval,
            lease=interval * self.keep_alive_max_attempt,
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


def seconds_of(params: RendezvousParameters, key: str, default: float | None = None) -> float | None:
    """Return an option that is a number of seconds, `default` if it is not given.

    Raises:
        ValueError: it is no number.
    """
    value = params.get(key, default)
    if value is None:
        return default
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not abs(number) <= _LONGEST_S:
        raise ValueError(
            f"The rendezvous configuration option '{key}' ({value!r}) is not a number of seconds."
        )
    return number


# as in torch; a NamedTuple's own body takes fields only
RendezvousSettings.__dataclass_fields__ = DataFields(*RendezvousSettings._fields)  # type: ignore[attr-defined]
RendezvousSettings.__dataclass_params__ = DataParams(frozen=True)  # type: ignore[attr-defined]
