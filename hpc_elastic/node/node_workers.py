"""The workers of one node, from round to round: start, state and end, and torch's view of them.

Whether workers make progress is looked at where there is anything to go by; else it costs next to nothing.

One object ends workers: it asks them, waits for critical sections, and gives up stuck ones. A worker that
waits in the kernel for a broken device or a dead mount outlives SIGKILL. No other worker is started beside
it. It gets some time, since a file server may only be slow; then its node leaves the run.
"""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from hpc_elastic.errors import InputError, StoreError
from hpc_elastic.meet.member_names import steps_text
from hpc_elastic.meet.shared_run import SharedRun
from hpc_elastic.node.decision import Action, Group, Hang
from hpc_elastic.node.listeners.telemetry_hooks import ASSIGN_RANKS, START
from hpc_elastic.node.outcome import Outcome
from hpc_elastic.node.setup.agent_log import SizeNews
from hpc_elastic.node.setup.agent_setup import AgentParts
from hpc_elastic.node.spec import WorkerGroup, WorkerSpec, WorkerState
from hpc_elastic.node.stop_rules import StopOrder
from hpc_elastic.node.workers.local_group import Busy, LocalGroup, Results
from hpc_elastic.node.workers.process_facts import killed_words
from hpc_elastic.node.workers.worker_env import place_of
from hpc_elastic.processes.control_group import read_memory
from hpc_elastic.processes.linux import read_stat
from hpc_elastic.record.journal import NodeUnfit, RoundFormed
from hpc_elastic.store import files

if TYPE_CHECKING:
    from hpc_elastic.multiprocessing.errors import FailureRecord
    from hpc_elastic.node.hangs.activity import ActivityWatch
    from hpc_elastic.node.hangs.hangs import Hangs
    from hpc_elastic.node.hangs.paces import PaceWatch
    from hpc_elastic.node.setup.work_log import WorkLog
    from hpc_elastic.node.workers.stuck_in_kernel import Wedge
    from hpc_elastic.processes.control_group import Memory

_TELL_OF_WORK = 2  # the first nodes of a round, which write down how far its workers are
_STATES = {
    Group.RUNNING: WorkerState.HEALTHY,
    Group.FAILED: WorkerState.FAILED,
    Group.STOPPED: WorkerState.STOPPED,
    Group.SUCCEEDED: WorkerState.SUCCEEDED,
}

_IMPORTING_S = 120.0
_IMPORTING_LOOK_S = 0.25
_ACTIVITY_S = 30.0  # after which the activity of workers is watched that have not told a step
LOOK_S = 0.1  # between two looks at a critical section: its end wakes no loop
_RESCUE_LOOK_S = 0.02  # the same for workers that keep their state
SAY_AGAIN_S = 10.0
SUFFIX = ".held"
STUCK_S = 60.0  # the time of a worker that SIGKILL has not ended
_PAUSE_S = 0.5


def _wakeup_key(run: SharedRun) -> tuple[object, ...]:
    """Return the value whose change ends a wait."""
    state = run.state
    return state.epoch, state.round, state.drain, state.ended, state.ending


class NodeWorkers:
    """Starts the workers of each round, watches them, and keeps torch's view of them up to date."""

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
        known = _wakeup_key(run)
        while preloader.is_importing() and not self._parts.loop.signals and _wakeup_key(run) == known:
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
            self._paces = PaceWatch(place, group.channels, self._run.commit, now)
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


