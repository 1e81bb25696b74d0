"""Giving a job back to Slurm: requeue, hold, submit again. All may be done twice.

`LastResort` requeues a job whose batch script was killed. Slurm kills the agents KillWait after that, 30 s by
default, and a job that none of them has given back by then ends as failed and stays so. So the requeue comes
before all else, as soon as Slurm has told an agent; records and saves follow. `LastResort` touches no file of
the run: the shared directory may hold the agent up before it has asked. Then `LastResort` asks Slurm itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum, auto

from hpc_elastic.clock import Clock
from hpc_elastic.errors import SlurmCommandError, SlurmNotFoundError
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.slurm.client.commands import Slurm, is_unreachable, look
from hpc_elastic.slurm.client.job_standing import (
    JobFacts,
    Standing,
    is_held_reason,
    standing,
)

LOOK_S = 1.0  # how often it is seen whether the agent is held up, and for so long it must have been
_LONGEST_ASK_PAUSE_S = 10.0  # between questions to Slurm

PATIENCE_S = 1800.0  # for slurmctld: no client is served while it is away, and a failover takes minutes
_REFUSALS = 3  # so often Slurm must say no
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 15.0


class RequeueOutcome(Enum):
    """The result."""

    DONE = auto()
    CANCELLED = auto()  # the user has taken the job away meanwhile
    REFUSED = auto()


class HandedBack(NamedTuple):
    """The result, and Slurm's words if it refused."""

    outcome: RequeueOutcome
    words: str = ""


def last_line(words: str) -> str:
    """Return the line that matters of the words of a command."""
    return (words.strip().splitlines() or [""])[-1]


class HandBack:
    """Gives one start of a job back.

    Args:
        slurm: Slurm's commands.
        job_ref: the job.
        restarts: the restart count that this start was given.
        clock: paces retries.
    """

    def __init__(self, slurm: Slurm, job_ref: str, restarts: int, clock: Clock) -> None:
        self._slurm = slurm
        self._job_ref = job_ref
        self._restarts = restarts
        self._clock = clock

    def requeue(self) -> HandedBack:
        """Have Slurm start the job once more."""
        return self._insist(lambda _stands: self._slurm.requeue(self._job_ref), is_done=_is_requeued)

    def hold(self, why: str) -> HandedBack:
        """Have the job wait in the queue for its user; the reason stands in its comment.

        Args:
            why: the reason, for people.
        """
        self._note(why)
        return self._insist(self._hold, is_done=_is_held)

    def _hold(self, stands: Standing) -> None:
        if stands is Standing.REQUEUED:
            self._slurm.hold(self._job_ref)
        else:
            self._slurm.requeue(self._job_ref, hold=True)

    def _note(self, why: str) -> None:
        try:
            old = (self._slurm.show_job(self._job_ref) or {}).get("Comment", "")
            kept = old.split(" | held: ")[0]
            self._slurm.update(self._job_ref, f"Comment={kept} | held: {why}"[:1000])
        except (SlurmCommandError, SlurmNotFoundError):
            pass  # the run's records hold the reason, too

    def _insist(
        self, act: Callable[[Standing], None], *, is_done: Callable[[JobFacts, Standing], bool]
    ) -> HandedBack:
        """Act until it works, until Slurm has clearly refused, or has not answered for long.

        The job is looked at right before: one that was cancelled is never brought back.
        """
        pause_s, give_up_at, refusals = _FIRST_PAUSE_S, self._clock.monotonic() + PATIENCE_S, 0
        while True:
            job = self._look()
            stands = standing(job, self._restarts)
            if stands is Standing.CANCELLED:
                return HandedBack(RequeueOutcome.CANCELLED)
            if job is not None and is_done(job, stands):
                return HandedBack(RequeueOutcome.DONE)
            try:
                act(stands)
                return HandedBack(RequeueOutcome.DONE)
            except SlurmNotFoundError as error:
                return HandedBack(RequeueOutcome.REFUSED, str(error))
            except SlurmCommandError as error:
                words = str(error)
                refusals += not (is_unreachable(error) or (job is not None and job.is_expediting))
            if refusals >= _REFUSALS or self._clock.monotonic() >= give_up_at:
                return HandedBack(RequeueOutcome.REFUSED, words)
            self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _look(self) -> JobFacts | None:
        try:
            return look(self._slurm, self._job_ref)
        except (SlurmCommandError, SlurmNotFoundError):
            return None


def _is_requeued(_job: JobFacts, stands: Standing) -> bool:
    return stands is Standing.REQUEUED


def _is_held(job: JobFacts, stands: Standing) -> bool:
    return stands is Standing.REQUEUED and (job.held or is_held_reason(job.reason))


class LastResort:
    """Looks after one start of a job, in a thread of its own.

    Args:
        slurm: Slurm's commands.
        job: the job, and the restart count that this start was given.
        clock: paces a requeue that Slurm does not take at once.
        held_up_s: returns for how long the agent has been held up [s]; called from the thread.
        tell: is called when the job has been requeued, from the thread.
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
        self._is_known = False  # Slurm has said that the script was killed
        self._is_closed = False
        self._unanswered_since: float | None = None  # Slurm has not said why SIGTERM came, monotonic [s]
        self._something = threading.Event()
        threading.Thread(target=self._run, name="last-resort", daemon=True).start()

    def at_once(self) -> None:
        """Requeue the job: Slurm has told the agent that the batch script was killed."""
        self._is_known = True
        self._something.set()

    def go_on_asking(self) -> None:
        """Ask until Slurm answers: it has not told an agent why SIGTERM has come, and may be back in time."""
        self._unanswered_since = self._clock.monotonic()

    def close(self) -> None:
        """End; a question that is under way is left to itself."""
        self._is_closed = True
        self._something.set()

    def _run(self) -> None:
        ask_after_s = LOOK_S
        while not self._wait():
            held_up_s = max(self._held_up_s(), self._unanswered_s())
            if self._is_known:
                self._is_known = False  # Slurm may refuse
                if self._requeue():
                    return
            elif held_up_s < LOOK_S:
                ask_after_s = LOOK_S
            elif held_up_s >= ask_after_s:
                ask_after_s = held_up_s + min(held_up_s, _LONGEST_ASK_PAUSE_S)
                if self._script_was_killed() and not self._is_closed and self._requeue():
                    self._tell()
                    return

    def _unanswered_s(self) -> float:
        """Return for how long Slurm has not told why SIGTERM has come [s]; 0: it has, or none has come."""
        since = self._unanswered_since
        return 0.0 if since is None else self._clock.monotonic() - since

    def _wait(self) -> bool:
        """Wait until it is time to look; tell whether there is no more to do."""
        if self._something.wait(LOOK_S) and not self._is_closed:
            self._something.clear()
        return self._is_closed and not self._is_known

    def _script_was_killed(self) -> bool:
        try:
            job = look(self._slurm, self._job_ref)
        except (SlurmCommandError, SlurmNotFoundError):
            return False
        self._unanswered_since = None
        return standing(job, self._restarts) is Standing.SCRIPT_DIED

    def _requeue(self) -> bool:
        handed = HandBack(self._slurm, self._job_ref, self._restarts, self._clock).requeue()
        return handed.outcome is RequeueOutcome.DONE
