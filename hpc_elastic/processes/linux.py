"""Linux calls that Python's os module does not have, and the facts of /proc about processes."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import struct
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final

from hpc_elastic.named_tuple import NamedTuple

MARKER_ENV: Final = "HPC_ELASTIC_AGENT"

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


_PR_SET_MM: Final = 35
_PR_SET_MM_MAP: Final = 14
_NO_FILE: Final = (1 << 32) - 1
_MEMORY_MAP: Final = struct.Struct("=12QII")


def set_shown_command(argv: Sequence[bytes], env: Sequence[bytes]) -> None:
    """Have ``/proc/<pid>/cmdline`` and ``environ`` of this process show other words, as after an exec.

    A kernel that cannot do it shows the old ones.
    """
    with open("/proc/self/stat", "rb") as file:
        facts = file.read().rpartition(b") ")[2].split()
    start_code, end_code, start_stack = (int(word) for word in facts[23:26])
    start_data, end_data, start_brk = (int(word) for word in facts[42:45])
    _LIBC.sbrk.restype = ctypes.c_void_p
    brk = _LIBC.sbrk(ctypes.c_ssize_t(0))
    places = []
    for words in (argv, env):
        data = b"".join(word + b"\0" for word in words) or b"\0"
        buffer = ctypes.create_string_buffer(data, len(data))
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(buffer))  # the kernel reads it as long as this lives
        places += [ctypes.addressof(buffer), ctypes.addressof(buffer) + len(data)]
    numbers = (start_code, end_code, start_data, end_data, start_brk, brk, start_stack, *places, 0)
    packed = ctypes.create_string_buffer(_MEMORY_MAP.pack(*numbers, 0, _NO_FILE), _MEMORY_MAP.size)
    size = ctypes.c_ulong(_MEMORY_MAP.size)
    _LIBC.prctl(_PR_SET_MM, ctypes.c_ulong(_PR_SET_MM_MAP), packed, size, ctypes.c_ulong(0))


def give_memory_back() -> None:
    """Give memory that is free between other objects back to the system, where the C library can do it."""
    trim = getattr(_LIBC, "malloc_trim", None)  # of glibc alone
    if trim is not None:
        trim(ctypes.c_size_t(0))


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


"""Every worker and its descendants carry this variable: marks joined by commas, the newest last."""


_LIMIT: Final = b"Max file locks"


_NUMBER_BITS: Final = (1 << 62) - 1


class ProcessStat(NamedTuple):
    """One line of ``/proc/<pid>/stat``, the part that matters here."""

    pid: int
    name: str
    state: str
    parent: int
    group: int
    session: int

    @property
    def is_dead(self) -> bool:
        """True for a zombie: it runs no more, only its exit status is left."""
        return self.state in "ZX"


def _read(path: str) -> bytes | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        chunks = []
        while chunk := os.read(fd, 65536):
            chunks.append(chunk)
        return b"".join(chunks)
    except OSError:
        return None
    finally:
        os.close(fd)


def kernel_text(path: str) -> str:
    """Return the text of a file of the kernel; empty if it is gone, or not to be read by this user."""
    return (_read(path) or b"").decode(errors="replace")


def parse_stat(line: bytes) -> ProcessStat:
    """Return the facts of a stat line; the name may hold spaces and brackets."""
    pid, _, rest = line.partition(b" (")
    name, _, tail = rest.rpartition(b") ")
    state, parent, group, session = tail.split(maxsplit=4)[:4]
    return ProcessStat(
        int(pid), name.decode(errors="replace"), state.decode(), int(parent), int(group), int(session)
    )


def read_stat(pid: int) -> ProcessStat | None:
    """Return the facts about a process, None when it is gone."""
    line = _read(f"/proc/{pid}/stat")
    return parse_stat(line) if line else None


def all_processes() -> Iterator[ProcessStat]:
    """Yield every process of this node that /proc shows."""
    for name in os.listdir("/proc"):
        if name.isdecimal() and (stat := read_stat(int(name))) is not None:
            yield stat


def turns(pid: int) -> str:
    """Return how often a process's first thread had a CPU, as the kernel writes it; empty when it is gone."""
    return (_read(f"/proc/{pid}/schedstat") or b"").decode().rpartition(" ")[2].strip()


def _children(pid: int) -> list[int] | None:
    """Return the pids of a process's children; None when this kernel does not list them."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    found: list[int] = []
    for task in tasks:
        text = _read(f"/proc/{pid}/task/{task}/children")
        if text is None:
            return [] if read_stat(pid) is None else None
        found.extend(int(word) for word in text.split())
    return found


def children(pid: int) -> list[ProcessStat]:
    """Return the children of a process, zombies included."""
    pids = _children(pid)
    if pids is None:
        return [stat for stat in all_processes() if stat.parent == pid]
    return [stat for child in pids if (stat := read_stat(child)) is not None]


def descendants(roots: Iterable[ProcessStat]) -> list[ProcessStat]:
    """Return the given processes and everything below them, parents first."""
    found = list(roots)
    seen = {stat.pid for stat in found}
    for stat in found:  # grows while it is read
        if stat.is_dead:
            continue
        for child in children(stat.pid):
            if child.pid not in seen:
                seen.add(child.pid)
                found.append(child)
    return found


def mark_number(mark: str) -> int | None:
    """Return the number that stands for a mark among a process's limits; None if the mark is no number."""
    try:
        return int(mark, 16) & _NUMBER_BITS
    except ValueError:
        return None


