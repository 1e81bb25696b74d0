"""The agent of one node: one thread that rendezvouses, runs the workers and decides what is next."""

from __future__ import annotations

from hpc_elastic.errors import (
    InputError,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousTimeoutError,
    StoreError,
    TakenOverError,
)
from hpc_elastic.ids import ExitCode
from hpc_elastic.meet.shared_fs import (
    DismissedError,
    NodesLostError,
    RendezvousInterruptedError,
    TooFewError,
)
from hpc_elastic.node.decision import Action, AgentFacts, Group, decide, decide_blind
from hpc_elastic.node.drain.drain import DurableWait, LocalDrain, Signalled, UnaskedWatch
from hpc_elastic.node.drain.leave_alone import OwnLeave
from hpc_elastic.node.drain.stop_policy import Stopping
from hpc_elastic.node.facts import GONE, gather
from hpc_elastic.node.listeners.telemetry_hooks import RENDEZVOUS, RUN
from hpc_elastic.node.loop import RunWatch
from hpc_elastic.node.node_workers import NodeWorkers
from hpc_elastic.node.outcome import FENCED, Outcome, out_of_touch, outcome_of, taken_over
from hpc_elastic.node.setup.agent_setup import AgentParts
from hpc_elastic.node.setup.journal_entries import Reports
from hpc_elastic.node.spec import ElasticAgent, RunResult, WorkerGroup, WorkerSpec, WorkerState
from hpc_elastic.node.workers.local_group import LocalGroup
from hpc_elastic.record.journal import Cause, RoundFormed, Then
from hpc_elastic.record.member_names import Phase
from hpc_elastic.record.state import RunState

FAST_LOOK_S = 0.02  # between two looks while nodes agree on something
_CONSOLE_LOOK_S = 0.05  # between two looks while the console takes no more
# what ends the turns of a round
_LAST = (Action.REJOIN, Action.LEAVE, Action.LEAVE_ALONE, Action.STAND_DOWN, Action.ABANDON)


