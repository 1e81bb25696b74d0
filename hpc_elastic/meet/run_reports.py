"""What an agent writes into the journal of its run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from hpc_elastic.meet.membership import Membership
from hpc_elastic.record.journal import (
    NO_SIGNAL,
    Answer,
    Asked,
    Cause,
    Checkpoint,
    Decision,
    Drained,
    DrainExplained,
    DrainRequested,
    Entry,
    FailedAlike,
    FailedLeaving,
    HangSuspected,
    NeverAsked,
    NodeLeft,
    RanksStopped,
    RoundEnded,
    RunEnded,
    StopAgreed,
    Then,
    WarningHeld,
)
from hpc_elastic.record.same_failure import signature
from hpc_elastic.record.state import RunState


class RunReports(ABC):
    """The reports of one agent; each is one record, added if it still fits."""

    membership: Membership
    drain_began: float | None = None  # when this agent first heard of the drain under way [s]

    @abstractmethod
    def now(self) -> float:
        """Return this node's monotonic time [s]."""

    @property
    @abstractmethod
    def state(self) -> RunState:
        """The state of the run as last read."""

    @property
    @abstractmethod
    def node(self) -> str:
        """This node's name."""

    @abstractmethod
    def is_beside_a_round(self) -> bool:
        """Tell whether a round runs, by what was last read, of which this agent is no member."""

    @abstractmethod
    def latest_checkpoint(self) -> Checkpoint | None:
        """Return the newest durable checkpoint."""

    @abstractmethod
    def commit(self, entry: Entry, *, only_if: Callable[[RunState], bool] | None = None) -> RunState:
        """Add an entry to the journal if it still fits, and return the state."""

    def report_crash(self, number: int, failure: dict[str, Any]) -> RunState:
        """End a round because a worker on this node failed."""
        return self.commit(RoundEnded(number, Cause.CRASH, (self.node,), failure, self._saved()))

    def report_failed_too(self, number: int, failure: dict[str, Any]) -> RunState:
        """Tell that workers on this node failed as those did that ended a round: neither node is to blame."""
        own = RoundEnded(number, Cause.CRASH, (self.node,), failure)
        alike = FailedAlike(self.membership.epoch, number, self.node)
        return self.commit(alike, only_if=lambda state: _is_another(state.ended, own))

    def report_failed_leaving(self, number: int, failure: dict[str, Any]) -> RunState:
        """Tell that a worker on this node failed while all were to save and leave."""
        return self.commit(FailedLeaving(self.membership.epoch, number, self.node, failure))

    def report_never_asked(self, number: int) -> RunState:
        """Tell that the workers do not ask whether to stop."""
        return self.commit(NeverAsked(number))

    def report_stopped(self, number: int, node: str, ranks: tuple[int, ...]) -> None:
        """Tell which workers of a node somebody has stopped, if that is not known."""
        if self.state.stopped_ranks.get(node, ()) != ranks:
            self.commit(RanksStopped(number, node, ranks))

    def report_warning_held(self, number: int, left_s: float, before_s: float) -> RunState:
        """Tell that the warning before the time limit has come too early.

        Args:
            number: of the round.
            left_s: to the time limit [s].
            before_s: how long before it the workers are going to be asked [s].
        """
        return self.commit(WarningHeld(number, self.node, round(left_s, 1), round(before_s, 1)))

    def suspect_hang(self, number: int, detail: str) -> RunState:
        """Have all nodes write down where their workers are, because some make no progress."""
        look = self.state.hang.look + 1 if self.state.hang else 1
        return self.commit(HangSuspected(number, look, self.node, detail))

    def report_hang(self, number: int, nodes: Iterable[str], failure: dict[str, Any] | None) -> RunState:
        """End a round because workers make no progress."""
        return self.commit(RoundEnded(number, Cause.HANG, tuple(nodes), failure, self._saved()))

    def report_lost(self, number: int, nodes: Iterable[str]) -> RunState:
        """End a round because members have vanished."""
        return self.commit(RoundEnded(number, Cause.NODE_LOSS, tuple(nodes), None))

    def report_agent_error(self, number: int, failure: dict[str, Any] | None = None) -> None:
        """End a round because this node cannot start its workers, or cannot end one."""
        self.commit(RoundEnded(number, Cause.AGENT_ERROR, (self.node,), failure))

    def report_paused(self, number: int) -> RunState:
        """End a round whose workers have all stopped so that the membership can change."""
        drain = self.state.drain
        if drain is None or drain.then is Then.LEAVE or drain.cause is Cause.MEMBERSHIP:
            return self.commit(RoundEnded(number, Cause.MEMBERSHIP, (), None, self._saved()))
        return self.commit(RoundEnded(number, drain.cause, (drain.node,), None, self._saved()))

    def report_left(self, cause: Cause, detail: str, asked: Asked = NO_SIGNAL) -> RunState:
        """Tell that this node has no workers any more and leaves; the others go on without it."""
        epoch, node_id = self.membership.epoch, self.membership.node_id
        return self.commit(NodeLeft(epoch, node_id, self.node, cause, detail, asked))

    def request_drain(
        self,
        cause: Cause,
        then: Then,
        detail: str = "",
        left_s: float | None = None,
        asked: Asked = NO_SIGNAL,
    ) -> RunState:
        """Ask all nodes to have their workers save and stop at one agreed step.

        Whoever stands beside a running round has no say in it.

        Args:
            cause: why.
            then: what the nodes do after it.
            detail: what asks, for people, if it is no signal.
            left_s: how long workers have from now on [s]; None: by the agents' flags.
            asked: the signal that asks.
        """
        request = DrainRequested(cause, self.node, then, detail, self.membership.epoch, left_s, asked)
        return self.commit(request, only_if=lambda _state: not self.is_beside_a_round())

    def explain_drain(
        self, cause: Cause, detail: str, left_s: float | None, answer: Answer = Answer.CONFIRMS
    ) -> RunState:
        """Tell what Slurm says about the signal that has asked for the drain under way.

        Args:
            cause: why it was sent.
            detail: the same for people.
            left_s: how long workers have from now on [s]; None: by the agents' flags.
            answer: what that comes to.
        """
        return self.commit(DrainExplained(self.membership.epoch, cause, detail, left_s, answer))

    def request_pause(self, number: int, detail: str) -> RunState:
        """Ask the members of a round to stop for another membership, unless it is over."""
        epoch = self.membership.epoch
        pause = DrainRequested(Cause.MEMBERSHIP, self.node, Then.REJOIN, detail, epoch)
        return self.commit(pause, only_if=_in_round(number))

    def agree_stop(self, number: int, step: int) -> RunState:
        """Set the step after which all ranks stop."""
        return self.commit(StopAgreed(number, step))

    def report_drained(self, cause: Cause, detail: str = "", missing: tuple[str, ...] = ()) -> RunState:
        """Tell that every worker of this job start has stopped, or that none can be started.

        Args:
            cause: why.
            detail: the same for people.
            missing: nodes that were waited for in vain.
        """
        drained = Drained(self.membership.epoch, cause, self._saved(), detail, self._drain_took())
        return self.commit(drained._replace(missing=missing))

    def report_asked_drained(self, cause: Cause, drain: DrainRequested | None) -> RunState:
        """Tell that every worker of this job start has stopped, as it was asked for.

        Args:
            cause: why.
            drain: what asked for it; None: nothing did.
        """
        drained = Drained(self.membership.epoch, cause, self._saved(), "", self._drain_took())
        if drain is not None:
            drained = drained._replace(detail=drain.detail, asked=drain.asked, budget=drain.budget)
        return self.commit(drained)

    def _drain_took(self) -> float | None:
        return None if self.drain_began is None else round(self.now() - self.drain_began, 3)

    def _saved(self) -> int | None:
        """Return the newest durable checkpoint step, None if workers mark none."""
        checkpoint = self.latest_checkpoint()
        return checkpoint.step if checkpoint else None

    def end_run(
        self, decision: Decision, *, exit_code: int, reason: str, failure: dict[str, Any] | None = None
    ) -> RunState:
        """End the run for good."""
        return self.commit(RunEnded(decision, exit_code, reason, failure, self.membership.epoch))

    def report_done(self, number: int, reason: str) -> RunState:
        """End the run because all workers of a round have succeeded, unless another round has begun."""
        done = RunEnded(Decision.DONE, 0, reason, None, self.membership.epoch)
        return self.commit(done, only_if=_in_round(number))


def _is_another(first: RoundEnded | None, own: RoundEnded) -> bool:
    """Tell whether a round ended by the same failure on one other node."""
    if first is None or first.number != own.number or len(first.nodes) != 1:
        return False
    return first.nodes != own.nodes and signature(first) == signature(own)


def _in_round(number: int) -> Callable[[RunState], bool]:
    """Return a condition: that round is running."""
    return lambda state: state.running is not None and state.running.number == number
