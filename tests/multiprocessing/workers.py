"""Functions that workers run in the tests of this package."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import threading
from multiprocessing import resource_tracker
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

from hpc_elastic.multiprocessing import start_processes
from hpc_elastic.multiprocessing.errors import ErrorHandler


def add(*numbers: int) -> int:
    """Return the sum."""
    return sum(numbers)


def zeros(size: int) -> bytes:
    """Return a value of this size [bytes]."""
    return bytes(size)


def fail(text: str) -> None:
    """Raise."""
    raise ValueError(text)


def resource_tracker_pipe() -> int:
    """Return which pipe leads to the resource tracker of this process."""
    return os.fstat(resource_tracker.getfd() or 0).st_ino


def touch_at_exit(path: str) -> None:
    """Make a file when this process ends."""
    atexit.register(Path(path).touch)


def leave(code: object) -> None:
    """End as scripts do."""
    sys.exit(code)  # type: ignore[arg-type]


def leave_at_once(code: int) -> None:
    """End without any clean-up."""
    os._exit(code)


def unpicklable() -> object:
    """Return what cannot be handed over."""
    return lambda: 1


class Odd:
    """Can be stored, but not read back."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


def odd() -> Odd:
    """Return what can be stored, but not read back."""
    return Odd()


def variable(name: str) -> str | None:
    """Return an environment variable."""
    return os.environ.get(name)


def kill_me(sig: int) -> None:
    """End by a signal."""
    os.kill(os.getpid(), sig)


def write(out: bytes, err: bytes) -> None:
    """Write to both descriptors."""
    os.write(1, out)
    os.write(2, err)


def write_all_ways() -> None:
    """Write as Python, as a child process, and to the descriptor."""
    print("python", flush=True)  # noqa: T201
    subprocess.run(["echo", "child"], check=True)
    os.write(1, b"descriptor\n")


def put(queue: Queue[int], value: int) -> None:
    """Put a value into a queue that the parent made."""
    queue.put(value)


def ready_then_wait(fifo: str) -> None:
    """Tell the own pid, then wait for a signal."""
    Path(fifo).write_text(f"{os.getpid()}\n")
    while True:
        signal.pause()


def deaf(fifo: str) -> None:
    """Ignore SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready_then_wait(fifo)


def escaped(fifo: str) -> None:
    """Leave a deaf grandchild in a session of its own, forked without a new program; then wait."""
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        ready_then_wait(fifo)
    while True:
        signal.pause()


def record_then_stay(fifo: str) -> None:
    """Record an error as `record` does, then take long to end."""
    ErrorHandler().record_exception(KeyError("first"))
    signal.signal(signal.SIGTERM, lambda _number, _frame: os._exit(9))
    ready_then_wait(fifo)


def fail_after(fifo: str) -> None:
    """Raise once somebody has written to a named pipe."""
    Path(fifo).read_text()
    raise ValueError("second")


def handlers() -> list[bool]:
    """Return whether death signals have the action that a fresh process has."""
    usual = [signal.getsignal(sig) == signal.SIG_DFL for sig in (signal.SIGTERM, signal.SIGHUP)]
    return [*usual, signal.getsignal(signal.SIGINT) == signal.default_int_handler]


def is_session_leader() -> bool:
    """Return whether this process leads its session and its main thread runs this."""
    return os.getsid(0) == os.getpid() and threading.current_thread() is threading.main_thread()


def deaf_to_nothing(_argument: object) -> None:
    """Wait for a signal."""
    while True:
        signal.pause()


def start_more(method: str, log_dir: str) -> dict[int, int]:
    """Start workers of the own and return their values."""
    result = start_processes("in", add, {0: (1, 2), 1: (3, 4)}, start_method=method, log_dir=log_dir).wait(50)
    return result.return_values if result else {}


def deaf_or_fail(rank: int, ready: str, go: str) -> None:
    """Rank 0 is deaf, the others fail once somebody has written to a named pipe."""
    if rank == 0:
        deaf(ready)
    fail_after(go)


def interrupt() -> None:
    """End as on Ctrl-C."""
    raise KeyboardInterrupt


def tell_signals(fifo: str, numbers: tuple[int, ...]) -> None:
    """Tell which signal came and end well, as who saves first; a child in the same group does so too."""
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    os.fork()
    with open(fifo, "w", encoding="ascii") as pipe:
        pipe.write("ready\n")
    number = signal.sigwait(numbers)
    with open(fifo, "w", encoding="ascii") as pipe:
        pipe.write(f"{int(number)}\n")
    os._exit(0)


if __name__ == "__main__":
    tell_signals(sys.argv[1], tuple(int(number) for number in sys.argv[2:]))
