"""Waiting for the first of several: a signal, a worker's exit, a change in the run, a deadline."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections import deque
from collections.abc import Iterable
from types import FrameType

from hpc_elastic.clock import Clock
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.why_left import Notice
from hpc_elastic.store.shared_dir import SEGMENT_RECORDS, segment_name
from hpc_elastic.store.watch import Watch

_POLL_WAKES = select.POLLIN | select.POLLERR | select.POLLHUP


class EventLoop:
    """One thread sleeping in one place.

    Signal handlers and other threads do nothing but note the signal or the notice; the loop acts on it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.watch = Watch()
        self._watch_fd = self.watch.fileno()
        self.signals: list[int] = []  # noted and not yet acted on
        self.last_signal: int | None = None
        self.notices: deque[Notice] = deque()  # of Slurm: come and not yet acted on
        self.turned_at = clock.monotonic()  # when it last began to wait or woke up [s]
        self._is_waiting = False
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._previous: dict[int, object] = {}
        self._previous_wakeup = -1

    def catch(self, signals: Iterable[int]) -> None:
        """Note these signals from now on instead of dying of them.

        Signals can be caught in the main thread only; elsewhere this does nothing and the program
        around the agent keeps its own handlers.
        """
        wanted = tuple(signals)
        if not wanted or threading.current_thread() is not threading.main_thread():
            return
        self._previous_wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in wanted:
            self._previous[number] = signal.signal(number, self._note)

    def take_signals(self) -> list[int]:
        """Return the signals that have been noted and not been taken yet; one that comes now stays."""
        taken = []
        while self.signals:
            taken.append(self.signals.pop(0))
        return taken

    def wait(self, seconds: float, fds: Iterable[int] = ()) -> None:
        """Sleep until something happens, at most this long [s]."""
        poller = select.poll()
        poller.register(self._reader, _POLL_WAKES)
        if self._watch_fd >= 0:
            poller.register(self._watch_fd, _POLL_WAKES)
        for fd in fds:
            poller.register(fd, _POLL_WAKES)
        self.turned_at = self._clock.monotonic()
        self._is_waiting = True
        until = self.turned_at + seconds
        while not self._something_happened(poller.poll(max(0.0, until - self._clock.monotonic()) * 1000)):
            pass
        self.turned_at = self._clock.monotonic()
        self._is_waiting = False

    def held_up_s(self) -> float:
        """Return for how long it has been doing one thing, 0 while it waits [s]; for any thread."""
        return 0.0 if self._is_waiting else self._clock.monotonic() - self.turned_at

    def wake(self) -> None:
        """Make the current or the next wait end at once; may be called from any thread."""
        with contextlib.suppress(BlockingIOError):  # full: it wakes anyway
            os.write(self._writer, b"\0")

    def hear(self, notice: Notice) -> None:
        """Note a notice of Slurm and wake; may be called from any thread."""
        self.notices.append(notice)
        self.wake()

    def _something_happened(self, ready: list[tuple[int, int]]) -> bool:
        """Take the report of poll; False if it was only a writer's private file."""
        fds = [fd for fd, _ in ready]
        if self._reader in fds:
            with contextlib.suppress(BlockingIOError):
                os.read(self._reader, 4096)
        is_news = self._watch_fd in fds and self.watch.drain()
        return is_news or fds != [self._watch_fd]

    def close(self) -> None:
        """Give the signals back and release the file descriptors."""
        if self._previous:
            signal.set_wakeup_fd(self._previous_wakeup)
        for (
            number,
            handler,
        ) in self._previous.items():
            # None: of a library in C, which Python cannot put back
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # type: ignore[arg-type]
        self._previous.clear()
        self.watch.close()
        os.close(self._reader)
        os.close(self._writer)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.signals.append(number)
        self.last_signal = number


class RunWatch:
    """Watches the journal's newest segment and, on demand, the names of the peers."""

    def __init__(self, paths: RunPaths, watch: Watch) -> None:
        self._paths = paths
        self._watch = watch
        self._watched = (-1, False)  # number of the segment, and whether the peers are watched

    def follow(self, last: int, *, peers: bool) -> None:
        """Watch where the record after the last one is going to be.

        Args:
            last: number of the last record read.
            peers: whether to watch members and steps, too.
        """
        wanted = ((last + 1) // SEGMENT_RECORDS, peers)
        if wanted == self._watched:
            return
        segment = os.path.join(self._paths.journal, segment_name(last + 1))
        if self._watch.add_directory(segment):  # else not there yet
            self._watched = wanted
        for directory in (self._paths.members, self._paths.steps):
            if peers:
                self._watch.add_directory(directory)
            else:
                self._watch.remove(directory)
