"""What signals have asked of this agent, latched before anything is written anywhere. Pure."""

from __future__ import annotations

from typing import NamedTuple

from hpc_elastic.rendezvous.journal import Cause


class DrainTimes(NamedTuple):
    """How long the workers may take to save and stop [s], by what asked for it."""

    stop: float = 25.0  # SIGTERM: Slurm kills KillWait (30 s by default) later; or Ctrl-C
    warning: float = 90.0  # warned before the time limit, or asked by `stop` or a joining node

    def of(self, cause: Cause) -> float:
        """Return the time for a cause [s]."""
        return self.stop if cause in (Cause.PREEMPTION, Cause.INTERRUPT) else self.warning


class Wish(NamedTuple):
    """The first signal says why the agent leaves; later ones can only make it quicker."""

    cause: Cause | None = None
    detail: str = ""
    deadline: float | None = None  # when workers that still run are ended, monotonic [s]
    at_once: bool = False  # a second Ctrl-C: do not wait for the workers


def heard(wish: Wish, cause: Cause, detail: str, limit: float) -> Wish:
    """Return the wish after another signal.

    Args:
        wish: what was asked for before.
        cause: what the signal means.
        detail: its name, for people.
        limit: when workers are to be gone for it, monotonic [s].
    """
    if wish.cause is None or wish.deadline is None:
        return Wish(cause, detail, limit)
    again = wish.cause is Cause.INTERRUPT and cause is Cause.INTERRUPT
    return wish._replace(deadline=min(wish.deadline, limit), at_once=wish.at_once or again)
