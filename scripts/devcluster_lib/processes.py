"""Processes by identity: a pid alone may meanwhile belong to somebody else."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import DevClusterError

POLL_S = 0.01
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class ProcessId:
    """One process for all time.

    Attributes:
        pid: its number.
        started: boot id of the machine and start time; tells a reused pid apart.
    """

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """Identity of the process that has `pid` now; None if there is none or it is a zombie."""
        fields = _stat(pid)
        if fields is None or fields[0] in ("Z", "X"):
            return None
        return cls(pid, f"{boot_id()}/{fields[19]}")

    def is_alive(self) -> bool:
        """Whether this very process runs (a zombie does not)."""
        return ProcessId.of(self.pid) == self

    def send(self, sig: signal.Signals) -> bool:
        """Send a signal to this process and to no other; False if it is gone."""
        try:
            # The descriptor pins the process, so the check and the signal see the same one.
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            if not self.is_alive():
                return False
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, sig)
            return True
        finally:
            os.close(descriptor)


def boot_id() -> str:
    """Identity of the machine's current boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/<pid>/stat from the state on; None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()


def children(parent: ProcessId, command: str) -> list[ProcessId]:
    """Live children of `parent` whose program is called `command`."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        process = ProcessId.of(int(entry.name))
        fields = _stat(int(entry.name))
        if process is None or fields is None or int(fields[1]) != parent.pid:
            continue
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if (entry / "comm").read_text().strip() == command:
                found.append(process)
    return found


def wait_until(condition: Callable[[], bool], timeout_s: float, failure: str) -> None:
    """Poll until `condition` holds.

    Raises:
        DevClusterError: with the text `failure`, after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise DevClusterError(failure)
        time.sleep(POLL_S)


def kill_and_wait(processes: Iterable[ProcessId], timeout_s: float = 20) -> None:
    """SIGKILL the processes and wait until they are gone.

    The end of a node's PID 1 is reported only after every other process of the node is gone,
    so waiting for it is waiting for the node.
    """
    victims = [process for process in processes if process.send(signal.SIGKILL)]
    wait_until(
        lambda: not any(process.is_alive() for process in victims),
        timeout_s,
        f"Some of the processes {[p.pid for p in victims]} do not die; "
        "look for one in state D with `ps` and run the command again.",
    )


def start_helper(argv: Sequence[str], log: Path, stdin: int = subprocess.PIPE) -> subprocess.Popen[str]:
    """Start the program that sets up fresh namespaces and stays in them; its log is added to."""
    with log.open("ab") as errors:
        return subprocess.Popen(
            argv,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd="/",
            env={"PATH": SYSTEM_PATH},
            start_new_session=True,
        )


def next_line(process: subprocess.Popen[str]) -> str:
    """What a helper process says next; empty if it is gone."""
    return process.stdout.readline().strip() if process.stdout else ""


def said_process(process: subprocess.Popen[str], name: str, log: Path) -> ProcessId:
    """The process of the machine whose pid a helper says first.

    Raises:
        DevClusterError: it says none.
    """
    pid = next_line(process)
    found = ProcessId.of(int(pid)) if pid.isdigit() else None
    if found is None:
        raise DevClusterError(
            f"{name} could not get its own namespaces; see {log} (in a container this needs --privileged)."
        )
    return found


def require_root() -> None:
    """Refuse to go on without root.

    Raises:
        DevClusterError: this is not root.
    """
    if os.geteuid() != 0:
        raise DevClusterError("Only root can do this, since it makes namespaces and mounts; use sudo.")


def say_go(process: subprocess.Popen[str]) -> None:
    """Tell a helper process by its pipe to go on; if it is gone, its silence will tell."""
    if process.stdin:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write("go\n")
            process.stdin.flush()


def let_go(process: subprocess.Popen[str]) -> None:
    """Close the pipes of a helper process: one that was not told to go on ends by itself."""
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()
