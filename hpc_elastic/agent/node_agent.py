"""The agent of one node: one thread that rendezvouses, runs the workers and decides what is next."""

from __future__ import annotations

import signal
from collections.abc import Callable

from hpc_elastic.agent.decision import Action, Facts, Group, decide, decide_blind
from hpc_elastic.agent.drain import LocalDrain
from hpc_elastic.agent.facts import GONE, gather
from hpc_elastic.agent.insist import insist
from hpc_elastic.agent.local_group import LocalGroup
from hpc_elastic.agent.outcome import FENCED, Outcome, out_of_touch, outcome_of
from hpc_elastic.agent.parts import AgentParts
from hpc_elastic.agent.reports import Reports
from hpc_elastic.agent.run_watch import RunWatch
from hpc_elastic.agent.spec import ElasticAgent, RunResult, WorkerGroup, WorkerSpec, WorkerState
from hpc_elastic.agent.wish import Wish, heard
from hpc_elastic.errors import (
    InputError,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousTimeoutError,
    StoreError,
)
from hpc_elastic.ids import ExitCode
from hpc_elastic.multiprocessing.errors import ProcessFailure
from hpc_elastic.rendezvous.journal import Cause, RoundFormed, Then
from hpc_elastic.rendezvous.roster import Phase
from hpc_elastic.rendezvous.shared_fs import NodesLostError, RendezvousInterruptedError
from hpc_elastic.rendezvous.state import RunState

KILL_AFTER_S = 5.0  # between the end of a drain's time and SIGKILL
FAST_LOOK_S = 0.02  # between two looks while nodes agree on something


