"""Runs a function in a child and interferes at one of its system calls: ptrace, no program needed.

The child is forked from a process that has imported and prepared everything, so one run takes
milliseconds. A system call is stopped before the kernel begins it; a kill there is a kill between
the call before and this one.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
from collections.abc import Callable
from typing import NamedTuple

_TRACEME, _POKEUSER, _SYSCALL, _SETOPTIONS, _GET_SYSCALL_INFO = 0, 6, 24, 0x4200, 0x420E
_OPTIONS = 0x1 | 0x100000  # tell system calls from signals; nobody outlives the tracer
_ENTRY = 1
_ORIG_RAX, _RAX = 15 * 8, 10 * 8  # offsets of the call's number and result, x86-64
_MARKER = 110  # getppid: where counting begins and ends

NAMES = {
    0: "read",
    1: "write",
    3: "close",
    4: "stat",
    5: "fstat",
    6: "lstat",
    16: "ioctl",
    21: "access",
    72: "fcntl",
    73: "flock",
    74: "fsync",
    75: "fdatasync",
    77: "ftruncate",
    82: "rename",
    83: "mkdir",
    84: "rmdir",
    86: "link",
    87: "unlink",
    90: "chmod",
    91: "fchmod",
    217: "getdents64",
    257: "openat",
    258: "mkdirat",
    262: "newfstatat",
    263: "unlinkat",
    264: "renameat",
    265: "linkat",
    316: "renameat2",
    332: "statx",
}
"""The system calls that reach the file system, on x86-64."""

NEVER_FAIL = frozenset({"ioctl"})  # Python asks it about terminals only


class Ran(NamedTuple):
    """One run of the function.

    Attributes:
        calls: names of its system calls in order; "other" for those that reach no file.
        said: what it returned or raised, as text; empty if it was killed.
        failed: whether it raised.
    """

    calls: tuple[str, ...]
    said: str
    failed: bool


def why_not() -> str:
    """Return why this machine cannot do it, empty if it can."""
    if platform.machine() != "x86_64":
        return f"written for x86-64, this is {platform.machine()}"
    try:
        ran = run(os.getpid)
    except OSError as error:
        return f"ptrace is not allowed here ({error.strerror})"
    return "" if ran.said else "ptrace is not allowed here"


Interference = Callable[[int], int | None]
"""Called with the pid while the child stands before a system call.

It returns 0 to let the call be done, or the error number it fails with instead; None if it killed
the child.
"""


def kill(pid: int) -> None:
    """Kill the child."""
    os.kill(pid, signal.SIGKILL)


def fail(error: int) -> Interference:
    """Return what makes a system call fail with an error."""
    return lambda _pid: error


def run(act: Callable[[], object], *, at: int | None = None, interfere: Interference = kill) -> Ran:
    """Run `act` in a child.

    Args:
        act: what to run.
        at: the system call to interfere with, counted from 0; None lets the child run.
        interfere: what is done there.

    Raises:
        OSError: this machine does not allow tracing.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _be_traced(act, writer)
    os.close(writer)
    try:
        calls = _Tracer(pid, at, interfere).follow()
        with os.fdopen(reader, "rb", closefd=False) as file:
            outcome = file.read().decode()
    finally:
        os.close(reader)
    return Ran(calls, outcome[1:], outcome[:1] == "!")


def _be_traced(act: Callable[[], object], writer: int) -> None:
    """Be the child: never returns."""
    try:
        _ptrace(_TRACEME, 0, 0, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        os.getppid()
        try:
            outcome = f"={act()!r}"
        except Exception as error:  # noqa: BLE001 - whatever it is, the parent judges it
            outcome = f"!{type(error).__name__}: {error}"
        os.getppid()
        os.write(writer, outcome.encode())
    finally:
        os._exit(0)


class _Tracer:
    """Follows one child to its end."""

    def __init__(self, pid: int, at: int | None, interfere: Interference) -> None:
        self._pid = pid
        self._at = at
        self._interfere = interfere
        self._calls: list[str] = []
        self._counting = False
        self._error = 0  # what the call fails with that is under way

    def follow(self) -> tuple[str, ...]:
        """Return the names of the child's system calls between the markers."""
        status = self._wait()
        if not os.WIFSTOPPED(status):
            raise PermissionError(1, "the child could not be traced")
        _ptrace(_SETOPTIONS, self._pid, 0, _OPTIONS)
        deliver = 0
        while True:
            _ptrace(_SYSCALL, self._pid, 0, deliver)
            status = self._wait()
            if not os.WIFSTOPPED(status):
                return tuple(self._calls)
            number = os.WSTOPSIG(status)
            deliver = 0
            if number == signal.SIGTRAP | 0x80:
                self._at_stop()
            else:
                deliver = number

    def _wait(self) -> int:
        return os.waitpid(self._pid, 0)[1]

    def _at_stop(self) -> None:
        is_entry, call = self._info()
        if not is_entry:
            if self._error:
                _ptrace(_POKEUSER, self._pid, _RAX, -self._error)
                self._error = 0
            return
        if call == _MARKER:
            self._counting = not self._counting
        elif self._counting:
            self._calls.append(NAMES.get(call, "other"))
            if len(self._calls) - 1 == self._at:
                self._error = self._interfere(self._pid) or 0
                if self._error:
                    _ptrace(_POKEUSER, self._pid, _ORIG_RAX, -1)  # the call is not done

    def _info(self) -> tuple[bool, int]:
        buffer = ctypes.create_string_buffer(88)
        _ptrace(_GET_SYSCALL_INFO, self._pid, len(buffer), ctypes.addressof(buffer))
        kind, _, _, _, number = struct.unpack_from("=BxxxIQQQ", buffer)
        return kind == _ENTRY, number


def _ptrace(request: int, pid: int, address: int, data: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.restype = ctypes.c_long
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    if libc.ptrace(request, pid, address & (2**64 - 1), data & (2**64 - 1)) == -1:
        code = ctypes.get_errno()
        if code != 3:  # ESRCH: killed meanwhile; the wait that follows tells
            raise OSError(code, os.strerror(code))
