"""Blocks of a worker's code that its agent knows: those with a name, and those that no stop interrupts.

The agent sees them in the memory that it shares with the worker: entering and leaving cost two
writes there and no call of the system.
"""

from __future__ import annotations

import threading

from hpc_elastic.errors import InputError
from hpc_elastic.worker.channel import section_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

    from hpc_elastic.clock import Clock
    from hpc_elastic.worker.channel import Channel


class Block:
    """Tells the agent while it is entered; may be entered again once it was left.

    Args:
        channel: the way to the agent, or None.
        name: as the channel keeps it.
        timeout_ms: limit of the whole block [ms]; 0: none of its own.
        clock: measures the block, so that the agent can compare ranks; None: it does not.
    """

    __slots__ = ("_channel", "_clock", "_depth", "_entered", "_name", "_timeout_ms")

    def __init__(
        self, channel: Channel | None, name: bytes, timeout_ms: int, clock: Clock | None = None
    ) -> None:
        self._channel = channel
        self._name = name
        self._timeout_ms = timeout_ms
        self._depth = 0
        self._clock = clock
        self._entered = 0.0

    def __enter__(self) -> None:
        if self._channel is not None:
            self._depth = self._channel.enter(self._name, self._timeout_ms)
            if self._clock is not None:
                self._entered = self._clock.monotonic()

    def __exit__(self, *_error: object) -> None:
        if self._channel is not None:
            if self._clock is not None:
                self._channel.add_computed(self._clock.monotonic() - self._entered)
            self._channel.leave(self._depth)


class CriticalDepth:
    """How deep this process is in critical sections, over all its threads.

    Args:
        channel: the way to the agent, None without one.
        clock: tells since when.
    """

    def __init__(self, channel: Channel | None, clock: Clock) -> None:
        self._channel = channel
        self._clock = clock
        self._lock = threading.Lock()
        self._depth = 0
        self.since: float | None = None  # when the outermost one was entered [s]

    def enter(self, name: bytes) -> None:
        """Go one deeper; only the outermost section is reported."""
        with self._lock:
            self._depth += 1
            if self._depth == 1:
                self.since = self._clock.monotonic()
                if self._channel is not None:
                    self._channel.enter_critical(name, self.since)

    def leave(self) -> None:
        """Come up again."""
        with self._lock:
            if self._depth == 0:
                raise RuntimeError("no critical section has been entered")
            self._depth -= 1
            if self._depth == 0:
                self.since = None
                if self._channel is not None:
                    self._channel.leave_critical()


class CriticalSection:
    """A block in which this worker is not ended; made by `hpc_elastic.worker.critical`.

    Sections may be nested, used again, and be in several threads at once.

    Args:
        name: for people, e.g. ``saving``.
        depth: of this process.

    Raises:
        InputError: the name is empty or no text.
    """

    def __init__(self, name: str, depth: CriticalDepth) -> None:
        text: object = name  # training code may give anything
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"the name of a critical section is {name!r}", where="critical", fix="name it")
        self._name = section_name(name)
        self._depth = depth

    def begin(self) -> None:
        """Enter the section; `end` must always follow."""
        self._depth.enter(self._name)

    def end(self) -> None:
        """Leave the section.

        Raises:
            RuntimeError: none has been entered.
        """
        self._depth.leave()

    def __enter__(self) -> None:
        self.begin()

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.end()
