"""The workers of one node, from round to round: how torch sees them, and who watches over them."""

from __future__ import annotations

import math
import os
import signal
from typing import TYPE_CHECKING

from hpc_elastic.errors import InputError
from hpc_elastic.meet.shared_run import SharedRun
from hpc_elastic.node.decision import Action, Group
from hpc_elastic.node.hangs.hang_start import HangGuard
from hpc_elastic.node.listeners.telemetry_hooks import ASSIGN_RANKS, START
from hpc_elastic.node.outcome import Outcome
from hpc_elastic.node.setup.agent_log import SizeNews
from hpc_elastic.node.setup.agent_setup import AgentParts
from hpc_elastic.node.spec import WorkerGroup, WorkerSpec, WorkerState
from hpc_elastic.node.workers.critical_section_wait import LOOK_S, StopHold
from hpc_elastic.node.workers.local_group import LocalGroup, Results
from hpc_elastic.record.journal import RoundFormed

if TYPE_CHECKING:
    from hpc_elastic.node.workers.stuck_in_kernel import Wedge

_STATES = {
    Group.RUNNING: WorkerState.HEALTHY,
    Group.FAILED: WorkerState.FAILED,
    Group.STOPPED: WorkerState.STOPPED,
    Group.SUCCEEDED: WorkerState.SUCCEEDED,
}


