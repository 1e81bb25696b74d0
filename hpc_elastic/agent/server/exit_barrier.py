"""The checks of an agent while it works or waits for other agents: membership, and the exit barrier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from hpc_elastic.clock import Clock
from hpc_elastic.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousTimeoutError,
    StoreError,
    StoreTimeoutError,
)
from hpc_elastic.meet.interface import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo
from hpc_elastic.multiprocessing.pcontext import NoTrap
from hpc_elastic.multiprocessing.signals import SignalTrap
from hpc_elastic.node.spec import WorkerGroup
from hpc_elastic.utils import store as store_util
from hpc_elastic.utils.logging import get_logger

NO_ANSWER = (RendezvousConnectionError, RendezvousTimeoutError, StoreError, ConnectionError, TimeoutError)

BARRIER_KEY = "torchelastic/agent/terminal_state"
SLICE_S = 1.0  # longest part of a wait between two looks at the other nodes
FOREIGN_SLICE_S = 10.0  # the same with torch's stores, which warn at the end of each part
_IN_TIME = 0.9  # a store that gives up after less than this part of a wait has another trouble
_TOO_LATE = (TimeoutError, RuntimeError)  # torch's stores raise RuntimeErrors of several kinds


class OthersGoneError(Exception):
    """No other agent is left."""


class RoundOverError(Exception):
    """Other nodes want another round, or have one."""


class WatchedStore:
    """A store whose waits are cut into short ones, between which the other nodes are looked at.

    Args:
        store: the store; everything but waiting is as it does it.
        look: looks at the other nodes; raises an exception to end the wait.
        clock: this node's clock.
    """

    def __init__(self, store: Any, look: Callable[[], None], clock: Clock) -> None:
        self._store = store
        self._look = look
        self._clock = clock
        self._slice_s = SLICE_S if getattr(store, "counts_writes", False) else FOREIGN_SLICE_S

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, key: str) -> bytes:
        """Return the value of a key; waits for it as long as the store's timeout."""
        self.wait([key])
        return bytes(self._store.get(key))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Return the values of keys; waits for all as long as the store's timeout."""
        self.wait(keys)
        return [bytes(value) for value in self._store.multi_get(list(keys))]

    def wait(self, keys: Sequence[str], timeout: timedelta | float | None = None) -> None:
        """Wait until all keys have a value."""
        self._in_slices(lambda part: self._store.wait(list(keys), part), keys, timeout)

    def wait_written(self, keys: Sequence[str], times: int, timeout: timedelta | float | None = None) -> None:
        """Wait until each key was written a number of times."""
        self._in_slices(lambda part: self._store.wait_written(list(keys), times, part), keys, timeout)

    def _in_slices(
        self,
        wait: Callable[[timedelta], object],
        keys: Sequence[str],
        timeout: timedelta | float | None,
    ) -> None:
        if timeout is None and not hasattr(self._store, "timeout"):
            return  # a simple store, which waits as it likes
        limit_s = _seconds(self._store.timeout if timeout is None else timeout)
        deadline = self._clock.monotonic() + limit_s
        while True:
            began = self._clock.monotonic()
            part_s = max(0.0, min(self._slice_s, deadline - began))
            try:
                wait(timedelta(seconds=part_s))
            except _TOO_LATE as error:
                if _can_only_read(error):
                    return
                now = self._clock.monotonic()
                if now - began < part_s * _IN_TIME:
                    raise
                self._look()
                if now >= deadline:
                    raise _late(error, keys, limit_s) from error
            else:
                return


def _can_only_read(error: Exception) -> bool:
    """Tell whether a store can wait by reading alone, as one derived from torch's that fills in no more."""
    return isinstance(error, NotImplementedError) or "pure virtual function" in str(error)


def _seconds(timeout: timedelta | float) -> float:
    return timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)


def _late(error: Exception, keys: Sequence[str], limit_s: float) -> Exception:
    """Return an error that tells the whole time waited, where it is ours."""
    if not isinstance(error, StoreError):
        return error
    missing = error.missing if isinstance(error, StoreTimeoutError) else ()
    names = ", ".join(missing or keys)
    return StoreTimeoutError(f"not within {limit_s:g} s: key {names}", missing=missing)


