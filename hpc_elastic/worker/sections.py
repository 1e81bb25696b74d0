"""Blocks of a worker's code that have names: the values of `hpc_elastic.worker.section` returns."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
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
