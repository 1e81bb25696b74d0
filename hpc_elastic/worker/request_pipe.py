"""The pipe by which an agent asks a worker to keep its state, also while the worker's main thread hangs.

It takes no signal, no handler and no wakeup descriptor, so a program may use all of them as it likes. The
worker makes the pipe beside its channel and reads it in a thread. Processes that it forks have no such thread
and never answer; those that it starts do not inherit the pipe. A write of the agent never blocks.
"""

from __future__ import annotations

import os
import stat
import threading
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from hpc_elastic.worker.channel import Channel

_REQUEST = b"k"
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW


def ask(channel: Channel) -> bool:
    """Ask the process that the channel names to keep its state (agent); tell whether a thread reads it."""
    path = channel.request_path
    if not path:
        return False
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | _FLAGS)
    except OSError:
        return False  # ENXIO: the reader has ended
    try:
        return stat.S_ISFIFO(os.fstat(fd).st_mode) and os.write(fd, _REQUEST) > 0
    except OSError:
        return False
    finally:
        os.close(fd)


class Listener(threading.Thread):
    """A thread that waits for one request.

    Args:
        path: of the pipe.
        act: called when it comes; a later function may take its place.

    Raises:
        OSError: the pipe cannot be made.
    """

    def __init__(self, path: str, act: Callable[[], None]) -> None:
        super().__init__(name="hpc_elastic rescue", daemon=True)
        self.act = act
        self._path = path
        with suppress(FileNotFoundError):
            os.unlink(path)  # of an ended process that had the same number
        os.mkfifo(path, 0o600)
        self._fd = os.open(path, os.O_RDWR | _FLAGS)  # its own writer: a read never ends for want of one

    def run(self) -> None:
        """Read one request alone: after it a program that closes all descriptors may have this number."""
        if os.read(self._fd, 1):
            with suppress(FileNotFoundError):
                os.unlink(self._path)
            self.act()


def heed(channel: Channel, act: Callable[[], None]) -> Listener | None:
    """Have a thread call a function when the agent asks, in place of an earlier function (worker).

    Returns:
        The thread, one for all functions of a process; None: there is no room for it or its pipe.
    """
    for thread in threading.enumerate():  # none of the process that this one was forked from
        if isinstance(thread, Listener):
            thread.act = act
            return thread
    try:
        listener = Listener(channel.request_path_of(os.getpid()), act)
        listener.start()
    except (OSError, RuntimeError):
        return None
    return listener
