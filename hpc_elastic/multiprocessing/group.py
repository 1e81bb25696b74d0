"""Start, watch and end a group of local processes, programs or functions, and tee their logs.

Logs are followed while the group runs, and copied to the end when it has ended.
"""

from __future__ import annotations

import math
import os
import select
import signal
import sys
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from hpc_elastic.multiprocessing.errors.failure import ProcessFailure
from hpc_elastic.multiprocessing.logs import LogsDest, LogsSpecs
from hpc_elastic.multiprocessing.pcontext import (
    Entrypoint,
    NoTrap,
    PContext,
    RunProcsResult,
    StartSettings,
)
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.processes.linux import Reaper, adopt_orphans
from hpc_elastic.processes.process import ChildProcess, Stopper
from hpc_elastic.processes.tail import (
    MAX_LAG,
    Console,
    Sink,
    Tail,
    TailLimits,
    blocked_fds,
    pump_all,
    sink_of,
)
from hpc_elastic.store.plain_file import open_to_append

if TYPE_CHECKING:
    from hpc_elastic.multiprocessing.signals import LentTrap, SignalTrap
    from hpc_elastic.processes.process import LastingThread
    from hpc_elastic.processes.tail import PumpThread

_CONFIRM_S: Final = 1.0  # a slower start (stalled file system) must not stop the agent's heartbeat
_CONSOLE_RETRY_S: Final = 0.01
_PUMP_S: Final = 0.1  # how often a blocking wait looks at teed logs
_NO_PIDFD_S: Final = 0.05  # how often a blocking wait looks where the kernel has no pidfd
_CONSOLE_WAIT_S: Final = 5.0  # for a console that does not keep up, after the last process has ended

Filters = tuple[tuple[str, ...], tuple[str, ...]]
"""Texts of which a line of stdout, of stderr, must contain one to be copied to the filtered file."""