class NodeAgent(ElasticAgent):
    """Runs the workers of one node through all rounds of a run that is kept in a shared directory.

    It is what `hpc-elastic run` starts: it acts on what the other nodes, the journal of the run and
    Slurm tell. Agents over any other rendezvous derive from `SimpleElasticAgent`.

    Args:
        spec: what to run.
        parts: what the agent is put together from (see `hpc_elastic.start.agent`).
    """

    def __init__(self, spec: WorkerSpec, parts: AgentParts) -> None:
        self._spec = spec
        self._parts = parts
        self._rendezvous = parts.rendezvous
        self._run = parts.rendezvous.run
        self._workers = NodeWorkers(spec, parts)
        self._budgets = parts.budgets._replace(crash=spec.max_restarts)
        hangs = self._workers.hangs
        self._reports = Reports(self._run, parts.log, self._budgets, hangs.explained, lambda: hangs.ran_s)
        self._signalled = Signalled(parts, self._workers)
        self._stopping = Stopping(parts, self._workers, self._signalled, self._reports)
        self._unasked = UnaskedWatch(parts)
        self._own_leave = OwnLeave(self._run, self._signalled, self._signalled.insist)
        self._outage_since: float | None = None
        self._barrier_since: float | None = None
        self._watch = RunWatch(parts.paths, parts.loop.watch)

    def get_worker_group(self, role: str = "default_role") -> WorkerGroup:  # noqa: ARG002 - torch's
        """Return the worker group; do not change it."""
        return self._workers.view

    def run(self, role: str = "default_role") -> RunResult:  # noqa: ARG002 - torch's signature
        """Run the workers to their end, over all restarts."""
        return self.run_to_end().result

    def run_to_end(self) -> Outcome:
        """Run the workers to their end; also tell how the agent's process is to exit.

        Never leaves a worker behind, whatever happens.
        """
        try:
            self._workers.open()
            with self._workers.telemetry.step(RUN):
                while True:
                    outcome = self._join() or self._supervise()
                    if outcome is not None:
                        return self._workers.left(outcome)
        except TakenOverError as error:
            return self._workers.left(taken_over(error))
        finally:
            self._parts.notices.close()
            self._stopping.of_round = None
            try:
                self._workers.close()
            finally:
                self._rendezvous.shutdown()

    # joining

    def _join(self) -> Outcome | None:
        """Wait for the next round and start the workers; an outcome ends the run for this node."""
        self._workers.wanted()
        outcome = self._initialize()
        if outcome is not None:
            self._workers.telemetry.not_initialized()
        return outcome

    def _initialize(self) -> Outcome | None:
        if self._signalled.asks_to_leave:  # asked to leave while a round of the others began
            return self._leave_for_signal()
        unfit = self._parts.unfit(self._state)
        if unfit:
            from hpc_elastic.node.unfit import stay_out  # noqa: PLC0415 - rare

            return stay_out(self._parts, unfit)
        self._watch.follow(self._state.last, peers=True)
        try:
            with self._workers.telemetry.step(RENDEZVOUS):
                info = self._rendezvous.next_rendezvous()
        except RendezvousInterruptedError:
            return self._leave_for_signal()
        except RendezvousError as error:
            return self._left_out(error)._replace(error=error)
        if info.round is None:
            raise RuntimeError("the rendezvous keeps no record of its rounds")
        return self._start(info.round)

    def _left_out(self, error: RendezvousError) -> Outcome:
        """Leave for what the rendezvous has told."""
        if isinstance(error, RendezvousTimeoutError):
            cause = Cause.NODE_LOSS if isinstance(error, NodesLostError) else Cause.JOIN_TIMEOUT
            missing = error.missing if isinstance(error, TooFewError) else ()
            return self._too_few(str(error), cause, missing)
        if isinstance(error, RendezvousClosedError):
            return self._leave_unstarted()
        if isinstance(error, RendezvousConnectionError):
            return self._out_of_touch(error)
        if isinstance(error, DismissedError):
            return self._own_leave.dismissed(str(error))
        if isinstance(error, RendezvousGracefulExitError):
            return FENCED
        raise error

    def _leave_for_signal(self) -> Outcome:
        """Leave because this agent was signalled while it had no workers; a round of others goes on."""
        self._signalled.note()
        if self._signalled.leaves_alone:
            return self._own_leave.for_signal()
        self._signalled.insist(self._signalled.tell)
        if self._state.leaving:
            return self._leave_unstarted()
        beside = self._run.is_beside_a_round()
        how = "the run goes on without this node" if beside else "the others could not be informed"
        return Outcome(ExitCode.REQUEUE, f"left for {self._signalled.wish.detail}; {how}")

    def _leave_unstarted(self) -> Outcome:
        """Leave without workers; if nobody has any, this start of the job is over."""
        state = self._state
        nobody_works = state.round is None or self._run.everyone_in(*GONE)
        if state.running is None and nobody_works:
            self._signalled.insist(self._reports.hand_back)
        return self._final_outcome()

    def _too_few(self, reason: str, cause: Cause, missing: tuple[str, ...]) -> Outcome:
        self._parts.log.say(reason)
        if self._parts.on_timeout is Then.LEAVE:
            self._signalled.insist(lambda: self._run.report_drained(cause, reason, missing))
        else:
            self._signalled.insist(lambda: self._reports.too_few(reason))
        return self._final_outcome()

    def _start(self, formed: RoundFormed) -> Outcome | None:
        try:
            group = self._workers.start(formed)
        except (InputError, OSError) as error:
            reason = f"the workers cannot be started on {self._parts.run.node}: {error}"
            if isinstance(error, InputError):  # the command itself: it cannot work on any node
                self._signalled.insist(lambda: self._reports.failed(reason))
                return self._final_outcome()._replace(error=error)
            self._signalled.insist(lambda: self._run.report_agent_error(formed.number))
            return Outcome(ExitCode.FAILED, reason, None, RunResult(WorkerState.FAILED), error)
        durable = DurableWait(self._parts.paths)
        self._stopping.of_round = LocalDrain(self._run, group, self._parts.times.drain, durable)
        self._signalled.begin(formed)
        self._barrier_since = None
        return None

    # supervising

    def _supervise(self) -> Outcome | None:
        """Look, decide, act, sleep; until the workers are gone and it is clear what is next."""
        while True:
            try:
                action = self._turn(self._workers.running)
            except StoreError as error:
                outcome = self._bear(error)
                if outcome is not None:
                    return outcome
                continue
            self._outage_since = None
            if action is Action.REJOIN:
                self._run.drain_began = None  # the time of a pause is no part of a later drain
                return None
            if action is not None:
                return self._leave(action)

    def _turn(self, group: LocalGroup) -> Action | None:
        """Do one turn of the loop; return what ends it, one of `_LAST`."""
        self._signalled.note()
        status = self._workers.status(self._now())
        if status is Group.RUNNING:
            self._signalled.heed(self._stopping.of_round)
        self._signalled.tell()
        self._show_phase(status)
        self._look(status)
        self._workers.look_for_wedged(status)
        self._unasked.look(group, status)
        self._workers.hangs.look(status, counts=self._signalled.wish.cause is None)
        action = decide(self._facts(status))
        if action in _LAST:
            return self._workers.end(action)
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
        group = self._workers.running
        status = self._workers.status(now)
        if status is Group.FAILED:
            self._reports.show_failure(group)
        waited = now - self._outage_since >= self._parts.times.exit_barrier
        action = decide_blind(self._facts(status), signalled=self._signalled.asks_to_leave, waited=waited)
        if action is Action.LEAVE:
            return self._out_of_touch(error)
        if action is Action.STOP_WORKERS:
            self._stopping.end_blind(group)
        self._parts.loop.wait(self._run.settings.heartbeat_interval, group.exit_fds())
        return None

    def _out_of_touch(self, error: Exception) -> Outcome:
        """Leave without having been able to say so; what still runs is ended."""
        group, wedge = self._workers.group, self._workers.wedge
        if wedge is not None:
            return wedge.outcome()
        failure = self._reports.untold_failure(group)
        signalled = self._signalled.asks_to_leave
        outcome = out_of_touch(self._parts.paths.root, error, failure, signalled=signalled)
        if outcome.result.is_failed() and group is not None:
            return outcome._replace(result=RunResult(WorkerState.FAILED, {}, group.failures()))
        return outcome

    def _waits_for_others(self, status: Group) -> bool:
        """Tell whether what comes next depends on other nodes, so that looking often pays."""
        agreeing = self._state.drain is not None and self._state.stop_step is None
        return status.is_gone or agreeing

    @property
    def _state(self) -> RunState:
        return self._run.state

    def _now(self) -> float:
        return self._parts.clock.monotonic()

    def _look(self, status: Group) -> None:
        waits = self._waits_for_others(status)
        self._watch.follow(self._state.last, peers=waits)
        self._run.tick(look=waits)
        self._workers.size_news.look(self._state)
        if status.is_gone and self._has_no_reason_to_wait():
            raise StoreError("no look at the other nodes succeeds")
        if waits and self._barrier_since is None and status.is_gone:
            self._barrier_since = self._now()
        if self._barrier_since is not None and status.is_gone:
            self._stopping.tell_wait(self._barrier_since, self._now())

    def _has_no_reason_to_wait(self) -> bool:
        """Tell whether this agent was asked to leave and sees nobody whom it could wait for."""
        return self._signalled.asks_to_leave and self._run.blind_since is not None

    def _facts(self, status: Group) -> AgentFacts:
        since, number = self._barrier_since, self._workers.running.formed.number
        return gather(
            self._run,
            number,
            status,
            waited=since is not None and self._stopping.has_waited(since, self._now()),
            wedged=self._workers.wedge is not None,
            budgets=self._budgets,
        )._replace(leaves_alone=self._signalled.leaves_alone, hang=self._workers.hangs.hang)

    def _act(self, action: Action, group: LocalGroup) -> bool:
        """Carry out a decision; return whether to look again at once."""
        if action is Action.WAIT:
            return False
        if action is Action.DRAIN:
            return self._stopping.drain()
        {
            Action.STOP_WORKERS: self._stopping.end_round,
            Action.REPORT_CRASH: self._reports.crash,
            Action.REPORT_LOSS: self._reports.loss,
            Action.ASK_FOR_STACKS: self._workers.hangs.ask,
            Action.REPORT_HANG: self._workers.hangs.report,
            Action.GIVE_UP: self._reports.give_up,
            Action.REPORT_DONE: self._reports.done,
            Action.REPORT_DRAINED: self._reports.hand_back,
            Action.REPORT_PAUSED: self._reports.paused,
            Action.REPORT_WEDGE: self._report_wedge,
        }[action](group)
        return not self._workers.is_held

    def _report_wedge(self, group: LocalGroup) -> None:
        wedge = self._workers.wedge
        self._run.report_agent_error(group.formed.number, wedge.first.to_json() if wedge else None)

    def _show_phase(self, status: Group) -> None:
        if status is Group.SUCCEEDED:
            self._run.set_phase(Phase.SUCCEEDED)
        elif status is Group.STOPPED:
            self._run.set_phase(Phase.STOPPED)

    def _sleep(self, status: Group) -> None:
        group = self._workers.running
        more = group.context.pump_logs() if not status.is_gone else False
        wake_at = min(self._run.next_turn_at(), self._parts.services.wake_at())
        drain = self._stopping.of_round
        drain_ends = drain.deadline if drain and status is not Group.STOPPING else None
        for deadline in (group.context.next_deadline(), drain_ends):
            if deadline is not None and not status.is_gone:
                wake_at = min(wake_at, deadline)
        seconds = min(wake_at - self._now(), self._workers.nap_s)
        if not status.is_gone and group.context.is_console_full:
            seconds = min(seconds, _CONSOLE_LOOK_S)
        if self._waits_for_others(status):
            seconds = min(seconds, self._time_to_next_look())
        self._parts.loop.wait(0.0 if more else seconds, group.exit_fds())

    # leaving

    def _leave(self, action: Action) -> Outcome:
        """Wait in the exit barrier for the other nodes' workers to be gone, then leave."""
        if action is Action.STAND_DOWN:
            return FENCED
        if action is Action.ABANDON:
            return self._abandon()
        if action is Action.LEAVE_ALONE:
            return self._own_leave.for_signal()
        limit = self._now() + self._parts.times.exit_barrier
        while not self._run.everyone_in(*GONE) and self._now() < limit:
            self._parts.loop.wait(self._time_to_next_look())
            is_over = self._parts.loop.signals or self._state.epoch > self._run.membership.epoch
            if is_over or self._has_no_reason_to_wait():
                break
            self._run.tick(look=True)
        return self._final_outcome()

    def _abandon(self) -> Outcome:
        """Leave workers that nobody can end; if there is no other node this start of the run is over."""
        wedge = self._workers.wedge
        if wedge is None:
            raise RuntimeError("no worker hangs")
        outcome = wedge.outcome()
        has_others = self._has_others
        self._signalled.insist(lambda: None if has_others(wedge.formed) else self._end_for_wedge(outcome))
        return outcome

    def _has_others(self, formed: RoundFormed) -> bool:
        """Tell whether other nodes work, or will: while this one ended its workers they may have begun."""
        if self._rendezvous.num_nodes_waiting() or self._state.running is not None:
            return True
        return any(node_id != self._run.membership.node_id for node_id in self._run.live_members(formed))

    def _end_for_wedge(self, outcome: Outcome) -> None:
        if self._parts.on_timeout is Then.LEAVE:
            self._run.report_drained(Cause.AGENT_ERROR, outcome.reason)
        else:
            self._reports.wedged(outcome)

    def _time_to_next_look(self) -> float:
        """Return the time between two looks while nodes agree [s]; more nodes look less often."""
        formed = self._state.round
        return FAST_LOOK_S + 0.002 * (len(formed.members) if formed else 0)

    def _final_outcome(self) -> Outcome:
        return outcome_of(self._state, *self._workers.last)
