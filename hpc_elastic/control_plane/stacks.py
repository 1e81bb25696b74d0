"""Having workers print where they are, from outside and without their help."""

from __future__ import annotations

import os
from collections.abc import Iterable

from hpc_elastic.clock import Clock
from hpc_elastic.processes.procfs import MARKER_ENV, all_processes
from hpc_elastic.timer.stacks import ask_for_stacks


def marked_processes() -> list[int]:
    """Return the processes on this machine that were started below an agent of this user."""
    return [stat.pid for stat in all_processes() if not stat.is_dead and _is_marked(stat.pid)]


def _is_marked(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"\0{MARKER_ENV}=".encode() in b"\0" + file.read()
    except OSError:  # gone, or somebody else's
        return False


def ask_workers(pids: Iterable[int], clock: Clock) -> list[int]:
    """Have those workers print the stacks of all their threads that can; see `timer.stacks`.

    Returns:
        The workers that were asked; this process is never among them.
    """
    return ask_for_stacks([pid for pid in pids if pid != os.getpid()], clock)
