"""``python -m hpc_elastic.control_plane``: have the workers on this machine print where they are.

Each prints the stacks of all its threads into its own stderr, so into its log. For all nodes of a job:
``srun --overlap --jobid JOB --ntasks-per-node 1 python -I -m hpc_elastic.control_plane``. Only workers
that have opted in take part: those that use `worker_main` or a timer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence

from hpc_elastic.clock import Clock, SystemClock
from hpc_elastic.processes.linux import MARKER_ENV, all_processes
from hpc_elastic.timer.stacks import ask_for_stacks

_WRONG_USE = 2


def main(argv: Sequence[str]) -> int:
    """Ask, and print the processes that were asked.

    Args:
        argv: process ids; without any, all processes below an agent of this user on this machine.

    Returns:
        0 if a process was asked, 1 if none could be, 2 if an argument is no process id.
    """
    wrong = [word for word in argv if not word.isdecimal() or int(word) < 1]
    if wrong:
        sys.stderr.write(f"{wrong[0]!r} is no process id\n  fix: give ids, or nothing for all workers here\n")
        return _WRONG_USE
    pids = [int(word) for word in argv] or marked_processes()
    asked = ask_workers(pids, SystemClock())
    sys.stdout.write(
        f"asked {len(asked)} of {len(pids)} processes for their stacks, which are in their stderr"
        f"{': ' if asked else ''}{', '.join(map(str, asked))}\n"
    )
    if not asked:
        sys.stdout.write("none of them can answer: only workers that use worker_main() or a timer do\n")
    return 0 if asked else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))


def marked_processes() -> list[int]:
    """Return the processes on this machine that were started below an agent of this user."""
    return [stat.pid for stat in all_processes() if not stat.is_dead and _is_marked(stat.pid)]


def _is_marked(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"\0{MARKER_ENV}=".encode() in b"\0" + file.read()
    except OSError:  # gone, or another process's
        return False


def ask_workers(pids: Iterable[int], clock: Clock) -> list[int]:
    """Have those workers print the stacks of all their threads that can; see `timer.stacks`.

    Returns:
        The workers that were asked; this process is never among them.
    """
    return ask_for_stacks([pid for pid in pids if pid != os.getpid()], clock)
