"""Start one child process that cannot outlive this one, see how it ends, and end it with all that it started.

Nothing here blocks. Which signal the workers of a node get first, and how long they have before SIGKILL, is
decided in `hpc_elastic.node.stop_rules` and `hpc_elastic.node.node_workers`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Final, NoReturn

from hpc_elastic.errors import InputError
from hpc_elastic.ids import Env
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.processes.linux import (
    MARKER_ENV,
    ProcessStat,
    Reaper,
    die_with_parent,
    fork,
    mark_number,
    open_pidfd,
    read_stat,
    set_limit_mark,
)
from hpc_elastic.store.plain_file import open_to_append

UNKNOWN_EXIT_CODE: Final = 255
"""Reported when somebody else has taken the exit status (SIGCHLD ignored, a foreign wait)."""

LAST_STDIO: Final = 2
"""The highest of the standard descriptors."""

_START_FAILED: Final = 127
TELLING: Final = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
"""The signals by which Slurm, a terminal or a user tells an agent, or workers, something."""

_RESET: Final = (
    *TELLING,
    *(signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGCONT, signal.SIGALRM, signal.SIGURG),
    *(signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGIO, signal.SIGWINCH, signal.SIGPROF),
)
_FIXES: Final = {
    errno.ENOENT: "check the spelling, give the full path, or load the module or environment that has it",
    errno.EACCES: "make it executable (chmod +x), or start it with its interpreter: python script.py",
    errno.ENOEXEC: "add a first line such as #!/bin/sh, or start it with its interpreter",
    errno.ENOTDIR: "a part of the path is a file; check the path",
    errno.EAGAIN: "this node's limit of processes is reached (ulimit -u); start fewer workers",
    errno.ENOMEM: "this node has no memory left; start fewer workers or ask for more memory",
    errno.E2BIG: "the arguments and the environment are too long; pass long values in a file",
}
KILL_WAIT_S: Final = 2.0
"""How long SIGKILL may take until a process counts as unkillable (state D: it waits for I/O)."""


class WorkerStartError(InputError):
    """A worker could not be started; the message names the binary and the reason."""


class WorkerNotFoundError(WorkerStartError, FileNotFoundError):
    """There is no such program."""

    def __init__(self, message: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(message, where=where, fix=fix)
        self.errno = errno.ENOENT


class ProcessSpec(NamedTuple):
    """The description of a process.

    stdout and stderr are files to append to; None leaves this process's own stream.
    cwd None is the present directory. Signals in `ignore_signals` start ignored, all others
    with their default action. `cpus` are those that it may use, none given means all.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    stdout: str | None = None
    stderr: str | None = None
    cwd: str | None = None
    ignore_signals: tuple[int, ...] = ()
    cpus: tuple[int, ...] = ()


