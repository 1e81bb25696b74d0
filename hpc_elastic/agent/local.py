"""The agent of one node: one thread that rendezvouses, runs the workers and decides what is next."""

from __future__ import annotations

import os
import signal
from typing import Any, NamedTuple

from hpc_elastic.agent.decision import Action, Facts, Group, decide
from hpc_elastic.agent.drain import DrainTimes, LocalDrain
from hpc_elastic.agent.local_group import Command, LocalGroup
from hpc_elastic.agent.loop import EventLoop
from hpc_elastic.agent.report import AgentLog
from hpc_elastic.agent.spec import ElasticAgent, RunResult, WorkerGroup, WorkerSpec, WorkerState
from hpc_elastic.agent.worker_env import RunEnv
from hpc_elastic.clock import Clock
from hpc_elastic.errors import (
    InputError,
    RendezvousClosedError,
    RendezvousGracefulExitError,
    RendezvousTimeoutError,
)
from hpc_elastic.ids import ExitCode
from hpc_elastic.multiprocessing.context import StartSettings
from hpc_elastic.multiprocessing.errors import ProcessFailure
from hpc_elastic.paths import RunPaths
from hpc_elastic.rendezvous.journal import Cause, Decision, RoundFormed, Then
from hpc_elastic.rendezvous.roster import Phase
from hpc_elastic.rendezvous.shared_fs import RendezvousInterruptedError, SharedFsRendezvous
from hpc_elastic.rendezvous.state import RunState
from hpc_elastic.store.shared_dir import segment_name

KILL_AFTER_S = 5.0  # between the end of a drain's time and SIGKILL
FAST_LOOK_S = 0.02  # between two looks while nodes agree on something


class AgentTimes(NamedTuple):
    """How long things may take [s]."""

    drain: DrainTimes = DrainTimes()
    shutdown: float = 30.0  # workers told to end, before SIGKILL
    exit_barrier: float = 300.0


class SignalMeanings(NamedTuple):
    """What a signal to the agent asks for."""

    drain: tuple[int, ...] = (signal.SIGTERM, signal.SIGHUP)  # the nodes are wanted back now
    warning: tuple[int, ...] = (signal.SIGUSR1, signal.SIGUSR2)  # the time limit is near
    interrupt: tuple[int, ...] = (signal.SIGINT,)

    def cause(self, number: int) -> Cause:
        """Return what a signal means."""
        if number in self.warning:
            return Cause.TIME_LIMIT
        return Cause.INTERRUPT if number in self.interrupt else Cause.PREEMPTION


class AgentParts(NamedTuple):
    """What an agent is put together from."""

    clock: Clock
    loop: EventLoop
    log: AgentLog
    rendezvous: SharedFsRendezvous
    command: Command
    run: RunEnv
    start: StartSettings
    paths: RunPaths
    scratch: str  # private node-local directory
    times: AgentTimes
    signals: SignalMeanings
    on_timeout: Then  # LEAVE: hand the job back when too few nodes come; REJOIN: fail


class Outcome(NamedTuple):
    """How this agent's part of the run ended."""

    exit_code: int
    reason: str
    failure: dict[str, Any] | None = None
    result: RunResult = RunResult(WorkerState.STOPPED)


