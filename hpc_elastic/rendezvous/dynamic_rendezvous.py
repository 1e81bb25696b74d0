"""The rendezvous over any backend that holds one state; names as in torch."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from hpc_elastic.clock import Clock, SystemClock
from hpc_elastic.errors import (
    RendezvousClosedError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from hpc_elastic.meet.interface import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
    free_port,
    full_host_name,
)
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.rendezvous import dynamic_rules
from hpc_elastic.rendezvous.contact import ContactTurn, KeepAlive, LastKnown, Trail, Who
from hpc_elastic.rendezvous.dynamic_executor import Executor, RendezvousBackend, StateHolder, Token
from hpc_elastic.rendezvous.dynamic_rules import DynamicState, NodeDesc, TimeLimits
from hpc_elastic.rendezvous.parameters import RendezvousParameters, seconds_of
from hpc_elastic.rendezvous.utils import _delay, _PeriodicTimer
from hpc_elastic.store.kv import with_prefix

_DEFAULTS = {
    "join": timedelta(seconds=600),
    "last_call": timedelta(seconds=30),
    "close": timedelta(seconds=30),
    "heartbeat": timedelta(seconds=5),
}
_FRESH_S = 1.0  # the longest time for which a caller's monitor loop gets the last reading
_local_ids = itertools.count()

__all__ = [
    "DynamicRendezvousHandler",
    "RendezvousBackend",
    "RendezvousClosedError",
    "RendezvousError",
    "RendezvousGracefulExitError",
    "RendezvousHandler",
    "RendezvousInfo",
    "RendezvousSettings",
    "RendezvousStateError",
    "RendezvousStoreInfo",
    "RendezvousTimeout",
    "RendezvousTimeoutError",
    "Token",
    "_PeriodicTimer",
    "_delay",
    "create_handler",
    "get_method_name",
]


def get_method_name(depth: int = 2) -> str:
    """Return the name of the function that is `depth` calls above this one, as torch's names events."""
    import sys  # noqa: PLC0415 - rare

    try:
        return sys._getframe(depth).f_code.co_name  # noqa: SLF001 - the rest of the stack is not needed
    except ValueError:
        return "no_method_name"


def create_handler(
    store: Any, backend: RendezvousBackend, params: RendezvousParameters
) -> DynamicRendezvousHandler:
    """Return a handler over a backend.

    Options [s]: ``join_timeout`` (600), ``last_call_timeout`` (30), ``close_timeout`` (30),
    ``heartbeat_timeout`` or ``heartbeat`` (5), ``keep_alive_interval`` (5); and
    ``keep_alive_max_attempt`` (3).

    Args:
        store: key-value store for the members of a round, or None.
        backend: where the state is kept.
        params: sizes and options.

    Raises:
        ValueError: an option is no number, or makes no sense.
    """
    attempts = params.get_as_int("keep_alive_max_attempt", 3)
    return DynamicRendezvousHandler.from_backend(
        params.run_id,
        store,
        backend,
        params.min_nodes,
        params.max_nodes,
        params.local_addr,
        timeout_from(params),
        keep_alive_interval=seconds_of(params, "keep_alive_interval", 5) or 0.0,
        keep_alive_max_attempt=3 if attempts is None else attempts,
    )


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


def _backend_of(state_holder: object) -> RendezvousBackend:
    if not isinstance(state_holder, _BackendRendezvousStateHolder):
        raise TypeError(
            f"state_holder is {type(state_holder).__name__!r}, which keeps the state in another form; "
            "write _BackendRendezvousStateHolder(backend, settings) of this module, or "
            "DynamicRendezvousHandler.from_backend"
        )
    return state_holder.backend


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


class _BackendRendezvousStateHolder(NamedTuple):
    """The place of the shared state of a handler that is made from its parts (torch's name)."""

    backend: RendezvousBackend
    settings: RendezvousSettings
    cache_duration: int = 1  # not used: a handler knows for how long its last reading holds [s]


