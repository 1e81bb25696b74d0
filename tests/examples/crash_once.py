"""Runs a training that fails once: ``crash_once.py STEP RANK MARKER PROGRAM [ARGUMENTS]``.

It does after its step on that rank; the marker file remembers that it has happened.
"""

from __future__ import annotations

import os
import runpy
import sys

from hpc_elastic import worker

STEP, RANK, MARKER, PROGRAM, *REST = sys.argv[1:]
_tick = worker.tick


def tick(step: int, total: int | None = None) -> None:
    """Tell the step, and fail if it is the one."""
    _tick(step, total)
    if step == int(STEP) and os.environ["RANK"] == RANK and not os.path.exists(MARKER):
        open(MARKER, "x").close()
        raise RuntimeError("this crash was asked for")


worker.tick = tick
sys.argv = [PROGRAM, *REST]
runpy.run_path(PROGRAM, run_name="__main__")
