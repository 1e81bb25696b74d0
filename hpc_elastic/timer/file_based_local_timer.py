"""Timers over a named pipe: for workers of any kind on the same machine.

A named pipe never crosses hosts, also not on a shared file system: a client on another node finds
no server there. Requests are one line of JSON each, short enough to be written in one piece, so
many clients can share a pipe.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import select
import signal as signals
import stat
import threading
from collections.abc import Callable, Sequence
from typing import Any

from hpc_elastic.clock import Clock, SystemClock
from hpc_elastic.timer.api import SteadyTime, TimerClient, TimerRequest
from hpc_elastic.timer.debug_info_logging import log_debug_info_for_expired_timers
from hpc_elastic.timer.reaping import ExpiredWorker, Reap, TimerTable, Workers
from hpc_elastic.timer.stacks import print_stacks_when_asked

_CHUNK = 1 << 16
_CHUNKS_AT_ONCE = 16  # then timers are looked at, however fast requests come in
_LONGEST_WAIT_S = 3600.0

__all__ = ["FileTimerClient", "FileTimerRequest", "FileTimerServer"]

logger = logging.getLogger(__name__)
_PIDS = 2**31
_SIGNALS = 2**31
_FAR_S = 1e15
_TRIES = 10  # a server may be about to start
_BETWEEN_TRIES_S = 0.1
_JOIN_S = 5.0  # longer than asking for stacks and reaping take


class FileTimerRequest(TimerRequest):
    """A request of a `FileTimerClient`.

    Args:
        worker_pid: the worker.
        scope_id: names the timer among those of the worker.
        expiration_time: wall time [s since the epoch]; negative takes the timer away.
        signal: ends the worker when the timer expires; 0 or negative: it is only reported.
    """

    __slots__ = ["signal", "version"]

    def __init__(self, worker_pid: int, scope_id: str, expiration_time: float, signal: int = 0) -> None:
        super().__init__(worker_id=worker_pid, scope_id=scope_id, expiration_time=expiration_time)
        self.version = 1
        self.signal = signal

    @property
    def worker_pid(self) -> int:
        """The worker."""
        return int(self.worker_id)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FileTimerRequest):
            return False
        same = self.version == other.version and self.signal == other.signal
        return same and super().__eq__(other)

    __hash__ = None  # its fields can change

    def to_json(self) -> str:
        """Return the line that goes through the pipe, without its end."""
        return json.dumps(
            {
                "version": self.version,
                "pid": self.worker_pid,
                "scope_id": self.scope_id,
                "expiration_time": self.expiration_time,
                "signal": self.signal,
            }
        )


def parse_request(line: bytes) -> FileTimerRequest:
    """Return the request in a line.

    Raises:
        ValueError: it is none, or names no single process.
    """
    data = _fields(line)
    if data.get("version", 1) != 1:
        raise ValueError(f"unknown version {data['version']!r}")
    pid, scope, number = data.get("pid"), data.get("scope_id"), data.get("signal")
    expiration: Any = data.get("expiration_time")
    if type(pid) is not int or not 0 < pid < _PIDS:  # 0 and negative pids mean whole groups to kill()
        raise ValueError(f"pid is {pid!r}")
    if not isinstance(scope, str):
        raise ValueError(f"scope_id is {scope!r}")  # noqa: TRY004
    if type(expiration) not in {int, float} or not (abs(expiration) < _FAR_S or expiration == math.inf):
        raise ValueError("expiration_time is no time")
    if type(number) is not int or number not in range(-_SIGNALS, _SIGNALS):
        raise ValueError(f"signal is {number!r}")
    return FileTimerRequest(pid, scope, expiration, number)


def _fields(line: bytes) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(data, dict):
        raise ValueError("not an object")  # noqa: TRY004 - one kind of error for all that is malformed
    return data


class FileTimerClient(TimerClient):
    """Sets the timers of this process with a `FileTimerServer` on the same machine.

    Args:
        file_path: the named pipe that the server has made.
        signal: ends this process when a timer expires; 0 or negative: it is only reported.
    """

    def __init__(self, file_path: str, signal: int = signals.SIGKILL) -> None:
        super().__init__()
        self._file_path = file_path
        self.signal = signal
        self._prepared_pid = 0

    def acquire(self, scope_id: str, expiration_time: float) -> None:
        """Set the timer of a scope to a wall time [s since the epoch].

        Raises:
            BrokenPipeError: for a second there was no server.
            RuntimeError: the scope's name is too long to be sent in one piece.
        """
        pid = os.getpid()
        if self._prepared_pid != pid:
            print_stacks_when_asked()
            self._prepared_pid = pid
        self._send_request(FileTimerRequest(pid, scope_id, expiration_time, self.signal))

    def release(self, scope_id: str) -> None:
        """Take away the timer of a scope; raises as `acquire` does."""
        self._send_request(FileTimerRequest(os.getpid(), scope_id, -1, 0))

    def _send_request(self, request: FileTimerRequest) -> None:
        line = request.to_json().encode() + b"\n"
        if len(line) > select.PIPE_BUF:
            raise RuntimeError(
                f"FileTimerRequest larger than {select.PIPE_BUF} bytes is not supported: {request.to_json()}"
            )
        clock = SystemClock()
        for tries_left in reversed(range(_TRIES)):
            try:
                return self._write(line)
            except OSError as error:
                if not tries_left:
                    raise BrokenPipeError(
                        "Could not send the FileTimerRequest because FileTimerServer is not available: "
                        f"no process reads from {self._file_path} ({error.strerror or error}); "
                        "start the server on this machine, with the same path"
                    ) from error
                clock.sleep(_BETWEEN_TRIES_S)
        return None

    def _write(self, line: bytes) -> None:
        # not blocking: without a server opening fails at once, and a full pipe is tried again
        fd = os.open(self._file_path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISFIFO(os.fstat(fd).st_mode):
                raise FileNotFoundError(f"{self._file_path} is not a pipe")
            os.write(fd, line)
        finally:
            os.close(fd)


LogEvent = Callable[[str, FileTimerRequest | None], None]


def _ignore(_name: str, _request: FileTimerRequest | None) -> None:
    """Do nothing: no log receives the event."""


class FileTimerServer:
    """Watches the timers of `FileTimerClient`s in a thread; one server per machine and pipe.

    A worker whose timer expires prints its Python stacks into its stderr and then gets the signal
    its client chose. This process goes on: the agent decides about the end of a worker.

    Args:
        file_path: where to make the named pipe, readable and writable for this user alone; on a
            local file system, in a directory that only this user can write.
        run_id: names the run in log lines.
        max_interval: longest time between two looks at the timers [s]; a request or an expiring
            timer makes it look earlier.
        daemon: whether the watching thread lets the process end.
        log_event: called with ``watchdog started``, ``watchdog stopped`` (and None), ``timer
            expired``, ``kill worker process`` (and the request).
        reap: ends a worker instead of the signal to its pid.
        clock: the clocks of this machine.

    Raises:
        FileExistsError: there is something else at `file_path`.
        OSError: the pipe cannot be made there.
    """

    def __init__(  # noqa: PLR0913 - torch's signature, and two more
        self,
        file_path: str,
        run_id: str,
        max_interval: float = 10,
        daemon: bool = True,  # noqa: FBT001, FBT002 - torch's signature
        log_event: LogEvent | None = None,
        *,
        reap: Reap | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._file_path = file_path
        self._run_id = run_id
        self._max_interval = max_interval
        self._daemon = daemon
        self._log_event: LogEvent = log_event or _ignore
        self._clock = clock or SystemClock()
        self._time = SteadyTime(self._clock)
        self._table: TimerTable[FileTimerRequest] = TimerTable()
        self._timers = self._table.timers
        self._workers = Workers(reap, self._clock)
        self._watchdog_thread: threading.Thread | None = None
        self._pipe: RequestPipe | None = None
        self._stop_signaled = False
        self._run_once = False
        self._is_client_started = False
        self._request_count = 0
        self._last_progress_time = int(self._clock.wall())
        make_pipe(file_path)

    def start(self) -> None:
        """Start watching, in a thread of its own; clients can connect when this returns.

        Raises:
            OSError: the pipe is gone.
        """
        logger.info(
            "Starting %s... max_interval=%s, daemon=%s, file_path=%s",
            type(self).__name__,
            self._max_interval,
            self._daemon,
            self._file_path,
        )
        self._pipe = RequestPipe(self._file_path)
        self._watchdog_thread = threading.Thread(
            target=self._watchdog_loop, args=(self._pipe,), daemon=self._daemon
        )
        self._watchdog_thread.start()
        self._log_event("watchdog started", None)

    def stop(self) -> None:
        """Stop watching and remove the pipe; armed timers are forgotten with the server."""
        logger.info("Stopping %s", type(self).__name__)
        self._stop_signaled = True
        self._end_thread(max(self._max_interval, _JOIN_S))
        self._log_event("watchdog stopped", None)

    def run_once(self) -> None:
        """Handle the requests that have been sent and the timers that have expired, then end."""
        self._run_once = True
        self._end_thread(None)

    def _end_thread(self, timeout_s: float | None) -> None:
        if self._watchdog_thread and self._pipe:
            self._pipe.wake()
            self._watchdog_thread.join(timeout_s)
            if not self._watchdog_thread.is_alive():
                self._pipe.close()
            self._watchdog_thread = self._pipe = None
        try:
            os.unlink(self._file_path)
        except FileNotFoundError:
            pass

    @staticmethod
    def is_process_running(pid: int) -> bool:
        """Return whether there is a process with this pid that may be signalled."""
        try:
            os.kill(pid, 0)
        except OSError:
            return False
        return True

    def _watchdog_loop(self, pipe: RequestPipe) -> None:
        while not self._stop_signaled:
            once = self._run_once  # read before the requests: those sent until now are then handled
            try:
                self._run_watchdog(pipe)
                self._last_progress_time = int(self._clock.wall())
            except Exception:
                logger.exception("Error running watchdog")
            if once:
                break

    def _run_watchdog(self, pipe: RequestPipe) -> None:
        wait_s = 0.0 if self._run_once else self._table.seconds_to_next(self._time.now())
        self.register_timers(self._requests(pipe.wait_lines(min(wait_s, self._max_interval))))
        expired = self.get_expired_timers(self._time.now())
        log_debug_info_for_expired_timers(
            self._run_id, {pid: [timer.to_json() for timer in timers] for pid, timers in expired.items()}
        )
        to_end = {pid: self._deciding_timer(pid, timers) for pid, timers in expired.items()}
        self._workers.print_stacks([pid for pid, timer in to_end.items() if timer])
        done = {pid for pid, timer in to_end.items() if timer is None or self._end_worker(timer)}
        self.clear_timers(done)

    def _requests(self, lines: Sequence[bytes]) -> list[FileTimerRequest]:
        requests = []
        for line in lines:
            try:
                request = parse_request(line)
            except (ValueError, RecursionError) as error:
                logger.error("Malformed request is left out (%s): %.200r", error, line)  # noqa: TRY400
                continue
            if request.expiration_time >= 0:
                request.expiration_time = self._time.of_wall(request.expiration_time)
            requests.append(request)
        self._is_client_started = self._is_client_started or bool(requests)
        return requests

    def _deciding_timer(self, pid: int, timers: list[FileTimerRequest]) -> FileTimerRequest | None:
        """Return the first expired timer of a worker that has a signal; tells of all up to it."""
        timers.sort(key=lambda timer: timer.expiration_time)
        logger.warning("Reaping worker_pid=[%s]. Expired timers: %s", pid, self._get_scopes(timers))
        for timer in timers:
            self._tell("timer expired", timer)
            if timer.signal > 0:
                return timer
        logger.info("No signal specified with worker=[%s]. Do not reap it.", pid)
        return None

    def _end_worker(self, timer: FileTimerRequest) -> bool:
        pid = timer.worker_pid
        if not self._reap_worker(pid, timer.signal):
            logger.error("Error reaping worker=[%s]. Will retry on next watchdog.", pid)
            return False
        logger.info("Successfully reaped worker=[%s] with signal=%s", pid, timer.signal)
        self._tell("kill worker process", timer)
        return True

    def _reap_worker(self, worker_pid: int, signal: int) -> bool:
        scopes = self._table.expired_scopes(worker_pid, self._time.now())
        return self._workers.end(ExpiredWorker(worker_pid, signal, scopes))

    def _tell(self, name: str, request: FileTimerRequest) -> None:
        try:
            self._log_event(name, request)
        except Exception:
            logger.exception("log_event(%r) raised", name)

    def _get_scopes(self, timer_requests: Sequence[FileTimerRequest]) -> list[str]:
        return [request.scope_id for request in timer_requests]

    def register_timers(self, timer_requests: list[FileTimerRequest]) -> None:
        """Set and take away timers as requested; a negative expiration time takes one away."""
        for request in timer_requests:
            self._request_count += 1
            if request.expiration_time >= 0 and self._workers.is_new(request.worker_pid):
                self._table.clear({request.worker_pid})
            self._table.apply(request)

    def clear_timers(self, worker_pids: set[int]) -> None:
        """Take away all timers of some workers, and those of workers that are gone."""
        gone = {pid for pid in self._table.workers() if not FileTimerServer.is_process_running(pid)}
        self._table.clear(worker_pids | gone)
        self._workers.forget_all_but(self._table.workers())

    def get_expired_timers(self, deadline: float) -> dict[int, list[FileTimerRequest]]:
        """Return the timers that expire at `deadline` [s since the epoch] or before it, by worker."""
        return self._table.expired(deadline)

    def get_last_progress_time(self) -> int:
        """Return when timers were looked at last [s since the epoch]; now, until a client has come."""
        return self._last_progress_time if self._is_client_started else int(self._clock.wall())


def make_pipe(path: str) -> None:
    """Create a named pipe that only this user can open.

    The file of an earlier server at `path` is replaced: a pipe, or an empty file that holds the name.

    Raises:
        FileExistsError: something else is there, or it is another user's.
        OSError: the directory is missing or not writable.
    """
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        found = None
    if found is not None:
        replaceable = stat.S_ISFIFO(found.st_mode) or (stat.S_ISREG(found.st_mode) and found.st_size == 0)
        if not replaceable or found.st_uid != os.geteuid():
            raise FileExistsError(errno.EEXIST, "not a pipe of this user; give timers another path", path)
        os.unlink(path)
    try:
        os.mkfifo(path, 0o600)
    except OSError as error:
        error.filename = path  # mkfifo names none
        raise


class RequestPipe:
    """Reads whole lines from a named pipe, and waits for them without polling.

    The pipe is held open for writing, too: else it would report its end forever once the last
    client has closed it.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        self._poll.register(self._wake_fd, select.POLLIN)
        self._rest = b""

    def wake(self) -> None:
        """Make the current or the next wait end at once; may be called from any thread."""
        os.eventfd_write(self._wake_fd, 1)

    def wait_lines(self, timeout_s: float) -> list[bytes]:
        """Return the lines that are there, waiting for the first one at most `timeout_s` [s].

        A line longer than a pipe writes in one piece is no request; it is logged and left out.
        """
        self._poll.poll(max(0.0, min(timeout_s, _LONGEST_WAIT_S)) * 1000)
        try:
            os.eventfd_read(self._wake_fd)
        except BlockingIOError:
            pass  # not called
        *lines, self._rest = (self._rest + self._read()).split(b"\n")
        if len(self._rest) > select.PIPE_BUF:
            logger.error("Unfinished request of %d bytes is left out", len(self._rest))
            self._rest = b""
        return lines

    def _read(self) -> bytes:
        chunks = []
        for _ in range(_CHUNKS_AT_ONCE):
            try:
                chunks.append(os.read(self._fd, _CHUNK))
            except BlockingIOError:
                break
        return b"".join(chunks)

    def close(self) -> None:
        """Let the pipe go; clients then notice that it has no reader."""
        os.close(self._fd)
        os.close(self._wake_fd)
