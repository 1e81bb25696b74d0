"""Countdown timers: a worker that is stuck in a block of code is killed when its time is over.

The names and their behaviour are those of ``torch.distributed.elastic.timer``; a script needs only
its import renamed. The server runs beside the workers on the same node, the clients in the workers::

    from hpc_elastic import timer

    server = timer.FileTimerServer("/run/user/1000/timers", run_id="train")  # in the parent
    server.start()

    timer.configure(timer.FileTimerClient("/run/user/1000/timers"))  # in the worker
    with timer.expires(after=60):
        all_reduce(...)

Improvements over the original are listed in docs/reference/timer.md.
"""

from __future__ import annotations

from hpc_elastic.timer.api import (
    RequestQueue,
    TimerClient,
    TimerRequest,
    TimerServer,
    configure,
    expires,
)
from hpc_elastic.timer.file_based_local_timer import FileTimerClient, FileTimerRequest, FileTimerServer
from hpc_elastic.timer.local_timer import LocalTimerClient, LocalTimerServer
from hpc_elastic.timer.reaping import ExpiredWorker, Reap

__all__ = [
    "ExpiredWorker",
    "FileTimerClient",
    "FileTimerRequest",
    "FileTimerServer",
    "LocalTimerClient",
    "LocalTimerServer",
    "Reap",
    "RequestQueue",
    "TimerClient",
    "TimerRequest",
    "TimerServer",
    "configure",
    "expires",
]
