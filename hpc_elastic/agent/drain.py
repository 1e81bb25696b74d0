"""One agent's part in a drain: hear what asks for it, warn workers, agree on a step, keep the deadline."""

from __future__ import annotations

import signal

from hpc_elastic.agent.local_group import KILL_AFTER_S, NO_STEP, LocalGroup
from hpc_elastic.agent.node_workers import NodeWorkers
from hpc_elastic.agent.parts import AgentParts
from hpc_elastic.agent.wish import DrainTimes, Wish, heard
from hpc_elastic.rendezvous.journal import Cause, RoundFormed, Then
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


class Signalled:
    """Turns signals into a wish, and the wish into warnings and deadlines of the workers.

    Args:
        parts: what the agent is put together from.
        workers: this node's.
    """

    def __init__(self, parts: AgentParts, workers: NodeWorkers) -> None:
        self._parts = parts
        self._workers = workers
        self._run: SharedRun = parts.rendezvous.run
        self.wish = Wish()

    @property
    def asks_to_leave(self) -> bool:
        """Whether a signal has asked for the end of the workers."""
        return self.wish.cause is not None

    def note(self) -> None:
        """Latch what has been signalled; nothing is written for it here, so it cannot be held up."""
        parts = self._parts
        caught = parts.loop.take_signals()
        for number in caught:
            name, cause = signal.Signals(number).name, parts.signals.cause(number)
            left_s = parts.times.drain.of(cause)
            parts.log.say(f"{name} received{self._hint(cause, left_s)}")
            limit = parts.clock.monotonic() + left_s
            self.wish = heard(self.wish, cause, name, limit)
        if caught and self._workers.group is not None and self._workers.group.is_stopping:
            self.end_sooner()

    def _hint(self, cause: Cause, left_s: float) -> str:
        """Return what to tell somebody who has typed Ctrl-C for the first time."""
        if cause is not Cause.INTERRUPT or self.wish.cause is not None:
            return ""
        return f": workers have {left_s:g} s to save and leave; once more ends them now"

    def end_sooner(self) -> None:
        """End the workers by the time that the wish leaves them."""
        deadline = self._parts.clock.monotonic() if self.wish.at_once else self.wish.deadline
        if deadline is not None:
            self._workers.stop_at(deadline)

    def heed(self, drain: LocalDrain | None) -> None:
        """Warn this node's workers and keep their deadline, whether the others can be told or not."""
        if self.wish.cause is None or drain is None:
            return
        drain.heed(self.wish)
        if self.wish.at_once:
            self._workers.stop(0.0)
        elif drain.is_over(self._parts.clock.monotonic()):
            self._workers.stop(min(KILL_AFTER_S, self._parts.times.told))

    def tell(self) -> None:
        """Ask all nodes to drain for what this agent was signalled."""
        cause = self.wish.cause
        if cause is not None and not self._run.state.leaving:
            self._run.request_drain(cause, Then.LEAVE, self.wish.detail)