def is_marked(pid: int, markers: Collection[str]) -> bool:
    """Return whether a process was started below the agent that set one of these marks.

    Does not guarantee to find a process that cleared its environment *and* changed its limits.
    """
    environ = _read(f"/proc/{pid}/environ") if markers else None
    prefix = f"{MARKER_ENV}=".encode()
    for entry in (environ or b"").split(b"\0"):
        if entry.startswith(prefix):
            found = set(entry[len(prefix) :].decode(errors="replace").split(","))
            if not found.isdisjoint(markers):
                return True
    return bool(markers) and _limit_number(pid) in {mark_number(mark) for mark in markers} - {None}


def _limit_number(pid: int) -> int | None:
    """Return the number that `linux.set_limit_mark` gave a process, if it has one."""
    text = _read(f"/proc/{pid}/limits") or b""
    words = text.partition(_LIMIT)[2].split(maxsplit=1)
    return int(words[0]) if words and words[0].isdigit() else None


class Reaper:
    """Tells which descendants of this process belong to the workers of one group.

    This process must be a child subreaper (`linux.adopt_orphans`), so that a process that
    loses its parent below a worker becomes a child of this process.

    Args:
        marker: the mark that the workers carry in their environment.
        keep: pids of children that are none of the workers' (the guard); a set may change.
        owns_process: whether every descendant outside of this process's own session that is not
            kept belongs to the workers; finds also those that cleared their environment.
    """

    def __init__(self, marker: str, keep: Iterable[Collection[int]], *, owns_process: bool) -> None:
        self._markers = frozenset((marker,))
        self._keep = tuple(keep)
        self._owns_process = owns_process
        self._own_session = os.getsid(0)
        self._adopted: set[int] = set()
        self._remembered: set[int] = set()
        self.sessions: set[int] = set()
        """The sessions of the workers: their pids."""

    def remember(self, workers: Collection[int]) -> None:
        """Record the descendants of living workers: a forked worker's own forks carry no mark."""
        if not self._owns_process:
            below = descendants(stat for pid in workers for stat in children(pid))
            self._remembered.update(stat.pid for stat in below)

    def left_overs(self) -> list[ProcessStat]:
        """Return the processes below this one that belong to the workers, the workers included."""
        self.reap_adopted()
        below = descendants(stat for stat in children(os.getpid()) if not self._is_kept(stat.pid))
        found = [stat for stat in below if not stat.is_dead and self._is_ours(stat)]
        self._adopted.update(stat.pid for stat in found)
        return found

    def reap_adopted(self) -> None:
        """Take the exit status of ended descendants that came to this process as orphans."""
        for stat in children(os.getpid()):
            if stat.is_dead and stat.pid not in self.sessions and self._is_orphan(stat):
                _reap(stat.pid)
                self._adopted.discard(stat.pid)

    def kill_left_overs(self) -> list[ProcessStat]:
        """Send SIGKILL to all processes of the workers and return them."""
        found = self.left_overs()
        for stat in found:
            send_kill(stat.pid)
        return found

    def _is_orphan(self, stat: ProcessStat) -> bool:
        if stat.pid in self._adopted or stat.session in self.sessions:
            return True
        return self._is_foreign(stat)

    def _is_ours(self, stat: ProcessStat) -> bool:
        if stat.session in self.sessions or self._is_foreign(stat):
            return True
        return stat.pid in self._remembered or is_marked(stat.pid, self._markers)

    def _is_foreign(self, stat: ProcessStat) -> bool:
        """Return whether a process can only have come from a worker, as all workers left our session."""
        return self._owns_process and stat.session != self._own_session and not self._is_kept(stat.pid)

    def _is_kept(self, pid: int) -> bool:
        return any(pid in pids for pids in self._keep)


def send_kill(pid: int) -> None:
    """Send SIGKILL; a process that is gone or not ours to signal is left alone."""
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass


def map_memory(fd: int, size: int) -> memoryview:
    """Return the content of a file as memory that other processes share; it needs no descriptor any more.

    Raises:
        OSError: the kernel refused.
    """
    _LIBC.mmap.restype = ctypes.c_void_p
    access = mmap.PROT_READ | mmap.PROT_WRITE
    place = _LIBC.mmap(
        None, ctypes.c_size_t(size), ctypes.c_int(access), mmap.MAP_SHARED, ctypes.c_int(fd), ctypes.c_long(0)
    )
    if place in (None, ctypes.c_void_p(-1).value):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return memoryview((ctypes.c_char * size).from_address(place)).cast("B")
