"""The shared directory as one node sees it: slow, now and then stale, sometimes failing or stalled."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol, TypeVar

from hpc_elastic.errors import StoreError
from tests.simulation.broken import BrokenError
from tests.simulation.world import Node

Names = list[str]  # inside the class `list` is a method
_T = TypeVar("_T")
OPERATION_S = 0.005  # the longest an ordinary operation on the store takes [s]
LOOK_S = 0.05  # time between two looks of somebody who waits for other names [s]
STALE_S = 0.3  # the oldest listing that a network file system was seen to return [s]
ABSENT_S = 29.0  # how long a client may go on believing that a name it looked up is not there [s]
SOFT_S = 5.0  # a mount that gives up during a stall does so after this time [s]
LATE_S = (0.5, 12.0)  # how long an operation may be in flight [s]
ERRORS_PER_S = 40  # more of them in a second are nobody's bad luck
WRITES = frozenset({"append", "put", "create", "mark", "unmark"})


class Weather(NamedTuple):
    """How often an operation does not go smoothly (0 to 1)."""

    stale: float = 0.0  # a listing or reading is an older one
    lost_reply: float = 0.0  # it is done but reported as failed
    late: float = 0.0  # a write lands seconds later


class Trap(NamedTuple):
    """Something that happens at a node's next operation of a kind."""

    operation: str
    is_after: bool  # when it is done but the node does not know yet
    act: Callable[[], None]


class Observer(Protocol):
    """Who is told what was really done."""

    def appended(self, mount: Mount, number: int, value: bytes) -> None:
        """A record was created."""
        ...

    def promised(self, number: int, value: bytes) -> None:
        """A node was told that its record was created."""
        ...


