"""The process that stands over a batch script, or over the tasks of one step on one node.

A child of the controller, forked without a new program. It adopts all orphans of its tasks, so it
finds every process below it, and ends when there is none. When the controller is gone it kills them all.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Mapping
from typing import NoReturn

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.processes import linux

_CHUNK = 65536
_PAUSE_S = 0.005
_RESET = [number for number in signal.Signals if number not in (signal.SIGKILL, signal.SIGSTOP)]


class Launch(NamedTuple):
    """A process to start."""

    rank: int
    words: tuple[str, ...]
    environ: Mapping[str, str]
    directory: str
    fds: tuple[int, int, int]  # stdin, stdout, stderr


class StepDaemon:
    """Starts processes, reports their ends to the controller, and follows its orders.

    To the controller: ``started RANK PID``, ``ended RANK STATUS [PID ...]`` with the rest of a batch
    step. From it: ``signal NUMBER REACH``, ``kill``.

    Args:
        channel: the connection to the controller.
        launches: the processes to start.
        tracks_all: linuxproc: signals go to all processes, and those that a task leaves behind live on.
        is_batch: this is the batch step, in which nothing outlives the script.
    """

    def __init__(
        self, channel: socket.socket, launches: list[Launch], *, tracks_all: bool, is_batch: bool
    ) -> None:
        self._channel = channel
        self._launches = launches
        self._tracks_all = tracks_all
        self._is_batch = is_batch
        self._tasks: dict[int, int] = {}  # pid to rank
        self._buffer = b""
        self._killing = False

    def run(self) -> NoReturn:
        """Live until no process is left."""
        os.setsid()
        linux.adopt_orphans()
        linux.set_process_name("slurmstepd")
        hear, heard = os.pipe()
        os.set_blocking(hear, False)
        os.set_blocking(heard, False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, lambda _number, _frame: None)
        signal.set_wakeup_fd(heard, warn_on_full_buffer=False)
        for launch in self._launches:
            self._start(launch)
        for fd in {fd for launch in self._launches for fd in launch.fds}:
            os.close(fd)
        while not self._is_over():
            here = self._channel.fileno()
            ready = select.select([here, hear], [], [], _PAUSE_S if self._killing else None)[0]
            if hear in ready:
                os.read(hear, _CHUNK)
            if here in ready:
                self._obey()
            if self._killing:
                self._kill()
            self._reap()
        os._exit(0)

    def _is_over(self) -> bool:
        if self._tasks:
            return False
        left = [stat for stat in self._below() if not stat.is_dead]
        if left and (self._is_batch or not self._tracks_all):
            self._killing = True
        return not left

    def _start(self, launch: Launch) -> None:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _RESET)  # an early signal must not be lost
        pid = os.fork()
        if pid == 0:
            _become(launch)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._tasks[pid] = launch.rank
        self._tell(f"started {launch.rank} {pid}")

    def _tell(self, text: str) -> None:
        try:
            self._channel.sendall(f"{text}\n".encode())
        except OSError:
            self._killing = True

    def _obey(self) -> None:
        try:
            data = self._channel.recv(_CHUNK)
        except OSError:
            data = b""
        if not data:
            self._killing = True
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            word, *rest = line.decode().split()
            if word == "kill":
                self._killing = True
            elif word == "signal":
                self._signal(int(rest[0]), rest[1])

    def _signal(self, number: int, reach: str) -> None:
        pids = list(self._tasks)
        if reach == "whole" or (reach == "tracked" and self._tracks_all):
            pids = [stat.pid for stat in self._below()]
        for pid in pids:
            _send(pid, number)

    def _below(self) -> list[linux.ProcessStat]:
        mine = linux.read_stat(os.getpid())
        return linux.descendants([mine])[1:] if mine else []

    def _kill(self) -> None:
        for stat in self._below():
            _send(stat.pid, signal.SIGKILL)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            rank = self._tasks.pop(pid, None)
            if rank is not None:
                left = [str(stat.pid) for stat in self._below() if not stat.is_dead] if self._is_batch else []
                self._tell(" ".join(["ended", str(rank), str(status), *left]))


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def _become(launch: Launch) -> NoReturn:
    """Be the task: a process group of its own, the right files, directory and environment."""
    try:
        os.setpgid(0, 0)
        for number in _RESET:
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        copies = [os.dup(fd) for fd in launch.fds]
        for target, copy in enumerate(copies):
            os.dup2(copy, target)
        try:
            os.chdir(launch.directory)
        except OSError as error:
            _complain(f"couldn't chdir to `{launch.directory}': {error.strerror}: going to /tmp instead")
            os.chdir("/tmp")  # noqa: S108 - as Slurm does
        environ = {**launch.environ, "SLURM_TASK_PID": str(os.getpid())}
        os.execvpe(launch.words[0], launch.words, environ)  # noqa: S606 - no shell is wanted
    except OSError as error:
        _complain(f"execve(): {launch.words[0]}: {error.strerror}")
        os._exit(error.errno or 1)
    finally:
        os._exit(1)


def _complain(text: str) -> None:
    os.write(2, f"slurmstepd: error: {text}\n".encode())
