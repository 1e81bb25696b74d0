"""The signal by which the agent asks a worker for its state, also while the main thread hangs."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType

ASKED_BY = signal.SIGURG  # by default a process ignores it, so the children of a worker may get it


class AgentAsks:
    """The handler of the agent's signal: a thread calls the newest function that wants to know.

    Args:
        act: the function.
    """

    def __init__(self, act: Callable[[], None]) -> None:
        self.act = act

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Do nothing in the main thread: without a handler the thread would hear of nothing."""

    def listen(self, reader: socket.socket, _writer: socket.socket) -> None:
        """Wait for signals, of which the interpreter writes the numbers at once (thread)."""
        while data := reader.recv(64):
            if ASKED_BY in data:
                self.act()


def heed(act: Callable[[], None]) -> bool:
    """Have a thread call a function on the agent's signal, even while the main thread hangs.

    Returns:
        Whether it does; not beside other handlers, or outside the main thread.
    """
    handler = signal.getsignal(ASKED_BY)
    if isinstance(handler, AgentAsks):
        handler.act = act
        return True
    is_free = handler in (signal.SIG_DFL, signal.SIG_IGN)
    if not is_free or threading.current_thread() is not threading.main_thread():
        return False
    reader, writer = socket.socketpair()
    writer.settimeout(0.0)
    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    if before != -1:
        signal.set_wakeup_fd(before)
        return False
    asks = AgentAsks(act)
    signal.signal(ASKED_BY, asks)
    signal.siginterrupt(ASKED_BY, False)  # noqa: FBT003 - it has no name
    threading.Thread(
        target=asks.listen, args=(reader, writer), name="hpc_elastic rescue", daemon=True
    ).start()
    return True


def is_replaced(act: Callable[[], None]) -> bool:
    """Tell whether the agent's signal has another function called by now."""
    handler = signal.getsignal(ASKED_BY)
    return isinstance(handler, AgentAsks) and handler.act != act