class HangGuard:
    """The guard over the workers of one node, from round to round."""

    def __init__(self, parts: AgentParts) -> None:
        self._parts = parts
        self._run = parts.rendezvous.run
        self._group: LocalGroup | None = None
        self._hangs: Hangs | None = None
        self._started = 0.0  # when the workers were started, monotonic [s]
        self._activity: ActivityWatch | None = None
        self._is_known = False  # whether the run has measured anything in an earlier round
        self._memory: Memory | None = None  # as it was then
        self.hang = Hang.NONE

    @property
    def nap_s(self) -> float:
        """How long the loop may sleep, as far as a look at workers goes [s]."""
        return math.inf if self._hangs is None else self._hangs.nap_s

    @property
    def ran_s(self) -> float:
        """Since when the workers run [s]."""
        return self._parts.clock.monotonic() - self._started

    def begin(self, group: LocalGroup) -> None:
        """Take note that workers are about to be started."""
        self.end()
        self._group, self._started = group, self._parts.clock.monotonic()
        self._memory = read_memory()
        self._is_known = os.path.exists(self._parts.paths.timeouts)

    def look(self, status: Group, *, counts: bool) -> None:
        """Look whether the workers make progress; see `hang`.

        Args:
            status: of the workers.
            counts: whether their time counts: they were not asked to stop.
        """
        group, now = self._group, self._parts.clock.monotonic()
        if group is not None and status is Group.RUNNING:
            self._look_at_activity(group, now)
        if group is None or (self._hangs is None and not self._is_possible(group, counts=counts)):
            return
        if self._hangs is None:
            from hpc_elastic.node.hangs.hangs import Hangs  # noqa: PLC0415 - only if workers tick

            self._hangs = Hangs(self._run, self._parts, group, self._started, self._activity)
        self.hang = self._hangs.look(status, counts=counts and self._run.blind_since is None)

    def _look_at_activity(self, group: LocalGroup, now: float) -> None:
        """Look at workers that have told no step so far, after a while or where their silence has a limit."""
        if self._activity is None:
            is_early = now < self._started + _ACTIVITY_S and self._parts.hangs.silence == math.inf
            if is_early or any(view.ticks for view in group.views):
                return
            from hpc_elastic.node.hangs.activity import ActivityWatch  # noqa: PLC0415 - if no worker ticks

            self._activity = ActivityWatch(self._parts, group, self._started)
        if any(view.ticks for view in group.views) and self._parts.hangs.silence == math.inf:
            self._activity.close()  # its steps tell more
            self._activity = None
            return
        self._activity.look(now)

    def _is_possible(self, group: LocalGroup, *, counts: bool) -> bool:
        """Tell whether there is anything to go by, here or on another node."""
        options = self._parts.hangs
        if self._run.state.hang is not None or options.silence != math.inf:
            return True
        if options.is_off or not counts:
            return False
        given = options.first_step is not None
        return given or self._is_known or any(view.ticks for view in group.views)

    def ask(self, _group: LocalGroup) -> None:
        """Have all nodes write down where their ranks are."""
        if self._hangs is not None:
            self._hangs.ask()

    def report(self, _group: LocalGroup) -> None:
        """End the round: workers make no progress, and it is known which."""
        if self._hangs is not None:
            self._hangs.report()

    def explained(self, failure: FailureRecord) -> FailureRecord:
        """Return a failure with this agent's knowledge of its reason."""
        message = failure.message or self._parts.services.reason(failure.pid)
        words = killed_words(self._memory, read_memory(), failure.exitcode)
        return failure._replace(message="\n".join(filter(None, (message, words))))

    def end(self) -> None:
        """Take leave of workers that are gone."""
        if self._hangs is not None:
            self._hangs.close()
        if self._activity is not None:
            self._activity.close()
        self._group = self._hangs = self._activity = None
        self.hang = Hang.NONE