class Mount:
    """One node's way to the store; see `hpc_elastic.store.protocol.Store`.

    Args:
        node: the node.
        weather: how rough it is.
        observer: who is told of records.
    """

    def __init__(self, node: Node, weather: Weather, observer: Observer) -> None:
        self.node = node
        self.trap: Trap | None = None
        self.late_next: float | None = None  # the next write lands so much later [s]
        self.stalled_until = 0.0
        self.is_soft = False  # gives up during a stall instead of waiting
        self.refuses_until = 0.0
        self.refusal = errno.ENOSPC
        self.failed_at = -1.0  # when an operation last raised an error
        self.listed_at = -1.0  # when the members were last listed
        self.append_began_at = -1.0
        self.decided_by = -1.0  # when the members had been listed that the last record was decided by
        self._errors = (0.0, 0)  # since when, and how many since then
        self._world = node.world
        self._content = node.world.content
        self._weather = weather
        self._observer = observer
        self._listed: dict[str, tuple[float, list[str]]] = {}
        self._absent: dict[tuple[str, str], float] = {}
        self._written: dict[str, int] = {}

    # writing

    def append(self, log: str, number: int, value: bytes) -> bool:
        """Create a record; see `Store.append`."""
        self.append_began_at, self.decided_by = self._world.now, self.listed_at

        def land() -> bool:
            won = self._content.append(log, number, value)
            if won:
                self._written[log] = number
                self._observer.appended(self, number, value)
            return won

        won = self._write("append", land)
        if won:
            self._observer.promised(number, value)
        return won

    def put(self, directory: str, name: str, value: bytes) -> None:
        """Write a file."""
        self._write("put", lambda: self._content.put(directory, name, value), directory, name)

    def create(self, directory: str, name: str, value: bytes) -> bool:
        """Create a file exclusively."""
        return self._write("create", lambda: self._content.create(directory, name, value), directory, name)

    def mark(self, directory: str, name: str, *, instead_of: str | None = None) -> None:
        """Tell a fact by a name."""
        with self._aside(name):
            self._write("mark", lambda: self._content.mark(directory, name, instead_of=instead_of), directory)

    def unmark(self, directory: str, name: str) -> None:
        """Take a name away."""
        with self._aside(name):
            self._write("unmark", lambda: self._content.unmark(directory, name), directory)

    @contextmanager
    def _aside(self, name: str) -> Iterator[None]:
        """Let an error not count that keeps a suspicion untold: what was seen of the others holds."""
        before = self.failed_at
        try:
            yield
        except StoreError:
            if "+suspected+" in name:
                self.failed_at = before
            raise

    def _write(self, operation: str, land: Callable[[], _T], directory: str = "", name: str = "") -> _T:
        self._begin(operation)
        if self._world.now < self.refuses_until:
            self._world.counts["refused writes"] += 1
            raise self._error("the write is refused", self.refusal)
        late_s = self._late_s()
        result = land() if late_s is None else self._land_late(operation, land, late_s)
        self._listed.pop(directory, None)
        self._absent.pop((directory, name), None)
        self._end(operation)
        return result

    def _late_s(self) -> float | None:
        late_s, self.late_next = self.late_next, None
        if late_s is None and self._weather.late and self._world.random.random() < self._weather.late:
            late_s = self._world.random.uniform(*LATE_S)
        return late_s

    def _land_late(self, operation: str, land: Callable[[], _T], seconds: float) -> _T:
        """Have a write land later, whatever becomes of the node meanwhile."""
        world = self._world
        results: list[_T] = []
        world.tell(f"{self.node.name}: {operation} lands {seconds:.1f} s late")
        world.counts["late writes"] += 1
        world.at(world.now + seconds, lambda: results.append(land()))
        if world.random.random() < 0.5:
            raise self._error("the write timed out", errno.ETIMEDOUT)
        self.node.disturb(seconds)
        self.node.wait(seconds)
        while not results:  # both are due at the same time
            self.node.wait(0.001)
        return results[0]

    # reading

    def read_after(self, log: str, number: int) -> list[tuple[int, bytes]]:
        """Return what follows, or only the first part of it; what this node wrote is always there."""
        self._begin("read")
        self._end("read")
        found = self._content.read_after(log, number)
        if found and self._weather.stale:
            own = max(0, self._written.get(log, 0) - number)
            if len(found) > own and self._world.random.random() < self._weather.stale:
                self._world.counts["stale reads"] += 1
                return found[: self._world.random.randrange(own, len(found))]
        return found

    def get(self, directory: str, name: str) -> bytes | None:
        """Return a file's value, or None; who has looked too early may not see it for a while."""
        self._begin("get")
        self._end("get")
        place, now = (directory, name), self._world.now
        asked_at = self._absent.get(place)
        if asked_at is not None and now - asked_at < ABSENT_S and self._is_stale():
            return None
        value = self._content.get(directory, name)
        if value is None:
            self._absent[place] = now
        return value

    def list(self, directory: str) -> list[str]:
        """Return the names, or those of the last look if that was just now."""
        self._begin("list")
        self._end("list")
        now = self._world.now
        looked_at, names = self._listed.get(directory, (float("-inf"), []))
        if now - looked_at > STALE_S or not self._is_stale():
            looked_at, names = now, self._content.list(directory)
            self._listed[directory] = (looked_at, names)
        if directory == "members":
            self.listed_at = now
            since, until = self.node.blind
            if since < now < until:  # between two stalls it could see for a moment
                self.node.blind = (now, until)
        return names

    def wait(self, directory: str, known: Sequence[str], timeout: float) -> Names:
        """Look again and again until the names differ."""
        deadline = self._world.now + timeout
        while (names := self.list(directory)) == list(known) and self._world.now < deadline:
            self.node.wait(min(LOOK_S, deadline - self._world.now))
        return names

    def _is_stale(self) -> bool:
        stale = self._weather.stale > 0 and self._world.random.random() < self._weather.stale
        if stale:
            self._world.counts["stale reads"] += 1
        return stale

    # inside

    def _begin(self, operation: str) -> None:
        """Let the time pass that the operation takes."""
        world, node = self._world, self.node
        if self.trap is not None:
            self._spring(operation, is_after=False)
        world.counts["operations"] += 1
        seconds = world.random.random() * OPERATION_S
        stalled = self.stalled_until - world.now
        if stalled > 0:
            if self.is_soft and stalled > SOFT_S:
                node.wait(SOFT_S)
                raise self._error("the server does not answer", errno.ETIMEDOUT)
            seconds += stalled
        node.wait(seconds)
        if world.is_verbose:
            world.tell(f"  {node.name} {operation}")

    def _end(self, operation: str) -> None:
        if self.trap is not None:
            self._spring(operation, is_after=True)
        chance = self._weather.lost_reply
        if chance and self._world.random.random() < chance:
            self._world.counts["lost replies"] += 1
            raise self._error("the reply was lost", errno.EIO)

    def _spring(self, operation: str, *, is_after: bool) -> None:
        trap = self.trap
        if trap is not None and trap[:2] == (operation, is_after):
            self.trap = None
            trap.act()
            self.node.wait(0.0)

    def _error(self, text: str, number: int) -> StoreError:
        now = self._world.now
        if now - self._errors[0] >= 1.0:
            self._errors = (now, 0)
        self._errors = (self._errors[0], self._errors[1] + 1)
        if self._errors[1] > ERRORS_PER_S:
            raise BrokenError("no haste", f"{self.node.name} tries what fails again and again")
        self.failed_at = now
        self.node.disturb(0.0)  # its own beat may have been what failed
        if self._world.is_verbose:
            self._world.tell(f"  {self.node.name}: {text}")
        return StoreError(text, errno=number)

    # faults

    def stall(self, seconds: float, *, is_soft: bool) -> None:
        """Let nothing through for a time [s]; a soft mount reports that as an error."""
        self.stalled_until = max(self.stalled_until, self._world.now + seconds)
        self.is_soft = is_soft
        self.node.disturb(seconds, is_blind=True)

    def refuse(self, seconds: float, number: int) -> None:
        """Refuse all writes for a time [s] with an error number."""
        self.refuses_until = max(self.refuses_until, self._world.now + seconds)
        self.refusal = number
        self.node.disturb(seconds)
