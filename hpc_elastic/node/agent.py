"""The agent of one node: one thread that rendezvouses, runs the workers and decides the next act."""

from __future__ import annotations

from hpc_elastic.errors import InputError, StoreError, TakenOverError
from hpc_elastic.meet.member_names import Phase
from hpc_elastic.meet.rules import Joined, PeerView
from hpc_elastic.meet.shared_fs import Interrupted
from hpc_elastic.node.decision import (
    Action,
    AgentFacts,
    Group,
    OwnFacts,
    RestartBudgets,
    decide,
    decide_blind,
    left_out,
)
from hpc_elastic.node.drain import Leaving, Stopping, UnaskedWatch, stay_out, stay_out_for_failures
from hpc_elastic.node.listeners.telemetry_hooks import RENDEZVOUS, RUN
from hpc_elastic.node.loop import RunWatch
from hpc_elastic.node.node_workers import NodeWorkers
from hpc_elastic.node.outcome import FENCED, Outcome, taken_over
from hpc_elastic.node.setup.agent_setup import AgentParts
from hpc_elastic.node.setup.journal_entries import Reports
from hpc_elastic.node.signals import Signalled
from hpc_elastic.node.spec import ElasticAgent, RunResult, WorkerGroup, WorkerSpec
from hpc_elastic.node.workers.local_group import LocalGroup
from hpc_elastic.record.journal import RoundFormed, bad_node
from hpc_elastic.record.state import RunState
from hpc_elastic.secrets_out import secret_values

FAST_LOOK_S = 0.02  # between two looks while nodes agree on something
_CONSOLE_LOOK_S = 0.05  # between two looks while the console takes no more
PHASE_OF = {Group.SUCCEEDED: Phase.SUCCEEDED, Group.STOPPED: Phase.STOPPED}
# acts that end the turns of a round
_LAST = (Action.REJOIN, Action.LEAVE, Action.LEAVE_ALONE, Action.STAND_DOWN, Action.ABANDON)


