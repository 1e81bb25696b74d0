"""The interface to Slurm for requests of a drain and for the cause of a signal; this one never answers.

Below Slurm it is `hpc_elastic.slurm.watch.job_watch.JobWatch`, which works in a thread of its own: Slurm may
take seconds to answer, and the agent's loop never waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from hpc_elastic.record.journal import Answer, Cause


class Early(Protocol):
    """A warning before the time limit that has come too early."""

    @property
    def left_s(self) -> float:
        """How long it was to the limit [s]."""
        ...

    @property
    def before_s(self) -> float:
        """How long before the limit the workers are going to be asked [s]."""
        ...


class Notice(Protocol):
    """Something that an agent is told."""

    @property
    def cause(self) -> Cause:
        """Why the workers are to stop."""
        ...

    @property
    def detail(self) -> str:
        """The same for people."""
        ...

    @property
    def answer(self) -> Answer:
        """What Slurm says of the signal that it explains."""
        ...

    @property
    def until(self) -> float | None:
        """When workers that still run are ended, by the monotonic clock [s]; None: by this agent's flags."""
        ...

    @property
    def explains(self) -> bool:
        """Whether it tells more about the drain under way, in place of asking for one."""
        ...

    @property
    def early(self) -> Early | None:
        """That the warning that was asked about has come too early, if it has; nothing is asked for then."""
        ...


class Notices(Protocol):
    """Tells an agent what it hears elsewhere."""

    is_below_slurm: bool

    @property
    def is_asking(self) -> bool:
        """Whether it is being found out why a signal has come."""
        ...

    def begin(self, *, is_first: bool) -> None:
        """Take note that a round with this node has formed.

        Args:
            is_first: whether this node is the round's first, which asks for all of them, as far as
                the nodes are one job.
        """
        ...

    def take(self) -> Notice | None:
        """Return the next notice, None if there is none; never blocks."""
        ...

    def ask_why(self, signalled_at: float, *, is_warning: bool) -> None:
        """Find out why a signal has come; a notice will tell.

        Args:
            signalled_at: when it came, by the monotonic clock [s].
            is_warning: whether it was the signal of a warning, which sites can have preemption send.
        """
        ...

    def close(self) -> None:
        """End."""
        ...


class NoNotices:
    """Hears nothing."""

    is_below_slurm = False
    is_asking = False

    def begin(self, *, is_first: bool) -> None:
        """Listen to nobody."""

    def take(self) -> Notice | None:
        """Return None."""
        return None

    def ask_why(self, signalled_at: float, *, is_warning: bool) -> None:
        """Ask nobody."""

    def close(self) -> None:
        """End nothing."""


class LaterNotices:
    """Who tells is made when it is needed first, which is after the workers have started.

    Args:
        make: makes it.
        is_alone: whether each node listens for itself, not only the first one of a round.
    """

    is_below_slurm = True

    def __init__(self, make: Callable[[], Notices], *, is_alone: bool) -> None:
        self._make = make
        self._is_alone = is_alone
        self._made: Notices | None = None

    def _notices(self) -> Notices:
        if self._made is None:
            self._made = self._make()
        return self._made

    @property
    def is_asking(self) -> bool:
        """Whether it is being found out why a signal has come."""
        return self._made is not None and self._made.is_asking

    def begin(self, *, is_first: bool) -> None:
        """Listen if this node is to."""
        if is_first or self._is_alone or self._made is not None:
            self._notices().begin(is_first=is_first)

    def take(self) -> Notice | None:
        """Return the next notice."""
        return None if self._made is None else self._made.take()

    def ask_why(self, signalled_at: float, *, is_warning: bool) -> None:
        """Find out why a signal has come."""
        self._notices().ask_why(signalled_at, is_warning=is_warning)

    def close(self) -> None:
        """End."""
        if self._made is not None:
            self._made.close()
