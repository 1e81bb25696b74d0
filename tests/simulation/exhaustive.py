"""All interleavings of the store operations of a few nodes on their way through a rendezvous.

Any node whose operation is pending, or whose waiting is over, may go next, as long as nobody is kept
waiting longer than `SLOW_S`. On top of that one fault may come at any point. States that were met
before are not searched again; a state is what all nodes have seen, what stands in the store, and the
time, so that nothing is lost by that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import count
from typing import Any, NamedTuple

from hpc_elastic.meet.rules import MeetingSettings
from hpc_elastic.record import journal
from hpc_elastic.record.journal import Epoch, EpochStarted
from hpc_elastic.record.run_log import LOG
from tests.simulation.actor import END, FAILED, WAIT, Actor, Cast, Local, Request
from tests.simulation.broken import BrokenError
from tests.simulation.content import Content
from tests.simulation.invariants import Account
from tests.simulation.mount import WRITES

TICK_S = 0.25  # waiting ends at a multiple of this
SLOW_S = 0.0  # how long an operation or a wake-up may take while others go on
FREEZE_S = 2.5  # longer than a lease
LATE_S = 1.5  # how long the write of a dead or hung-up node may be in flight
DEAD = -1
END_S = 30.0  # everything is over long before
SETTINGS = MeetingSettings(
    join_timeout=10.0, last_call_timeout=1.0, heartbeat_interval=0.5, lease=1.25, leader_patience=0.5
)
FAULTS = ("crash", "freeze", "lost reply", "late write")


class Play(NamedTuple):
    """What is searched.

    Args:
        nodes: how many there are.
        fault: the fault that may come once, at any point; "" for none.
        crashes: rounds that end by a failure of the first member before the last one.
        zombies: how many of the nodes belong to an older start of the job.
        is_announced: the start of the job is announced already.
    """

    nodes: int
    fault: str = ""
    crashes: int = 0
    zombies: int = 0
    is_announced: bool = False

    @property
    def name(self) -> str:
        """For people."""
        parts = (
            f"{self.nodes} nodes",
            f"one {self.fault}" if self.fault else "",
            "announced" if self.is_announced else "",
            f"{self.crashes} restart" if self.crashes else "",
            f"{self.zombies} of an older start" if self.zombies else "",
        )
        return ", ".join(part for part in parts if part)

    def cast(self) -> tuple[Cast, ...]:
        """Return the nodes."""
        names = tuple(f"n{i}" for i in range(self.nodes))
        epochs = [Epoch(0, 0, 0 if i < self.zombies else 1, 0) for i in range(self.nodes)]
        least = 1 if self.fault or self.zombies else self.nodes
        settings = SETTINGS._replace(min_nodes=least, max_nodes=self.nodes)
        of = {epoch: tuple(n for n, e in zip(names, epochs, strict=True) if e == epoch) for epoch in epochs}
        return tuple(
            Cast(name, epoch, of[epoch], settings, self.crashes)
            for name, epoch in zip(names, epochs, strict=True)
        )


class State(NamedTuple):
    """Everything at one moment; equal states go on equally."""

    locals: tuple[int, ...]  # -1: dead
    dues: tuple[float, ...]  # since when each could go on [s]; inf for who is at its end
    content: int
    now: float
    fault_left: bool
    in_flight: tuple[int, Request, float] | None = None  # whose write lands by when


class Report(NamedTuple):
    """What a search has covered."""

    play: Play
    states: int
    steps: int
    interleavings: int  # complete ones

    def text(self) -> str:
        """Return one line for people."""
        paths = f"{self.interleavings:.3g} interleavings"
        return f"{self.play.name}: {self.states} states, {self.steps} steps, {paths}"


class Search:
    """One exhaustive search.

    Args:
        play: what is searched.
    """

    def __init__(self, play: Play) -> None:
        self.play = play
        self.casts = play.cast()
        self.newest = max(cast.epoch for cast in self.casts)
        self._numbers = count()
        self._locals: dict[int, Local] = {}
        self._contents: list[Content] = []
        self._accounts: list[Account] = []
        self._content_ids: dict[object, int] = {}
        self._effects: dict[tuple[int, Request, int], tuple[int, Any]] = {}

    def run(self, most_states: int | None = None) -> Report:
        """Search everything, or end when so many states were met.

        Raises:
            BrokenError: something did not hold; the text tells how it came to that.
        """
        first = self._first()
        paths = {first: 0}
        stack = [(first, "", self._next(first))]
        steps = 0
        try:
            while stack and len(paths) != most_states:
                state, _, successors = stack[-1]
                found = next(successors, None)
                if found is None:
                    stack.pop()
                    paths[state] = paths[state] or 1
                    if stack:
                        paths[stack[-1][0]] += paths[state]
                    continue
                steps += 1
                label, after = found
                if after in paths:
                    paths[state] += paths[after]
                else:
                    paths[after] = 0
                    stack.append((after, label, self._next(after)))
        except BrokenError as error:
            story = "\n".join(f"{entry.now:7.2f} {label}" for entry, label, _ in stack[1:])
            raise BrokenError(error.promise, f"{error}\n{self.play.name}:\n{story}") from error
        return Report(self.play, len(paths), steps, paths[first])

    # states

    def _first(self) -> State:
        roots = [Local(next(self._numbers), cast, ()) for cast in self.casts]
        for root in roots:
            root.take_over(Actor(root.cast))
            self._locals[root.number] = root
        content = self._intern(Content(), Account((1, self.play.nodes)))
        if self.play.is_announced:
            cast = self.casts[-1]
            entry = EpochStarted(cast.epoch, "17", cast.expected)
            record = journal.encode(entry, at=0.0, by=cast.name)
            content, _ = self._apply(content, Request("append", (LOG, 1, record)), len(roots) - 1)
        here = (0.0,) * len(roots)
        return State(tuple(root.number for root in roots), here, content, 0.0, bool(self.play.fault))

    def _intern(self, content: Content, account: Account) -> int:
        key = content.key()
        known = self._content_ids.get(key)
        if known is None:
            known = self._content_ids[key] = len(self._contents)
            self._contents.append(content)
            self._accounts.append(account)
        return known

    def _next(self, state: State) -> Iterator[tuple[str, State]]:
        """Go through everything that can happen next."""
        if state.now > END_S:
            raise BrokenError("liveness", f"it goes on after {END_S} s")
        active = [i for i, due in enumerate(state.dues) if due < math.inf]
        if state.in_flight is not None:
            yield self._land(state)
        if not active and state.in_flight is None:
            self._check_end(state)
        for i in self._candidates(state, active):
            others = [state.dues[j] for j in active if j != i]
            now = max(state.now, state.dues[i])
            limit = min(others, default=math.inf) + SLOW_S
            if state.in_flight is not None:
                limit = min(limit, state.in_flight[2])
            if now <= limit:
                yield self._step(state, i, now)
                if state.fault_left:
                    yield from self._fault(state, i, now)

    def _candidates(self, state: State, active: list[int]) -> list[int]:
        """Return the nodes whose turns lead to different outcomes: a wake-up goes before everything else."""
        if self.play.fault and not self.play.is_announced:
            return active
        first = min((state.dues[i] for i in active), default=0.0)
        quiet = (i for i in active if state.dues[i] == first and self._is_private(state.locals[i]))
        one = next(quiet, None)
        return active if one is None else [one]

    def _is_private(self, number: int) -> bool:
        request = self._locals[number].request
        return request.what == WAIT or (self.play.is_announced and request.what == "put")

    def _step(self, state: State, i: int, now: float) -> tuple[str, State]:
        """Let a node do what it wants to do next."""
        local = self._locals[state.locals[i]]
        content, result = self._effect(state.content, local.request, i)
        label = f"{local.cast.name} {_told(local.request)}"
        return label, self._go_on(state._replace(content=content, now=now), i, result)

    def _effect(self, content: int, request: Request, i: int) -> tuple[int, Any]:
        """Return the content and the result after an operation."""
        if request.what == WAIT:
            return content, None
        key = (content, request, i)
        known = self._effects.get(key)
        if known is None:
            known = self._effects[key] = self._apply(content, request, i)
        return known

    def _apply(self, content: int, request: Request, i: int) -> tuple[int, Any]:
        after = self._contents[content].copy()
        result = getattr(after, request.what)(*request.arguments, **dict(request.keywords))
        if isinstance(result, list):
            result = tuple(result)
        if request.what not in WRITES:
            return content, result
        account = self._accounts[content]
        if request.what == "append" and result:
            account = account.copy()
            account.add(request.arguments[1], request.arguments[2], self.casts[i].epoch)
        return self._intern(after, account), result

    def _go_on(self, state: State, i: int, result: object) -> State:
        """Give a node a result, and check what it makes of it."""
        before = self._locals[state.locals[i]]
        local = before.child((state.now, result), lambda: next(self._numbers))
        self._locals[local.number] = local
        self._check_node(before, local, self._accounts[state.content])
        request = local.request
        due = state.now
        if request.what == END:
            due = math.inf
        elif request.what == WAIT:
            due = math.ceil((state.now + max(request.arguments[0], 0.001)) / TICK_S - 1e-9) * TICK_S
        return state._replace(locals=_with(state.locals, i, local.number), dues=_with(state.dues, i, due))

    # faults

    def _fault(self, state: State, i: int, now: float) -> Iterator[tuple[str, State]]:
        """Go through the faults that may come to a node now."""
        local, fault = self._locals[state.locals[i]], self.play.fault
        state = state._replace(fault_left=False, now=now)
        name, request = local.cast.name, local.request
        in_flight = (i, request, now + LATE_S)
        if fault == "crash":
            yield f"{name} is killed", _dead(state, i)
        elif fault == "freeze":
            yield f"{name} freezes", state._replace(dues=_with(state.dues, i, now + FREEZE_S))
        elif fault == "lost reply" and request.what != WAIT:
            content, _ = self._effect(state.content, request, i)
            label = f"{name} {_told(request)}, but hears of failure"
            yield label, self._go_on(state._replace(content=content), i, FAILED)
        elif fault == "late write" and request.what in WRITES:
            label = f"{name} {_told(request)}: in flight"
            yield f"{label}, and it is killed", _dead(state, i)._replace(in_flight=in_flight)
            yield (
                f"{label}, but hears of failure",
                self._go_on(state, i, FAILED)._replace(in_flight=in_flight),
            )

    def _land(self, state: State) -> tuple[str, State]:
        assert state.in_flight is not None
        i, request, _ = state.in_flight
        content, _ = self._effect(state.content, request, i)
        return f"{_told(request)} of {self.casts[i].name} lands", state._replace(
            content=content, in_flight=None
        )

    # what must hold

    def _check_node(self, before: Local, local: Local, account: Account) -> None:
        """Check what a node knows, as the simulation does."""
        state, name = local.state, local.cast.name
        if state.last >= len(account.states) or account.states[state.last] != state:
            raise BrokenError("one state", f"{name} holds what the journal does not say: {state}")
        was = before.state
        if (state.epoch, state.rounds, state.last) < (was.epoch, was.rounds, was.last):
            raise BrokenError("no way back", f"{name} knew {was}, now {state}")
        if local.formed is not None and account.rounds.get(local.formed.number) != local.formed:
            raise BrokenError("one membership", f"{name} has {local.formed}")

    def _check_end(self, state: State) -> None:
        """Check that everybody who lives has come to the end that the newest round holds for it."""
        account = self._accounts[state.content]
        last = account.rounds.get(len(account.rounds))
        ends = {
            self._locals[number].cast: self._locals[number].request.arguments[0]
            for number in state.locals
            if number != DEAD
        }
        current = {cast.name: end for cast, end in ends.items() if cast.epoch == self.newest}
        members = {member.node for member in last.members} if last is not None else set()
        for name, end in current.items():
            if end != ("in" if name in members else "beside"):
                raise BrokenError("liveness", f"{name} ends {end!r}, the last round has {sorted(members)}")
        if not self.play.fault and members != {cast.name for cast in current_cast(self.casts, self.newest)}:
            raise BrokenError("liveness", f"nothing went wrong, but the round has only {sorted(members)}")


def current_cast(casts: tuple[Cast, ...], epoch: Epoch) -> list[Cast]:
    """Return the nodes of a start of the job."""
    return [cast for cast in casts if cast.epoch == epoch]


def _with(values: tuple[Any, ...], i: int, value: object) -> tuple[Any, ...]:
    return (*values[:i], value, *values[i + 1 :])


def _dead(state: State, i: int) -> State:
    return state._replace(locals=_with(state.locals, i, DEAD), dues=_with(state.dues, i, math.inf))


def _told(request: Request) -> str:
    shown = [str(argument)[:60] for argument in request.arguments if not isinstance(argument, bytes)]
    return " ".join((request.what, *shown))


def plays(nodes: int) -> tuple[Play, ...]:
    """Return everything that is searched for a number of nodes.

    Three nodes begin with an announced start of the job, or the search would take hours.
    """
    if nodes > 2:
        return tuple(Play(nodes, fault, is_announced=True) for fault in ("", *FAULTS))
    return (
        *(Play(nodes, fault) for fault in ("", *FAULTS)),
        *(Play(nodes, fault, zombies=1) for fault in ("", *FAULTS)),
        *(Play(nodes, fault, crashes=1) for fault in ("", "crash")),
    )


def search(play: Play, most_states: int | None = None) -> Report:
    """Search one of them; see `Search.run`."""
    return Search(play).run(most_states)