class ProcessGroup(PContext):
    """A group of started processes, driven by one thread.

    Simple callers use `wait` and `close`. A loop polls `exit_fds` and calls `look`, `pump_logs`,
    `begin_stop` and `poll_stopped`, which never block. An ended worker stays a zombie until the
    group is stopped, so that its pid cannot come to mean another process: always end with `wait`
    until it has a result, with `close`, or with `begin_stop` and `poll_stopped`.
    """

    def __init__(  # noqa: PLR0913 - torch's signature
        self,
        name: str,
        entrypoint: Entrypoint,
        args: Mapping[int, Sequence[Any]],
        envs: Mapping[int, Mapping[str, Any]],
        logs_specs: LogsSpecs,
        log_line_prefixes: Mapping[int, str] | None = None,
        numa_options: object = None,
        duplicate_stdout_filters: Sequence[str] | None = None,
        duplicate_stderr_filters: Sequence[str] | None = None,
        *,
        settings: StartSettings | None = None,
    ) -> None:
        super().__init__(
            *(name, entrypoint, args, envs, logs_specs, log_line_prefixes),
            *(duplicate_stdout_filters, duplicate_stderr_filters, numa_options),
            settings=settings,
        )
        settings = self._settings
        self._marker = os.urandom(8).hex()
        self._reaper = Reaper(self._marker, _others(settings), owns_process=settings.owns_process)
        self._processes: dict[int, ChildProcess] = {}
        self._stopper = Stopper(self._processes, self._reaper)
        self._failures: dict[int, ProcessFailure] = {}
        self._done: set[int] = set()
        prefixes = {rank: self._prefix(rank) for rank in self.args}
        self._copies = GroupLogs(self.logs, prefixes, self._filters, in_background=not settings.is_driven)
        self._trap = _trap(settings)
        self._lasting: LastingThread | None = None
        self._unkillable: list[str] = []
        self._is_started = self._is_ended = False
        self._stopped_at: float | None = None
        self._stop_begun_s: float | None = None

    @property
    def _are_children(self) -> bool:
        """Whether the workers are children of this process."""
        return True

    @abstractmethod
    def _spawn(self, rank: int) -> ChildProcess:
        """Start one process."""

    def _take_value(self, rank: int) -> bool:  # noqa: ARG002 - for those that have one
        """Take the return value of a rank that ended well; False makes it a failure."""
        return True

    def _values(self) -> dict[int, Any]:
        return dict.fromkeys(sorted(self._done))

    def start(self) -> None:
        """Start all processes.

        Raises:
            ValueError: called twice.
            WorkerStartError: a program cannot be run; nothing is left running.
            SignalException: a death signal came meanwhile; nothing is left running.
        """
        if self._is_started:
            raise ValueError(
                "The process context already initialized. Most likely the start method got called twice."
            )
        self._is_started = True
        try:
            self._trap.install()
            with self._trap.held():
                self._start()
        except BaseException:
            self.close(timeout=0)
            raise

    def _start(self) -> None:
        adopt_orphans()
        self._copies.open()
        guard = self._settings.guard
        if guard is not None:
            guard.announce((), self._marker)
        self._start_lasting()
        if guard is not None:
            guard.announce(self._reaper.sessions, self._marker)
        self._copies.start()

    def _start_lasting(self) -> None:
        """Start all so that they outlive this thread, if this is not the main one."""
        if not self._settings.is_driven:
            from hpc_elastic.processes import process  # noqa: PLC0415 - needs threading

            if not process.is_main_thread():
                self._lasting = process.LastingThread()
                self._lasting.call(self._start_all)
                return
        self._start_all()

    def pids(self) -> dict[int, int]:
        """Return the pids by local rank."""
        return {rank: process.pid for rank, process in self._processes.items()}

    def exit_codes(self) -> dict[int, int]:
        """Return the exit codes (-n for signal n) of those that have ended, failed or stopped."""
        codes = {rank: process.poll() for rank, process in self._processes.items()}
        return {rank: code for rank, code in codes.items() if code is not None}

    def exit_fds(self) -> list[int]:
        """Return descriptors that become readable when something ends; ask again before each poll.

        One stays readable until `look`, or during a stop `poll_stopped`, has taken note.
        """
        own = [process.pidfd for process in self._processes.values() if process.pidfd is not None]
        preloader = self._settings.preloader
        return own + list(self._stopper.watched.values()) + ([] if preloader is None else preloader.fds())

    def look(self) -> RunProcsResult | None:
        """Return all failures so far, or the end of all; None while nothing of that has come.

        Stops no process and never blocks.
        """
        self._look_at_preloader()
        if self._are_children and not self._is_ended and not _may_have_ended():
            return None
        self._reaper.reap_adopted()
        return self._result()

    def _look_at_preloader(self) -> None:
        if self._settings.preloader is not None:
            self._settings.preloader.look()

    def wait(self, timeout: float = -1, period: float = 1) -> RunProcsResult | None:
        """Wait until all have ended or one has failed; then all others are stopped.

        Args:
            timeout: longest wait [s]; 0 only looks, negative means for ever.
            period: longest sleep where the kernel cannot tell of exits [s].

        Returns:
            All failures, or the end of all; None when nothing of that came in time.

        Raises:
            SignalException: a death signal came; `close` is to be called.
        """
        deadline = None if timeout < 0 else self._clock.monotonic() + timeout
        with self._trap.held():
            while True:
                is_more = self.pump_logs()
                if self.look() is not None:
                    self.close()
                    return self._result()  # with those that had failed before they were stopped
                left_s = None if deadline is None else deadline - self._clock.monotonic()
                if left_s is not None and left_s <= 0:
                    return None
                with self._trap.open() as woken:
                    self._sleep(0.0 if is_more else self._nap_s(left_s, period), woken)

    def begin_stop(self, sig: int = signal.SIGTERM, kill_at: float | None = None) -> None:
        """Ask all processes to end; never blocks.

        A process that has failed up to now stays a failure; one that ends from now on was stopped.

        Args:
            sig: sent to the process groups.
            kill_at: when `poll_stopped` goes over to SIGKILL (monotonic time [s]); a later call
                can only move it earlier. None leaves that to `kill`.
        """
        if not self._is_running():
            return
        self._note_failures(self.exit_codes())
        self._stop_begun()
        self._stopper.begin(sig, kill_at)

    def kill(self) -> None:
        """SIGKILL all processes and everything they started; never blocks."""
        if not self._is_running():
            return
        self._note_failures(self.exit_codes())
        self._stop_begun()
        self._stopper.kill(self._clock.monotonic())

    def poll_stopped(self, now: float) -> bool:
        """Go on with the stop; never blocks.

        Args:
            now: monotonic time [s] of the same clock as `kill_at`.

        Returns:
            True when nothing of the group runs any more, or SIGKILL did not help (`unkillable`).
            Without `begin_stop` only when all have ended and left nothing behind.
        """
        if not self._is_running():
            return True
        self._look_at_preloader()
        if not self._stopper.is_begun:
            self._note_failures(self.exit_codes())
        if self._stopped_at is None:
            if not self._stopper.step(now):
                return False
            self._unkillable = self._stopper.remaining()
            self._stopper.end()
            self._copies.stop()
        self._stopped_at = now
        if not self._copies.copy_rest(now):
            return False
        self._end()
        return True

    def next_deadline(self) -> float | None:
        """Return when `poll_stopped` is due even without an event (monotonic time [s])."""
        if not self._is_running():
            return None
        if self._stopped_at is not None:
            return self._stopped_at + _CONSOLE_RETRY_S
        return self._stopper.deadline() if self._stopper.is_begun else None

    def close(self, death_sig: int | None = None, timeout: float | None = None) -> None:
        """End all processes and wait for it; a second call is harmless.

        Takes at most the timeout and, where SIGKILL does not help at once, two seconds. A death
        signal that comes meanwhile ends the time of grace.

        Args:
            death_sig: sent first; None means SIGTERM.
            timeout: from then to SIGKILL [s]; None means that of the settings.

        Raises:
            SignalException: a death signal came meanwhile; all processes have ended.
        """
        if not self._is_running():
            self._give_back()
            return
        grace_s = self._settings.grace_s if timeout is None else timeout
        with self._trap.held():
            self.begin_stop(death_sig or signal.SIGTERM, self._clock.monotonic() + grace_s)
            self._wait_stopped()

    def _wait_stopped(self) -> None:
        interrupted: BaseException | None = None
        while not self.poll_stopped(now := self._clock.monotonic()):
            deadline = self.next_deadline()
            is_more = self.pump_logs()
            try:
                with self._trap.open() as woken:
                    nap_s = self._nap_s(None if deadline is None else deadline - now, 1.0)
                    self._sleep(0.0 if is_more else nap_s, woken)
            except BaseException as error:  # noqa: BLE001 - a handler of the program's may raise anything
                interrupted = error
                self.kill()
        if interrupted is not None:
            raise interrupted

    def unkillable(self) -> list[str]:
        """Return in words the processes that run on although they were sent SIGKILL; empty in general."""
        return list(self._unkillable)

    def events(self) -> GroupEvents:
        """Return the events that a loop waits for next; copies new lines of logs as `pump_logs` does."""
        has_more_lines, is_console_full = self._copies.pump_and_look()
        fds, due_at = self.exit_fds(), self.next_deadline()
        return GroupEvents(fds, math.inf if due_at is None else due_at, has_more_lines, is_console_full)

    def pump_logs(self) -> bool:
        """Copy new lines of teed streams to the console; return True when more is there now."""
        return self._copies.pump()

    @property
    def is_console_full(self) -> bool:
        """Whether lines wait for the console, so that `pump_logs` is to be called again soon."""
        return bool(self._copies.blocked_fds())

    def log_files(self) -> list[str]:
        """Return the files that `pump_logs` reads."""
        return self._copies.paths()

    def _is_running(self) -> bool:
        return bool(self._processes) and not self._is_ended

    def _start_all(self) -> None:
        for rank in sorted(self.args):
            process = self._spawn(rank)
            self._processes[rank] = process
            self._reaper.sessions.add(process.pid)
        deadline = self._clock.monotonic() + _CONFIRM_S
        for process in self._processes.values():
            process.confirm_started(max(0.0, deadline - self._clock.monotonic()))

    def _note_failures(self, ended: Mapping[int, int]) -> None:
        """Take note of failures, unless the stop has begun: from then on it is our own doing.

        Args:
            ended: exit codes by local rank.
        """
        if self._stopper.is_begun:
            return
        for rank, code in ended.items():
            if rank in self._failures or rank in self._done:
                continue
            if code == 0 and self._take_value(rank):
                self._done.add(rank)
            else:
                self._failures[rank] = self._failure(rank, code or 1)

    def _failure(self, rank: int, code: int) -> ProcessFailure:
        file = self.logs.error_files.get(rank, "")
        return ProcessFailure(rank, self._processes[rank].pid, code, file, self._clock.wall())

    def _stop_begun(self) -> None:
        if not self._stopper.is_begun:
            self._stop_begun_s = self._clock.wall()

    def _note_late_failures(self) -> None:
        """Count those that had recorded an error of their own before they got the signal to end."""
        for rank, code in self.exit_codes().items():
            if code and self._stop_begun_s is not None and rank not in self._failures:
                failure = self._failure(rank, code)
                if failure.recorded_at is not None and failure.recorded_at < self._stop_begun_s:
                    # told to end on its way out with the code of an exception
                    self._failures[rank] = failure if code > 0 else self._failure(rank, 1)

    def _result(self) -> RunProcsResult | None:
        ended = self.exit_codes()
        self._note_failures(ended)
        if not self._stopper.is_begun:  # else `poll_stopped` still has to act on these exits
            for rank in ended:
                self._processes[rank].acknowledge()
        if not self._failures and not self._is_ended and len(ended) < self.nprocs:
            return None
        first = sorted(self._failures.items(), key=lambda item: item[1].time_s)
        return RunProcsResult(self._values(), dict(first), self.logs.stdouts, self.logs.stderrs)

    def _nap_s(self, left_s: float | None, period: float) -> float | None:
        """Return how long a blocking call may sleep [s], None for ever."""
        limits = [] if left_s is None else [left_s]
        if self._copies.needs_pump:
            limits.append(_PUMP_S)
        if any(process.pidfd is None and process.poll() is None for process in self._processes.values()):
            limits.append(min(period, _NO_PIDFD_S))
        return min(limits) if limits else None

    def _sleep(self, nap_s: float | None, woken: int | None) -> None:
        poller = select.poll()
        for fd in (*self.exit_fds(), *(() if woken is None else (woken,))):
            poller.register(fd, select.POLLIN)
        for fd in self._copies.blocked_fds():
            poller.register(fd, select.POLLOUT)
        poller.poll(None if nap_s is None else max(0.0, nap_s) * 1000 + 1)

    def _end(self) -> None:
        """Give everything back, once."""
        self._is_ended = True
        self._note_late_failures()
        if self._settings.guard is not None and not self._unkillable:
            self._settings.guard.forget(self._reaper.sessions, self._marker)
        self._give_back()

    def _give_back(self) -> None:
        self._copies.finish()
        self._trap.uninstall()
        if self._lasting is not None:
            self._lasting.release()