class LocalElasticAgent(ElasticAgent):
    """Runs the workers of one node through all rounds of a run.

    Args:
        spec: what to run.
        parts: what the agent is put together from (see `hpc_elastic.launch`).
    """

    def __init__(self, spec: WorkerSpec, parts: AgentParts) -> None:
        self._spec = spec
        self._parts = parts
        self._rendezvous = parts.rendezvous
        self._worker_group = WorkerGroup(spec)
        self._group: LocalGroup | None = None
        self._drain: LocalDrain | None = None
        self._handled = 0
        self._barrier_since: float | None = None
        self._last_failures: dict[int, ProcessFailure] = {}

    def get_worker_group(self, role: str = "default_role") -> WorkerGroup:
        """Return the worker group; do not change it."""
        return self._worker_group

    def run(self, role: str = "default_role") -> RunResult:
        """Run the workers to their end, over all restarts."""
        return self.run_to_end().result

    def run_to_end(self) -> Outcome:
        """Run the workers to their end; also tell how the agent's process is to exit.

        Never leaves a worker behind, whatever happens.
        """
        try:
            while True:
                outcome = self._join() or self._supervise()
                if outcome is not None:
                    return outcome
        finally:
            if self._group is not None:
                self._group.context.close(signal.SIGTERM, timeout=KILL_AFTER_S)
            self._rendezvous.shutdown()

    # joining

    def _join(self) -> Outcome | None:
        """Wait for the next round and start the workers; an outcome ends the run for this node."""
        self._watch_directories(peers=True)
        try:
            info = self._rendezvous.next_rendezvous()
        except RendezvousInterruptedError:
            self._take_signals()
            return self._leave_unstarted() if self._state.leaving else self._join()
        except RendezvousTimeoutError as error:
            return self._too_few(str(error))
        except RendezvousClosedError:
            return self._leave_unstarted()
        except RendezvousGracefulExitError as error:
            return Outcome(ExitCode.FENCED, str(error))
        if info.round is None:
            raise RuntimeError("the rendezvous keeps no record of its rounds")
        return self._start(info.round)

    def _leave_unstarted(self) -> Outcome:
        """Leave without workers; if nobody has any, this start of the job is over."""
        state = self._state
        drain = state.drain
        if state.ending is None and drain is not None and state.running is None:
            self._rendezvous.report_drained(drain.cause, drain.detail)
        return self._final_outcome()

    def _too_few(self, reason: str) -> Outcome:
        self._parts.log.say(reason)
        if self._parts.on_timeout is Then.LEAVE:
            lost = bool(self._state.lost)
            cause = Cause.NODE_LOSS if lost else Cause.JOIN_TIMEOUT
            self._rendezvous.report_drained(cause, reason)
        else:
            self._rendezvous.end_run(Decision.FAILED, exit_code=ExitCode.FAILED, reason=reason)
        return self._final_outcome()

    def _start(self, formed: RoundFormed) -> Outcome | None:
        parts = self._parts
        group = LocalGroup(
            formed, self._rendezvous.membership.node_id, parts.scratch, parts.run, parts.start
        )
        self._group = group
        self._drain = LocalDrain(self._rendezvous, group, parts.times.drain)
        self._barrier_since = None
        self._parts.log.round_formed(formed, group.place)
        try:
            group.start(parts.command, crashes=self._state.crashes)
        except (InputError, OSError) as error:
            self._group = None
            reason = f"the workers cannot be started on {parts.run.node}: {error}"
            self._rendezvous.end_run(Decision.FAILED, exit_code=ExitCode.FAILED, reason=reason)
            return self._final_outcome()
        self._note_group(WorkerState.HEALTHY)
        for path in group.context.log_files():
            parts.loop.watch.add_file(path)
        return None

    # supervising

    def _supervise(self) -> Outcome | None:
        """Look, decide, act, sleep; until the workers are gone and it is clear what is next."""
        group = self._running_group
        while True:
            self._take_signals()
            status = group.status(self._now())
            self._show_phase(status)
            self._look(status)
            action = decide(self._facts(status))
            if action in (Action.REJOIN, Action.LEAVE, Action.STAND_DOWN):
                self._end_group(status)
                return None if action is Action.REJOIN else self._leave(action)
            if not self._act(action, group):
                self._sleep(status)

    def _watch_directories(self, *, peers: bool) -> None:
        """Have this machine wake the loop when others write, on file systems where it can."""
        paths, watch = self._parts.paths, self._parts.loop.watch
        watch.add_directory(os.path.join(paths.journal, segment_name(self._state.last + 1)))
        for directory in (paths.members, paths.steps):
            if peers:
                watch.add_directory(directory)
            else:
                watch.remove(directory)

    @property
    def _running_group(self) -> LocalGroup:
        if self._group is None:
            raise RuntimeError("no workers have been started")
        return self._group

    @property
    def _state(self) -> RunState:
        return self._rendezvous.state

    def _now(self) -> float:
        return self._parts.clock.monotonic()

    def _look(self, status: Group) -> None:
        waits = status.is_gone or self._state.drain is not None
        self._watch_directories(peers=waits)
        self._rendezvous.tick(look=waits)
        if waits and self._barrier_since is None and status.is_gone:
            self._barrier_since = self._now()

    def _facts(self, status: Group) -> Facts:
        rendezvous = self._rendezvous
        since = self._barrier_since
        return Facts(
            state=rendezvous.state,
            epoch=rendezvous.membership.epoch,
            round=self._running_group.formed.number,
            group=status,
            max_restarts=self._spec.max_restarts,
            lost=rendezvous.lost,
            everyone_stopped=status.is_gone
            and rendezvous.everyone_in(Phase.STOPPED, Phase.SUCCEEDED),
            everyone_succeeded=status is Group.SUCCEEDED and rendezvous.everyone_in(Phase.SUCCEEDED),
            waited_for_others=since is not None
            and self._now() - since >= self._parts.times.exit_barrier,
        )

    def _act(self, action: Action, group: LocalGroup) -> bool:
        """Carry out a decision; return whether to look again at once."""
        rendezvous, number = self._rendezvous, group.formed.number
        match action:
            case Action.WAIT:
                return False
            case Action.STOP_WORKERS:
                self._stop_workers(self._parts.times.shutdown)
            case Action.REPORT_CRASH:
                self._report_crash(group)
            case Action.REPORT_LOSS:
                self._parts.log.say(f"lost {', '.join(rendezvous.lost)}")
                rendezvous.report_lost(number, rendezvous.lost)
            case Action.GIVE_UP:
                self._give_up()
            case Action.REPORT_DONE:
                rendezvous.end_run(Decision.DONE, exit_code=0, reason="all workers succeeded")
            case Action.REPORT_DRAINED:
                drain = self._state.drain
                if drain is not None:
                    rendezvous.report_drained(drain.cause, drain.detail)
            case Action.REPORT_PAUSED:
                rendezvous.report_paused(number)
            case _:
                return self._drain_step(group)
        return True

    def _drain_step(self, group: LocalGroup) -> bool:
        drain = self._drain
        if drain is None:
            return False
        drain.step(self._now())
        if drain.stop_now:
            self._parts.log.say("the workers are told to end")
            left = (drain.deadline or self._now()) - self._now()
            self._stop_workers(max(left, KILL_AFTER_S))
            return True
        return False

    def _stop_workers(self, timeout: float) -> None:
        self._running_group.stop(signal.SIGTERM, self._now() + timeout)

    def _report_crash(self, group: LocalGroup) -> None:
        failure = group.first_failure()
        if failure is not None:
            self._parts.log.failed(failure)
            self._rendezvous.report_crash(group.formed.number, failure.to_json())

    def _give_up(self) -> None:
        from hpc_elastic.multiprocessing.errors import FailureRecord  # noqa: PLC0415

        ended = self._state.ended
        data = (ended.failure if ended else None) or {}
        failure = FailureRecord.from_json(data)
        restarts = self._spec.max_restarts
        self._rendezvous.end_run(
            Decision.FAILED,
            exit_code=failure.exit_status,
            reason=f"a worker failed and all {restarts} restarts are used",
            failure=data,
        )

    def _show_phase(self, status: Group) -> None:
        if status is Group.SUCCEEDED:
            self._rendezvous.set_phase(Phase.SUCCEEDED)
        elif status is Group.STOPPED:
            self._rendezvous.set_phase(Phase.STOPPED)

    def _sleep(self, status: Group) -> None:
        group = self._running_group
        more = group.context.pump_logs() if not status.is_gone else False
        wake_at = self._rendezvous.membership.next_beat_at()
        for deadline in (group.context.next_deadline(), self._drain.deadline if self._drain else None):
            if deadline is not None and not status.is_gone:
                wake_at = min(wake_at, deadline)
        seconds = wake_at - self._now()
        if self._state.drain is not None or status.is_gone:
            nodes = len(group.formed.members)
            seconds = min(seconds, FAST_LOOK_S + 0.002 * nodes)
        self._parts.loop.wait(0.0 if more else seconds, group.exit_fds())

    # signals

    def _take_signals(self) -> None:
        """Turn what has been signalled into drain requests; a second Ctrl-C ends the workers."""
        caught = self._parts.loop.signals
        while self._handled < len(caught):
            number = caught[self._handled]
            self._handled += 1
            cause = self._parts.signals.cause(number)
            again = self._state.drain is not None and self._state.drain.then is Then.LEAVE
            self._parts.log.say(f"{signal.Signals(number).name} received")
            if again and cause is Cause.INTERRUPT and self._group is not None:
                self._stop_workers(0.0)
            elif again and cause is Cause.PREEMPTION and self._drain is not None:
                self._drain.hurry(self._now())
            else:
                self._rendezvous.request_drain(cause, Then.LEAVE, signal.Signals(number).name)

    # leaving

    def _end_group(self, status: Group) -> None:
        group = self._running_group
        state = WorkerState.SUCCEEDED if status is Group.SUCCEEDED else WorkerState.STOPPED
        self._note_group(WorkerState.FAILED if group.failures() else state)
        for path in group.context.log_files():
            self._parts.loop.watch.remove(path)
        group.context.close(timeout=0)
        self._last_failures = group.failures()
        self._group = None

    def _leave(self, action: Action) -> Outcome:
        """Wait in the exit barrier for the other nodes' workers to be gone, then leave."""
        if action is Action.STAND_DOWN:
            return Outcome(ExitCode.FENCED, "a newer start of this run exists")
        limit = self._now() + self._parts.times.exit_barrier
        phases = (Phase.STOPPED, Phase.SUCCEEDED)
        while not self._rendezvous.everyone_in(*phases) and self._now() < limit:
            self._parts.loop.wait(self._barrier_patience())
            self._rendezvous.tick(look=True)
            if self._state.epoch > self._rendezvous.membership.epoch:
                break
        return self._final_outcome()

    def _barrier_patience(self) -> float:
        formed = self._state.round
        return FAST_LOOK_S + 0.002 * (len(formed.members) if formed else 0)

    def _final_outcome(self) -> Outcome:
        state = self._state
        ending, drained = state.ending, state.drained
        if ending is None:
            cause = drained or state.drain
            if cause is None:
                return Outcome(ExitCode.OK, "all workers of this node succeeded", None, self._result())
            text = f"stopped for {cause.cause.value.replace('_', ' ')}"
            return Outcome(ExitCode.REQUEUE, text, None, self._result())
        return Outcome(ending.exit_code, ending.reason, ending.failure, self._result())

    def _result(self) -> RunResult:
        ending = self._state.ending
        if ending is not None and ending.decision is Decision.DONE:
            ranks = (worker.global_rank for worker in self._worker_group.workers)
            return RunResult(WorkerState.SUCCEEDED, dict.fromkeys(ranks))
        if ending is not None and ending.decision is Decision.FAILED:
            return RunResult(WorkerState.FAILED, {}, self._last_failures)
        return RunResult(WorkerState.STOPPED)

    def _note_group(self, state: WorkerState) -> None:
        """Keep torch's view of the worker group up to date."""
        group, view = self._running_group, self._worker_group
        place = group.place
        pids = group.context.pids()
        view.state = state
        view.group_rank = place.group_rank
        view.group_world_size = len(group.formed.members)
        view.master_addr, view.master_port = group.formed.master_addr, group.formed.master_port
        view.workers = [
            worker._replace(
                id=pids.get(worker.local_rank),
                global_rank=place.base_rank + worker.local_rank,
                role_rank=place.role_base + worker.local_rank,
                world_size=place.world_size,
                role_world_size=place.role_world_size,
            )
            for worker in view.workers
        ]
