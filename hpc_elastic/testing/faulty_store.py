"""A store that fails on demand, to test code that is built on a store."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from hpc_elastic.clock import Clock, SystemClock
from hpc_elastic.errors import StoreError
from hpc_elastic.store.protocol import Store

T = TypeVar("T")
ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.EIO, errno.EINTR)
WRITING = frozenset({"append", "put", "create", "mark", "unmark"})


@dataclass(frozen=True)
class Refuse:
    """The operation is not done."""

    errno: int = errno.EIO


@dataclass(frozen=True)
class LoseReply:
    """The operation is done, but its caller gets an error."""

    errno: int = errno.EIO


@dataclass(frozen=True)
class Delay:
    """The operation is done later."""

    seconds: float


@dataclass(frozen=True)
class Meanwhile:
    """Something else happens before the operation is done, or before its caller has the result.

    A stall until an event is ``Meanwhile(event.wait)``.
    """

    happens: Callable[[], object]
    before: bool = True


@dataclass(frozen=True)
class Stale:
    """A reading operation returns its last result again, unless this store has written there since."""


Fault = Refuse | LoseReply | Delay | Meanwhile | Stale


class Plan(Protocol):
    """Chooses the faults."""

    def __call__(self, operation: str, place: str, /) -> Fault | None:
        """Return the fault of an operation, or None.

        Args:
            operation: the name of the method of `Store`.
            place: its log or directory.
        """
        ...


class Script:
    """A plan of faults in order: each waits for the next use of its operation.

    Args:
        steps: pairs of an operation and its fault; None for a use that goes well.
    """

    def __init__(self, *steps: tuple[str, Fault | None]) -> None:
        self._steps = list(steps)

    def __call__(self, operation: str, place: str) -> Fault | None:  # noqa: ARG002 - the protocol's
        """Return the operation's next fault."""
        for at, (awaited, fault) in enumerate(self._steps):
            if awaited == operation:
                del self._steps[at]
                return fault
        return None

    @property
    def is_over(self) -> bool:
        """Whether every fault has happened."""
        return not self._steps


class RandomFaults:
    """A plan that a seed decides.

    Args:
        seed: the same one gives the same faults for the same operations.
        chance: of a fault in each operation (0 to 1).
        kinds: the kinds of faults.
        longest_s: the longest delay [s].
    """

    def __init__(
        self,
        seed: int,
        chance: float,
        *,
        kinds: Sequence[type[Fault]] = (Refuse, LoseReply, Delay, Stale),
        longest_s: float = 0.001,
    ) -> None:
        self._random = random.Random(seed)  # noqa: S311 - repeatable, not secret
        self._chance = chance
        self._kinds = kinds
        self._longest_s = longest_s

    def __call__(self, operation: str, place: str) -> Fault | None:  # noqa: ARG002 - the protocol's
        """Return a fault, or None."""
        if self._random.random() >= self._chance:
            return None
        number = self._random.choice(ERRORS)
        faults = (Delay(self._random.uniform(0, self._longest_s)), Stale(), Refuse(number), LoseReply(number))
        return self._random.choice([fault for fault in faults if isinstance(fault, tuple(self._kinds))])


class FaultyStore:
    """A `Store` that works as another one does, except for the faults of a plan.

    Args:
        store: does the work.
        plan: the faults; by default none.
        clock: for delays.
    """

    def __init__(self, store: Store, plan: Plan | None = None, clock: Clock | None = None) -> None:
        self._store = store
        self._clock = clock or SystemClock()
        self.plan: Plan = plan or Script()
        self._seen: dict[tuple[str, str, object], object] = {}

    def _do(self, operation: str, place: str, key: object, act: Callable[[], T]) -> T:
        fault = self.plan(operation, place)
        if isinstance(fault, Stale) and (operation, place, key) in self._seen:
            return self._seen[operation, place, key]  # type: ignore[return-value]
        if isinstance(fault, Refuse):
            raise _error(place, fault.errno)
        if isinstance(fault, Delay):
            self._clock.sleep(fault.seconds)
        if isinstance(fault, Meanwhile) and fault.before:
            fault.happens()
        result = act()
        self._remember(operation, place, key, result)
        if isinstance(fault, Meanwhile) and not fault.before:
            fault.happens()
        if isinstance(fault, LoseReply):
            raise _error(place, fault.errno)
        return result

    def _remember(self, operation: str, place: str, key: object, result: object) -> None:
        if operation in WRITING:
            self._seen = {seen: old for seen, old in self._seen.items() if seen[1] != place}
        else:
            self._seen[operation, place, key] = result

    def append(self, log: str, number: int, value: bytes) -> bool:
        """Create a record; see `Store.append`."""
        return self._do("append", log, None, lambda: self._store.append(log, number, value))

    def read_after(self, log: str, number: int) -> list[tuple[int, bytes]]:
        """Return the records that follow `number`."""
        return self._do("read_after", log, number, lambda: self._store.read_after(log, number))

    def put(self, directory: str, name: str, value: bytes) -> None:
        """Write a one-writer file."""
        self._do("put", directory, None, lambda: self._store.put(directory, name, value))

    def get(self, directory: str, name: str) -> bytes | None:
        """Return a file's value, or None."""
        return self._do("get", directory, name, lambda: self._store.get(directory, name))

    def create(self, directory: str, name: str, value: bytes) -> bool:
        """Create a file exclusively."""
        return self._do("create", directory, None, lambda: self._store.create(directory, name, value))

    def wait(self, directory: str, known: Sequence[str], timeout: float) -> list[str]:
        """Wait for other names."""
        return self._do("wait", directory, None, lambda: self._store.wait(directory, known, timeout))

    def list(self, directory: str) -> list[str]:
        """Return the names in a directory."""
        return self._do("list", directory, None, lambda: self._store.list(directory))

    def mark(self, directory: str, name: str, *, instead_of: str | None = None) -> None:
        """Tell a fact by a name."""
        self._do("mark", directory, None, lambda: self._store.mark(directory, name, instead_of=instead_of))

    def unmark(self, directory: str, name: str) -> None:
        """Take a name away."""
        self._do("unmark", directory, None, lambda: self._store.unmark(directory, name))


def _error(place: str, number: int) -> StoreError:
    return StoreError(f"{place}: {os.strerror(number)} (injected)", errno=number)
