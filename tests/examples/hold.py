"""Runs a training that waits after a step while a file exists: ``hold.py STEP FILE PROGRAM [ARGUMENTS]``.

So a test that is late finds it at that step.
"""

from __future__ import annotations

import os
import runpy
import sys
import time

from hpc_elastic import worker

STEP, SIGN, PROGRAM, *REST = sys.argv[1:]
_tick = worker.tick


def tick(step: int, total: int | None = None) -> None:
    """Tell the step, and wait if it is the one."""
    _tick(step, total)
    while step == int(STEP) and os.path.exists(SIGN):
        time.sleep(0.005)


worker.tick = tick
sys.argv = [PROGRAM, *REST]
runpy.run_path(PROGRAM, run_name="__main__")
