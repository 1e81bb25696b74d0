"""``python -m hpc_elastic.control_plane``: have the workers on this machine print where they are.

Each prints the stacks of all its threads into its own stderr, so into its log. For all nodes of a job:
``srun --overlap --jobid JOB --ntasks-per-node 1 python -m hpc_elastic.control_plane``. Only workers
that have opted in take part: those that use `worker_main` or a timer.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hpc_elastic.clock import SystemClock
from hpc_elastic.control_plane.stacks import ask_workers, marked_processes

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
