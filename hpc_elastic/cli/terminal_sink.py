"""Lines of logs on their way to a terminal."""

from __future__ import annotations

from hpc_elastic.processes.sinks import Sink
from hpc_elastic.text import visible_log


class TerminalSink:
    """Hands lines on with colours, and shows as escapes what would move, clear or rename the terminal.

    Args:
        sink: takes the lines.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    @property
    def is_blocked(self) -> bool:
        """Whether lines wait."""
        return self._sink.is_blocked

    @property
    def is_never_slow(self) -> bool:
        """Whether nobody at the other end can make lines wait."""
        return self._sink.is_never_slow

    def put(self, lines: bytes) -> None:
        """Take lines that end with a line end."""
        self._sink.put(visible_log(lines))

    def flush(self) -> bool:
        """Write what waits; return whether that is all."""
        return self._sink.flush()

    def blocked_fd(self) -> int | None:
        """Return the descriptor that lines wait for."""
        return self._sink.blocked_fd()
