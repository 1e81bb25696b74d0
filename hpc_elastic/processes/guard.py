"""A small process that survives the agent's SIGKILL and ends the processes that the kernel does not.

The kernel kills the workers with the agent (parent-death signal), but not the children of the workers.
The guard notices the death of the agent by a pipe and a pidfd. It sends SIGKILL to each process of this user
that is in a worker's session or carries the workers' mark in its environment.

Does not guarantee to find a process that left the session *and* cleared its environment, or
anything when agent and guard are killed together.
"""

from __future__ import annotations

import importlib
import os
import select
import signal
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Final, NoReturn

from hpc_elastic.clock import Clock, SystemClock
from hpc_elastic.ids import COPY
from hpc_elastic.processes.linux import (
    all_processes,
    fork,
    give_memory_back,
    is_marked,
    open_pidfd,
    send_kill,
    set_process_name,
)
from hpc_elastic.processes.process import LAST_STDIO, TELLING

_QUIT: Final = "quit"
_STOP_WAIT_S: Final = 1.0
_SWEEP_PAUSE_S: Final = 0.01
_EMPTY_LOOKS: Final = 2  # one look may miss a process that is just being forked or executed
_SWEEPS: Final = 1000  # ten seconds and more: a process in state D ends only when its I/O does


class Guard:
    """This process's end of the guard; make it with `Guard.start`."""

    def __init__(self, pid: int, pipe: int) -> None:
        self.pid = pid
        self._pipe = pipe

    @classmethod
    def start(cls, held: int | None = None) -> Guard:
        """Fork the guard; call it early, while this process is small and has one thread.

        Args:
            held: a descriptor that the guard keeps open until it ends.
        """
        agent = os.getpid()
        reading, writing = os.pipe()
        old_mask = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
        try:
            pid = fork()
            if pid == 0:
                _run_guard(agent, reading, held)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
            os.close(reading)
        os.set_blocking(writing, False)
        return cls(pid, writing)

    def announce(self, sessions: Iterable[int], marker: str) -> None:
        """Name workers that must not outlive this process.

        Args:
            sessions: the workers' pids; each leads its own session.
            marker: the mark in the workers' environment.
        """
        self._send([f"+m {marker}", *(f"+s {session}" for session in sessions)])

    def inherit(self, directory: str) -> None:
        """Name a directory of plain files that is to be removed when this process has been killed.

        Copies of a state stay in it, for the next agent of the run on this node.
        """
        self._send([f"+d {directory}"])

    def forget(self, sessions: Iterable[int], marker: str) -> None:
        """Take names back, when the workers and all they started have ended."""
        self._send([f"-m {marker}", *(f"-s {session}" for session in sessions)])

    def stop(self) -> None:
        """End the guard without a sweep; bounded by a second, a second call is harmless."""
        if self._pipe < 0:
            return
        self._send([_QUIT])
        os.close(self._pipe)
        self._pipe = -1
        pidfd = open_pidfd(self.pid)
        if pidfd is not None:
            poller = select.poll()
            poller.register(pidfd, select.POLLIN)
            if not poller.poll(_STOP_WAIT_S * 1000):
                send_kill(self.pid)
            os.close(pidfd)
        try:
            os.waitpid(self.pid, 0)
        except ChildProcessError:  # reaped by a foreign wait
            pass

    def _send(self, lines: list[str]) -> None:
        if self._pipe < 0:
            return
        try:
            os.write(self._pipe, "".join(f"{line}\n" for line in lines).encode())
        except (BrokenPipeError, BlockingIOError):  # the guard was killed or frozen
            pass


def _run_guard(agent: int, pipe: int, held: int | None) -> NoReturn:
    """Be the guard: wait for the agent's end, sweep, exit."""
    try:
        signal.set_wakeup_fd(-1)
        for sig in TELLING:
            signal.signal(sig, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.setsid()
        set_process_name("hpc-guard")
        os.chdir("/")
        _keep_only((pipe, held))
        importlib.invalidate_caches()  # of the file that the agent has started from, it needs no more
        give_memory_back()
        book = Book()
        _listen(agent, pipe, book)
        if not book.is_closed:
            sweep(book.sessions, book.markers, SystemClock())
            for directory in book.directories:
                remove_directory(directory, but=COPY)
    finally:
        os._exit(0)


def _keep_only(kept: Collection[int | None]) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > LAST_STDIO and int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:  # the listing's own descriptor
                pass


class Book:
    """The guard's list of processes to end with the agent."""

    def __init__(self) -> None:
        self.sessions: set[int] = set()
        self.markers: set[str] = set()
        self.directories: set[str] = set()
        self.is_closed = False
        self._rest = b""

    def read(self, chunk: bytes) -> None:
        """Take in bytes of the pipe; a line may come in pieces."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._note(line.decode())

    def _note(self, line: str) -> None:
        what, _, value = line.partition(" ")
        match what:
            case "+s":
                self.sessions.add(int(value))
            case "-s":
                self.sessions.discard(int(value))
            case "+m":
                self.markers.add(value)
            case "-m":
                self.markers.discard(value)
            case "+d":
                self.directories.add(value)
            case _:
                self.is_closed = what == _QUIT


def _listen(agent: int, pipe: int, book: Book) -> None:
    """Read the pipe until the agent closed it or ended.

    The pidfd tells also when a forked child of the agent holds the pipe open.
    """
    poller = select.poll()
    poller.register(pipe, select.POLLIN)
    pidfd = open_pidfd(agent)
    if pidfd is not None:
        poller.register(pidfd, select.POLLIN)
    while os.getppid() == agent:
        ready = {fd for fd, _ in poller.poll()}
        if pipe not in ready:
            return
        chunk = os.read(pipe, 65536)
        if not chunk:
            return
        book.read(chunk)
        if book.is_closed:
            return
    os.set_blocking(pipe, False)
    try:
        while chunk := os.read(pipe, 65536):
            book.read(chunk)
    except BlockingIOError:
        pass


def remove_directory(directory: str, but: str = "") -> None:
    """Remove a directory and the files in it, as far as it is there.

    Args:
        directory: has only plain files.
        but: files whose names begin so stay, and then the directory does; empty: none stay.
    """
    with suppress(OSError):
        for name in os.listdir(directory):
            if not but or not name.startswith(but):
                with suppress(OSError):
                    os.unlink(os.path.join(directory, name))
        os.rmdir(directory)


def find_left(sessions: Collection[int], markers: Collection[str]) -> list[int]:
    """Return the pids of this user's processes in these sessions or with these marks."""
    me, user = os.getpid(), os.getuid()
    found = []
    for stat in all_processes():
        if stat.is_dead or stat.pid == me or not _is_of(stat.pid, user):
            continue
        if stat.session in sessions or is_marked(stat.pid, markers):
            found.append(stat.pid)
    return found


def _is_of(pid: int, user: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid == user
    except OSError:
        return False


def sweep(sessions: Collection[int], markers: Collection[str], clock: Clock) -> None:
    """SIGKILL everything in these sessions or with these marks until two looks find nothing."""
    if not sessions and not markers:
        return
    empty = 0
    for _ in range(_SWEEPS):
        found = find_left(sessions, markers)
        for pid in found:
            send_kill(pid)
        empty = 0 if found else empty + 1
        if empty == _EMPTY_LOOKS:
            return
        clock.sleep(_SWEEP_PAUSE_S)
