"""Calls to a package `timer`; each function returns what came of them."""

from __future__ import annotations

import os
import queue
import tempfile
import threading
import time
from typing import Any

from tests.like_torch.outcomes import error_type, outcome, signatures


def call_signatures(timer: Any) -> Any:
    """Names and defaults of all parameters."""
    of_server = ["register_timers", "clear_timers", "get_expired_timers", "start", "stop"]
    return signatures(
        timer,
        [
            *("configure", "expires", "TimerRequest", "api.RequestQueue.size", "api.RequestQueue.get"),
            *("TimerClient.acquire", "TimerClient.release", "TimerServer.__init__"),
            *("LocalTimerClient", "LocalTimerServer", "local_timer.MultiprocessingRequestQueue"),
            *("FileTimerClient", "FileTimerServer", "FileTimerRequest"),
            *(f"{kind}.{name}" for kind in ("TimerServer", "FileTimerServer") for name in of_server),
            *("FileTimerServer.run_once", "FileTimerServer.is_process_running"),
            *("FileTimerServer.get_last_progress_time",),
            "debug_info_logging.log_debug_info_for_expired_timers",
        ],
    )


def call_public_names(timer: Any) -> Any:
    """What ``import *`` brings, by module."""
    modules = ("api", "local_timer", "file_based_local_timer", "debug_info_logging")
    return {name: sorted(getattr(timer, name).__all__) for name in modules}


def call_abstract_methods(timer: Any) -> Any:
    """What a user's own server and client have to define."""
    kinds = (timer.TimerClient, timer.TimerServer, timer.api.RequestQueue)
    return [sorted(kind.__abstractmethods__) for kind in kinds]


def call_without_a_client(timer: Any) -> Any:
    """The error of a block without a client."""

    def enter() -> None:
        with timer.expires(after=1):
            pass

    return outcome(enter)


def call_requests(timer: Any) -> Any:
    """Equality and fields of requests, their JSON."""
    one = timer.TimerRequest(1, "a", 2.0)
    file_one = timer.FileTimerRequest(worker_pid=1, scope_id='"ä"', expiration_time=2, signal=9)
    return [
        one == timer.TimerRequest(1, "a", 2.0),
        one == timer.TimerRequest(1, "a", 2.5),
        one == "a",
        file_one == timer.FileTimerRequest(1, '"ä"', 2, 9),
        file_one == timer.FileTimerRequest(1, '"ä"', 2),
        sorted(type(one).__slots__),
        sorted(type(file_one).__slots__),
        file_one.to_json(),
        [file_one.version, file_one.worker_pid, file_one.worker_id, file_one.signal],
        error_type(lambda: hash(one)),
    ]


def call_local_client(timer: Any) -> Any:
    """What a client puts into the queue."""
    messages: queue.Queue[Any] = queue.Queue()
    timer.configure(timer.LocalTimerClient(messages))
    before = time.time()
    with timer.expires(after=60, scope="s"):
        pass
    acquired, released = messages.get(), messages.get()
    return [
        acquired.worker_id == os.getpid() == released.worker_id,
        [acquired.scope_id, released.scope_id, released.expiration_time],
        before + 60 <= acquired.expiration_time <= time.time() + 60,
    ]


def call_local_server(timer: Any) -> Any:
    """The timers of a server, asked in the scale of `time.time()`."""
    server = timer.LocalTimerServer(queue.Queue(), max_interval=0.01)
    now = time.time()
    request = timer.TimerRequest
    server.register_timers([request(1, "a", now), request(1, "b", now + 60), request(2, "a", now - 1)])
    server.register_timers([request(2, "a", -1), request(3, "never", -1)])
    expired = {pid: [one.scope_id for one in some] for pid, some in server.get_expired_timers(now).items()}
    server.clear_timers({1, 7})
    return [expired, len(server._timers)]


def call_file_client_without_server(timer: Any) -> Any:
    """The error of a client that finds no server; ours then goes on with the path."""
    kind, text = outcome(lambda: timer.FileTimerClient("/nonexistent/pipe").acquire("a", 1.0))
    return [kind, text.partition(" is not available")[:2]]


def call_file_client(timer: Any) -> Any:
    """What a client writes into the pipe, and what it refuses to write."""
    path = os.path.join(tempfile.mkdtemp(), "pipe")
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    client = timer.FileTimerClient(file_path=path, signal=15)
    client.acquire("a", 1.5)
    client.release("a")
    lines = os.read(reader, 9999).decode().replace(f'"pid": {os.getpid()}', '"pid": PID')
    refused = outcome(lambda: client.acquire("x" * 5000, 1.5))[0]
    os.close(reader)
    return [lines, refused]


def call_file_server(timer: Any) -> Any:
    """What a server tells of a timer without a signal, and how it counts."""
    told: list[Any] = []
    come = threading.Event()

    def log_event(name: str, request: Any) -> None:
        told.append([name, request and request.scope_id])
        if name == "timer expired":
            come.set()

    path = os.path.join(tempfile.mkdtemp(), "pipe")
    server = timer.FileTimerServer(path, "run", 0.01, True, log_event)
    made = os.path.exists(path)
    server.start()
    client = timer.FileTimerClient(path, signal=0)
    client.acquire("late", time.time() - 60)
    come.wait(120)
    client.release("late")
    server.run_once()
    server.stop()
    return [told, made, os.path.exists(path), server._request_count, server._timers]
