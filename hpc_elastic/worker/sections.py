"""Blocks of a worker's code that have names: the values of `hpc_elastic.worker.section` returns."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hpc_elastic.worker.channel import Channel


class Block:
    """Tells the agent while it is entered; may be entered again once it was left.

    Args:
        channel: the way to the agent, or None.
        name: as the channel keeps it.
        timeout_ms: limit of the whole block [ms]; 0: none of its own.
    """

    __slots__ = ("_channel", "_depth", "_name", "_timeout_ms")

    def __init__(self, channel: Channel | None, name: bytes, timeout_ms: int) -> None:
        self._channel = channel
        self._name = name
        self._timeout_ms = timeout_ms
        self._depth = 0

    def __enter__(self) -> None:
        if self._channel is not None:
            self._depth = self._channel.enter(self._name, self._timeout_ms)

    def __exit__(self, *_error: object) -> None:
        if self._channel is not None:
            self._channel.leave(self._depth)
