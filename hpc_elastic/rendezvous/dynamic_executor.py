"""The actions of the rules of a dynamic rendezvous over a backend, the backends, and the events."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn, TypeVar

from hpc_elastic.clock import Clock
from hpc_elastic.errors import (
    RendezvousClosedError,
    RendezvousGracefulExitError,
    RendezvousTimeoutError,
)
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.rendezvous import dynamic_rules
from hpc_elastic.rendezvous.contact import ContactTurn, Trail, Who, until_lease
from hpc_elastic.rendezvous.dynamic_rules import (
    DynamicState,
    NodeAction,
    NodeDesc,
    Operation,
    Pulse,
    Quorum,
    StateView,
    TimeLimits,
    encode,
    names,
    parse,
)

_EXECUTOR = "dynamic_rendezvous.py:_DistributedRendezvousOpExecutor"  # so are torch's events named
# torch's name for the place where a node takes a step, and its message there
_WHOLE = (  # torch's messages about these are sentences of their own
    NodeAction.KEEP_ALIVE,
    NodeAction.MARK_RENDEZVOUS_COMPLETE,
    NodeAction.MARK_RENDEZVOUS_CLOSED,
)
_STEPS = {
    NodeAction.KEEP_ALIVE: (
        "keep_alive",
        "The node '{node}' updated its keep-alive heartbeat time for the rendezvous '{run}'. Pending sync.",
    ),
    NodeAction.ADD_TO_PARTICIPANTS: (
        "add_to_participants",
        "added itself to the participants of round {round}",
    ),
    NodeAction.ADD_TO_WAIT_LIST: ("add_to_wait_list", "added itself to the wait list of round {next}"),
    NodeAction.ADD_TO_REDUNDANCY_LIST: (
        "add_to_redundancy_list",
        "added itself to the redundancy list of round {next}",
    ),
    NodeAction.REMOVE_FROM_PARTICIPANTS: (
        "remove_from_participants",
        "removed itself from the participants of round {round}",
    ),
    NodeAction.REMOVE_FROM_WAIT_LIST: (
        "remove_from_wait_list",
        "removed itself from the wait list of round {next}",
    ),
    NodeAction.REMOVE_FROM_REDUNDANCY_LIST: (
        "remove_from_redundancy_list",
        "removed itself from the redundant list of round {next}",
    ),
    NodeAction.MARK_RENDEZVOUS_COMPLETE: (
        "mark_rendezvous_complete",
        "The node '{node}' marked round {round} of the rendezvous '{run}' as complete. Pending sync.",
    ),
    NodeAction.MARK_RENDEZVOUS_CLOSED: (
        "mark_rendezvous_closed",
        "The node '{node}' marked the rendezvous '{run}' as closed. Pending sync.",
    ),
}
_BEATS = (NodeAction.ADD_TO_PARTICIPANTS, NodeAction.ADD_TO_WAIT_LIST, NodeAction.ADD_TO_REDUNDANCY_LIST)
_ENDS = (NodeAction.MARK_RENDEZVOUS_COMPLETE, NodeAction.MARK_RENDEZVOUS_CLOSED)
Token = Any

_T = TypeVar("_T")
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0


class StateHolder:
    """The shared state as this node has read it last, without the nodes that it knows to be dead."""

    def __init__(self, backend: RendezvousBackend, me: NodeDesc, limits: TimeLimits, clock: Clock) -> None:
        self._backend = backend
        self._clock = clock
        self.me = me
        self.limits = limits
        self.state = DynamicState()
        self._token: Token | None = None
        self._pulses: Mapping[NodeDesc, Pulse] = {}
        self._quorum: Quorum | None = None
        self._looked_at = float("-inf")
        self._beat_at = float("-inf")

    def read(self) -> DynamicState:
        """Read the state.

        Raises:
            RendezvousConnectionError: the backend could not be reached.
            RendezvousStateError: the state is damaged.
        """
        began = self._clock.monotonic()
        found = self._backend.get_state()
        data, self._token = found if found is not None else (None, None)
        self._take(data, began)
        return self.state

    def write(self, state: DynamicState) -> bool:
        """Replace the state unless another node has; return whether it is now the given one."""
        began = self._clock.monotonic()
        wish = encode(state)
        answer = self._backend.set_state(wish, self._token)
        if answer is None:  # some backends of users never say that they have replaced the state
            found = self._backend.get_state()
            answer = (*found, found[0] == wish) if found is not None else None
        data, self._token, has_set = answer if answer is not None else (None, None, False)
        if has_set and state.beats.get(self.me) != self.state.beats.get(self.me):
            self._beat_at = began
        self._take(data, began)
        return has_set

    def view(self, port: int = 0, *, leaving: bool = False) -> StateView:
        """Return the facts for the rules."""
        now = self._clock.monotonic()
        return StateView(self.state, self.me, self.limits, now, self._beat_at, self._quorum, port, leaving)

    def _take(self, data: bytes | None, began: float) -> None:
        """Keep the state that was read; a node that could not read it for long judges no other node."""
        state = DynamicState() if data is None else parse(data, self._backend.name)
        now = self._clock.monotonic()
        pulses = dynamic_rules.observe(self._pulses, state.beats, now)
        patience = max(self.limits.lease / 2, 1.5 * self.limits.interval)
        if began - self._looked_at > patience or now - began > patience:
            pulses = dynamic_rules.start_anew(pulses, now)
        self._pulses = pulses
        self._looked_at = now
        self.state = dynamic_rules.without(state, dynamic_rules.dead(pulses, self.me, now, self.limits.lease))
        self._quorum = dynamic_rules.quorum_of(self.state, self.limits, self._quorum, now)


class Deadline(NamedTuple):
    """The deadline of an operation, and its text."""

    at: float  # monotonic [s]
    timeout: float  # [s]


class Executor:
    """Runs operations: look, choose, change, until there is nothing left to do.

    Args:
        run_id: the id of the run, for errors.
        holder: the shared state.
        turn: held by the caller; given away while waiting.
        trail: records the steps.
    """

    def __init__(
        self, run_id: str, holder: StateHolder, turn: ContactTurn, trail: Trail | None = None
    ) -> None:
        self._run_id = run_id
        self._holder = holder
        self._turn = turn
        me = holder.me
        self._trail = trail or Trail("", run_id, Who(repr(me), me.addr, me.pid, me.local_id))

    def run(
        self,
        operation: Operation,
        timeout: float,
        *,
        port: int = 0,
        leaving: bool = False,
        patience: float | None = None,
    ) -> None:
        """Run an operation to its end.

        Args:
            operation: chooses the actions.
            timeout: within which it is to end [s].
            port: the port that this node brings into a round.
            leaving: this node goes for good.
            patience: how long the backend may not answer [s]; a lease if not given.

        Raises:
            RendezvousClosedError: the rendezvous is closed.
            RendezvousGracefulExitError: it was closed while this node stood by, or this handler was
                shut down.
            RendezvousTimeoutError: the operation did not end in time.
            RendezvousConnectionError: the backend did not answer for too long.
        """
        insist = partial(self._insist, self._holder.limits.lease if patience is None else patience)
        deadline = self._deadline(timeout)
        looks = races = 0
        insist(self._holder.read)
        while True:
            view = self._holder.view(port, leaving=leaving)
            action = operation(view, deadline.at)
            if action is NodeAction.FINISH:
                return
            if action in (NodeAction.ERROR_CLOSED, NodeAction.ERROR_TIMEOUT):
                self._fail(action, view, deadline)
            if action is NodeAction.SYNC:
                self._turn.insist()
                self._turn.wait(self._pause(looks))
                looks += 1
                insist(self._holder.read)
                continue
            after = dynamic_rules.apply(action, view)
            record_step(self._trail, action, view.state, after)
            has_set = insist(partial(self._holder.write, after))
            record_sync(self._trail, has_set=has_set)
            if has_set:
                races = 0
                if action is NodeAction.REMOVE_FROM_REDUNDANCY_LIST and not leaving:
                    deadline = self._deadline(timeout)
            else:
                races += 1
                self._turn.wait(_random() * _FIRST_PAUSE_S * min(races, 10))

    def _deadline(self, timeout: float) -> Deadline:
        return Deadline(self._turn.clock.monotonic() + timeout, timeout)

    def _insist(self, patience: float, step: Callable[[], _T]) -> _T:
        return until_lease(step, self._turn, patience, self._holder.limits.interval / 4)

    def _pause(self, looks: int) -> float:
        """Return the time between two looks: short at first, then a part of the interval [s]."""
        longest = min(_LONGEST_PAUSE_S, self._holder.limits.interval / 2)
        return min(longest, _FIRST_PAUSE_S * 1.5 ** min(looks, 20))

    def _fail(self, action: NodeAction, view: StateView, deadline: Deadline) -> NoReturn:
        state = view.state
        if action is NodeAction.ERROR_TIMEOUT:
            raise RendezvousTimeoutError(self._timeout_text(view, deadline))
        if view.me in state.redundancy_list:
            raise RendezvousGracefulExitError(
                f"The rendezvous '{self._run_id}' is closed, terminating pending rendezvous."
            )
        raise RendezvousClosedError(f"The rendezvous '{self._run_id}' is closed (by {state.closed_by}).")

    def _timeout_text(self, view: StateView, deadline: Deadline) -> str:
        state = view.state
        within = f"The rendezvous '{self._run_id}' did not complete within {deadline.timeout:g} s"
        if state.complete:
            return f"{within}: round {state.round} runs on without this node ({names(state.participants)})"
        here = {*state.participants, view.me}
        addresses = {node.addr for node in here}
        missing = [node for node in state.members if node.addr not in addresses]
        text = f"{within}: {len(here)} of {view.limits.min_nodes} nodes are there ({names(here)})"
        return f"{text}; missing: {names(missing)}" if missing else text


def _random() -> float:
    """Return a random number from 0 to 1; not `random`, which costs 5 ms to load."""
    return int.from_bytes(os.urandom(2), "little") / 0xFFFF


def record_step(trail: Trail, action: NodeAction, before: DynamicState, after: DynamicState) -> None:
    """Record a step by which a node changes the shared state, and its details."""
    _record(trail, action, before.round)
    if action in _BEATS:
        _record(trail, NodeAction.KEEP_ALIVE, before.round)
    if action is NodeAction.ADD_TO_PARTICIPANTS and after.complete:
        _record(trail, NodeAction.MARK_RENDEZVOUS_COMPLETE, before.round)


def _record(trail: Trail, action: NodeAction, number: int) -> None:
    what, text = _STEPS[action]
    frame = "{}" if action in _WHOLE else "The node '{{node}}' {} of the rendezvous '{{run}}'. Pending sync."
    message = frame.format(text).format(node=trail.who.name, run=trail.run_id, round=number, next=number + 1)
    state = "SUCCEEDED" if action in _ENDS else "RUNNING"
    trail.tell(f"_{what}", message, state, place=_EXECUTOR)


def record_sync(trail: Trail, *, has_set: bool) -> None:
    """Record whether a change of a node came through."""
    done = "has successfully synced its local changes with other nodes"
    stale = "has a stale state and failed to sync its local changes with other nodes"
    message = f"The node '{trail.who.name}' {done if has_set else stale} in the rendezvous '{trail.run_id}'."
    trail.tell("run", message, place=_EXECUTOR)


"""Names one state of a backend; opaque to everybody else."""


class RendezvousBackend(ABC):
    """Holds the state of a rendezvous, which is replaced by compare-and-set; as in torch."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the backend."""

    @abstractmethod
    def get_state(self) -> tuple[bytes, Token] | None:
        """Return the state and its token, or None if there is none.

        Raises:
            RendezvousConnectionError: the backend could not be reached.
            RendezvousStateError: the state is damaged.
        """

    @abstractmethod
    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Replace the state if it is still the one that the token names.

        Args:
            state: the new state.
            token: names the state to be replaced; None: there is none yet.

        Returns:
            The state after the call, its token, and whether it is the new one; None if there was no
            state although the token names one.

        Raises:
            RendezvousConnectionError: the backend could not be reached.
            RendezvousStateError: the state is damaged.
        """
