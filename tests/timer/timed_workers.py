"""Workers for the tests of timers: spawned processes, so they are found in a module by name."""

from __future__ import annotations

import os
import signal
import threading
from multiprocessing.synchronize import Event
from typing import Any

from hpc_elastic import timer


def stuck_in_here() -> None:
    """Never return."""
    threading.Event().wait()


def get_stuck(client: timer.TimerClient, after: float, stderr: str | None = None) -> None:
    """Overstay a block, having sent stderr to a file."""
    if stderr is not None:
        os.dup2(os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
    timer.configure(client)
    with timer.expires(after=after, scope="stuck"):
        stuck_in_here()


def finish_in_time(client: timer.TimerClient, count: int) -> None:
    """Leave many blocks in time."""
    timer.configure(client)
    for _ in range(count):
        with timer.expires(after=30):
            pass


def hold(client: timer.TimerClient, after: float, entered: Event, leave: Event) -> None:
    """Stay in a block until told to leave it."""
    with timer.expires(after=after, scope="held", client=client):
        entered.set()
        leave.wait()


def leave_armed(client: timer.TimerClient, after: float) -> None:
    """End inside a block."""
    client.acquire("armed", after)
    os._exit(0)


def serve(path: str, ready: Any) -> None:
    """Run a server until killed."""
    server = timer.FileTimerServer(path, "run")
    server.start()
    ready.set()
    signal.pause()