class ChildProcess:
    """One started child, leader of its own session and process group.

    It stays a zombie until `reap`, so that its pid cannot come to mean another process.
    """

    def __init__(self, spec: ProcessSpec, pid: int, starting: int) -> None:
        self.spec = spec
        self.pid = pid
        self.pidfd = open_pidfd(pid)
        self.exit_code: int | None = None
        self._is_reaped = False
        self.held: list[int] = []
        """Descriptors that are kept open until the child is reaped."""
        self._starting = starting  # pipe: end of file = the program runs, bytes = errno of the failure

    def confirm_started(self, wait_s: float) -> None:
        """Wait until the program runs in the child.

        A start that takes longer (a stalled file system) goes on; its failure then is exit code 127.

        Args:
            wait_s: the longest wait [s].

        Raises:
            WorkerStartError: the program cannot be run; the child is still to be reaped.
        """
        if self._starting < 0:
            return
        poller = select.poll()
        poller.register(self._starting, select.POLLIN)
        report = os.read(self._starting, 64) if poller.poll(wait_s * 1000) else b""
        os.close(self._starting)
        self._starting = -1
        if report:
            step, _, number = report.decode().partition(" ")
            raise start_error(self.spec, int(number), step)

    def poll(self) -> int | None:
        """Return the exit code (-n for signal n), None while it runs; never blocks, never reaps."""
        if self.exit_code is None:
            self.exit_code = self._wait(os.WNOHANG | os.WNOWAIT)
        return self.exit_code

    def acknowledge(self) -> None:
        """Close the pidfd of an ended process: its waiter has acted on the end."""
        if self.exit_code is not None and self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None

    def reap(self) -> None:
        """Give the pid back; blocks when the process still runs. A second call is harmless."""
        if self._is_reaped:
            return
        code = self._wait(0)
        self._is_reaped = True
        self.exit_code = code if self.exit_code is None else self.exit_code
        self.acknowledge()
        if self._starting >= 0:
            os.close(self._starting)
            self._starting = -1
        while self.held:
            os.close(self.held.pop())

    def signal_group(self, sig: int) -> None:
        """Send a signal to the process and all of its group that is left; never raises."""
        if self._is_reaped:
            return
        try:
            os.killpg(self.pid, sig)
        except ProcessLookupError:
            if self.exit_code is None:  # forked, but not yet leader of its group
                self._signal(sig)
        except PermissionError:  # the group has only members of another user
            pass

    def _signal(self, sig: int) -> None:
        try:
            os.kill(self.pid, sig)
        except (ProcessLookupError, PermissionError):
            pass

    def _wait(self, flags: int) -> int | None:
        try:
            status = os.waitid(os.P_PID, self.pid, os.WEXITED | flags)
        except ChildProcessError:
            return UNKNOWN_EXIT_CODE
        if status is None:
            return None
        return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status


def start_error(spec: ProcessSpec, number: int, step: str) -> WorkerStartError:
    """Return the error that says in words why a program could not be started."""
    words = os.strerror(number)
    if step == "cwd":
        return WorkerStartError(f"cannot change to the directory {spec.cwd!r}: {words}", where="worker")
    fix = _FIXES.get(number, "run it by hand on this node to see its error")
    kind = WorkerNotFoundError if number == errno.ENOENT else WorkerStartError
    return kind(f"cannot start {spec.argv[0]!r}: {words}", where="worker", fix=fix)


def spawn(
    spec: ProcessSpec, *, call: Callable[[], int] | None = None, pass_fds: tuple[int, ...] = ()
) -> ChildProcess:
    """Start a child in its own session, which the kernel kills when this thread ends.

    Returns at once; `ChildProcess.confirm_started` tells whether the program could be run.

    Args:
        spec: the process.
        call: called by the forked child instead of running a program; returns its exit code. It
            keeps this process's descriptors, signal handlers and environment.
        pass_fds: descriptors that the program keeps.

    Raises:
        WorkerStartError: a log file cannot be opened, or no process can be made.
    """
    stdio = open_stdio(spec)
    started, starting = os.pipe()
    parent = os.getpid()
    old_mask = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    try:
        pid = fork()
        if pid == 0:
            _become(spec, stdio, _Child(starting, parent, call, pass_fds))
    except OSError as error:
        os.close(started)
        raise start_error(spec, error.errno or 0, "fork") from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
        os.close(starting)
        for fd in stdio:
            os.close(fd)
    return ChildProcess(spec, pid, started)


class _Child(NamedTuple):
    """The facts that only the forked child needs."""

    starting: int
    parent: int
    call: Callable[[], int] | None
    pass_fds: tuple[int, ...]


_LOG_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT


def open_stdio(spec: ProcessSpec) -> list[int]:
    """Return new descriptors for the child's stdin, stdout and stderr."""
    fds: list[int] = []
    try:
        fds.append(_dup_or_null(0))
        for own, path in ((1, spec.stdout), (2, spec.stderr)):
            if path is not None:
                # a run directory needs no links; the names of other files are the user's choice
                is_ours = path.startswith(f"{spec.env.get(Env.RUN_DIR, os.sep)}{os.sep}")
                fds.append(open_to_append(path, 0o666) if is_ours else os.open(path, _LOG_FLAGS, 0o666))
            else:
                fds.append(_dup_or_null(own))
    except OSError as error:
        for fd in fds:
            os.close(fd)
        raise WorkerStartError(
            f"cannot open the log file {error.filename!r}: {error.strerror}",
            where="worker",
            fix="choose a log directory that this node can write to",
        ) from error
    return fds