class NodeAgent(ElasticAgent):
    """Runs the workers of one node through all rounds of a run that is kept in a shared directory.

    `hpc-elastic run` starts it. It acts on the other nodes, the journal of the run and Slurm.
    Agents over any other rendezvous derive from `SimpleElasticAgent`.
    """

    def __init__(self, spec: WorkerSpec, parts: AgentParts) -> None:
        self._spec = spec
        self._parts = parts
        self._rendezvous = parts.rendezvous
        self._run = parts.rendezvous.run
        self._workers = NodeWorkers(spec, parts)
        self._budgets = RestartBudgets.of_settings(parts.settings)
        hangs = self._workers.hangs
        secrets = secret_values(parts.environ)
        self._reports = Reports(
            self._run,
            parts.log,
            self._budgets,
            lambda failure: hangs.explained(failure).without(secrets),
            lambda: hangs.ran_s,
        )
        self._signalled = Signalled(parts, self._workers)
        self._stopping = Stopping(parts, self._workers, self._signalled, self._reports)
        self._unasked = UnaskedWatch(parts)
        self._leaving = Leaving(parts, self._workers, self._signalled, self._reports)
        self._outage_since: float | None = None
        self._barrier_since: float | None = None
        self._shown: tuple[Phase, int] | None = None  # the phase that the others know, and its round
        self._watch = RunWatch(parts.paths, parts.loop.watch)
        self._others = PeerView()  # by the last look

    def get_worker_group(self, role: str = "default_role") -> WorkerGroup:  # noqa: ARG002 - torch's
        """Return the worker group; do not change it."""
        return self._workers.view

    def run(self, role: str = "default_role") -> RunResult:  # noqa: ARG002 - torch's signature
        """Run the workers to their end, over all restarts."""
        return self.run_to_end().result

    def run_to_end(self) -> Outcome:
        """Run the workers to their end; return the outcome, with the exit code of the agent's process.

        Leaves no worker behind.
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
            self._stopping.close()
            try:
                self._workers.close()
            finally:
                self._rendezvous.shutdown()

    # joining

    def _join(self) -> Outcome | None:
        """Wait for the next round and start the workers; an outcome ends the run for this node."""
        self._workers.wanted()
        outcome = self._leave_first() or self._next_round()
        if outcome is not None:
            self._workers.telemetry.not_initialized()
        return outcome

    def _leave_first(self) -> Outcome | None:
        """Leave before the rendezvous: for a request, which came while a round of others began, or unfit."""
        if self._signalled.asks_to_leave:
            return self._leaving.without_workers()
        unfit = self._state.unfit.get(self._run.node) or self._said_bad() or self._parts.unfit(self._state)
        if unfit:
            return stay_out(self._parts, unfit)
        is_to_leave = left_out(self._state, self._budgets, self._run.settings.min_nodes) == self._run.node
        return stay_out_for_failures(self._parts) if is_to_leave else None

    def _said_bad(self) -> str:
        """Return why this node is bad by its workers, though their round ended for another reason."""
        bad = bad_node(self._workers.group.word if self._workers.group is not None else None)
        return "" if bad is None else bad.reason

    def _next_round(self) -> Outcome | None:
        self._watch.follow(self._state.last, peers=True)
        with self._workers.telemetry.step(RENDEZVOUS) as measured:
            verdict = self._rendezvous.join()
            measured.has_failed = not isinstance(verdict, Joined)
        if isinstance(verdict, Joined):
            return self._start(verdict.round)
        if isinstance(verdict, Interrupted):
            return self._leaving.without_workers()
        return self._leaving.refused(verdict)

    def _start(self, formed: RoundFormed) -> Outcome | None:
        self._workers.await_modules(formed)
        try:
            group = self._workers.start(formed)
        except (InputError, OSError) as error:
            return self._leaving.not_started(formed, error)
        self._stopping.begin(group)
        self._signalled.begin(formed)
        self._barrier_since = None
        return None

    # supervising

    def _supervise(self) -> Outcome | None:
        """Look, decide, act, sleep; until the workers are gone and the next act is clear."""
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
        """Do one turn of the loop; return the act that ends it, one of `_LAST`."""
        self._signalled.note()
        status = self._workers.status(self._now())
        if status is Group.RUNNING:
            self._stopping.heed()
        self._signalled.tell()
        self._show_phase(status)
        self._look(status)
        self._workers.look_for_stuck(status)
        self._unasked.look(group, status, self._stopping.deadline)
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
        self._others = self._run.peer_view(is_gone=status.is_gone)
        waited = now - self._outage_since >= self._parts.times.exit_barrier
        action = decide_blind(self._facts(status), signalled=self._signalled.asks_to_leave, waited=waited)
        if action is Action.LEAVE:
            return self._leaving.out_of_touch(error)
        if action is Action.STOP_WORKERS:
            self._stopping.end_blind(group)
        self._parts.loop.wait(self._run.settings.heartbeat_interval, group.events.fds)
        return None

    def _waits_for_others(self, status: Group) -> bool:
        """Tell whether the next act depends on other nodes, so that frequent looks pay."""
        agreeing = self._state.drain is not None and self._state.stop_step is None
        return status.is_gone or agreeing

    @property
    def _state(self) -> RunState:
        return self._run.state

    def _now(self) -> float:
        return self._parts.clock.monotonic()

    def _look(self, status: Group) -> None:
        is_gone, waits = status.is_gone, self._waits_for_others(status)
        self._watch.follow(self._state.last, peers=waits)
        self._run.tick(look=waits)
        self._others = self._run.peer_view(is_gone=is_gone)
        self._workers.size_news.look(self._state)
        if is_gone and self._has_no_reason_to_wait():
            raise StoreError("no look at the other nodes succeeds")
        if self._barrier_since is None and is_gone:
            self._barrier_since = self._now()
        if self._barrier_since is not None and is_gone:
            self._stopping.tell_wait(self._barrier_since, self._now())

    def _has_no_reason_to_wait(self) -> bool:
        """Tell whether this agent was asked to leave and sees no node to wait for."""
        return self._signalled.asks_to_leave and self._run.blind_since is not None

    def _facts(self, status: Group) -> AgentFacts:
        since, group = self._barrier_since, self._workers.running
        own = OwnFacts(
            round=group.formed.number,
            group=status,
            waited_for_others=since is not None and self._stopping.has_waited(since, self._now()),
            wedged=self._workers.ending.wedge is not None,
            hang=self._workers.hangs.hang,
            leaves_alone=self._signalled.leaves_alone,
            word=group.word,
        )
        run = self._run
        return AgentFacts(
            run.state, run.membership.epoch, own, self._others, self._budgets, run.settings.min_nodes
        )

    def _act(self, action: Action, group: LocalGroup) -> bool:
        """Carry out a decision; return whether to look again at once."""
        if action is Action.WAIT:
            return False
        if action is Action.DRAIN:
            return self._stopping.drain(group, self._others.common_step)
        {
            Action.STOP_WORKERS: self._stopping.end_round,
            Action.REPORT_CRASH: self._reports.crash,
            Action.REPORT_LOSS: self._reports.loss,
            Action.REPORT_WORD: self._reports.word,
            Action.ASK_FOR_STACKS: self._workers.hangs.ask,
            Action.REPORT_HANG: self._workers.hangs.report,
            Action.GIVE_UP: self._reports.give_up,
            Action.REPORT_DONE: self._reports.done,
            Action.REPORT_DRAINED: self._leaving.hand_back,
            Action.REPORT_PAUSED: self._reports.paused,
            Action.REPORT_WEDGE: self._report_wedge,
        }[action](group)
        return not self._workers.ending.is_held

    def _report_wedge(self, group: LocalGroup) -> None:
        wedge = self._workers.ending.wedge
        self._run.report_agent_error(group.formed.number, wedge.first.to_json() if wedge else None)

    def _show_phase(self, status: Group) -> None:
        phase, rounds = PHASE_OF.get(status), self._state.rounds
        if phase is not None and (phase, rounds) != self._shown:
            self._run.set_phase(phase)
            self._shown = phase, rounds

    def _sleep(self, status: Group) -> None:
        events = self._workers.running.events
        wake_at = min(self._others.next_turn_at, self._parts.services.wake_at(), events.due_at)
        drain_ends = self._stopping.deadline
        if drain_ends is not None and status in (Group.RUNNING, Group.FAILED):
            wake_at = min(wake_at, drain_ends)
        seconds = min(wake_at - self._now(), self._workers.hangs.nap_s, self._workers.ending.nap_s)
        if events.is_console_full:
            seconds = min(seconds, _CONSOLE_LOOK_S)
        if self._waits_for_others(status):
            seconds = min(seconds, self._time_to_next_look())
        self._parts.loop.wait(0.0 if events.has_more_lines else seconds, events.fds)

    # leaving

    def _leave(self, action: Action) -> Outcome:
        """Wait in the exit barrier for the other nodes' workers to be gone, then leave."""
        if action is Action.STAND_DOWN:
            return FENCED
        if action is Action.ABANDON:
            return self._leaving.abandon()
        if action is Action.LEAVE_ALONE:
            return self._leaving.alone()
        limit = self._now() + self._parts.times.exit_barrier
        while not self._others.everyone_stopped and self._now() < limit:
            self._parts.loop.wait(self._time_to_next_look())
            is_over = self._parts.loop.signals or self._state.epoch > self._run.membership.epoch
            if is_over or self._has_no_reason_to_wait():
                break
            self._run.tick(look=True)
            self._others = self._run.peer_view(is_gone=True)
        return self._leaving.by_state()

    def _time_to_next_look(self) -> float:
        """Return the time between two looks while nodes agree [s]; more nodes look less often."""
        formed = self._state.round
        return FAST_LOOK_S + 0.002 * (len(formed.members) if formed else 0)
