"""The start of batch scripts and tasks, and the controller's connections to programs and step daemons.

The step daemon stands over a batch script, or over the tasks of one step on one node. It is a child of the
controller, forked without a new program. It adopts all orphans of its tasks, so it finds every process below
it, and ends when there is none. When the controller is gone it kills them all.
"""

from __future__ import annotations

import json
import os
import os.path
import re
import select
import signal
import socket
import struct
from collections.abc import Mapping
from typing import Any, NoReturn

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.processes import linux
from hpc_elastic.testing.fake_slurm.cluster import job_environ
from hpc_elastic.testing.fake_slurm.cluster.model import Job, Place, Step, Task, World
from hpc_elastic.testing.fake_slurm.commands.submitting import SrunCall

_CHUNK = 65536
_PATTERN = re.compile(r"%(\d*)([%AaJjNnstuxb])")
PER_TASK = ("t", "n", "N")

_Files = dict[str, int]
_PAUSE_S = 0.005
_RESET = [number for number in signal.Signals if number not in (signal.SIGKILL, signal.SIGSTOP)]


class ScriptLauncher:
    """Starts processes for the controller.

    Args:
        directory: where the cluster's files are.
        user: USER, UID and GID of everybody.
    """

    def __init__(self, directory: str, user: Mapping[str, str]) -> None:
        self._directory = directory
        self._user = user
        self._asked: dict[tuple[int, int, int], SrunCall] = {}

    def remember(self, job: Job, step: Step, asked: SrunCall) -> None:
        """Keep the request to srun, for the nodes of the step."""
        self._asked[job.id, job.start, step.number] = asked

    def script(self, world: World, job: Job, place: Place) -> Daemon:
        """Start a batch script.

        Raises:
            OSError: a file cannot be opened.
        """
        path = os.path.join(self._directory, "spool", f"job{job.id:05d}.{job.start}")
        with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(job.request.script)
        os.chmod(path, 0o700)
        stdin, out, error = of_script(job, self._user["USER"])
        mode = os.O_APPEND if job.request.append else os.O_TRUNC
        fds: _Files = {}
        try:
            names = (_open(fds, stdin, os.O_RDONLY), _open(fds, out, mode), _open(fds, error, mode))
            environ = self._complete({**job.request.environ, **job_environ.of_script(world, job, self._user)})
            words = (path, *job.request.words)
            launch = Launch(0, words, environ, job.request.directory, names)
            tracks_all = world.settings.tracker == "linuxproc"
            return Daemon.fork(place, [launch], tracks_all=tracks_all, is_batch=True)
        finally:
            _close(fds)

    def _complete(self, environ: dict[str, str]) -> dict[str, str]:
        """Return an environment in which the cluster's programs are found."""
        programs = os.path.join(self._directory, "bin")
        path = environ.get("PATH", os.defpath)
        if programs not in path.split(os.pathsep):
            environ["PATH"] = f"{programs}{os.pathsep}{path}"
        environ["SLURM_CONF"] = os.path.join(self._directory, "slurm.conf")
        return environ

    def tasks(self, world: World, place: Place, tasks: tuple[Task, ...], own: list[int]) -> Daemon:
        """Start the tasks of a step on one node.

        Args:
            world: the cluster.
            place: the step and the node.
            tasks: those on this node.
            own: stdin, stdout and stderr of srun.

        Raises:
            OSError: a file cannot be opened.
        """
        job = world.jobs[place.job]
        step = job.steps[int(place.step)]
        asked = self._asked[job.id, job.start, step.number]
        fds: _Files = {}
        try:
            launches = [self._launch(world, (job, step, task), asked, own, fds) for task in tasks]
            tracks_all = world.settings.tracker == "linuxproc"
            return Daemon.fork(place, launches, tracks_all=tracks_all, is_batch=False)
        finally:
            _close(fds)

    def _launch(
        self, world: World, which: tuple[Job, Step, Task], asked: SrunCall, own: list[int], fds: _Files
    ) -> Launch:
        job, step, task = which
        added = job_environ.of_task(world, job, step, task, self._user)
        stdin = own[0] if task.rank == 0 and asked.has_stdin else _open(fds, os.devnull, os.O_RDONLY)
        streams = [self._stream(which, asked, pattern, fds) for pattern in (asked.output, asked.error)]
        out = streams[0] if streams[0] is not None else own[1]
        error = streams[1] if streams[1] is not None else out if asked.output else own[2]
        environ = self._complete({**asked.environ, **added})
        return Launch(task.rank, asked.words, environ, asked.directory, (stdin, out, error))

    def _stream(
        self, which: tuple[Job, Step, Task], asked: SrunCall, pattern: str, fds: _Files
    ) -> int | None:
        """Open a file of ``srun --output``; None where it names none.

        A file that several tasks share is emptied by the first of them.
        """
        if not pattern:
            return None
        job, step, task = which
        path = fill(pattern, job, self._user["USER"], step, task)
        first = is_per_task(pattern) or task.rank == 0
        return _open(fds, path, os.O_TRUNC if first and not asked.append else os.O_APPEND)


def _open(fds: _Files, path: str, mode: int) -> int:
    """Open a file once."""
    if path not in fds:
        flags = mode if path == os.devnull or mode == os.O_RDONLY else os.O_WRONLY | os.O_CREAT | mode
        if path == os.devnull:
            flags = os.O_RDWR
        elif flags & os.O_TRUNC:  # then appends, as several tasks may write to it
            os.close(os.open(path, flags | os.O_CLOEXEC, 0o644))
            flags = os.O_WRONLY | os.O_APPEND
        fds[path] = os.open(path, flags | os.O_CLOEXEC, 0o644)
    return fds[path]