def _dup_or_null(fd: int) -> int:
    if (sys.__stdin__, sys.__stdout__, sys.__stderr__)[fd] is not None:
        with contextlib.suppress(OSError):
            return os.dup(fd)
    # this process was started without it, and another file may have got its number
    return os.open(os.devnull, os.O_WRONLY if fd else os.O_RDONLY)


def _become(spec: ProcessSpec, stdio: list[int], child: _Child) -> NoReturn:
    """Turn the forked child into the program; all signals are blocked on entry."""
    step = "exec"
    try:
        signal.set_wakeup_fd(-1)
        os.setsid()
        if not die_with_parent(child.parent):
            os._exit(_START_FAILED)
        take_stdio(stdio)
        bear_mark(spec.env)
        if spec.cwd is not None:
            step = "cwd"
            os.chdir(spec.cwd)
            step = "exec"
        if spec.cpus:
            os.sched_setaffinity(0, spec.cpus)
        if child.call is not None:
            os.close(child.starting)
            _run_call(child.call)
        close_other_fds({child.starting, *child.pass_fds})
        for fd in child.pass_fds:
            os.set_inheritable(fd, True)  # noqa: FBT003 - Python's signature
        reset_signals(spec.ignore_signals)
        os.execvpe(spec.argv[0], spec.argv, spec.env)  # noqa: S606 - no shell on purpose
    except OSError as error:
        os.write(child.starting, f"{step} {error.errno or 0}".encode())
        os.write(2, f"hpc_elastic: {start_error(spec, error.errno or 0, step)}\n".encode())
    except BaseException as error:  # noqa: BLE001 - a forked child must never return
        os.write(child.starting, f"exec {errno.EINVAL}".encode())
        os.write(2, f"hpc_elastic: cannot start {spec.argv[0]!r}: {error!r}\n".encode())
    finally:
        os._exit(_START_FAILED)


def bear_mark(env: Mapping[str, str]) -> None:
    """Carry the newest mark of an environment also where it cannot be cleared away."""
    number = mark_number(env.get(MARKER_ENV, "").rpartition(",")[2])
    if number is not None:
        set_limit_mark(number)


def _run_call(call: Callable[[], int]) -> NoReturn:
    code = 1
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        code = call()
    finally:
        os._exit(code)


def take_stdio(fds: list[int]) -> None:
    """Make three descriptors this process's stdin, stdout and stderr, and close them."""
    high = [os.dup(fd) if fd <= LAST_STDIO else fd for fd in fds]
    for target, fd in enumerate(high):
        os.dup2(fd, target)
        os.close(fd)


def close_other_fds(keep: set[int]) -> None:
    """Close all descriptors but the standard ones and some."""
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > LAST_STDIO and fd not in keep:
            try:
                os.close(fd)
            except OSError:  # the listing's own descriptor
                pass


def reset_signals(ignored: tuple[int, ...]) -> None:
    """Set signals to their default action but the ignored ones, then unblock all.

    exec itself resets signals with a handler; signals that Python or nohup ignores are reset here.
    """
    for sig in _RESET:
        signal.signal(sig, signal.SIG_DFL)
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


class LastingThread:
    """Runs a function in a thread that then waits until it is released."""

    def __init__(self) -> None:
        self._release = threading.Event()

    def call(self, work: Callable[[], None]) -> None:
        """Run a function; its exception is raised here."""
        ended = threading.Event()
        errors: list[BaseException] = []

        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - handed to the caller
                errors.append(error)
            finally:
                ended.set()
            self._release.wait()

        threading.Thread(target=run, name="hpc-elastic parent", daemon=True).start()
        ended.wait()
        if errors:
            raise errors[0]

    def release(self) -> None:
        """Let the thread end."""
        self._release.set()


