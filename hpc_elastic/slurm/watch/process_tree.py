"""An agent that runs outside of the process tree in which Slurm looks for whom to signal.

With ``ProctrackType=proctrack/linuxproc`` Slurm sends each signal for a job to every descendant of its tasks:
also to the children of a worker (a DataLoader's processes, an asynchronous save, a pool, a tracker's
service), which dies of SIGTERM while the worker still has to save. Under ``proctrack/cgroup`` the tasks alone
are signalled until SIGKILL (Slurm's src/plugins/proctrack: ``kill_proc_tree`` and ``proctrack_p_signal``).

So where no cgroup of Slurm's holds the processes of a step, the agent leaves the tree, and the process that
Slurm has started stays: it passes signals on, waits, and ends as the agent ends. The kernel gives the
tracker's guarantee: with the process that stays the agent is killed, and with the agent its workers.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, NoReturn

from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.ids import Env
from hpc_elastic.processes.linux import descendants, open_pidfd, read_stat, set_process_name

_PASSED_ON: Final = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
    signal.SIGALRM,
    signal.SIGWINCH,
)
_CAUGHT: Final = (*_PASSED_ON, signal.SIGTSTP)
_CHUNK: Final = 4096
_NOBODY: Final = 0  # in the place of the agent's pid


def is_searched(environ: Mapping[str, str], cgroups: str) -> bool:
    """Return whether Slurm finds the processes of a job by their parents, so that it signals all of them.

    Args:
        environ: of a process; one outside of a job, or of a run on one machine, is not searched for.
        cgroups: the text of ``/proc/self/cgroup``; under cgroup v1 the tracker's hierarchy is the freezer's.
    """
    if not environ.get("SLURM_JOB_ID") or not environ.get("SLURMD_NODENAME") or Env.LOCAL in environ:
        return False
    lines = [line.split(":", 2) for line in cgroups.splitlines() if line.count(":") > 1]
    paths = [path for _, controllers, path in lines if "freezer" in controllers.split(",")]
    paths = paths or [path for number, _, path in lines if number == "0"]
    return not any(re.search(r"/job_\d+/step_", path) for path in paths)


def read_cgroups() -> str:
    """Return the control groups of this process by the kernel."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def run_apart(work: Callable[[int | None], int]) -> int:
    """Do the work in a process that is no descendant of this one, and end as it ends.

    Call it while this process has one thread and nothing to clean up: this process does not return. If
    there is no room for another one the work is done here.

    Args:
        work: gets a descriptor; this process does not end before all of its holders have closed it.

    Returns:
        The result of the work, in the other process.
    """
    life, living = os.pipe()  # closes at this process's end, however it ends
    told, telling = os.pipe()
    before = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    try:
        between = os.fork()
    except OSError:
        for fd in (life, living, told, telling):
            os.close(fd)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return work(None)
    if between:
        os.close(life)
        os.close(telling)
        os.waitpid(between, 0)
        _stay(told, before)
    os.close(living)
    os.close(told)
    _leave(life, telling)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    code = 1  # that of Python, for an exception that is not caught
    try:
        code = work(telling)
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else int(bool(ending.code))
        raise
    finally:
        _tell(telling, code)
    return code


def _tell(telling: int, number: int) -> None:
    with suppress(BrokenPipeError):  # this process is about to be killed
        os.write(telling, f"{number}\n".encode())


def _leave(life: int, telling: int) -> None:
    """Be a process whose parent is none of the job's, and that the kernel kills when `life` closes."""
    try:
        if os.fork():
            os._exit(0)
    except OSError:
        _tell(telling, _NOBODY)
        _tell(telling, ExitCode.FAILED)
        os._exit(ExitCode.FAILED)
    os.setsid()
    fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(life, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([life], [], [], 0)[0]:  # it has closed before
        os._exit(ExitCode.FAILED)
    _tell(telling, os.getpid())


def _stay(told: int, mask: set[int | signal.Signals]) -> NoReturn:
    """Pass signals on until the other process and all that clean up after it have ended; end as it did."""
    said = b""
    try:
        wakes, waking = os.pipe()
        os.set_blocking(wakes, False)
        os.set_blocking(waking, False)
        signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
        for number in _CAUGHT:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _note)
        set_process_name("hpc-front")
        said = os.read(told, _CHUNK)
        agent = int(said.partition(b"\n")[0] or _NOBODY)
        if agent != _NOBODY:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            said += _pass_on(agent, told, wakes)
    finally:
        _end_as(said)


def _note(_number: int, _frame: object) -> None:
    """Be there: the number comes by the wakeup descriptor."""


def _pass_on(agent: int, told: int, wakes: int) -> bytes:
    said, is_stopped = b"", False
    pidfd = open_pidfd(agent)  # its pid may be another's while its descendants are still being ended
    while True:
        ready = select.select([told, wakes], [], [])[0]
        if wakes in ready:
            for number in _noted(wakes):
                is_stopped = _pass(agent, number, pidfd, is_stopped=is_stopped)
        elif told in ready:
            chunk = os.read(told, _CHUNK)
            if not chunk:
                return said
            said += chunk


def _noted(wakes: int) -> bytes:
    try:
        return os.read(wakes, _CHUNK)
    except BlockingIOError:
        return b""


def _pass(agent: int, number: int, pidfd: int | None, *, is_stopped: bool) -> bool:
    """Pass one signal on; return whether the agent and all below it are stopped.

    A tree that Slurm suspends gets SIGTSTP and, two seconds later, SIGSTOP, which cannot be passed on.
    """
    if number == signal.SIGTSTP:
        _send_all(agent, signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        return True
    if number == signal.SIGCONT and is_stopped:
        _send_all(agent, signal.SIGCONT)
        return False
    if pidfd is None:
        _send(agent, number)
    else:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, number)
    return is_stopped


def _send_all(agent: int, number: int) -> None:
    root = read_stat(agent)
    for stat in descendants([root] if root is not None else []):
        _send(stat.pid, number)


def _send(pid: int, number: int) -> None:
    with suppress(OSError):  # it has ended
        os.kill(pid, number)


def _end_as(said: bytes) -> NoReturn:
    """End with the code that was reported; a process that could not report one has been killed."""
    lines = said.split()
    if len(lines) > 1:
        os._exit(int(lines[-1]) & 0xFF)
    os.kill(os.getpid(), signal.SIGKILL)
    os._exit(ExitCode.FAILED)
