"""One node of an exhaustive search: the real rendezvous, run by itself and told what it sees.

A node is deterministic: what it does next follows from the results of its operations and the times
at which it got them. So each history of results is run once, whatever the other nodes did meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from greenlet import getcurrent, greenlet

from hpc_elastic.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousTimeoutError,
    StoreError,
)
from hpc_elastic.meet.membership import Membership, NodeFacts
from hpc_elastic.meet.rules import MeetingSettings
from hpc_elastic.meet.shared_fs import SharedFsRendezvous, Waiting
from hpc_elastic.meet.shared_run import RunDeps, RunFacts, SharedRun
from hpc_elastic.record.journal import Epoch, Member, RoundFormed
from hpc_elastic.record.run_log import RunLog
from hpc_elastic.record.state import RunState

FAILED = "failed"  # the result of an operation whose reply was lost
WAIT, END = "wait", "end"
Names = list[str]  # inside the class `list` is a method


class Request(NamedTuple):
    """What a node wants next: an operation on the store, to wait, or nothing more."""

    what: str
    arguments: tuple[Any, ...] = ()
    keywords: tuple[tuple[str, Any], ...] = ()


class Cast(NamedTuple):
    """One node of the play.

    Args:
        name: its name.
        epoch: the start of the job it belongs to.
        expected: the nodes it was told of.
        settings: sizes and timeouts.
        crashes: rounds that end because the first member's workers fail.
    """

    name: str
    epoch: Epoch
    expected: tuple[str, ...]
    settings: MeetingSettings
    crashes: int


class _Beside(Exception):  # noqa: N818 - an end, no error
    """The last round runs without this node, and it has asked for a place."""


class Actor:
    """A node that is being run; also its clock and its store.

    Args:
        cast: who it is.
    """

    def __init__(self, cast: Cast) -> None:
        self.cast = cast
        self.formed: RoundFormed | None = None
        self._now = 0.0
        self._hub = getcurrent()
        member = Member(f"{cast.name}.1", cast.name, 1)
        facts = NodeFacts(member, cast.name, cast.name)
        self.run = SharedRun(
            RunLog(self, self, cast.name),
            Membership(self, self, facts, cast.epoch, cast.settings),
            RunFacts("run", "17", cast.expected),
            cast.settings,
            RunDeps(self, lambda: None),
        )
        waiting = Waiting(self._wait, lambda: 20_000, lambda: False)
        self._rendezvous = SharedFsRendezvous(self.run, waiting)
        self._greenlet = greenlet(lambda: Request(END, (self._play(),)))

    @property
    def state(self) -> RunState:
        """The state of the run as this node knows it."""
        return self.run.state

    def begin(self) -> Request:
        """Run to its first request."""
        return self._continue(None)

    def go_on(self, now: float, result: object) -> Request:
        """Give it the result of its last request, at a time [s]; return what it wants next."""
        self._now = now
        return self._continue(result)

    def _continue(self, result: object) -> Request:
        request = self._greenlet.switch(result) if self._greenlet else self._greenlet.switch()
        assert isinstance(request, Request)
        return request

    def _play(self) -> str:
        try:
            while True:
                self.formed = None
                formed = self._rendezvous.next_rendezvous().round
                assert formed is not None
                self.formed = formed
                if formed.number > self.cast.crashes:
                    return "in"
                self._end_round(formed)
        except _Beside:
            return "beside"
        except RendezvousGracefulExitError:
            return "fenced"
        except RendezvousClosedError:
            return "closed"
        except RendezvousTimeoutError:
            return "too few"
        except RendezvousConnectionError:
            return "no store"

    def _end_round(self, formed: RoundFormed) -> None:
        """See a round end: the first member's workers fail."""
        while self.state.running == formed:
            try:
                if formed.members[0].node_id == self.run.membership.node_id:
                    self.run.report_crash(formed.number, {})
                    continue
                if self.run.lost:
                    self.run.report_lost(formed.number, self.run.lost)
                    continue
            except StoreError:
                pass
            self._wait(self.cast.settings.heartbeat_interval)
            self.run.tick(look=True)

    def _ask(self, what: str, *arguments: object, **keywords: object) -> Any:
        result = self._hub.switch(Request(what, arguments, tuple(keywords.items())))
        if result == FAILED:
            raise StoreError("the reply was lost")
        return result

    def _wait(self, seconds: float) -> None:
        running = self.state.running
        if running is not None and running.number > self.cast.crashes and self.state.drain is not None:
            raise _Beside
        self._ask(WAIT, seconds)

    # hpc_elastic.clock.Clock

    def monotonic(self) -> float:
        """Return the time [s]."""
        return self._now

    def wall(self) -> float:
        """Return a wall time that is good for nothing."""
        return 0.0

    def sleep(self, seconds: float) -> None:
        """Wait [s]."""
        self._wait(seconds)

    # hpc_elastic.store.protocol.Store

    def append(self, log: str, number: int, value: bytes) -> bool:
        """Create a record."""
        return bool(self._ask("append", log, number, value))

    def read_after(self, log: str, number: int) -> list[tuple[int, bytes]]:
        """Return the records that follow."""
        return list(self._ask("read_after", log, number))

    def put(self, directory: str, name: str, value: bytes) -> None:
        """Write a file."""
        self._ask("put", directory, name, value)

    def get(self, directory: str, name: str) -> bytes | None:
        """Return a file's value, or None."""
        value: bytes | None = self._ask("get", directory, name)
        return value

    def create(self, directory: str, name: str, value: bytes) -> bool:
        """Create a file exclusively."""
        return bool(self._ask("create", directory, name, value))

    def list(self, directory: str) -> list[str]:
        """Return the names in a directory."""
        return [str(name) for name in self._ask("list", directory)]

    def wait(self, directory: str, known: Sequence[str], timeout: float) -> Names:
        """Not used by the rendezvous."""
        raise NotImplementedError

    def mark(self, directory: str, name: str, *, instead_of: str | None = None) -> None:
        """Tell a fact by a name."""
        self._ask("mark", directory, name, instead_of=instead_of)

    def unmark(self, directory: str, name: str) -> None:
        """Take a name away."""
        self._ask("unmark", directory, name)


class Local:
    """A node after one history of results.

    Args:
        number: tells it from all others.
        cast: who it is.
        history: the results so far and when they came.
    """

    def __init__(self, number: int, cast: Cast, history: tuple[tuple[float, object], ...]) -> None:
        self.number = number
        self.cast = cast
        self.history = history
        self.children: dict[tuple[float, object], Local] = {}
        self.actor: Actor | None = None
        self.request = Request(END)
        self.state = RunState()
        self.formed: RoundFormed | None = None

    def child(self, given: tuple[float, object], number: Callable[[], int]) -> Local:
        """Return the node after one more result."""
        known = self.children.get(given)
        if known is None:
            known = self.children[given] = Local(number(), self.cast, (*self.history, given))
            known.take_over(self.actor or self._again())
            self.actor = None
        return known

    def take_over(self, actor: Actor) -> None:
        """Run the newest step of this history on an actor that stands just before it."""
        self.request = actor.go_on(*self.history[-1]) if self.history else actor.begin()
        self.state, self.formed = actor.state, actor.formed
        self.actor = None if self.request.what == END else actor

    def _again(self) -> Actor:
        """Return an actor that stands at the end of this history."""
        actor = Actor(self.cast)
        actor.begin()
        for given in self.history:
            actor.go_on(*given)
        return actor
