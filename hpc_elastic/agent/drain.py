"""One agent's part in a drain: warn its workers once, agree on a step, keep the deadline."""

from __future__ import annotations

from hpc_elastic.agent.local_group import NO_STEP, LocalGroup
from hpc_elastic.agent.wish import DrainTimes, Wish
from hpc_elastic.rendezvous.journal import Cause, RoundFormed
from hpc_elastic.rendezvous.rules import is_proposer, stop_step
from hpc_elastic.rendezvous.shared_run import SharedRun


class LocalDrain:
    """The drain of one round on this node.

    Args:
        run: to agree with the other nodes.
        group: this node's workers.
        times: how long the workers may take.
    """

    def __init__(self, run: SharedRun, group: LocalGroup, times: DrainTimes) -> None:
        self._run = run
        self._group = group
        self._times = times
        self._told = False
        self._cause: Cause | None = None
        self._deadline: float | None = None
        self.stop_now = False  # no worker will stop by itself, or the time is up

    @property
    def deadline(self) -> float | None:
        """When workers that still run are ended, by the monotonic clock [s]."""
        return self._deadline

    def heed(self, wish: Wish) -> None:
        """Warn the workers of what this agent was asked for, before anybody else knows of it."""
        if wish.deadline is not None:
            self._group.request_drain(self._run.now)
            self._shorten(wish.deadline)

    def is_over(self, now: float) -> bool:
        """Tell whether the workers have had their time."""
        return self._deadline is not None and now >= self._deadline

    def step(self, now: float) -> None:
        """Take the next step of the protocol; never blocks."""
        state = self._run.state
        formed, drain = state.running, state.drain
        if formed is None or drain is None:
            return
        if self._cause is not drain.cause:
            self._cause = drain.cause
            self._shorten(now + self._times.of(drain.cause))
        self._group.request_drain(self._run.now)
        if state.stop_step is None:
            self._agree(formed, now)
            state = self._run.state
        if state.stop_step is not None:
            self._group.set_stop_step(state.stop_step)
        self.stop_now = state.stop_step == NO_STEP or self.is_over(now)

    def _shorten(self, limit: float) -> None:
        self._deadline = limit if self._deadline is None else min(self._deadline, limit)

    def _agree(self, formed: RoundFormed, now: float) -> None:
        bound = self._group.stop_bound(now)
        member = self._run.membership
        if bound is None:
            return
        if not self._told:
            member.tell_step(formed.number, bound)
            self._told = True
        if is_proposer(formed, member.node_id):
            alive = self._run.live_members(formed)
            step = stop_step(alive, member.told_steps(formed.number))
            if step is not None:
                self._run.agree_stop(formed.number, step)
