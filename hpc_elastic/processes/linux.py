"""The few Linux calls that Python's os module does not have."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from typing import Any, Final

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_GET_CHILD_SUBREAPER: Final = 37
_RLIMIT_LOCKS: Final = 10  # nothing has been counted against it since Linux 2.4
_WIDE: Final = 8

_FORKS: Final = threading.Lock()
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: Any) -> None:
    zero = ctypes.c_ulong(0)
    if _LIBC.prctl(ctypes.c_int(option), value, zero, zero, zero) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def fork() -> int:
    """Fork; threads of this process wait for each other, since filelock refuses a second fork meanwhile.

    Returns:
        The child's pid, 0 in the child.
    """
    with _FORKS:  # each side releases its own copy
        return os.fork()


def die_with_parent(parent: int) -> bool:
    """Have the kernel SIGKILL this process when the thread that forked it ends.

    Args:
        parent: the pid of the process that forked this one.

    Returns:
        False when the parent is gone already, so that the signal would never come.
    """
    _prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    return os.getppid() == parent


def adopt_orphans(*, wanted: bool = True) -> None:
    """Make this process the parent of every descendant whose own parent ends (child subreaper), or not."""
    _prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(wanted))


def adopts_orphans() -> bool:
    """Tell whether this process is a child subreaper."""
    answer = ctypes.c_int(0)
    _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(answer))
    return bool(answer.value)


def set_process_name(name: str) -> None:
    """Set the short name that ``ps -o comm`` shows (15 bytes)."""
    _prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()[:15]))


def set_limit_mark(number: int) -> None:
    """Give this process and all it will ever start a number that ``/proc/<pid>/limits`` shows.

    It is the soft limit of file locks, which limits nothing. Unlike a variable it stays with a process
    that clears its environment. If it cannot be set, there is no number.
    """
    limits = (ctypes.c_ulong * 2)()
    if ctypes.sizeof(ctypes.c_ulong) < _WIDE or _LIBC.getrlimit(_RLIMIT_LOCKS, limits) != 0:
        return
    if number <= limits[1]:
        limits[0] = number
        _LIBC.setrlimit(_RLIMIT_LOCKS, limits)


def open_pidfd(pid: int) -> int | None:
    """Return a file descriptor that becomes readable when a process ends.

    Returns:
        None when the process is gone or the kernel (before 5.3) has no such thing.
    """
    opener = getattr(os, "pidfd_open", None)
    if opener is None:
        return None
    try:
        return int(opener(pid))
    except OSError:
        return None
