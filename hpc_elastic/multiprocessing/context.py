"""Start, watch and end the workers of one node (names as in torch.distributed.elastic)."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Mapping, Sequence
from typing import Final

from hpc_elastic.ids import Env
from hpc_elastic.multiprocessing.errors.failure import ProcessFailure
from hpc_elastic.multiprocessing.linux import adopt_orphans
from hpc_elastic.multiprocessing.logs import LogsSpecs
from hpc_elastic.multiprocessing.pcontext import PContext, RunProcsResult, SignalException, StartSettings
from hpc_elastic.multiprocessing.process import Process, ProcessSpec, spawn
from hpc_elastic.multiprocessing.procfs import MARKER_ENV
from hpc_elastic.multiprocessing.reap import Reaper
from hpc_elastic.multiprocessing.stop import Stopper
from hpc_elastic.multiprocessing.tail import Tail

__all__ = ["PContext", "RunProcsResult", "SignalException", "StartSettings", "SubprocessContext"]

_CONFIRM_S: Final = 1.0  # a slower start (stalled file system) must not stop the agent's heartbeat
_CONSOLE_WAIT_S: Final = 5.0  # for a console that does not keep up, after the last process has ended
_CONSOLE_RETRY_S: Final = 0.01
_PUMP_S: Final = 0.1  # how often a blocking wait looks at teed logs
_NO_PIDFD_S: Final = 0.05  # how often a blocking wait looks where the kernel has no pidfd


class SubprocessContext(PContext):
    """A group of started binaries, driven by one thread.

    A loop polls `exit_fds` and calls ``wait(0)``, `pump_logs`, `begin_stop` and `poll_stopped`,
    which never block; `wait` and `close` do the same for simple callers. An ended worker stays a
    zombie until the group is stopped, so that its pid cannot come to mean another process: always
    end with `close`, or `begin_stop` and `poll_stopped`, after success too.
    """

    def __init__(  # noqa: PLR0913 - torch's signature
        self,
        name: str,
        entrypoint: str,
        args: Mapping[int, Sequence[object]],
        envs: Mapping[int, Mapping[str, str]],
        logs_specs: LogsSpecs,
        log_line_prefixes: Mapping[int, str] | None = None,
        *,
        settings: StartSettings = StartSettings(),  # noqa: B008 - immutable
    ) -> None:
        super().__init__(name, entrypoint, args, envs, logs_specs, log_line_prefixes, settings=settings)
        guard = settings.guard
        self._marker = os.urandom(8).hex()
        self._reaper = Reaper(
            self._marker, () if guard is None else (guard.pid,), owns_process=settings.owns_process
        )
        self._processes: dict[int, Process] = {}
        self._stopper = Stopper(self._processes, self._reaper)
        self._failures: dict[int, ProcessFailure] = {}
        self._tails: list[Tail] = []
        self._unkillable: list[str] = []
        self._is_started = self._is_ended = False
        self._stopped_at: float | None = None
        self._console_until = 0.0

    def start(self) -> None:
        """Start all processes.

        Raises:
            ValueError: called twice.
            InputError: a log directory cannot be made.
            WorkerStartError: a program cannot be run; nothing is left running.
        """
        if self._is_started:
            raise ValueError(
                "The process context already initialized. Most likely the start method got called twice."
            )
        self._is_started = True
        self.logs = self._logs_specs.reify(self.envs)
        adopt_orphans()
        self._tails = self._make_tails()
        guard = self._settings.guard
        if guard is not None:
            guard.announce((), self._marker)
        try:
            self._start_all()
        except BaseException:
            self.close(timeout=0)
            raise
        if guard is not None:
            guard.announce(self._reaper.sessions, self._marker)

    def pids(self) -> dict[int, int]:
        """Return the pids by local rank."""
        return {rank: process.pid for rank, process in self._processes.items()}

    def exit_codes(self) -> dict[int, int]:
        """Return the exit codes (-n for signal n) of those that have ended, failed or stopped."""
        codes = {rank: process.poll() for rank, process in self._processes.items()}
        return {rank: code for rank, code in codes.items() if code is not None}

    def exit_fds(self) -> list[int]:
        """Return descriptors that become readable when something ends; ask again before each poll.

        One stays readable until ``wait(0)``, or during a stop `poll_stopped`, has taken note.
        """
        own = [process.pidfd for process in self._processes.values() if process.pidfd is not None]
        return own + self._stopper.exit_fds()

    def wait(self, timeout: float = -1, period: float = 1) -> RunProcsResult | None:
        """Wait until all have ended or one has failed.

        With timeout 0 this only looks: it stops nobody and never blocks. Otherwise logs are
        pumped meanwhile, and the others are stopped before the result is returned.

        Args:
            timeout: longest wait [s]; negative means for ever.
            period: longest sleep where the kernel cannot tell of exits [s].

        Returns:
            All failures so far, or the end of all; None when nothing of that came in time.
        """
        if timeout == 0:
            return self._result() if self._reaper.reap_adopted() else None
        deadline = None if timeout < 0 else self._clock.monotonic() + timeout
        while True:
            is_more = self.pump_logs()
            if (result := self.wait(0)) is not None:
                self.close()
                return result
            left_s = None if deadline is None else deadline - self._clock.monotonic()
            if left_s is not None and left_s <= 0:
                return None
            self._sleep(0.0 if is_more else self._nap_s(left_s, period))

    def begin_stop(self, sig: int = signal.SIGTERM, kill_at: float | None = None) -> None:
        """Ask all processes to end; never blocks.

        Who has failed up to now stays a failure; who ends from now on was stopped.

        Args:
            sig: sent to the process groups.
            kill_at: when `poll_stopped` goes over to SIGKILL (monotonic time [s]); a later call
                can only move it earlier. None leaves that to `kill`.
        """
        if not self._is_running():
            return
        self._note_failures()
        self._stopper.begin(sig, kill_at)

    def kill(self) -> None:
        """SIGKILL all processes and everything they started; never blocks."""
        if not self._is_running():
            return
        self._note_failures()
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
        self._note_failures()
        if self._stopped_at is None:
            if not self._stopper.step(now):
                return False
            self._unkillable = self._stopper.remaining()
            self._stopper.end()
            self._console_until = now + _CONSOLE_WAIT_S
        self._stopped_at = now
        is_more = self.pump_logs() or any(tail.is_blocked for tail in self._tails)
        if is_more and now < self._console_until:
            return False
        self._end()
        return True

    def next_deadline(self) -> float | None:
        """Return when `poll_stopped` is due even without an event (monotonic time [s])."""
        if not self._is_running():
            return None
        return self._stopper.deadline() if self._stopped_at is None else self._stopped_at + _CONSOLE_RETRY_S

    def close(self, death_sig: int | None = None, timeout: float = 30) -> None:
        """End all processes and wait for it; a second call is harmless.

        Takes at most the timeout and, where SIGKILL does not help at once, two seconds.

        Args:
            death_sig: sent first; None means SIGTERM.
            timeout: from then to SIGKILL [s].
        """
        if not self._is_running():
            return
        self.begin_stop(signal.SIGTERM if death_sig is None else death_sig, self._clock.monotonic() + timeout)
        while not self.poll_stopped(now := self._clock.monotonic()):
            deadline = self.next_deadline()
            is_more = self.pump_logs()
            self._sleep(0.0 if is_more else self._nap_s(None if deadline is None else deadline - now, 1.0))

    def unkillable(self) -> list[str]:
        """Return in words what runs on although it was sent SIGKILL; empty in general."""
        return list(self._unkillable)

    def pump_logs(self) -> bool:
        """Copy new lines of teed streams to the console; return True when more is there now."""
        return any([tail.pump() for tail in self._tails])  # noqa: C419 - every tail gets its turn

    def log_files(self) -> list[str]:
        """Return the files that `pump_logs` reads."""
        return [tail.path for tail in self._tails]

    def _is_running(self) -> bool:
        return bool(self._processes) and not self._is_ended

    def _start_all(self) -> None:
        for rank in sorted(self.args):
            process = spawn(self._spec(rank))
            self._processes[rank] = process
            self._reaper.sessions.add(process.pid)
        deadline = self._clock.monotonic() + _CONFIRM_S
        for process in self._processes.values():
            process.confirm_started(max(0.0, deadline - self._clock.monotonic()))

    def _spec(self, rank: int) -> ProcessSpec:
        own = self._settings.base_env
        base = os.environ if own is None else own  # noqa: TID251 - workers inherit, as under torchrun
        outer = base.get(MARKER_ENV)
        env = {
            **base,
            **self.envs[rank],
            Env.ERROR_FILE: self.logs.error_files.get(rank, ""),
            MARKER_ENV: f"{outer},{self._marker}" if outer else self._marker,
        }
        return ProcessSpec(
            argv=(self.entrypoint, *(str(arg) for arg in self.args[rank])),
            env=env,
            stdout=self.logs.stdouts.get(rank) or None,
            stderr=self.logs.stderrs.get(rank) or None,
            cwd=self._settings.cwd,
            ignore_signals=self._settings.ignore_signals,
        )

    def _make_tails(self) -> list[Tail]:
        wanted = ((1, self.logs.tee_stdouts), (2, self.logs.tee_stderrs))
        return [
            Tail(path, console, self._prefix(rank), offset=_size(path))
            for console, paths in wanted
            for rank, path in paths.items()
        ]

    def _prefix(self, rank: int) -> bytes:
        if self._prefixes is not None and rank in self._prefixes:
            return self._prefixes[rank].encode()
        name = self.envs[rank].get("RANK")
        return (f"[{self.name}{rank}] " if name is None else f"[rank {name}] ").encode()

    def _note_failures(self) -> None:
        """Take note of failures, unless the stop has begun: from then on it is our own doing."""
        if self._stopper.is_begun:
            return
        for rank, code in self.exit_codes().items():
            if code != 0 and rank not in self._failures:
                file = self.logs.error_files.get(rank, "")
                failure = ProcessFailure(rank, self._processes[rank].pid, code, file, self._clock.wall())
                failure.reply()  # read now: a later attempt may use the same file
                self._failures[rank] = failure

    def _result(self) -> RunProcsResult | None:
        self._note_failures()
        codes = self.exit_codes()
        if not self._stopper.is_begun:  # else `poll_stopped` still has to act on these exits
            for process in self._processes.values():
                process.acknowledge()
        if not self._failures and len(codes) < self.nprocs:
            return None
        done: dict[int, object] = {rank: None for rank, code in codes.items() if code == 0}
        return RunProcsResult(done, dict(self._failures), self.logs.stdouts, self.logs.stderrs)

    def _nap_s(self, left_s: float | None, period: float) -> float | None:
        """Return how long a blocking call may sleep [s], None for ever."""
        limits = [] if left_s is None else [left_s]
        if self._tails:
            limits.append(_PUMP_S)
        if len(self.exit_fds()) < self.nprocs - len(self.exit_codes()):
            limits.append(min(period, _NO_PIDFD_S))
        return min(limits) if limits else None

    def _sleep(self, nap_s: float | None) -> None:
        poller = select.poll()
        for fd in self.exit_fds():
            poller.register(fd, select.POLLIN)
        poller.poll(None if nap_s is None else max(0.0, nap_s) * 1000 + 1)

    def _end(self) -> None:
        """Give everything back, once."""
        self._is_ended = True
        for tail in self._tails:
            tail.finish()
        if self._settings.guard is not None and not self._unkillable:
            self._settings.guard.forget(self._reaper.sessions, self._marker)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