def _close(fds: _Files) -> None:
    for fd in fds.values():
        os.close(fd)


class Connection:
    """A program that asks something.

    Args:
        number: its number, from 1.
        sock: the connection.
    """

    def __init__(self, number: int, sock: socket.socket) -> None:
        self.number = number
        self.sock = sock
        self.fds: list[int] = []
        self.first: dict[str, Any] | None = None  # the request that waits for its stdin
        self.is_srun = False
        self._buffer = b""
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        self.pid: int = struct.unpack("3i", credentials)[0]

    def messages(self) -> list[dict[str, Any]] | None:
        """Return the messages that have come; None when the program is gone."""
        try:
            data, fds, _, _ = socket.recv_fds(self.sock, _CHUNK, 3)
        except OSError:
            return None
        self.fds += fds
        if not data:
            return None
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def send(self, message: dict[str, Any]) -> None:
        """Send a message; a program that has gone does not hear it."""
        try:
            self.sock.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return

    def close_fds(self) -> None:
        """Let go of the program's stdin, stdout and stderr."""
        for fd in self.fds:
            os.close(fd)
        self.fds = []

    def close(self) -> None:
        """End the connection."""
        self.close_fds()
        self.sock.close()


class Daemon:
    """A step daemon as the controller sees it."""

    def __init__(self, place: Place, pid: int, channel: socket.socket) -> None:
        self.place = place
        self.pid = pid
        self.channel = channel
        self.pids: dict[int, int] = {}  # rank to pid
        self.unheard: list[list[str]] = []  # said, and not delivered yet
        self._buffer = b""

    @classmethod
    def fork(cls, place: Place, launches: list[Launch], *, tracks_all: bool, is_batch: bool) -> Daemon:
        """Start the daemon and its processes; returns when all of them are there."""
        here, there = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            kept = {there.fileno(), 0, 1, 2} | {fd for launch in launches for fd in launch.fds}
            _close_all_but(kept)
            try:
                StepDaemon(there, launches, tracks_all=tracks_all, is_batch=is_batch).run()
            finally:
                os._exit(1)
        there.close()
        daemon = cls(place, pid, here)
        while len(daemon.pids) < len(launches) and (said := daemon.heard()) is not None:
            daemon.note(said)
        return daemon

    def say(self, text: str) -> None:
        """Give an order."""
        try:
            self.channel.sendall(f"{text}\n".encode())
        except OSError:
            return

    def heard(self) -> list[list[str]] | None:
        """Return its messages, in words; None when it is gone."""
        try:
            data = self.channel.recv(_CHUNK)
        except OSError:
            return None
        if not data:
            return None
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return [line.decode().split() for line in lines]

    def note(self, said: list[list[str]]) -> None:
        """Remember its messages: pids for good, all else until it is delivered."""
        for words in said:
            if words[0] == "started":
                self.pids[int(words[1])] = int(words[2])
            else:
                self.unheard.append(words)

    def destroy(self) -> None:
        """Kill every process, and wait until it has happened."""
        self.say("kill")
        while self.heard() is not None:
            pass
        self.bury()

    def bury(self) -> None:
        """Forget the daemon, which is dead."""
        self.channel.close()
        try:
            os.waitpid(self.pid, 0)
        except ChildProcessError:
            return


def _close_all_but(kept: set[int]) -> None:
    signal.set_wakeup_fd(-1)
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd not in kept:
            try:
                os.close(fd)
            except OSError:  # the one that listed them
                continue


def become_the_end_of_orphans() -> None:
    """Let this process adopt the children of a dying daemon."""
    linux.adopt_orphans()


def fill(pattern: str, job: Job, user: str, step: Step | None = None, task: Task | None = None) -> str:
    """Return a file name; relative ones stand in the job's directory."""
    node = task.node if task is not None else (job.nodes[0] if job.nodes else "")
    index = step.nodes.index(node) if step is not None and node in step.nodes else 0
    values = {
        "%": "%",
        "A": str(job.array or job.id),
        "a": "4294967294" if job.task is None else str(job.task),
        "b": "4294967294" if job.task is None else str(job.task % 10),
        "j": str(job.id),
        "J": str(job.id) if step is None else f"{job.id}.{step.number}",
        "N": node,
        "n": str(index),
        "s": "batch" if step is None else str(step.number),
        "t": "0" if task is None else str(task.rank),
        "u": user,
        "x": job.request.name,
    }

    def value(match: re.Match[str]) -> str:
        text = values[match[2]]
        return text.zfill(min(int(match[1]), 10)) if match[1] and text.isdigit() else text

    return os.path.join(job.request.directory, _PATTERN.sub(value, pattern))


def of_script(job: Job, user: str) -> tuple[str, str, str]:
    """Return where a batch script reads and writes: stdin, stdout, stderr."""
    request = job.request
    default = "slurm-%A_%a.out" if job.task is not None else "slurm-%j.out"
    out = fill(request.output or default, job, user)
    return request.stdin, out, fill(request.error, job, user) if request.error else out


def is_per_task(pattern: str) -> bool:
    """Tell whether a pattern names a file for each task."""
    return any(match[2] in PER_TASK for match in _PATTERN.finditer(pattern))


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
