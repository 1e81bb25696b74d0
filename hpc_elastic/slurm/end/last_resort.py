"""Requeues a job whose batch script was killed while the shared directory holds its agents up.

Slurm kills them KillWait after that, 30 s by default. Usually one of them writes down what has happened
and requeues the job; where the directory answers nobody meanwhile, the job would end as failed and stay so.
What stands here touches no file of the run, and asks Slurm only while the agent is held up, or when its time
is nearly over: it may wait for a node that has died at the same moment.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from hpc_elastic.clock import Clock
from hpc_elastic.errors import SlurmCommandError, SlurmNotFoundError
from hpc_elastic.slurm.client.commands import Slurm
from hpc_elastic.slurm.client.job_facts import look
from hpc_elastic.slurm.client.job_standing import Standing, standing
from hpc_elastic.slurm.end.requeue import HandBack, RequeueOutcome

LOOK_S = 1.0  # how often it is seen whether the agent is held up, and for so long it must have been
_LONGEST_PAUSE_S = 10.0  # between questions to Slurm


class LastResort:
    """Looks after one start of a job, in a thread of its own.

    Args:
        slurm: Slurm's commands.
        job: the job, and the restart count that this start was given.
        clock: paces a requeue that Slurm does not take at once.
        held_up_s: returns for how long the agent has been held up [s]; called from the thread.
        tell: is told when the job has been requeued; called from the thread.
    """

    def __init__(
        self,
        slurm: Slurm,
        job: tuple[str, int],
        clock: Clock,
        held_up_s: Callable[[], float],
        tell: Callable[[], None] = lambda: None,
    ) -> None:
        self._slurm = slurm
        self._job_ref, self._restarts = job
        self._clock = clock
        self._held_up_s = held_up_s
        self._tell = tell
        self._due_at = math.inf
        self._closed = threading.Event()
        threading.Thread(target=self._run, name="last-resort", daemon=True).start()

    def at_latest(self, when: float) -> None:
        """Requeue the job at a time though the agent goes on, if it has not come to that [s, monotonic]."""
        self._due_at = when

    def close(self) -> None:
        """End; a question that is under way is left to itself."""
        self._closed.set()

    def _run(self) -> None:
        ask_after_s = LOOK_S
        while not self._closed.wait(LOOK_S):
            held_up_s = self._held_up_s()
            is_due = self._clock.monotonic() >= self._due_at
            if held_up_s < LOOK_S and not is_due:
                ask_after_s = LOOK_S
            elif is_due or held_up_s >= ask_after_s:
                ask_after_s = held_up_s + min(held_up_s, _LONGEST_PAUSE_S)
                if self._script_was_killed() and not self._closed.is_set() and self._requeue():
                    self._tell()
                    return

    def _script_was_killed(self) -> bool:
        try:
            job = look(self._slurm, self._job_ref)
        except (SlurmCommandError, SlurmNotFoundError):
            return False
        return standing(job, self._restarts) is Standing.SCRIPT_DIED

    def _requeue(self) -> bool:
        handed = HandBack(self._slurm, self._job_ref, self._restarts, self._clock).requeue()
        return handed.outcome is RequeueOutcome.DONE
