"""The stacks of this process, for an agent that wonders why it makes no progress.

A handler in C writes them, so also a process that is stuck in a call of a library tells where it is.
"""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hpc_elastic.worker.channel import Channel

_SIGNALS = range(signal.SIGRTMIN + 9, signal.SIGRTMIN + 15)  # timers use + 8, the C library the first ones


def arm(channel: Channel) -> None:
    """Have this process write the stacks of all its threads when its agent signals it, if that can be.

    The agent knows the first process that attaches, and another one only when that has ended: a script
    may prepare something before it trains.
    """
    if channel.pid not in (0, os.getpid()) and _is_there(channel.pid):
        return
    number = next((number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_DFL), 0)
    if number:
        number = _register(number, channel.stacks_path)
    channel.attach(os.getpid(), number)


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def _register(number: int, path: str) -> int:
    """Return the signal, or 0 if there is no way to write the stacks."""
    try:
        import faulthandler  # noqa: PLC0415 - not part of every Python

        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o600)  # stays open as long as this process
        faulthandler.register(number, file=descriptor, all_threads=True)
    except (ImportError, OSError, RuntimeError, AttributeError):
        return 0
    return number
