"""The interface to Slurm for requests of a drain and for the cause of a signal; this one never answers.

Below Slurm it is `hpc_elastic.slurm.watch.job_watch.JobWatch`, which works in a thread of its own: Slurm may
take seconds to answer, and the agent's loop never waits for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

from hpc_elastic.meet.rules import is_proposer
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import RoundFormed
from hpc_elastic.store.plain_file import list_plain

BEATS = 5  # a listing per heartbeat would be a third operation beside its two, for something so rare


class Notices(Protocol):
    """The source of an agent's notices, which come to its loop (`EventLoop.notices`)."""

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

    def ask_why(self, signalled_at: float, *, is_warning: bool) -> None:
        """Find out why a signal has come; a notice to the agent's loop will tell.

        Args:
            signalled_at: when it came, by the monotonic clock [s].
            is_warning: whether it was the signal of a warning, which sites can have preemption send.
        """
        ...

    def hear_limit(self, left_s: float) -> None:
        """Take note that the time limit was moved, as another node has found out.

        Args:
            left_s: how long the job may still run, at most [s].
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
        """Do nothing."""

    def ask_why(self, signalled_at: float, *, is_warning: bool) -> None:
        """Do nothing."""

    def hear_limit(self, left_s: float) -> None:
        """Look at no limit."""

    def close(self) -> None:
        """End nothing."""


class LaterNotices:
    """The source of notices is made when it is needed first, which is after the workers have started.

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

    def ask_why(self, signalled_at: float, *, is_warning: bool) -> None:
        """Find out why a signal has come."""
        self._notices().ask_why(signalled_at, is_warning=is_warning)

    def hear_limit(self, left_s: float) -> None:
        """Take note that the time limit was moved, if this node is to look at it."""
        if self._made is not None:
            self._made.hear_limit(left_s)

    def close(self) -> None:
        """End."""
        if self._made is not None:
            self._made.close()


class DrainFile:
    """Looks for the file now and then: every `BEATS` heartbeats.

    Only the first few nodes of a round look. They list the run directory: a network file system
    can hide a name that was asked for too early, but not from a listing.

    Args:
        paths: the run.
        interval: time between two looks [s].
    """

    def __init__(self, paths: RunPaths, interval: float) -> None:
        self._paths = paths
        self._interval = interval
        self._look_at = float("-inf")
        self._is_there = False

    def asks(self, running: RoundFormed | None, node_id: str, now: float) -> bool:
        """Tell whether the file is there, by the last look.

        Args:
            running: the round whose workers run, if any.
            node_id: this agent's id.
            now: monotonic time [s].
        """
        if now >= self._look_at and running is not None and is_proposer(running, node_id):
            self._look_at = now + self._interval
            try:
                # no other user is to end the run with a directory in the place of the run's
                names = list_plain(self._paths.root, links=True)
                self._is_there = os.path.basename(self._paths.drain) in names
            except OSError:
                pass
        return self._is_there

    def heeded(self) -> None:
        """Take the file away: its request is in the journal."""
        if not self._is_there:
            return
        self._is_there = False
        self._look_at = float("inf")  # this agent leaves
        try:
            os.unlink(self._paths.drain)
        except OSError:
            pass
