"""What the tests of submitit's executor share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import submitit

LIMIT_S = 120.0


def executor(folder: Path | str, nodes: int = 1, **parameters: Any) -> submitit.AutoExecutor:
    """Return an executor whose jobs run here, with one worker per node unless told otherwise."""
    made = submitit.AutoExecutor(folder, cluster="hpcelastic", hpcelastic_local=nodes)
    made.update_parameters(**{"tasks_per_node": 1, **parameters})
    return made


def on_slurm(folder: Path | str, **parameters: Any) -> submitit.AutoExecutor:
    """Return an executor whose jobs go to Slurm, with one worker on one node unless told otherwise."""
    made = submitit.AutoExecutor(folder, cluster="hpcelastic")
    shape = {"nodes": 1, "tasks_per_node": 1, "timeout_min": 10, "hpcelastic_allow_local_run_dir": True}
    made.update_parameters(**{**shape, **parameters})
    return made


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Wait until something holds; a pytest timeout ends what takes too long.

    Raises:
        AssertionError: it does not come to hold.
    """
    for _ in range(int(LIMIT_S / 0.05)):
        if condition():
            return
        threading.Event().wait(0.05)
    raise AssertionError(f"waited in vain for {what}")


def add(first: int, second: int) -> int:
    """Return a sum, and print it."""
    print("the sum is", first + second)  # noqa: T201 - what `stdout` shows
    return first + second


def patient(go: str, ready: str) -> str:
    """Return once a file is there; say first that it waits, with the job's id."""
    env = submitit.JobEnvironment()
    Path(f"{ready}.{env.global_rank}").write_text(env.job_id)
    while not Path(go).exists():
        threading.Event().wait(0.05)
    return str(env.job_id)


class Counting:
    """A callable whose first start waits for its end, and whose second one goes on where its hook says.

    Args:
        start: the first number.
    """

    def __init__(self, start: int = 0) -> None:
        self.start = start

    def __call__(self, ready: str) -> int:
        """Count until the second start."""
        if self.start == 0:
            self.start = 41
            Path(ready).touch()
            threading.Event().wait(600)
        return self.start + 1

    def go_on(self, ready: str) -> submitit.helpers.DelayedSubmission:
        """Return what to call after a requeue."""
        return submitit.helpers.DelayedSubmission(type(self)(self.start), ready)