class NodeWorkers:
    """Starts the workers of each round and ends them; keeps torch's view of them up to date.

    Args:
        spec: what to run.
        parts: what the agent is put together from.
    """

    def __init__(self, spec: WorkerSpec, parts: AgentParts) -> None:
        self._parts = parts
        self._run: SharedRun = parts.rendezvous.run
        self._seen: Group | None = None
        self.view = WorkerGroup(spec)
        self.telemetry = parts.telemetry(self.view, lambda: self._run.state.crashes)
        self.group: LocalGroup | None = None
        self.wedge: Wedge | None = None
        self.hangs = HangGuard(parts)
        self.size_news = SizeNews(parts.log.say, self._run.membership.node_id)
        self._hold = self._new_hold()
        self.last: Results = ({}, {})
        self._crashes: int | None = None  # of the run, when this agent's last round began
        self._become(WorkerState.INIT)

    def open(self) -> None:
        """Begin to watch over whatever comes."""
        self._parts.services.open(self.telemetry)

    def close(self) -> None:
        """End workers that still run, and what watches over them."""
        try:
            if self.group is not None:
                self.group.end()
        finally:
            self._parts.services.close()
            self.telemetry.close()

    @property
    def running(self) -> LocalGroup:
        """The workers of this round."""
        if self.group is None:
            raise RuntimeError("no workers have been started")
        return self.group

    def wanted(self) -> None:
        """Take note that workers are to be started in another round."""
        self.last = {}, self.last[1]  # what they returned in the last one is worth nothing
        if self.view.state is WorkerState.SUCCEEDED:
            self._become(WorkerState.STOPPED)
        self.telemetry.initializing()

    def start(self, formed: RoundFormed) -> LocalGroup:
        """Start the workers of a round.

        Raises:
            InputError: the command cannot be started.
            OSError: no space or no permission for logs or channels.
        """
        parts, services = self._parts, self._parts.services
        watched = services.before_workers()
        run = parts.run._replace(defaults=(*parts.run.defaults, *watched.items())) if watched else parts.run
        with self.telemetry.step(ASSIGN_RANKS):
            group = LocalGroup(formed, self._run.membership.node_id, parts.scratch, run, parts.start)
        self.hangs.begin(group)
        self.size_news.begin(formed, self._run.state)
        parts.log.round_formed(formed, group.place, self._restart())
        self.group, self._seen, self.wedge = group, Group.RUNNING, None
        self._hold = self._new_hold()
        try:
            with self.telemetry.step(START):
                group.start(parts.command, restarts=self._run.state.restarts)
        except (InputError, OSError):
            self.group = None
            services.after_workers()
            raise
        group.describe(self.view, WorkerState.HEALTHY)
        self.telemetry.state_changed()
        self.telemetry.initialized()
        for path in group.context.log_files():
            parts.loop.watch.add_file(path)
        return group

    def _restart(self) -> str:
        """Return which restart this is, if a failure has led to it since this agent's last round."""
        before, self._crashes = self._crashes, self._run.state.crashes
        if before is None or self._crashes == before:
            return ""
        return f"restart {self._crashes} of {self.view.spec.max_restarts}"

    def status(self, now: float) -> Group:
        """Look at the processes without blocking."""
        status = self.running.status(now)
        if status is not self._seen:
            self._see(status)
        return status

    def _see(self, status: Group) -> None:
        self._seen = status
        if status.is_gone:
            self.telemetry.stopped()
            self._parts.services.after_workers()
        if status in _STATES:
            self._become(_STATES[status])

    def look_for_wedged(self, status: Group) -> None:
        """Look whether a worker hangs in the kernel; what this node is blind for may be the cause of it."""
        if status.is_gone or self.wedge is not None:
            return
        group, services = self.running, self._parts.services
        sees = self._run.blind_since is None
        pids = services.stuck(group.context.pids().values() if sees else ())
        if not pids:
            return
        self._give_up(group, pids, services.state_timeout_s)

    def _new_hold(self) -> StopHold:
        path = os.path.join(self._parts.paths.nodes, self._run.membership.node_id)
        return StopHold(self._parts.log.say, path)

    @property
    def is_held(self) -> bool:
        """Whether the end of the workers waits for a critical section."""
        return self._hold.is_on

    @property
    def nap_s(self) -> float:
        """How long the loop may sleep, as far as critical sections and a look for hangs go [s]."""
        return min(LOOK_S if self._hold.is_on else math.inf, self.hangs.nap_s)

    def stop_gently(self, timeout: float, deadline: float | None) -> None:
        """Ask the workers to end for what happened elsewhere; critical sections have some time to be left.

        Args:
            timeout: from SIGTERM to SIGKILL [s].
            deadline: of a drain under way, by the monotonic clock [s].
        """
        now = self._parts.clock.monotonic()
        until = self._hold.asked_at(now) + self._parts.times.drain.critical
        self.stop(timeout, hold_until=until if deadline is None else min(until, deadline))

    def stop(self, timeout: float, *, hold_until: float = -math.inf) -> None:
        """Ask the workers to end; SIGKILL after the timeout [s]; see `stop_at`."""
        self.stop_at(self._parts.clock.monotonic() + timeout, hold_until=hold_until)

    def stop_at(self, kill_at: float, *, hold_until: float = -math.inf) -> None:
        """Ask the workers to end, unless one is in a critical section; then ask again.

        Args:
            kill_at: when they are sent SIGKILL, by the monotonic clock [s].
            hold_until: when critical sections are not waited for any longer, by the same clock [s].
        """
        group, now = self.running, self._parts.clock.monotonic()
        if not group.is_stopping and self._hold.holds(group.busy(), now, hold_until):
            return
        self.telemetry.stopping()
        self.running.stop(signal.SIGTERM, kill_at)

    def end(self, action: Action) -> Action:
        """Take leave of workers that are gone; return what to do then.

        Args:
            action: what follows if they are really gone.
        """
        group = self.running
        self._hold.release()
        self.hangs.end()
        for path in group.context.log_files():
            self._parts.loop.watch.remove(path)
        group.context.close(timeout=0)
        unkillable = group.context.unkillable()
        if not unkillable:
            group.remove_empty_logs()
        for process in unkillable:
            self._parts.log.say(f"cannot be killed: {process}")
            action = self._outwait(group, action)
        self.last = group.values(), group.failures()
        self.group = None
        return action

    def _outwait(self, group: LocalGroup, action: Action) -> Action:
        """Return what to do beside a worker that SIGKILL has not ended: start no other one next to it."""
        if action is not Action.REJOIN:
            return action
        from hpc_elastic.node.undead import PATIENCE_S, leave_word, wait_for_undead  # noqa: PLC0415 - rare

        pids = wait_for_undead(group, self._parts)
        if not pids:
            return action
        self._give_up(group, pids, PATIENCE_S)
        if self.wedge is not None:
            leave_word(self._run, self.wedge.words)
        return Action.ABANDON

    def _give_up(self, group: LocalGroup, pids: tuple[int, ...], timeout_s: float) -> None:
        from hpc_elastic.node.workers.stuck_in_kernel import wedge_of  # noqa: PLC0415 - rare

        wall_s = self._parts.clock.wall()
        self.wedge = wedge_of(group, pids, timeout_s, self._parts.run.node, wall_s)
        self._parts.log.say(self.wedge.words)
        self._become(WorkerState.UNHEALTHY)

    def left(self, outcome: Outcome) -> Outcome:
        """Take note of how the agent ends; return it."""
        self._become(outcome.result.state)
        self.telemetry.ended(outcome)
        return outcome

    def _become(self, state: WorkerState) -> None:
        self.view.state = state
        self.telemetry.state_changed()