class WorkersEnding:
    """Ends the workers of a node, round by round.

    Args:
        parts: the agent's parts.
        on_stop: called before the workers get SIGTERM.
        stuck_s: the time of a worker that SIGKILL has not ended.
    """

    def __init__(self, parts: AgentParts, on_stop: Callable[[], None], stuck_s: float = STUCK_S) -> None:
        self._parts = parts
        self._on_stop = on_stop
        self._stuck_s = stuck_s
        self._run = parts.rendezvous.run
        self._hold = self._new_hold()
        self._is_rescuing = False
        self.wedge: Wedge | None = None  # workers of this round that no signal ends

    def begin(self) -> None:
        """Take note of a new round."""
        self._hold, self.wedge, self._is_rescuing = self._new_hold(), None, False

    def _new_hold(self) -> StopHold:
        path = os.path.join(self._parts.paths.nodes, self._run.membership.node_id)
        return StopHold(self._parts.log.say, path)

    @property
    def is_held(self) -> bool:
        """Whether the end of the workers waits for a critical section, or for a rescue of their state."""
        return self._hold.is_on or self._is_rescuing

    @property
    def nap_s(self) -> float:
        """How long the loop may sleep, as far as critical sections and rescues go [s]."""
        if self._is_rescuing:
            return _RESCUE_LOOK_S
        return LOOK_S if self._hold.is_on else math.inf

    def asked_at(self, now: float) -> float:
        """Return the time of the first order to end these workers, monotonic [s]; `now` if this is it."""
        return self._hold.asked_at(now)

    def stop(self, group: LocalGroup, order: StopOrder) -> None:
        """Ask the workers to end, unless one is in a critical section or keeps its state; never blocks."""
        now = self._parts.clock.monotonic()
        self._is_rescuing = not group.is_stopping and group.is_rescuing(now, order.rescue_until)
        if not group.is_stopping and self._hold.holds(group.busy(), now, order.hold_until):
            return
        if self._is_rescuing:
            return
        self._on_stop()
        group.stop(signal.SIGTERM, order.kill_at)

    def look_for_stuck(self, group: LocalGroup) -> Wedge | None:
        """Return the workers that have waited in the kernel for too long, when they are found.

        While this node cannot see the run directory, the same cause may hold up the workers, too.
        """
        if self.wedge is not None:
            return None
        services, sees = self._parts.services, self._run.blind_since is None
        pids = services.stuck(lambda: group.context.pids().values() if sees else ())
        return self._give_up(group, pids, services.state_timeout_s) if pids else None

    def finish(self, group: LocalGroup, action: Action) -> Action:
        """Close a group that is gone; return the act that follows.

        Args:
            group: of this node.
            action: the act that follows if no process is left.
        """
        self._hold.release()
        context = group.context
        context.close(timeout=0)
        unkillable = context.unkillable()
        for process in unkillable:
            self._parts.log.say(f"cannot be killed: {process}")
        if not unkillable:
            group.remove_empty_logs()
        elif action is Action.REJOIN and (pids := self.outwait(group)):
            wedge = self._give_up(group, pids, self._stuck_s)
            with suppress(StoreError):  # this node leaves even if the others do not hear of it
                self._run.commit(NodeUnfit(self._run.membership.epoch, self._run.node, wedge.words))
            return Action.ABANDON
        return action

    def outwait(self, group: LocalGroup) -> tuple[int, ...]:
        """Return the workers that are left after their time; the agent gives signs of life meanwhile."""
        clock, loop = self._parts.clock, self._parts.loop
        if stuck_of(group):
            self._parts.log.say(
                f"no other worker is started beside it; it has {self._stuck_s:g} s to end after all"
            )
        limit = clock.monotonic() + self._stuck_s
        while (pids := stuck_of(group)) and clock.monotonic() < limit and not loop.signals:
            loop.wait(_PAUSE_S)
            with suppress(StoreError):
                self._run.tick()
        return pids

    def _give_up(self, group: LocalGroup, pids: tuple[int, ...], timeout_s: float) -> Wedge:
        from hpc_elastic.node.workers.stuck_in_kernel import wedge_of  # noqa: PLC0415 - rare

        self.wedge = wedge_of(group, pids, timeout_s, self._parts.run.node, self._parts.clock.wall())
        self._parts.log.say(self.wedge.words)
        return self.wedge


def stuck_of(group: LocalGroup) -> tuple[int, ...]:
    """Return the workers of an ended group that are left, in state D."""
    pids = group.context.pids().values() if group.context.unkillable() else ()
    stats = (read_stat(pid) for pid in pids)
    return tuple(stat.pid for stat in stats if stat is not None and stat.state == "D")


class StopHold:
    """Puts off the end of the workers of one round while one of them is in a critical section.

    Args:
        say: shows a line in the agent's log.
        path: the file that tells `status` the reason, without its suffix.
    """

    def __init__(self, say: Callable[[str], None], path: str) -> None:
        self._say = say
        self._path = path + SUFFIX
        self._asked_at: float | None = None
        self._say_at = float("-inf")
        self.is_on = False

    def asked_at(self, now: float) -> float:
        """Return the time of the first order to end the workers [s]; now, if this is it."""
        if self._asked_at is None:
            self._asked_at = now
        return self._asked_at

    def holds(self, busy: Sequence[Busy], now: float, until: float) -> bool:
        """Tell whether the end has to wait.

        Args:
            busy: the workers of this node that are in a critical section.
            now: monotonic time [s].
            until: when it does not wait any longer.
        """
        asked_at = self.asked_at(now)
        if busy and now < until:
            if now >= self._say_at:
                left = f"at most {until - now:.0f} s more"
                self._show(f"{_words_of(busy, now)}: the end of the workers waits for it, {left}", now)
            self.is_on = True
            return True
        if self.is_on:
            self.release()
            waited = f"after {now - asked_at:.1f} s"
            self._say(
                f"{_words_of(busy, now)}: {waited} its time is up, the workers are ended all the same"
                if busy
                else f"the critical section was left {waited}"
            )
        return False

    def release(self) -> None:
        """Take note that nothing is put off any more."""
        if self.is_on:
            self.is_on = False
            with suppress(OSError):
                os.unlink(self._path)

    def _show(self, text: str, now: float) -> None:
        self._say_at = now + SAY_AGAIN_S
        self._say(text)
        with suppress(OSError):
            files.replace(self._path, f"{text}\n".encode())


def _words_of(busy: Sequence[Busy], now: float) -> str:
    more = f" and {len(busy) - 1} more" if len(busy) > 1 else ""
    first = busy[0]
    return f"rank {first.rank} is in '{first.name}' since {max(0.0, now - first.since):.0f} s{more}"
