"""An agent for the simulation: the real rendezvous and decisions, workers that are mere numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

from hpc_elastic.agent.decision import Action, Facts, Group, decide
from hpc_elastic.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousTimeoutError,
    StoreError,
)
from hpc_elastic.rendezvous.interface import RendezvousInfo
from hpc_elastic.rendezvous.journal import Cause, Decision, Epoch, Member, RoundFormed, Then
from hpc_elastic.rendezvous.membership import Membership, NodeFacts
from hpc_elastic.rendezvous.roster import Phase
from hpc_elastic.rendezvous.rules import RendezvousSettings
from hpc_elastic.rendezvous.run_log import RunLog
from hpc_elastic.rendezvous.shared_fs import RendezvousInterruptedError, SharedFsRendezvous, Waiting
from hpc_elastic.rendezvous.shared_run import Around, RunFacts, SharedRun
from hpc_elastic.store.protocol import Store
from tests.simulation.world import Node

_T = TypeVar("_T")
EXIT_BARRIER_S = 60.0
MAX_RESTARTS = 1_000


class Start(NamedTuple):
    """What the agents of one start of the run share."""

    epoch: Epoch
    expected: tuple[str, ...]
    settings: RendezvousSettings
    work_s: float  # how long a round must run for the run to be done [s]


class SimulatedAgent:
    """One node's agent.

    Args:
        node: where it runs.
        store: how it sees the shared directory.
        start: what all agents of this start share.
        number: makes its id unique, as a process id would.
    """

    def __init__(self, node: Node, store: Store, start: Start, number: int) -> None:
        self.node = node
        self.start = start
        self.formed: RoundFormed | None = None
        self.group: Group | None = None
        self.outcome = ""
        self.crash_next = False
        self.has_succeeded = False  # in the newest round it was in
        self._changes_at: tuple[float, Group] | None = None
        self._barrier_since: float | None = None
        member = Member(f"{node.name}.{number}", node.name, 1)
        facts = NodeFacts(member, node.name, node.name)
        membership = Membership(store, node, facts, start.epoch, start.settings)
        self.shared = SharedRun(
            RunLog(store, node, node.name),
            membership,
            RunFacts("run", "17", start.expected),
            start.settings,
            Around(node, lambda: None),
        )
        waiting = Waiting(self._wait, lambda: 20_000, lambda: bool(node.signals))
        self.rendezvous = SharedFsRendezvous(self.shared, waiting)

    def run(self) -> None:
        """Run to the end; `outcome` tells which."""
        while not self.outcome:
            self.outcome = self._join() or self._supervise()
            if self.outcome:
                self.rendezvous.shutdown()
        self.node.world.tell(f"{self._name} is over: {self.outcome}")

    @property
    def _name(self) -> str:
        return f"{self.node.name} of {self.start.epoch.text()}"

    # joining

    def _join(self) -> str:  # noqa: PLR0911 - one outcome per error
        try:
            info = self.rendezvous.next_rendezvous()
        except RendezvousInterruptedError:
            self._insist(self._take_signals)
            return self._leave_unstarted() if self.shared.state.leaving else ""
        except RendezvousTimeoutError:
            self._insist(lambda: self.shared.report_drained(Cause.JOIN_TIMEOUT))
            return "done" if self.shared.state.ending else "timeout"
        except RendezvousClosedError:
            return self._leave_unstarted()
        except RendezvousGracefulExitError:
            return "fenced"
        except RendezvousConnectionError:
            return "no store"
        except StoreError:
            return ""  # lets the agent try again; it is in the round already, or not
        self._start_workers(info)
        return ""

    def _leave_unstarted(self) -> str:
        state = self.shared.state
        drain = state.drain
        if state.ending is None and drain is not None and state.running is None:
            self._insist(lambda: self.shared.report_drained(drain.cause))
        return "done" if state.ending else "drained"

    def _start_workers(self, info: RendezvousInfo) -> None:
        assert info.round is not None
        self.formed = info.round
        assert info.round.members[info.rank].node_id == self.shared.membership.node_id
        assert info.world_size == len(info.round.members)
        self.group = Group.RUNNING
        self.has_succeeded = False
        self._changes_at = (self.node.monotonic() + self.start.work_s, Group.SUCCEEDED)
        self._barrier_since = None
        self.node.world.tell(f"{self._name} is rank {info.rank} of {info.world_size} in {info.round.number}")

    # supervising

    def _supervise(self) -> str:
        if self.group is None:
            return ""
        while True:
            self._insist(self._take_signals)
            status = self._status()
            self._insist(partial(self._show_phase, status))
            self._look(status)
            action = decide(self._facts(status))
            if action in (Action.REJOIN, Action.LEAVE, Action.STAND_DOWN):
                self.group = None
                return {Action.LEAVE: self._end_text(), Action.STAND_DOWN: "fenced"}.get(action, "")
            if action is Action.WAIT or not self._act(action):
                self._rest(status)

    def _end_text(self) -> str:
        return "done" if self.shared.state.ending else "drained"

    def _status(self) -> Group:
        now = self.node.monotonic()
        if self._changes_at is not None and now >= self._changes_at[0]:
            self.group = self._changes_at[1]
            self._changes_at = None
            self.has_succeeded = self.group is Group.SUCCEEDED
        if self.crash_next and self.group is Group.RUNNING:
            self.crash_next = False
            self.group, self._changes_at = Group.FAILED, None
        assert self.group is not None
        return self.group

    def _show_phase(self, status: Group) -> None:
        if status is Group.SUCCEEDED:
            self.shared.set_phase(Phase.SUCCEEDED)
        elif status is Group.STOPPED:
            self.shared.set_phase(Phase.STOPPED)

    def _look(self, status: Group) -> None:
        waits = status.is_gone or self.shared.state.drain is not None
        self.shared.tick(look=waits)
        if status.is_gone and self._barrier_since is None:
            self._barrier_since = self.node.monotonic()

    def _facts(self, status: Group) -> Facts:
        shared, since = self.shared, self._barrier_since
        stopped = shared.everyone_in(Phase.STOPPED, Phase.SUCCEEDED)
        assert self.formed is not None
        return Facts(
            state=shared.state,
            epoch=self.start.epoch,
            round=self.formed.number,
            group=status,
            max_restarts=MAX_RESTARTS,
            lost=shared.lost,
            vanished=status.is_gone and bool(shared.vanished()),
            everyone_stopped=status.is_gone and stopped,
            everyone_succeeded=status is Group.SUCCEEDED and shared.everyone_succeeded(),
            waited_for_others=since is not None and self.node.monotonic() - since >= EXIT_BARRIER_S,
        )

    def _act(self, action: Action) -> bool:
        assert self.formed is not None
        number, shared = self.formed.number, self.shared
        if action is Action.STOP_WORKERS:
            self._stop_workers(Group.STOPPING)
        elif action is Action.DRAIN:
            return self._drain()
        elif action is Action.REPORT_CRASH:
            self._insist(lambda: shared.report_crash(number, {}))
        elif action is Action.REPORT_LOSS:
            self._insist(lambda: shared.report_lost(number, shared.lost))
        elif action is Action.REPORT_DONE:
            self._insist(lambda: shared.end_run(Decision.DONE, exit_code=0, reason=""))
        elif action is Action.REPORT_PAUSED:
            self._insist(lambda: shared.report_paused(number))
        elif action is Action.REPORT_DRAINED:
            self._insist(lambda: shared.report_drained(Cause.PREEMPTION))
        else:
            raise AssertionError(f"nobody expects {action}")
        return True

    def _stop_workers(self, now_in: Group) -> None:
        self.group = now_in
        takes = self.node.world.random.uniform(0, 1)
        self._changes_at = (self.node.monotonic() + takes, Group.STOPPED)

    def _drain(self) -> bool:
        if self._changes_at is None or self._changes_at[1] is not Group.STOPPED:
            self._stop_workers(Group.RUNNING)
            return True
        return False

    def _take_signals(self) -> None:
        while self.node.signals:
            self.shared.request_drain(Cause.PREEMPTION, Then.LEAVE, "signal")
            self.node.signals.pop()

    # waiting

    def _insist(self, step: Callable[[], _T]) -> _T:
        """Take a step until the store has answered."""
        while True:
            try:
                return step()
            except StoreError:
                self.node.wait(0.5)

    def _rest(self, status: Group) -> None:
        due = self.shared.membership.next_beat_at() - self.node.monotonic()
        waits = status.is_gone or self.shared.state.drain is not None
        self._wait(min(due, 0.05) if waits else due)

    def _wait(self, seconds: float) -> None:
        """Wait, sometimes less: something has happened on this machine."""
        self._check_workers()
        early = self.node.world.random.random() < 0.3
        self.node.wait(seconds * self.node.world.random.random() if early else seconds)

    def _check_workers(self) -> None:
        """Check that workers do not run beside the newest round that this agent can see."""
        if self.group is not Group.RUNNING or self.formed is None:
            return
        state = self.shared.state
        assert state.epoch == self.start.epoch
        assert state.running is not None
        assert state.running.number == self.formed.number
