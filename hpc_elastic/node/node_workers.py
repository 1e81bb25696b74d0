"""The workers of one node, from round to round: their start, their state, and torch's view of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_elastic.errors import InputError, StoreError
from hpc_elastic.meet.member_names import steps_text
from hpc_elastic.meet.shared_run import SharedRun
from hpc_elastic.node.decision import Action, Group
from hpc_elastic.node.ending import WorkersEnding
from hpc_elastic.node.hangs.hang_start import HangGuard
from hpc_elastic.node.listeners.telemetry_hooks import ASSIGN_RANKS, START
from hpc_elastic.node.outcome import Outcome
from hpc_elastic.node.setup.agent_log import SizeNews
from hpc_elastic.node.setup.agent_setup import AgentParts
from hpc_elastic.node.spec import WorkerGroup, WorkerSpec, WorkerState
from hpc_elastic.node.workers.local_group import LocalGroup, Results
from hpc_elastic.node.workers.worker_env import place_of
from hpc_elastic.record.journal import RoundFormed

if TYPE_CHECKING:
    from hpc_elastic.node.hangs.paces import PaceWatch
    from hpc_elastic.node.setup.work_log import WorkLog

_TELL_OF_WORK = 2  # the first nodes of a round, which write down how far its workers are
_STATES = {
    Group.RUNNING: WorkerState.HEALTHY,
    Group.FAILED: WorkerState.FAILED,
    Group.STOPPED: WorkerState.STOPPED,
    Group.SUCCEEDED: WorkerState.SUCCEEDED,
}

_IMPORTING_S = 120.0
_IMPORTING_LOOK_S = 0.25


def _news(run: SharedRun) -> tuple[object, ...]:
    """Return the value whose change ends a wait."""
    state = run.state
    return state.epoch, state.round, state.drain, state.ended, state.ending


class NodeWorkers:
    """Starts the workers of each round, watches them, and keeps torch's view of them up to date.

    Args:
        spec: the program, or the function, and the limits.
        parts: the agent's parts.
    """

    def __init__(self, spec: WorkerSpec, parts: AgentParts) -> None:
        self._parts = parts
        self._run: SharedRun = parts.rendezvous.run
        self._seen: Group | None = None
        self.view = WorkerGroup(spec)
        self.telemetry = parts.telemetry(self.view, lambda: self._run.state.crashes)
        self.group: LocalGroup | None = None
        self._paces: PaceWatch | None = None  # of this round, if its workers tick
        self.ending = WorkersEnding(parts, self.telemetry.stopping)
        self.hangs = HangGuard(parts)
        self._work: WorkLog | None = None  # of this round, if this node tells of it
        self.size_news = SizeNews(parts.log.say, self._run.membership.node_id)
        self.last: Results = ({}, {})
        self._log_files: list[str] = []  # of this round, that are watched
        self._crashes: int | None = None  # of the run, when this agent's last round began
        self._become(WorkerState.INIT)

    def open(self) -> None:
        """Begin to watch."""
        self._parts.services.open(self.telemetry)

    def close(self) -> None:
        """End workers that still run, and the watch."""
        try:
            if self.group is not None:
                self.group.end()
            self._end_work()
        finally:
            self._parts.services.close()
            self.telemetry.close()
            if self.group is not None:
                self.group.forget()

    @property
    def running(self) -> LocalGroup:
        """The workers of this round."""
        if self.group is None:
            raise RuntimeError("no workers have been started")
        return self.group

    def wanted(self) -> None:
        """Take note that workers are to be started in another round."""
        self.last = {}, self.last[1]  # the values of the last round are worth nothing
        if self.view.state is WorkerState.SUCCEEDED:
            self._become(WorkerState.STOPPED)
        self.telemetry.initializing()

    def await_modules(self, formed: RoundFormed) -> None:
        """Wait while modules are imported for the workers of a round.

        Ends at a signal, at news of the run and after two minutes; then the workers import them themselves.
        """
        preloader, run = self._parts.start.preloader, self._run
        if preloader is None:
            return
        preloader.look_for_lessons()
        until = self._parts.clock.monotonic() + _IMPORTING_S
        known = _news(run)
        while preloader.is_importing() and not self._parts.loop.signals and _news(run) == known:
            now = self._parts.clock.monotonic()
            if now >= until:
                break
            self._parts.loop.wait(min(until - now, _IMPORTING_LOOK_S), preloader.fds())
            try:
                run.tick(look=True)
            except StoreError:
                break
        is_first = place_of(formed.members, run.membership.node_id).group_rank == 0
        preloader.begin_round(formed.number, writes=is_first)

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
        self.group, self._seen = group, Group.RUNNING
        self.ending.begin()
        try:
            with self.telemetry.step(START):
                group.start(parts.command, restarts=self._run.state.restarts)
        except (InputError, OSError):
            self.group = None
            services.after_workers()
            raise
        if group.place.group_rank < _TELL_OF_WORK:
            from hpc_elastic.node.setup.work_log import WorkLog  # noqa: PLC0415 - two nodes need it

            self._work = WorkLog(parts, group)
        self._run.membership.tell_steps = lambda: steps_text([one.last_step for one in group.views])
        if parts.log.marks is not None:
            parts.log.marks.begin(formed.number, group.place.base_rank, group.own_logs(parts.paths))
        group.describe(self.view, WorkerState.HEALTHY)
        self.telemetry.state_changed()
        self.telemetry.initialized()
        self._log_files = group.context.log_files()
        for path in self._log_files:
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
        status, before = self.running.status(now), self._seen
        if self._work is not None and before is not None and not before.is_gone:
            self._work.look(now)
        if self._parts.log.marks is not None:
            self._parts.log.marks.look(now)
        self._look_at_paces(now)
        if self._parts.gpus is not None and (samples := self._parts.gpus.look(now)):
            self.telemetry.gpus(samples)
        self.telemetry.steps(self.running.channels, now)
        if status is not before:
            self._see(status)
        return status

    def _look_at_paces(self, now: float) -> None:
        group = self.running
        if self._paces is None and any(view.ticks for view in group.views):
            from hpc_elastic.node.hangs.paces import PacePlace, PaceWatch  # noqa: PLC0415 - if workers tick

            is_first = group.place.group_rank == 0
            where = self._parts.paths.paces, self._parts.run.node, group.formed.number
            place = PacePlace(*where, group.place.base_rank, is_first)
            self._paces = PaceWatch(place, group.channels, self._run.report_slow, now)
        if self._paces is not None:
            self._paces.look(now)

    def _see(self, status: Group) -> None:
        self._seen = status
        if status.is_gone:
            self.telemetry.stopped()
            self._parts.services.after_workers()
        if status in _STATES:
            self._become(_STATES[status])

    def look_for_stuck(self, status: Group) -> None:
        """Look whether a worker waits in the kernel for too long."""
        if not status.is_gone and self.ending.look_for_stuck(self.running) is not None:
            self._become(WorkerState.UNHEALTHY)

    def end(self, action: Action) -> Action:
        """Take leave of workers that are gone; return the act that follows.

        Args:
            action: the act that follows if no process is left.
        """
        group = self.running
        self._run.membership.tell_steps = str
        if self._parts.log.marks is not None:
            self._parts.log.marks.end()  # before empty logs are removed
        self.hangs.end()
        for path in self._log_files:
            self._parts.loop.watch.remove(path)
        follows, action = action, self.ending.finish(group, action)
        if action is not follows:  # a process is left
            self._become(WorkerState.UNHEALTHY)
        self.last = group.values(), group.failures()
        self.group = None
        if self._parts.start.preloader is not None:
            self._parts.start.preloader.end_round(goes_on=action is Action.REJOIN)
        self._end_work()
        group.forget()
        return action

    def _end_work(self) -> None:
        if self._paces is not None:
            self._paces.close()
            self._paces = None
        if self._work is not None:
            self._work.close()
            self._work = None

    def left(self, outcome: Outcome) -> Outcome:
        """Take note of the agent's end; return it."""
        self._become(outcome.result.state)
        self.telemetry.ended(outcome)
        return outcome

    def _become(self, state: WorkerState) -> None:
        self.view.state = state
        self.telemetry.state_changed()