class NodeAgent(ElasticAgent):
    """Runs the workers of one node through all rounds of a run that is kept in a shared directory.

    It is what `hpc-elastic run` starts: it acts on what the other nodes, the journal of the run and
    Slurm tell. Agents over any other rendezvous derive from `SimpleElasticAgent`.

    Args:
        spec: what to run.
        parts: what the agent is put together from (see `hpc_elastic.launch`).
    """

    def __init__(self, spec: WorkerSpec, parts: AgentParts) -> None:
        self._spec = spec
        self._parts = parts
        self._rendezvous = parts.rendezvous
        self._run = parts.rendezvous.run
        self._reports = Reports(self._run, parts.log, spec.max_restarts)
        self._worker_group = WorkerGroup(spec)
        self._group: LocalGroup | None = None
        self._drain: LocalDrain | None = None
        self._wish = Wish()
        self._outage_since: float | None = None
        self._barrier_since: float | None = None
        self._watch = RunWatch(parts.paths, parts.loop.watch)
        self._last_failures: dict[int, ProcessFailure] = {}

    def get_worker_group(self, role: str = "default_role") -> WorkerGroup:  # noqa: ARG002 - torch's
        """Return the worker group; do not change it."""
        return self._worker_group

    def run(self, role: str = "default_role") -> RunResult:  # noqa: ARG002 - torch's signature
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
        if self._wish.cause is not None:  # asked to leave while a round of the others began
            return self._leave_for_signal()
        self._watch.follow(self._state.last, peers=True)
        try:
            info = self._rendezvous.next_rendezvous()
        except RendezvousInterruptedError:
            return self._leave_for_signal()
        except RendezvousError as error:
            return self._left_out(error)
        if info.round is None:
            raise RuntimeError("the rendezvous keeps no record of its rounds")
        return self._start(info.round)

    def _left_out(self, error: RendezvousError) -> Outcome:
        """Leave for what the rendezvous has told."""
        if isinstance(error, RendezvousTimeoutError):
            cause = Cause.NODE_LOSS if isinstance(error, NodesLostError) else Cause.JOIN_TIMEOUT
            return self._too_few(str(error), cause)
        if isinstance(error, RendezvousClosedError):
            return self._leave_unstarted()
        if isinstance(error, RendezvousConnectionError):
            return self._out_of_touch(error)
        if isinstance(error, RendezvousGracefulExitError):
            return FENCED
        raise error

    def _leave_for_signal(self) -> Outcome:
        """Leave because this agent was signalled while it had no workers; a round of others goes on."""
        self._note_signals()
        self._insist(self._tell_wish)
        if self._state.leaving:
            return self._leave_unstarted()
        beside = self._run.is_beside_a_round()
        how = "the run goes on without this node" if beside else "the others could not be told"
        return Outcome(ExitCode.REQUEUE, f"left for {self._wish.detail}; {how}")

    def _leave_unstarted(self) -> Outcome:
        """Leave without workers; if nobody has any, this start of the job is over."""
        state = self._state
        nobody_works = state.round is None or self._run.everyone_in(*GONE)
        if state.running is None and nobody_works:
            self._insist(self._reports.hand_back)
        return self._final_outcome()

    def _insist(self, write: Callable[[], object]) -> None:
        """Write something before leaving; a signalled agent tries no longer than its workers would have."""
        insist(write, self._parts, self._wish.deadline or self._now() + self._parts.times.exit_barrier)

    def _too_few(self, reason: str, cause: Cause) -> Outcome:
        self._parts.log.say(reason)
        if self._parts.on_timeout is Then.LEAVE:
            self._insist(lambda: self._run.report_drained(cause, reason))
        else:
            self._insist(lambda: self._reports.failed(reason))
        return self._final_outcome()

    def _start(self, formed: RoundFormed) -> Outcome | None:
        parts = self._parts
        group = LocalGroup(formed, self._run.membership.node_id, parts.scratch, parts.run, parts.start)
        self._group = group
        self._drain = LocalDrain(self._run, group, parts.times.drain)
        self._barrier_since = None
        parts.log.round_formed(formed, group.place)
        try:
            group.start(parts.command, crashes=self._state.crashes)
        except (InputError, OSError) as error:
            self._group = None
            reason = f"the workers cannot be started on {parts.run.node}: {error}"
            parts.log.say(reason)
            if isinstance(error, InputError):  # the command itself: it cannot work on any node
                self._insist(lambda: self._reports.failed(reason))
                return self._final_outcome()
            self._insist(lambda: self._run.report_agent_error(formed.number))
            return Outcome(ExitCode.FAILED, reason)
        group.describe(self._worker_group, WorkerState.HEALTHY)
        for path in group.context.log_files():
            parts.loop.watch.add_file(path)
        return None

    # supervising

    def _supervise(self) -> Outcome | None:
        """Look, decide, act, sleep; until the workers are gone and it is clear what is next."""
        while True:
            try:
                action = self._turn(self._running_group)
            except StoreError as error:
                outcome = self._bear(error)
                if outcome is not None:
                    return outcome
                continue
            self._outage_since = None
            if action is Action.REJOIN:
                return None
            if action is not None:
                return self._leave(action)

    def _turn(self, group: LocalGroup) -> Action | None:
        """Do one turn of the loop; return what ends it: REJOIN, LEAVE or STAND_DOWN."""
        self._note_signals()
        status = group.status(self._now())
        if status is Group.RUNNING:
            self._heed_wish()
        self._tell_wish()
        self._show_phase(status)
        self._look(status)
        action = decide(self._facts(status))
        if action in (Action.REJOIN, Action.LEAVE, Action.STAND_DOWN):
            self._end_group(status)
            return action
        if not self._act(action, group):
            self._sleep(status)
        return None

    def _bear(self, error: StoreError) -> Outcome | None:
        """Go on while the shared directory refuses; without workers, leave when asked or after long."""
        now = self._now()
        if self._outage_since is None:
            self._outage_since = now
            self._parts.log.say(f"the run directory does not answer, the workers go on: {error}")
        self._run.note_blindness()
        group = self._running_group
        status = group.status(now)
        if status is Group.FAILED:
            self._reports.show_failure(group)
        waited = now - self._outage_since >= self._parts.times.exit_barrier
        action = decide_blind(self._facts(status), signalled=self._wish.cause is not None, waited=waited)
        if action is Action.LEAVE:
            return self._out_of_touch(error)
        if action is Action.STOP_WORKERS:
            self._stop_blind(group)
        self._parts.loop.wait(self._run.settings.heartbeat_interval, group.exit_fds())
        return None

    def _stop_blind(self, group: LocalGroup) -> None:
        """End the workers by what was read before, or because this agent was asked to leave."""
        if self._wish.cause is None:
            self._stop_round(group)
        else:
            self._end_sooner(group)

    def _out_of_touch(self, error: Exception) -> Outcome:
        """Leave without having been able to say so; what still runs is ended."""
        failure = self._reports.untold_failure(self._group)
        signalled = self._wish.cause is not None
        return out_of_touch(self._parts.paths.root, error, failure, signalled=signalled)

    def _waits_for_others(self, status: Group) -> bool:
        """Tell whether what comes next depends on other nodes, so that looking often pays."""
        agreeing = self._state.drain is not None and self._state.stop_step is None
        return status.is_gone or agreeing

    @property
    def _running_group(self) -> LocalGroup:
        if self._group is None:
            raise RuntimeError("no workers have been started")
        return self._group

    @property
    def _state(self) -> RunState:
        return self._run.state

    def _now(self) -> float:
        return self._parts.clock.monotonic()

    def _look(self, status: Group) -> None:
        waits = self._waits_for_others(status)
        self._watch.follow(self._state.last, peers=waits)
        self._run.tick(look=waits)
        if status.is_gone and self._has_no_reason_to_wait():
            raise StoreError("no look at the other nodes succeeds")
        if waits and self._barrier_since is None and status.is_gone:
            self._barrier_since = self._now()

    def _has_no_reason_to_wait(self) -> bool:
        """Tell whether this agent was asked to leave and sees nobody whom it could wait for."""
        return self._wish.cause is not None and self._run.blind_since is not None

    def _facts(self, status: Group) -> Facts:
        since, number = self._barrier_since, self._running_group.formed.number
        waited = since is not None and self._now() - since >= self._parts.times.exit_barrier
        return gather(self._run, number, status, max_restarts=self._spec.max_restarts, waited=waited)

    def _act(self, action: Action, group: LocalGroup) -> bool:
        """Carry out a decision; return whether to look again at once."""
        if action is Action.WAIT:
            return False
        if action is Action.DRAIN:
            return self._drain_step()
        {
            Action.STOP_WORKERS: self._stop_round,
            Action.REPORT_CRASH: self._reports.crash,
            Action.REPORT_LOSS: self._reports.loss,
            Action.GIVE_UP: self._reports.give_up,
            Action.REPORT_DONE: self._reports.done,
            Action.REPORT_DRAINED: self._reports.hand_back,
            Action.REPORT_PAUSED: self._reports.paused,
        }[action](group)
        return True

    def _stop_round(self, group: LocalGroup) -> None:
        failure = group.first_failure()
        if failure is not None and self._state.leave_cause is not None:
            self._parts.log.failed(failure)  # it is not what the round ends for
        self._stop_workers(self._parts.times.shutdown)

    def _drain_step(self) -> bool:
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

    def _show_phase(self, status: Group) -> None:
        if status is Group.SUCCEEDED:
            self._run.set_phase(Phase.SUCCEEDED)
        elif status is Group.STOPPED:
            self._run.set_phase(Phase.STOPPED)

    def _sleep(self, status: Group) -> None:
        group = self._running_group
        more = group.context.pump_logs() if not status.is_gone else False
        wake_at = self._run.next_turn_at()
        for deadline in (group.context.next_deadline(), self._drain.deadline if self._drain else None):
            if deadline is not None and not status.is_gone:
                wake_at = min(wake_at, deadline)
        seconds = wake_at - self._now()
        if self._waits_for_others(status):
            seconds = min(seconds, self._time_to_next_look())
        self._parts.loop.wait(0.0 if more else seconds, group.exit_fds())

    # signals

    def _note_signals(self) -> None:
        """Latch what has been signalled; nothing is written for it here, so it cannot be held up."""
        caught, self._parts.loop.signals[:] = list(self._parts.loop.signals), []
        for number in caught:
            name, cause = signal.Signals(number).name, self._parts.signals.cause(number)
            self._parts.log.say(f"{name} received")
            limit = self._now() + self._parts.times.drain.of(cause)
            self._wish = heard(self._wish, cause, name, limit)
        if caught and self._group is not None and self._group.is_stopping:
            self._end_sooner(self._group)

    def _end_sooner(self, group: LocalGroup) -> None:
        deadline = self._now() if self._wish.at_once else self._wish.deadline
        if deadline is not None:
            group.stop(signal.SIGTERM, deadline)

    def _heed_wish(self) -> None:
        """Warn this node's workers and keep their deadline, whether the others can be told or not."""
        drain = self._drain
        if self._wish.cause is None or drain is None:
            return
        drain.heed(self._wish)
        if self._wish.at_once:
            self._stop_workers(0.0)
        elif drain.is_over(self._now()):
            self._stop_workers(KILL_AFTER_S)

    def _tell_wish(self) -> None:
        """Ask all nodes to drain for what this agent was signalled."""
        cause = self._wish.cause
        if cause is not None and not self._state.leaving:
            self._run.request_drain(cause, Then.LEAVE, self._wish.detail)

    # leaving

    def _end_group(self, status: Group) -> None:
        group = self._running_group
        state = WorkerState.SUCCEEDED if status is Group.SUCCEEDED else WorkerState.STOPPED
        group.describe(self._worker_group, WorkerState.FAILED if group.failures() else state)
        for path in group.context.log_files():
            self._parts.loop.watch.remove(path)
        group.context.close(timeout=0)
        for process in group.context.unkillable():
            self._parts.log.say(f"cannot be killed: {process}")
        self._last_failures = group.failures()
        self._group = None

    def _leave(self, action: Action) -> Outcome:
        """Wait in the exit barrier for the other nodes' workers to be gone, then leave."""
        if action is Action.STAND_DOWN:
            return FENCED
        limit = self._now() + self._parts.times.exit_barrier
        while not self._run.everyone_in(*GONE) and self._now() < limit:
            self._parts.loop.wait(self._time_to_next_look())
            is_over = self._parts.loop.signals or self._state.epoch > self._run.membership.epoch
            if is_over or self._has_no_reason_to_wait():
                break
            self._run.tick(look=True)
        return self._final_outcome()

    def _time_to_next_look(self) -> float:
        """Return the time between two looks while nodes agree [s]; more nodes look less often."""
        formed = self._state.round
        return FAST_LOOK_S + 0.002 * (len(formed.members) if formed else 0)

    def _final_outcome(self) -> Outcome:
        return outcome_of(self._state, self._worker_group, self._last_failures)
