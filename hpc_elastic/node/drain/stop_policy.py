"""How an agent ends its workers: for a drain, for what happened elsewhere, while it sees nothing."""

from __future__ import annotations

from hpc_elastic.meet.join_progress import barrier_text, is_due
from hpc_elastic.meet.shared_run import SharedRun
from hpc_elastic.node.drain.drain import LocalDrain, Signalled
from hpc_elastic.node.node_workers import NodeWorkers
from hpc_elastic.node.setup.agent_setup import AgentParts
from hpc_elastic.node.setup.journal_entries import Reports
from hpc_elastic.node.workers.local_group import KILL_AFTER_S, LocalGroup
from hpc_elastic.record.journal import Cause, Decision

_PATIENCE_S = 8.0  # who waits for the others' workers no longer than this, and a bit, says nothing


class Stopping:
    """Ends the workers of this node; a critical section of one of them holds that up where it may.

    Args:
        parts: what the agent is put together from.
        workers: this node's.
        signalled: what this agent itself was asked for.
        reports: shows a failure before the others are ended.
    """

    def __init__(
        self, parts: AgentParts, workers: NodeWorkers, signalled: Signalled, reports: Reports
    ) -> None:
        self._parts = parts
        self._run: SharedRun = parts.rendezvous.run
        self._workers = workers
        self._signalled = signalled
        self._reports = reports
        self.of_round: LocalDrain | None = None  # the drain of the newest round, if one comes
        self._told_at: float | None = None  # when people were told for whom this node waits [s]

    def end_round(self, group: LocalGroup) -> None:
        """End workers whose round is over."""
        self._reports.show_failure(group)  # it may not be what the round ends for
        if not group.is_stopping and self._run.blind_since is None:
            self._reports.failed_too(group)
            self._reports.failed_leaving(group)
        if self._is_urgent():
            self._workers.stop(KILL_AFTER_S if self._workers.wedge else self._parts.times.shutdown)
            return
        shutdown = self._parts.times.shutdown
        ended = self._run.state.ended
        if ended is not None and ended.cause is Cause.HANG:
            shutdown = min(KILL_AFTER_S, shutdown)  # who makes no progress has nothing to save
        deadline = self.of_round.deadline if self.of_round is not None else None
        self._workers.stop_gently(shutdown, deadline)

    def _is_urgent(self) -> bool:
        """Tell whether nothing is waited for: the end was asked for at once, or others work already."""
        state = self._run.state
        cancelled = state.ending is not None and state.ending.decision is Decision.CANCELLED
        is_fenced = state.epoch > self._run.membership.epoch
        return cancelled or is_fenced or self._workers.wedge is not None or self._signalled.wish.at_once

    def drain(self) -> bool:
        """Take the next step of a drain; return whether to look again at once."""
        drain = self.of_round
        if drain is None:
            return False
        now = self._run.now()
        drain.step(now)
        if not drain.stop_now:
            return False
        deadline = now if drain.deadline is None else drain.deadline
        timeout = min(max(deadline - now, KILL_AFTER_S), self._parts.times.told)
        self._workers.stop(timeout, hold_until=deadline)
        if self._workers.is_held:
            return False
        self._parts.log.say("the workers get the signal to end")
        return True

    def has_waited(self, since: float, now: float) -> bool:
        """Tell whether the exit barrier's time is up; in a drain not before others have had theirs to save.

        Args:
            since: when this node's workers were gone [s].
            now: monotonic time [s].
        """
        drain = self.of_round
        deadline = drain.deadline if drain is not None and self._run.state.drain is not None else None
        is_saving = deadline is not None and now < deadline + 2 * KILL_AFTER_S
        return now - since >= self._parts.times.exit_barrier and not is_saving

    def tell_wait(self, since: float, now: float) -> None:
        """Tell people for whom this node waits; the first of the nodes that wait speaks for all.

        Args:
            since: when this node's workers were gone [s].
            now: monotonic time [s].
        """
        formed, told_at = self._run.state.round, self._told_at
        is_new = told_at is None or told_at < since
        if formed is None or not is_due(since + _PATIENCE_S, None if is_new else told_at, now):
            return
        self._told_at = now
        working = set(self._run.working_members(formed))
        mine = self._run.membership.node_id
        done = [one.node_id for one in formed.members if one.node_id not in working or one.node_id == mine]
        others = [one.node for one in formed.members if one.node_id in working - {mine}]
        if others and done[:1] == [mine]:
            left_s = since + self._parts.times.exit_barrier - now
            self._parts.log.say(barrier_text(others, now - since, left_s))

    def end_blind(self, group: LocalGroup) -> None:
        """End the workers by what was read before, or because this agent was asked to leave."""
        if self._signalled.wish.cause is None:
            self.end_round(group)
        else:
            self._signalled.end_sooner()
