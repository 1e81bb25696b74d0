"""The worker of all measures: leaves a file for each thing that happens to it, named with the time.

It is the same under every launcher; without an agent of ours nothing asks it to stop.
"""

import time

STARTED_S = time.monotonic()  # one clock for all processes of a machine

import os  # noqa: E402 - the clock is read before anything else
import signal  # noqa: E402
import sys  # noqa: E402

STEP_S = 0.01
SAVE_EVERY = 30


def stamp(what: str, at: float) -> None:
    """Leave a file that says what happened, and when."""
    name = f"{at:.6f}+{what}+{os.environ['RANK']}+{os.environ['WORLD_SIZE']}"
    os.close(os.open(os.path.join(os.environ["FAULT_STAMPS"], name), os.O_CREAT | os.O_WRONLY))


stamp("start", STARTED_S)
signal.signal(signal.SIGUSR1, lambda *_: os._exit(1))
signal.signal(signal.SIGUSR2, lambda *_: time.sleep(3600))  # hangs

from hpc_elastic import worker  # noqa: E402 - the first stamp does not wait for it

saved = worker.latest_checkpoint()
step = saved.step if saved else 0
while True:
    time.sleep(STEP_S)
    step += 1
    worker.tick(step)
    if step % SAVE_EVERY == 0 and os.environ["RANK"] == "0":
        worker.checkpoint_saved(step)  # a run that fails again and again and saves nothing is given up
    if worker.should_stop():
        stamp("told", time.monotonic())
        if os.environ["RANK"] == "0":
            worker.checkpoint_saved(step)
        sys.exit(0)
