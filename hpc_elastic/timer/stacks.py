"""The Python stacks of a stuck worker, printed into its own stderr just before it is killed.

The worker's end registers faulthandler for a real-time signal when the first timer is set; nothing
in user code changes. faulthandler works in C, so it also prints the stacks of a process whose
interpreter is blocked in a call. The server asks the kernel whether a worker catches that signal:
one that does not (another program, another library's client) gets none and is killed as it is.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

from hpc_elastic.clock import Clock

DUMP_SIGNAL = signal.SIGRTMIN + 8  # free: the C library uses the first two or three
_WAIT_S = 1.0  # for a worker that cannot take a signal, e.g. in a system call that does not return
_POLL_S = 0.01
_WRITE_S = 0.1  # from taking the signal to the last line of the stacks


def _signal_mask(pid: int, field: str) -> int:
    """Return a set of signals from ``/proc/<pid>/status`` as bits; 0 if the process is gone."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name == field:
                    return int(value, 16)
    except OSError:
        pass
    return 0


def _has(mask: int, number: int) -> bool:
    return bool(mask >> (number - 1) & 1)


def print_stacks_when_asked() -> None:
    """Have this process print the stacks of all its threads to stderr when a server asks for them."""
    if _has(_signal_mask(os.getpid(), "SigCgt"), DUMP_SIGNAL):
        return  # done already, or the signal is used for something else
    import faulthandler  # noqa: PLC0415 - only a worker with timers needs it

    faulthandler.register(DUMP_SIGNAL, file=2, all_threads=True)


def ask_for_stacks(pids: Iterable[int], clock: Clock) -> list[int]:
    """Have some workers print their stacks, all at the same time, and wait until they have.

    Returns:
        The workers that were asked. Does not guarantee that each has printed: one that takes no
        signals is waited for a second.
    """
    asked = [pid for pid in pids if _has(_signal_mask(pid, "SigCgt"), DUMP_SIGNAL) and _ask(pid)]
    if not asked:
        return []
    deadline = clock.monotonic() + _WAIT_S
    while any(_has(_signal_mask(pid, "ShdPnd"), DUMP_SIGNAL) for pid in asked):
        if clock.monotonic() >= deadline:
            break
        clock.sleep(_POLL_S)
    clock.sleep(_WRITE_S)
    return asked


def _ask(pid: int) -> bool:
    try:
        os.kill(pid, DUMP_SIGNAL)
    except OSError:
        return False
    return True