def look_at_others(handler: Any) -> None:
    """Look whether waiting for other agents still makes sense.

    A handler that has `others_at_work` (the names of the other nodes of the round that are there and
    not done) has more facts than others, which know only of waiting nodes: a node starts again, or is
    new, and the agents whose workers run will start again with it.

    Args:
        handler: the rendezvous.

    Raises:
        OthersGoneError: no other agent is left.
        RoundOverError: other nodes want another round, or have one.
    """
    others_at_work = getattr(handler, "others_at_work", None)
    if others_at_work is not None and not others_at_work():
        raise OthersGoneError
    if handler.num_nodes_waiting() > 0:
        raise RoundOverError


def round_of(met: RendezvousInfo | None, store: Any, group: WorkerGroup) -> RendezvousInfo:
    """Return the round that an agent is in.

    Args:
        met: the result of the rendezvous; None where a derived class meets the others by itself.
        store: the agent's store.
        group: its worker group.

    Raises:
        RuntimeError: it is in none.
    """
    if met is not None and met.store is store:
        return met
    if group.group_rank is None or group.group_world_size is None:
        raise RuntimeError("there was no rendezvous")
    where = RendezvousStoreInfo(group.master_addr or "", group.master_port or 0)
    return RendezvousInfo(store, group.group_rank, group.group_world_size, where)


class ExitBarrier:
    """Where the agents of a round wait for each other's workers to end.

    Args:
        handler: the rendezvous.
        round_info: the round.
        clock: this node's clock.
        trap: takes the death signals.
    """

    def __init__(
        self,
        handler: RendezvousHandler,
        round_info: RendezvousInfo,
        clock: Clock,
        trap: SignalTrap | NoTrap,
    ) -> None:
        self._handler = handler
        self._info = round_info
        self._clock = clock
        self._trap = trap

    def wait(self, timeout: float) -> str:
        """Wait until the other agents are here, too; return in words how that ended.

        Args:
            timeout: how long [s].

        Raises:
            RoundOverError: the other nodes start again.
            StoreTimeoutError: not all came; names those that are missing.
        """
        info = self._info
        if info.store is None:
            return "Not waiting for other agents: the rendezvous has no store"

        try:
            with self._trap.open():
                store_util.barrier(
                    store=WatchedStore(info.store, self._look, self._clock),
                    world_size=info.world_size,
                    key_prefix=BARRIER_KEY,
                    barrier_timeout=timeout,
                    rank=info.rank,
                    rank_tracing_decoder=self._name,
                )
        except OthersGoneError:
            return "Not waiting any more: no other agent is left"
        return "Done waiting for other agents"

    def _look(self) -> None:
        with self._trap.held():
            try:
                look_at_others(self._handler)
            except Exception as error:
                if not is_like(error, *NO_ANSWER):
                    raise  # a store may answer later; the barrier's time is bounded

    def _name(self, rank: int) -> str:
        """Return the name of an agent for people."""
        formed = getattr(self._info, "round", None)
        return str(rank) if formed is None else f"{rank} ({formed.members[rank].node})"


"""Errors after which asking again makes sense."""


logger = get_logger(__name__)


def is_like(error: Exception, *kinds: type[Exception]) -> bool:
    """Tell whether an error is of one of these kinds, or of one of torch's that has the same name."""
    names = {kind.__name__ for kind in kinds}
    return any(base.__name__ in names for base in type(error).__mro__)


class MembershipWatch:
    """Asks a handler how many nodes wait; healthy workers go on while it does not answer."""

    def __init__(self) -> None:
        self._is_out_of_touch = False

    @property
    def is_out_of_touch(self) -> bool:
        """Whether the handler did not answer the last time it was asked."""
        return self._is_out_of_touch

    def nodes_waiting(self, handler: RendezvousHandler) -> int:
        """Return how many nodes wait; 0 while it is unknown, which is logged once.

        Raises:
            RendezvousClosedError: a node has ended the run for all nodes.
            RendezvousError: the shared state is damaged.
        """
        try:
            waiting = handler.num_nodes_waiting()
            _refuse_ended(handler)
        except Exception as error:
            if not is_like(error, *NO_ANSWER):
                raise
            if not self._is_out_of_touch:
                logger.warning("The rendezvous does not answer, the workers go on: %s", error)
            self._is_out_of_touch = True
            return 0
        if self._is_out_of_touch:
            logger.warning("The rendezvous answers again")
        self._is_out_of_touch = False
        return waiting


def _refuse_ended(handler: RendezvousHandler) -> None:
    """Refuse to go on in a run that has been ended on purpose.

    Other handlers than ours are closed by every node that leaves, so that means nothing for those that work.
    """
    if hasattr(handler, "others_at_work") and handler.is_closed():
        raise RendezvousClosedError(
            f"the run '{handler.get_run_id()}' was closed while its workers ran; they are ended"
        )