class DynamicRendezvousHandler(RendezvousHandler):
    """Brings nodes together through a state that all of them replace by compare-and-set.

    As torch's, with these differences: `shutdown` leaves and does not close the run for the others;
    `num_nodes_waiting` reports a member that vanishes; address and port of the workers' process
    group are part of the round and new in each; clocks are never compared.

    Args:
        node: this node.
        settings: sizes and times.
        backend_name: the name that it tells.
        store: key-value store for the members of a round, or None.
        state_holder: where the state is kept: ``_BackendRendezvousStateHolder(backend, settings)``.
        clock: this node's clock.

    Raises:
        ValueError: the settings make no sense.
        TypeError: the state is held by something else, such as torch's holder.
    """

    def __init__(
        self,
        node: NodeDesc,
        settings: RendezvousSettings,
        backend_name: str,
        store: Any,
        state_holder: _BackendRendezvousStateHolder,
        clock: Clock | None = None,
    ) -> None:
        backend = _backend_of(state_holder)
        self._node = node
        self._settings = checked(settings)
        self._backend_name = backend_name
        self._store = store
        self._turn = ContactTurn(clock or SystemClock())
        limits = limits_of(settings)
        self._holder = StateHolder(backend, node, limits, self._turn.clock)
        who = Who(repr(node), node.addr, node.pid, node.local_id)
        self._trail = Trail("dynamic_rendezvous.py:DynamicRendezvousHandler", settings.run_id, who)
        self._executor = Executor(settings.run_id, self._holder, self._turn, self._trail)
        where = f"the rendezvous backend '{backend_name}'"
        self._keep_alive = KeepAlive(self._beat, limits.interval, limits.lease, self._turn.clock, where)
        self._round: int | None = None  # the round this node is in
        self._known = LastKnown(
            self._holder.read,
            DynamicState(),
            self._turn,
            fresh_s=min(_FRESH_S, limits.interval / 5),
            lease=limits.lease,
        )

    @classmethod
    def from_backend(  # noqa: PLR0913 - torch's signature
        cls,
        run_id: str,
        store: Any,
        backend: RendezvousBackend,
        min_nodes: int,
        max_nodes: int,
        local_addr: str | None = None,
        timeout: RendezvousTimeout | None = None,
        keep_alive_interval: float = 5,
        keep_alive_max_attempt: int = 3,
    ) -> DynamicRendezvousHandler:
        """Return a handler.

        Args:
            run_id: the id of the run.
            store: key-value store for the members of a round, or None.
            backend: where the state is kept.
            min_nodes: with fewer nodes no round is formed.
            max_nodes: more nodes are not taken into a round.
            local_addr: address of this node for the others; its full host name if not given.
            timeout: the timeouts.
            keep_alive_interval: time between two signs of life [s].
            keep_alive_max_attempt: after so many intervals without one a node is given up.

        Raises:
            ValueError: a value makes no sense.
        """
        node = NodeDesc(local_addr or full_host_name(), os.getpid(), next(_local_ids), os.urandom(4).hex())
        settings = RendezvousSettings(
            run_id,
            min_nodes,
            max_nodes,
            timeout or RendezvousTimeout(),
            timedelta(seconds=keep_alive_interval),
            keep_alive_max_attempt,
        )
        return cls(node, settings, backend.name, store, _BackendRendezvousStateHolder(backend, settings))

    @property
    def settings(self) -> RendezvousSettings:
        """The settings of the rendezvous."""
        return self._settings

    def get_backend(self) -> str:
        """Return the name of the rendezvous backend."""
        return self._backend_name

    def get_run_id(self) -> str:
        """Return the id of the run."""
        return self._settings.run_id

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for the next round and return this node's place in it.

        Raises:
            RendezvousClosedError: the rendezvous is closed.
            RendezvousGracefulExitError: it was closed while this node stood by, or `shutdown` was called.
            RendezvousTimeoutError: too few nodes appeared; names those that did.
            RendezvousConnectionError: the backend did not answer for a lease.
            RendezvousStateError: the state is damaged.
        """
        return self._trail.joined(self._join, lambda _: self._round)

    def _join(self) -> RendezvousInfo:
        self._keep_alive.check()
        self._keep_alive.stop()
        self._turn.insist()
        timeout = self._settings.timeout.join.total_seconds()
        with self._turn.taken():
            self._round = None
            self._executor.run(dynamic_rules.exit_round, timeout)
            self._executor.run(dynamic_rules.join, timeout, port=free_port())
            self._known.forget()
            info = self._info(self._holder.state)
        self._keep_alive.start()
        return info

    def is_closed(self) -> bool:
        """Tell whether the rendezvous is closed; the last known answer while the backend does not answer.

        Raises:
            RendezvousConnectionError: it has not answered, or got no heartbeat, for a lease.
        """
        return self._trail.watched("is_closed", self._look).closed

    def _look(self) -> DynamicState:
        self._keep_alive.check()
        return self._known.get()

    def set_closed(self) -> None:
        """Close the rendezvous for everybody."""
        self._trail.watched("set_closed", self._close)
        self._trail.closed()

    def _close(self) -> None:
        with self._turn.taken():
            self._executor.run(dynamic_rules.close, self._settings.timeout.close.total_seconds())
            self._known.forget()

    def num_nodes_waiting(self) -> int:
        """Return how many nodes wait for the next round; 1 if a member has vanished and no node waits.

        Raises:
            RendezvousConnectionError: the backend has not answered, or got no heartbeat, for a lease.
        """
        known = self._trail.watched("num_nodes_waiting", self._look)
        return dynamic_rules.nodes_waiting(known, self._node, self._round)

    def shutdown(self) -> bool:
        """Leave; the others continue without a restart."""
        self._turn.leave()
        self._keep_alive.stop()
        timeout = self._settings.timeout.close.total_seconds()
        try:
            with self._turn.tried(timeout) as held:
                if held:
                    self._executor.run(dynamic_rules.leave, timeout, leaving=True)
        except RendezvousError as error:
            import logging  # noqa: PLC0415 - rare

            self._trail.left(error)
            logging.getLogger(__name__).warning(
                "The node '%s' has failed to leave the rendezvous '%s': %s",
                self._node,
                self._settings.run_id,
                error,
            )
            return False
        if held:
            self._trail.left()
        return held

    def _beat(self) -> None:
        """Give one sign of life."""
        timeout = self._settings.timeout.heartbeat.total_seconds()
        with self._turn.taken():
            self._trail.beaten(lambda: self._executor.run(dynamic_rules.keep_alive, timeout, patience=0.0))

    def _info(self, state: DynamicState) -> RendezvousInfo:
        self._round = state.round
        prefix = f"torch.rendezvous.{self._settings.run_id}.{state.round}"
        store = self._store
        return RendezvousInfo(
            None,
            state.participants[self._node].rank,
            len(state.members),
            RendezvousStoreInfo(state.master_addr, state.master_port),
            open_store=None if store is None else lambda: with_prefix(prefix, store),
        )
