"""The controller's connections: to programs that ask something, and to the step daemons."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
from typing import Any

from hpc_elastic.processes import linux
from hpc_elastic.testing.fake_slurm.cluster.model import Place
from hpc_elastic.testing.fake_slurm.processes.step_daemon import Launch, StepDaemon

_CHUNK = 65536


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
    """A step daemon as the controller sees it.

    Args:
        place: where it stands.
        pid: its process.
        channel: the connection to it.
    """

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
        """Return what it has said, in words; None when it is gone."""
        try:
            data = self.channel.recv(_CHUNK)
        except OSError:
            return None
        if not data:
            return None
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return [line.decode().split() for line in lines]

    def note(self, said: list[list[str]]) -> None:
        """Remember what it has said: pids for good, all else until it is delivered."""
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
    """Let this process adopt what a dying daemon leaves."""
    linux.adopt_orphans()