def _may_have_ended() -> bool:
    """Tell whether a child of this process may have ended; ended workers count until they are reaped."""
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # there is none
        return True


def _others(settings: StartSettings) -> tuple[Collection[int], ...]:
    """Return the children of this process that are no workers, as sets that may change."""
    guard, preloader = settings.guard, settings.preloader
    guards = (settings.beside,) if guard is None else ((guard.pid,), settings.beside)
    return guards if preloader is None else (*guards, preloader.pids)


def _trap(settings: StartSettings) -> SignalTrap | LentTrap | NoTrap:
    if settings.is_driven:
        return NoTrap()
    if settings.trap is not None:
        return settings.trap.lent()
    from hpc_elastic.multiprocessing.signals import SignalTrap  # noqa: PLC0415 - needs threading

    return SignalTrap()


class GroupEvents(NamedTuple):
    """The events that a loop waits for before it looks at a group again."""

    fds: Sequence[int] = ()  # one becomes readable when something ends
    due_at: float = math.inf  # when a look is due even without an event, monotonic [s]
    has_more_lines: bool = False  # of logs, now
    is_console_full: bool = False  # lines wait for it; it makes no event


NO_EVENTS = GroupEvents()


class GroupLogs:
    """Copies teed streams to the console and chosen lines of them to two common files.

    Args:
        dest: the files.
        prefixes: the prefix of each line, by local rank.
        filters: which lines go to the common files.
        in_background: a thread copies, and a slow console gets every line; otherwise `pump` has to
            be called, and a console that is too far behind goes on with the newest lines.
    """

    def __init__(
        self, dest: LogsDest, prefixes: Mapping[int, bytes], filters: Filters, *, in_background: bool
    ) -> None:
        self._dest = dest
        self._prefixes = prefixes
        self._filters = filters
        self._in_background = in_background
        self._tails: list[Tail] = []
        self._files: list[int] = []
        self._thread: PumpThread | None = None
        self._is_cut_short = False
        self._rest_until: float | None = None

    def open(self) -> None:
        """Note where the logs end now; later lines are copied.

        Raises:
            OSError: a common file cannot be opened.
        """
        for number, paths, common, texts in (
            (1, self._dest.tee_stdouts, self._dest.filtered_stdout, self._filters[0]),
            (2, self._dest.tee_stderrs, self._dest.filtered_stderr, self._filters[1]),
        ):
            if paths:
                limits = TailLimits() if self._in_background else TailLimits(lag=MAX_LAG)
                self._add(paths, sink_of(sys.stdout if number == 1 else sys.stderr), limits=limits)
            if paths and texts and common:
                file = open_to_append(common, 0o666)
                self._files.append(file)
                self._add(paths, Console(file), wanted=_contains(texts))

    def start(self) -> None:
        """Begin to copy in the background, if that is wanted."""
        if self._in_background and self._tails:
            from hpc_elastic.processes.tail import PumpThread  # noqa: PLC0415 - needs threading

            self._thread = PumpThread(self._tails)
            self._thread.start()

    def pump(self) -> bool:
        """Copy new lines; return True when more is there now. With a thread this does nothing."""
        return pump_all(self._tails) if self._thread is None else False

    def pump_and_look(self) -> tuple[bool, bool]:
        """Copy new lines as `pump` does; return whether more is there now, and whether a console is full."""
        if self._thread is not None or not self._tails:
            return False, False
        return pump_all(self._tails), bool(blocked_fds(self._tails))

    def stop(self) -> None:
        """End the thread; from now on `pump` copies."""
        if self._thread is not None:
            self._thread.stop()
            self._thread = None

    def copy_rest(self, now: float) -> bool:
        """Copy on when all processes have ended; never blocks.

        A file gets everything. So does a background thread's slow reader; a stuck one gets nothing more.
        Else lines that are not taken in time are left out, except the last lines of each log, which have
        as much time again.

        Args:
            now: monotonic time [s].

        Returns:
            True when there is no more to wait for.
        """
        if not self._tails:
            return True
        before = self.position()
        is_more = self.pump()
        if not self.blocked_fds():
            return not is_more
        if self._rest_until is None or (self._in_background and self.position() > before):
            self._rest_until = now + (_CONSOLE_WAIT_S if self._in_background else _CONSOLE_WAIT_S / 2)
        if now < self._rest_until:
            return False
        if self._in_background or self._is_cut_short:
            return True
        for tail in self._tails:
            tail.leave_out()
        self._is_cut_short, self._rest_until = True, now + _CONSOLE_WAIT_S / 2
        return False

    def finish(self) -> None:
        """Copy the rest as far as the console takes it, and close all files."""
        self.stop()
        for tail in self._tails:
            tail.finish()
        while self._files:
            os.close(self._files.pop())

    @property
    def needs_pump(self) -> bool:
        """Whether `pump` has something to follow."""
        return bool(self._tails) and self._thread is None

    def position(self) -> int:
        """Return a number that grows while copying goes on."""
        return sum(tail.position for tail in self._tails)

    def blocked_fds(self) -> list[int]:
        """Return the descriptors that lines wait for, when no thread does."""
        return blocked_fds(self._tails) if self._thread is None else []

    def paths(self) -> list[str]:
        """Return the files that are followed."""
        return [*self._dest.tee_stdouts.values(), *self._dest.tee_stderrs.values()]

    def _add(
        self,
        paths: Mapping[int, str],
        sink: Sink,
        *,
        limits: TailLimits = TailLimits(),  # noqa: B008 - frozen
        wanted: Callable[[bytes], bool] | None = None,
    ) -> None:
        self._tails += [
            Tail(path, sink, self._prefixes[rank], offset=_size(path), wanted=wanted, limits=limits)
            for rank, path in paths.items()
        ]


def _contains(texts: tuple[str, ...]) -> Callable[[bytes], bool]:
    needles = [text.encode() for text in texts]
    return lambda line: any(needle in line for needle in needles)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
