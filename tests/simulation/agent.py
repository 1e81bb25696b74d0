"""An agent for the simulation: the real rendezvous and decisions, workers that are mere numbers.

It goes through the same turns as `hpc_elastic.node.agent.NodeAgent`, with the same way of
bearing a shared directory that does not answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hpc_elastic.errors import StoreError
from hpc_elastic.meet import rules
from hpc_elastic.meet.member_names import Phase
from hpc_elastic.meet.membership import Membership, NodeFacts
from hpc_elastic.meet.rules import MeetingSettings
from hpc_elastic.meet.shared_fs import Interrupted, OutOfReach, SharedFsRendezvous, Waiting
from hpc_elastic.meet.shared_run import RunDeps, RunFacts, SharedRun
from hpc_elastic.node.decision import (
    Action,
    AgentFacts,
    Group,
    OwnFacts,
    RestartBudgets,
    decide,
    decide_blind,
)
from hpc_elastic.record.array_task import TaskStart
from hpc_elastic.record.journal import AfterDrain, Cause, Epoch, Member, RoundFormed
from hpc_elastic.record.run_log import RunLog
from hpc_elastic.store.lock import ContentionLock
from hpc_elastic.store.protocol import Store
from tests.simulation.broken import BrokenError
from tests.simulation.world import Node

EXIT_BARRIER_S = 60.0
WEDGE_STOP_S = 7.0  # until workers that hang in the kernel are given up
FAST_LOOK_S = 0.15  # between two looks while nodes agree; longer than the real one's, for speed [s]
MAX_RESTARTS = 1_000
_STOPPED = (Phase.STOPPED, Phase.SUCCEEDED)
_LAST = (Action.REJOIN, Action.LEAVE, Action.LEAVE_ALONE, Action.STAND_DOWN, Action.ABANDON)


class Start(NamedTuple):
    """What the agents of one start of the run share."""

    epoch: Epoch
    expected: tuple[str, ...]
    settings: MeetingSettings
    work_s: float  # how long a round must run for the run to be done [s]
    task: TaskStart | None = None  # in array mode: which start of which task the agent is
    early: float = 0.0  # the chance that the workers of a node have less to do than those of the others


class Shares(NamedTuple):
    """What an agent gets to the others with."""

    store: Store
    lock: ContentionLock | None


class SimulatedAgent:
    """One node's agent.

    Args:
        node: where it runs.
        shares: how it sees the shared directory.
        start: what all agents of this start share.
        number: makes its id unique, as a process id would.
    """

    def __init__(self, node: Node, shares: Shares, start: Start, number: int) -> None:
        self.node = node
        self.start = start
        self.formed: RoundFormed | None = None
        self.group: Group | None = None
        self.outcome = ""
        self.began_at = node.world.now
        self.left_at = float("inf")
        self.crash_next = False
        self.wedge_next = False  # a worker hangs in the kernel
        self._wedged: RoundFormed | None = None  # the round in which one does
        self.has_succeeded = False  # in the newest round it was in
        self._changes_at: tuple[float, Group] | None = None
        self._barrier_since: float | None = None
        self._outage_since: float | None = None
        self.is_signalled = False
        tag = start.task.tag if start.task else ""
        member = Member(f"{node.name}.{number}{tag}", node.name, 1)
        facts = NodeFacts(member, node.name, node.name)
        membership = Membership(shares.store, node, facts, start.epoch, start.settings)
        self.shared = SharedRun(
            RunLog(shares.store, node, node.name, shares.lock),
            membership,
            RunFacts("run", "17", start.expected),
            start.settings,
            RunDeps(node, lambda: None),
        )
        waiting = Waiting(self._wait, lambda: 20_000, lambda: bool(node.signals))
        self.rendezvous = SharedFsRendezvous(self.shared, waiting)

    def run(self) -> None:
        """Run to the end; `outcome` tells which."""
        while not self.outcome:
            self.outcome = self._join() or self._supervise()
        self.group = None
        self.left_at = self.node.world.now
        self.rendezvous.shutdown()
        self.node.world.tell(f"{self.name} is over: {self.outcome}")

    @property
    def name(self) -> str:
        """The node and the start of the job it belongs to."""
        task = self.start.task.tag if self.start.task else ""
        return f"{self.node.name}{task} of {self.start.epoch.text()}"

    @property
    def node_id(self) -> str:
        """Its id among the members."""
        return self.shared.membership.node_id

    # joining

    def _leave_for_signal(self) -> str:
        self._note_signals()
        if self._leaves_alone:
            return self._leave_alone(Cause.PREEMPTION)
        self._insist(self._tell_wish)
        return self._leave_unstarted() if self.shared.state.leaving else "left untold"

    @property
    def _leaves_alone(self) -> bool:
        return self.is_signalled and self.start.task is not None

    def _leave_alone(self, cause: Cause) -> str:
        self._insist(lambda: self.shared.report_left(cause, ""))
        state = self.shared.state
        if state.ending is not None or state.drained is not None:
            return self._end_text()
        return "dismissed" if cause is Cause.MEMBERSHIP else "left"

    def _join(self) -> str:
        if self.is_signalled:
            return self._leave_for_signal()
        verdict = self.rendezvous.join()
        match verdict:
            case rules.Joined(formed):
                self._start_workers(formed)
                return ""
            case Interrupted():
                return self._leave_for_signal()
            case OutOfReach():
                return "no store"
            case _:
                return self._refused(verdict.why)

    def _refused(self, why: rules.Refusal) -> str:
        match why:
            case rules.TooFew():
                return self._too_few(Cause.JOIN_TIMEOUT if why.timed_out else Cause.NODE_LOSS)
            case rules.LeaveRun():
                return self._leave_unstarted()
            case rules.Dismissed():
                return self._leave_alone(Cause.MEMBERSHIP)
            case rules.Fenced():
                return "fenced"

    def _too_few(self, cause: Cause) -> str:
        self._insist(lambda: self.shared.report_drained(cause))
        return self._end_text()

    def _leave_unstarted(self) -> str:
        state = self.shared.state
        nobody_works = state.round is None or self.shared.everyone_in(*_STOPPED)
        if state.running is None and nobody_works:
            self._insist(self._hand_back)
        return self._end_text()

    def _hand_back(self) -> None:
        cause = self.shared.state.leave_cause
        if cause is not None:
            self.shared.report_drained(cause)

    def _end_text(self) -> str:
        return "done" if self.shared.state.ending else "drained"

    def _start_workers(self, formed: RoundFormed) -> None:
        self.formed = formed
        rank, size = self.shared.rank_in(formed), len(formed.members)
        self.group = Group.RUNNING
        self.has_succeeded = False
        self._changes_at = (self.node.monotonic() + self._work_s(), Group.SUCCEEDED)
        self._barrier_since = None
        self.node.world.tell(f"{self.name} is rank {rank} of {size} in {formed.number}")

    def _work_s(self) -> float:
        """Return how long the workers of this node run when nothing happens [s]."""
        work_s, dice = self.start.work_s, self.node.world.random
        return dice.uniform(0, work_s) if self.start.early and dice.random() < self.start.early else work_s

    @property
    def wants_a_place(self) -> bool:
        """Whether nothing keeps it from being in the next round."""
        return not self.outcome and not self.is_signalled and self._wedged is None

    # supervising

    def _supervise(self) -> str:
        if self.group is None:
            return ""
        while True:
            try:
                action = self._turn()
            except StoreError:
                if self._bear():
                    return "no store"
                continue
            self._outage_since = None
            if action is Action.REJOIN:
                return ""
            if action is not None:
                return self._leave(action)

    def _turn(self) -> Action | None:
        self._note_signals()
        status = self._status()
        self._tell_wish()
        if status.is_gone:
            self.shared.set_phase(Phase.SUCCEEDED if status is Group.SUCCEEDED else Phase.STOPPED)
        self._look(status)
        action = decide(self._facts(status))
        if action in _LAST:
            self.group = None
            return action
        if action is Action.WAIT or not self._act(action):
            self._rest(status)
        return None

    def _bear(self) -> bool:
        """Go on while the store refuses; return whether to leave."""
        now = self.node.monotonic()
        if self._outage_since is None:
            self._outage_since = now
        self.shared.note_blindness()
        status = self._status()
        waited = now - self._outage_since >= EXIT_BARRIER_S
        action = decide_blind(self._facts(status), signalled=self.is_signalled, waited=waited)
        if action is Action.LEAVE:
            return True
        if action is Action.STOP_WORKERS:
            self._stop_workers(Group.STOPPING)
        self._wait(self.start.settings.heartbeat_interval)
        return False

    def _has_no_reason_to_wait(self) -> bool:
        return self.is_signalled and self.shared.blind_since is not None

    def _leave(self, action: Action) -> str:
        if action is Action.STAND_DOWN:
            return "fenced"
        if action is Action.LEAVE_ALONE:
            return self._leave_alone(Cause.PREEMPTION)
        if action is Action.ABANDON:
            self._insist(self._abandon)
            return "wedged"
        limit = self.node.monotonic() + EXIT_BARRIER_S
        while not self.shared.everyone_in(*_STOPPED) and self.node.monotonic() < limit:
            self._wait(FAST_LOOK_S)
            is_over = self.node.signals or self.shared.state.epoch > self.start.epoch
            if is_over or self._has_no_reason_to_wait():
                break
            self.shared.tick(look=True)
        return self._end_text()

    def _abandon(self) -> None:
        """Hand the job back if there is no other node."""
        if self.rendezvous.num_nodes_waiting() or self.shared.state.running is not None:
            return
        assert self._wedged is not None
        if set(self.shared.live_members(self._wedged)) <= {self.node_id}:
            self.shared.report_drained(Cause.AGENT_ERROR)

    def _status(self) -> Group:
        now = self.node.monotonic()
        if self._changes_at is not None and now >= self._changes_at[0]:
            self.group = self._changes_at[1]
            self._changes_at = None
            self.has_succeeded = self.group is Group.SUCCEEDED
        if self.crash_next and self.group is Group.RUNNING:
            self.crash_next = False
            self.group, self._changes_at = Group.FAILED, None
        if self.wedge_next and self.group is Group.RUNNING:
            self.wedge_next = False
            self._wedged, self._changes_at = self.formed, None
        assert self.group is not None
        return self.group

    def _look(self, status: Group) -> None:
        waits = status.is_gone or self.shared.state.drain is not None
        self.shared.tick(look=waits)
        if status.is_gone and self._has_no_reason_to_wait():
            raise StoreError("no look at the other nodes succeeds")
        if status.is_gone and self._barrier_since is None:
            self._barrier_since = self.node.monotonic()

    def _facts(self, status: Group) -> AgentFacts:
        since = self._barrier_since
        assert self.formed is not None
        waited = since is not None and self.node.monotonic() - since >= EXIT_BARRIER_S
        wedged, leaves_alone = self._wedged is not None, self._leaves_alone
        own = OwnFacts(self.formed.number, status, waited, wedged, leaves_alone=leaves_alone)
        others = self.shared.peer_view(is_gone=status.is_gone)
        run, budgets = self.shared, RestartBudgets(crash=MAX_RESTARTS)
        return AgentFacts(run.state, run.membership.epoch, own, others, budgets, run.settings.min_nodes)

    def _act(self, action: Action) -> bool:
        """Carry out a decision; return whether to look again at once."""
        assert self.formed is not None
        number, shared = self.formed.number, self.shared
        if action is Action.DRAIN:
            return self._drain()
        steps: dict[Action, Callable[[], object]] = {
            Action.STOP_WORKERS: lambda: self._stop_workers(Group.STOPPING),
            Action.REPORT_CRASH: lambda: shared.report_crash(number, {}),
            Action.REPORT_LOSS: lambda: shared.report_lost(number, shared.lost),
            Action.REPORT_DONE: lambda: shared.report_done(number, ""),
            Action.REPORT_PAUSED: lambda: shared.report_paused(number),
            Action.REPORT_DRAINED: self._hand_back,
            Action.REPORT_WEDGE: lambda: shared.report_agent_error(number, {}),
        }
        steps[action]()
        return True

    def _stop_workers(self, now_in: Group) -> None:
        self.group = now_in
        seconds = WEDGE_STOP_S if self._wedged else self.node.world.random.random()
        self._changes_at = (self.node.monotonic() + seconds, Group.STOPPED)

    def _drain(self) -> bool:
        if self._changes_at is None or self._changes_at[1] is not Group.STOPPED:
            self._stop_workers(Group.RUNNING)
            return True
        return False

    # signals and waiting

    def _note_signals(self) -> None:
        if self.node.signals:
            self.is_signalled = True
            self.node.signals.clear()

    def _tell_wish(self) -> None:
        state, alone = self.shared.state, self._leaves_alone
        if self.is_signalled and not (state.leaving or (alone and state.drain is not None)):
            then = AfterDrain.REJOIN if alone else AfterDrain.LEAVE
            self.shared.request_drain(Cause.PREEMPTION, then, "signal")

    def _insist(self, write: Callable[[], object]) -> None:
        """Write something before leaving; give up when the store refuses for too long."""
        limit = self.node.monotonic() + EXIT_BARRIER_S
        while True:
            try:
                write()
            except StoreError:
                if self.node.monotonic() >= limit or self.node.signals:
                    return
                self._wait(self.start.settings.heartbeat_interval)
            else:
                return

    def _rest(self, status: Group) -> None:
        now = self.node.monotonic()
        wake_at = self.shared.next_turn_at()
        if self._changes_at is not None:
            wake_at = min(wake_at, self._changes_at[0])
        if status.is_gone or self.shared.state.drain is not None:
            wake_at = min(wake_at, now + FAST_LOOK_S)
        self._wait(wake_at - now)

    def _wait(self, seconds: float) -> None:
        """Wait, sometimes less: something has happened on this machine."""
        self._check_workers()
        dice = self.node.world.random.random()
        self.node.wait(seconds * dice / 0.3 if dice < 0.3 else seconds)

    def _check_workers(self) -> None:
        """Check that workers do not run beside the newest round that this agent can see."""
        if self.group is not Group.RUNNING or self.formed is None:
            return
        state = self.shared.state
        newest = state.running.number if state.running and state.epoch == self.start.epoch else None
        if newest != self.formed.number:
            kept = self.formed.number
            raise BrokenError(
                "one round", f"{self.name} keeps workers of round {kept}, but knows of {newest}"
            )
