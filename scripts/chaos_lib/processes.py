"""The processes of a cluster's users, seen from the machine that the nodes share."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import signal
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from devcluster_lib import state
from devcluster_lib.layout import Layout

EXAMPLES = ("plain", "digits_ddp", "fsdp_shards", "lightning_trainer", "huggingface_trainer")
"""Those that workers may run."""
_INTERPRETER = r"\S*python\S*"


class Role(Enum):
    """What a process is to a run."""

    AGENT = re.compile(
        rf"{_INTERPRETER} (?:-I )?"
        r"(?:-m hpc_elastic run|-m torch\.distributed\.run|-S \S+ \S+/start\.bin run) "
    )
    GUARD = re.compile(r"(?!)")  # an agent's child that looks like it and outlives it for a moment
    WORKER = re.compile(rf"{_INTERPRETER} (?:-u )?\S+/(?:{'|'.join(EXAMPLES)}|stamps)\.py ")
    SRUN = re.compile(r"srun ")
    BATCH = re.compile(r"\S*sh \S+/slurm_script ")
    OTHER = re.compile(r"")


_CHILDREN = {Role.AGENT: Role.GUARD, Role.BATCH: Role.OTHER}  # forks of them look like them


class Process(NamedTuple):
    """One process of a user on a node."""

    pid: int  # as the machine counts
    node: str
    role: Role
    command: str

    def send(self, number: signal.Signals) -> None:
        """Signal it; nothing happens if it is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def is_alive(self) -> bool:
        """Tell whether it still runs (a zombie does not)."""
        return _state(self.pid) not in ("", "Z", "X")


def of_user(cluster: Path, user: str) -> list[Process]:
    """Return the live processes of a user on the nodes of the cluster in a directory, oldest first."""
    now = state.read(Layout(cluster))
    if now is None:
        return []
    spaces = {}
    for name, init in now.inits.items():
        with contextlib.suppress(OSError):
            spaces[os.readlink(f"/proc/{init.pid}/ns/pid")] = name
    uid = pwd.getpwnam(user).pw_uid
    found = [_process(entry, uid, spaces) for entry in os.listdir("/proc") if entry.isdigit()]
    return sorted((process for process in found if process is not None), key=lambda process: process.pid)


def _process(pid: str, uid: int, spaces: dict[str, str]) -> Process | None:
    try:
        if os.stat(f"/proc/{pid}").st_uid != uid or _state(int(pid)) in ("", "Z", "X"):
            return None
        node = spaces.get(os.readlink(f"/proc/{pid}/ns/pid"))
    except OSError:
        return None
    command = _command(int(pid))
    if node is None or not command:
        return None
    role = next(role for role in Role if role.value.match(command))
    if role in _CHILDREN and command == _command(_parent(int(pid))):
        role = _CHILDREN[role]
    return Process(int(pid), node, role, command)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _state(pid: int) -> str:
    return _stat(pid)[:1]


def _parent(pid: int) -> int:
    fields = _stat(pid).split()
    return int(fields[1]) if len(fields) > 1 else 0


def _stat(pid: int) -> str:
    """Return what /proc/<pid>/stat says from the state on; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].strip()
    except OSError:
        return ""
