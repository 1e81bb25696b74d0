"""The timers of an agent's workers: one that overstays in a block of code is killed, and its group fails.

A site turns it on with TORCHELASTIC_ENABLE_FILE_TIMER=1; workers find the server's pipe by
TORCHELASTIC_TIMER_FILE. The agent, which goes on, decides about the end of a worker.
"""

from __future__ import annotations

import logging
import os
import signal
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress

from hpc_elastic.ids import Env
from hpc_elastic.timer.file_based_local_timer import FileTimerRequest, FileTimerServer
from hpc_elastic.timer.reaping import ExpiredWorker, Reap

ENABLE_ENV = Env.ENABLE_FILE_TIMER
FILE_ENV = Env.TIMER_FILE
EXPIRED = "timer expired"
_LOOK_S = 5.0  # between two signs of life of the server when no timer is set

logger = logging.getLogger(__name__)

OnEvent = Callable[[str, FileTimerRequest | None], None]
"""Called with ``watchdog started``, ``watchdog stopped`` (and None), ``timer expired`` and ``kill
worker process`` (and the request); the last two come from the server's thread."""


def is_enabled(environ: Mapping[str, str]) -> bool:
    """Tell whether the environment asks for a watchdog."""
    return environ.get(ENABLE_ENV) == "1"


def is_served(path: str) -> bool:
    """Tell whether there is a pipe from which a process on this machine reads timers."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        return stat.S_ISFIFO(os.fstat(fd).st_mode)
    finally:
        os.close(fd)


def end_with_its_group(worker: ExpiredWorker) -> bool:
    """Send the timer's signal to a worker and its children; never to this process.

    A worker may be a shell script around the program whose timer has expired: the script ends, too.
    """
    pid, number = worker.worker_pid, worker.signal
    if pid == os.getpid():
        logger.error("the agent has a timer of its own (%s), which is not acted on", worker.scopes)
        return True
    try:
        group = os.getpgid(pid)
        if group == os.getpgrp():
            os.kill(pid, number)
        else:
            os.killpg(group, number)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError) as error:
        logger.error("pid %s cannot be sent signal %s: %s", pid, number, error)  # noqa: TRY400
        return False
    return True


def expired_words(request: FileTimerRequest) -> str:
    """Return in words that a timer has expired, and the consequence."""
    words = f"the timer of {request.scope_id} has expired: pid {request.worker_pid}"
    if request.signal <= 0:
        return f"{words} goes on, as it has asked for"
    return f"{words} is sent {_signal_name(request.signal)}; its Python stacks are in its stderr"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Watchdog:
    """Watches the timers of the workers, from one start of them to their end, then of the next.

    Args:
        path: where to make the pipe, on a local file system.
        run_id: names the run in log lines.
        on_event: see `OnEvent`.
        reap: ends a worker.
    """

    def __init__(
        self, path: str, run_id: str, on_event: OnEvent, reap: Reap | None = end_with_its_group
    ) -> None:
        self.path = path
        self._run_id = run_id
        self._on_event = on_event
        self._expired: dict[int, str] = {}  # scope of the timer, by the process group of the late worker
        self._reap = reap
        self._server: FileTimerServer | None = None

    @classmethod
    def from_env(
        cls,
        environ: Mapping[str, str],
        run_id: str,
        on_event: OnEvent,
        reap: Reap | None = end_with_its_group,
        directory: str | None = None,
    ) -> Watchdog | None:
        """Return a watchdog, not started yet, if the environment asks for one.

        Args:
            environ: the agent's environment.
            run_id: names the run in log lines.
            on_event: see `OnEvent`.
            reap: ends a worker; None: a plain signal to the pid that set the timer.
            directory: gets the pipe if the environment names none; best one that only this user can
                write. None: that for temporary files.
        """
        if not is_enabled(environ):
            logger.info("Environment variable '%s' not found. Do not start FileTimerServer.", ENABLE_ENV)
            return None
        wanted = environ.get(FILE_ENV)
        if wanted and is_served(wanted):  # an agent around this one, or another one beside it
            logger.info("%s is another agent's; this one's timers have a pipe of their own", wanted)
            wanted = None
        return cls(wanted or _private_path(directory), run_id, on_event, reap)

    def start(self) -> None:
        """Start to watch; workers find the pipe when this returns. Starting anew forgets all timers.

        Raises:
            OSError: the pipe cannot be made.
        """
        self.stop()
        self._expired.clear()  # a pid may be another's by now
        server = FileTimerServer(
            self.path, self._run_id, max_interval=_LOOK_S, log_event=self._note, reap=self._reap
        )
        server.start()
        self._server = server

    def stop(self) -> None:
        """Stop to watch; does nothing when it does not."""
        server, self._server = self._server, None
        if server is not None:
            server.stop()

    def last_progress_time(self) -> int | None:
        """Return the time of the last look at the timers [s since the epoch]; None without looks."""
        server = self._server  # another thread asks
        return None if server is None else server.get_last_progress_time()

    def reason(self, pid: int) -> str:
        """Return why the watchdog has ended a worker, empty if it has not."""
        scope = self._expired.get(pid)
        return "" if scope is None else f"killed by the agent: the timer of {scope} has expired"

    def _note(self, name: str, request: FileTimerRequest | None) -> None:
        """Remember the worker that is about to be ended and report it; called in the server's thread, too."""
        if request is not None and name == EXPIRED and request.signal > 0:
            with suppress(OSError):
                self._expired[os.getpgid(request.worker_pid)] = request.scope_id
        self._on_event(name, request)

    def worker_env(self) -> dict[str, str]:
        """Return the workers' variables for the pipe."""
        return {} if self._server is None else {FILE_ENV: self.path}


def without_dead_pipe(environ: Mapping[str, str]) -> Mapping[str, str] | None:
    """Return the environment for workers of an agent without a watchdog; None: it may stay as it is.

    A worker with a pipe that has no reader fails at its first timer.
    """
    path = environ.get(FILE_ENV)
    if path is None or is_served(path):
        return None
    return {name: value for name, value in environ.items() if name != FILE_ENV}


def _private_path(directory: str | None) -> str:
    if directory is None:
        import tempfile  # noqa: PLC0415 - most agents have a directory of their own

        directory = tempfile.gettempdir()
    return os.path.join(directory, f"watchdog_timer_{os.urandom(8).hex()}")