def is_main_thread() -> bool:
    """Return whether this is the thread that ends with the process."""
    return threading.current_thread() is threading.main_thread()


class Stopper:
    """The stop of one group: signal the groups, wait, SIGKILL, sweep, wait a little, give up.

    Members of the workers' process groups have until the deadline; processes that escaped from the
    groups are killed as soon as the groups are empty.

    Args:
        processes: the workers by local rank.
        reaper: finds the processes that they left behind.
    """

    def __init__(self, processes: Mapping[int, ChildProcess], reaper: Reaper) -> None:
        self._processes = processes
        self._reaper = reaper
        self._kill_at: float | None = None
        self._killed_at: float | None = None
        self.watched: dict[int, int] = {}  # pid -> pidfd of left-overs that are waited for
        self._left: list[ProcessStat] = []
        self.is_begun = False

    def begin(self, sig: int, kill_at: float | None) -> None:
        """Signal all groups; a deadline only ever moves earlier."""
        self.is_begun = True
        if kill_at is not None:
            self._kill_at = kill_at if self._kill_at is None else min(kill_at, self._kill_at)
        self._reaper.remember(self._reaper.sessions)
        for process in self._processes.values():
            process.signal_group(sig)
            process.signal_group(signal.SIGCONT)  # a stopped process could not act on it

    def kill(self, now: float) -> None:
        """SIGKILL the groups and everything below this process that came from them."""
        self.is_begun = True
        self._killed_at = now if self._killed_at is None else self._killed_at
        self._reaper.remember(self._reaper.sessions)
        for process in self._processes.values():
            process.signal_group(signal.SIGKILL)
        self._reaper.kill_left_overs()

    def step(self, now: float) -> bool:
        """Go on with the stop as far as possible.

        Args:
            now: monotonic time [s].

        Returns:
            True when no process is left, or the remaining ones did not end by SIGKILL.
        """
        if self.is_begun and self._killed_at is None and self._kill_at is not None and now >= self._kill_at:
            self.kill(now)
        if self._is_any_alive():
            self._left = []
            return self._gave_up(now)
        self._left = self._reaper.left_overs()
        if not self.is_begun:
            return not self._left
        in_groups = any(stat.group in self._reaper.sessions for stat in self._left)
        if self._left and (self._killed_at is not None or not in_groups):
            self._killed_at = now if self._killed_at is None else self._killed_at
            self._reaper.kill_left_overs()
        self._watch()
        return not self._left or self._gave_up(now)

    def deadline(self) -> float | None:
        """Return when `step` is due even if nothing happens (monotonic time [s])."""
        return self._kill_at if self._killed_at is None else self._killed_at + KILL_WAIT_S

    def remaining(self) -> list[str]:
        """Return in words the processes that still run: local rank, pid, name and state."""
        found = []
        for rank, process in self._processes.items():
            if process.poll() is None and (stat := read_stat(process.pid)) is not None:
                found.append(f"local rank {rank}: {_words(stat)}")
        found.extend(f"left over: {_words(stat)}" for stat in self._left)
        return found

    def end(self) -> None:
        """Reap the ended workers and close every descriptor."""
        for process in self._processes.values():
            if process.poll() is not None:
                process.reap()
        for fd in self.watched.values():
            os.close(fd)
        self.watched.clear()
        self._reaper.reap_adopted()

    def _is_any_alive(self) -> bool:
        """Take note of exits; return whether any worker still runs."""
        codes = [process.poll() for process in self._processes.values()]
        for process in self._processes.values():
            process.acknowledge()
        return None in codes

    def _gave_up(self, now: float) -> bool:
        return self._killed_at is not None and now >= self._killed_at + KILL_WAIT_S

    def _watch(self) -> None:
        pids = {stat.pid for stat in self._left}
        for pid in self.watched.keys() - pids:
            os.close(self.watched.pop(pid))
        for pid in pids - self.watched.keys():
            fd = open_pidfd(pid)
            if fd is not None:
                self.watched[pid] = fd


def _words(stat: ProcessStat) -> str:
    return f"pid {stat.pid} ({stat.name}) in state {stat.state}"
