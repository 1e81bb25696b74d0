"""What signals have asked of this agent, latched before anything is written anywhere. Pure."""

from __future__ import annotations

from typing import NamedTuple

from hpc_elastic.record.journal import Asked, Cause
from hpc_elastic.settings.of_run import RunSettings
from hpc_elastic.settings.setting import agents
from hpc_elastic.settings.table import JobSettings


class Unasked(NamedTuple):
    """What becomes of workers that never ask whether to stop, when all are to save and leave."""

    runs_on: bool = False  # until their time is up; else they get SIGTERM at once
    number: int | None = None  # the signal that they get at once if they run on


class DrainTimes(NamedTuple):
    """How long the workers may take to save and stop [s], by what asked for it."""

    # SIGTERM: Slurm kills KillWait (30 s by default) later; or Ctrl-C
    stop: float = agents(JobSettings.stop_timeout)
    # warned before the time limit, or asked by `stop` or a joining node
    warning: float = agents(RunSettings.warn_timeout)
    is_stop_given: bool = False  # by a flag: then it holds, whatever Slurm says
    # what ends for another reason waits so long for critical sections
    critical: float = agents(JobSettings.critical_timeout)
    unasked: Unasked = Unasked()

    def of(self, cause: Cause) -> float:
        """Return the time for a cause [s]."""
        return self.stop if cause in (Cause.PREEMPTION, Cause.INTERRUPT) else self.warning


class StopRequest(NamedTuple):
    """The first signal says why the agent leaves; later ones make it quicker; Slurm may grant more."""

    cause: Cause | None = None
    detail: str = ""  # what asked, for people: the name of a signal, or other words
    deadline: float | None = None  # when workers that still run are ended, monotonic [s]
    at_once: bool = False  # a second Ctrl-C: do not wait for the workers
    is_known: bool = False  # Slurm has told how long there is; else it is by this agent's flags
    is_signal: bool = False  # `detail` is the name of a signal

    @property
    def asked(self) -> Asked:
        """The signal that asked, if one did."""
        return Asked(self.detail if self.is_signal else "")

    @property
    def words(self) -> str:
        """What asked, if it was no signal."""
        return "" if self.is_signal else self.detail


def heard(
    wish: StopRequest, cause: Cause, detail: str, limit: float, *, is_signal: bool = False
) -> StopRequest:
    """Return the wish after another signal.

    Args:
        wish: what was asked for before.
        cause: what the signal means.
        detail: its name, for people.
        limit: when workers are to be gone for it, monotonic [s].
        is_signal: whether it was a signal, and nothing else that asks.
    """
    if wish.cause is None or wish.deadline is None:
        return StopRequest(cause, detail, limit, is_signal=is_signal)
    again = wish.cause is Cause.INTERRUPT and cause is Cause.INTERRUPT
    return wish._replace(deadline=min(wish.deadline, limit), at_once=wish.at_once or again)


def granted(wish: StopRequest, limit: float) -> StopRequest:
    """Return the wish when it is known why it was signalled, and how long there is for that.

    What Slurm says replaces what was assumed, be it more or less. What it has said before is a limit:
    a further signal can only leave less time.

    Args:
        wish: what was asked for.
        limit: when workers are to be gone for it, monotonic [s].
    """
    if wish.deadline is None:
        return wish
    return wish._replace(deadline=told(wish.deadline, limit, is_known=wish.is_known), is_known=True)


def told(before: float | None, limit: float, *, is_known: bool) -> float:
    """Return the time of the workers' end, after Slurm has named the time of its SIGKILL [s].

    Args:
        before: the time of their end so far, monotonic [s]; None: unknown.
        limit: the time from Slurm's answer, monotonic [s].
        is_known: whether `before` comes from Slurm; otherwise it is an assumption.
    """
    return min(before, limit) if is_known and before is not None else limit


_MEANS = "preemption, scancel, the time limit or a failed node"


def first_words(name: str, cause: Cause, left_s: float, *, below_slurm: bool) -> str:
    """Return what is known when a first signal comes.

    Args:
        name: the signal.
        cause: what it is taken for.
        left_s: how long the workers have [s].
        below_slurm: whether Slurm may have sent it.
    """
    time = f"workers have {left_s:g} s to save and leave"
    if cause is Cause.INTERRUPT:
        return f"{name} received: {time}; once more ends them now"
    if cause is Cause.PREEMPTION and below_slurm:
        return f"{name} received ({_MEANS}; Slurm is asked which): {time}"
    if cause is Cause.TIME_LIMIT and below_slurm:
        return f"{name} received (a warning, as a rule ahead of the time limit): {time}"
    return f"{name} received: {time}"
