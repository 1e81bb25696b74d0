"""The ways in which one agent leaves: each writes its reason into the journal, and returns the outcome."""

from __future__ import annotations

from hpc_elastic.errors import InputError, RendezvousError
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.meet import rules
from hpc_elastic.meet.member_names import GONE
from hpc_elastic.meet.shared_fs import NoRound, OutOfReach
from hpc_elastic.meet.shared_run import SharedRun
from hpc_elastic.node.drain.signals import Signalled
from hpc_elastic.node.node_workers import NodeWorkers
from hpc_elastic.node.outcome import FENCED, Outcome, out_of_touch, outcome_of
from hpc_elastic.node.setup.agent_setup import AgentParts
from hpc_elastic.node.setup.journal_entries import Reports, insist
from hpc_elastic.node.spec import RunResult, WorkerState
from hpc_elastic.node.workers.local_group import LocalGroup
from hpc_elastic.record.causes import CAUSES
from hpc_elastic.record.journal import Asked, Cause, NodeUnfit, RoundFormed, Then
from hpc_elastic.record.same_failure import head_of, repeated_text
from hpc_elastic.record.state import RunState


class Leaving:
    """Ends an agent's part of the run.

    Args:
        parts: the agent's parts.
        workers: of this node.
        signalled: the requests to this agent.
        reports: entries of the journal.
    """

    def __init__(
        self, parts: AgentParts, workers: NodeWorkers, signalled: Signalled, reports: Reports
    ) -> None:
        self._parts = parts
        self._run: SharedRun = parts.rendezvous.run
        self._workers = workers
        self._signalled = signalled
        self._reports = reports

    @property
    def _state(self) -> RunState:
        return self._run.state

    def by_state(self) -> Outcome:
        """Leave because the run has ended, or this start of the job has."""
        return outcome_of(self._state, *self._workers.last)

    # without a round

    def refused(self, verdict: NoRound | OutOfReach) -> Outcome:
        """Leave because there is no further round with this node."""
        error = self._parts.rendezvous.error_of(verdict)
        if isinstance(verdict, OutOfReach):
            return self.out_of_touch(error)
        return self._by_refusal(verdict.why, str(error))._replace(error=error)

    def _by_refusal(self, why: rules.Refusal, words: str) -> Outcome:
        match why:
            case rules.TooFew():
                cause = Cause.JOIN_TIMEOUT if why.timed_out else Cause.NODE_LOSS
                return self._too_few(words, cause, why.missing)
            case rules.Dismissed():
                return self._alone(Cause.MEMBERSHIP, words, Asked(), words)
            case rules.LeaveRun():
                return self._unstarted()
            case rules.Fenced():
                return FENCED

    def without_workers(self) -> Outcome:
        """Leave for a signal that came while this node had no workers; a round of other nodes continues."""
        self._signalled.note()
        if self._signalled.leaves_alone:
            return self.alone()
        self._signalled.insist(self._signalled.tell)
        if self._state.leaving:
            return self._unstarted()
        beside = self._run.is_beside_a_round()
        how = "the run goes on without this node" if beside else "the others could not be informed"
        return Outcome(ExitCode.REQUEUE, f"left for {self._signalled.wish.detail}; {how}")

    def _unstarted(self) -> Outcome:
        """Leave without workers; if no other node has any, this start of the job is over."""
        state = self._state
        is_idle = state.round is None or self._run.everyone_in(*GONE)
        if state.running is None and is_idle:
            self._signalled.insist(self.hand_back)
        return self.by_state()

    def hand_back(self, _group: LocalGroup | None = None) -> None:
        """Record that no workers are left in this start of the job, and why."""
        self._reports.hand_back(is_signalled=self._signalled.leaves_alone)

    def _too_few(self, reason: str, cause: Cause, missing: tuple[str, ...]) -> Outcome:
        self._parts.log.say(reason)
        if self._parts.on_timeout is Then.LEAVE:
            self._signalled.insist(lambda: self._run.report_drained(cause, reason, missing))
        else:
            self._signalled.insist(lambda: self._reports.too_few(reason))
        return self.by_state()

    def not_started(self, formed: RoundFormed, error: InputError | OSError) -> Outcome:
        """Leave because the workers of a round cannot be started here."""
        reason = f"the workers cannot be started on {self._parts.run.node}: {error}"
        if isinstance(error, InputError):  # the command itself: it cannot work on any node
            self._signalled.insist(lambda: self._reports.failed(reason))
            return self.by_state()._replace(error=error)
        self._signalled.insist(lambda: self._run.report_agent_error(formed.number))
        return Outcome(ExitCode.FAILED, reason, None, RunResult(WorkerState.FAILED), error)

    # with workers that are gone, or cannot be ended

    def alone(self) -> Outcome:
        """Leave for a signal to this agent while the others continue: in array mode each node is a job."""
        from hpc_elastic.record.why_left import asked_by, words_of  # noqa: PLC0415 - not on the way to a start

        self._signalled.hear_why()
        request, answer = self._signalled.wish, self._signalled.answer
        cause, asked = request.cause or Cause.PREEMPTION, request.asked
        if answer is not None:
            cause, asked = answer.cause, asked._replace(answer=answer.answer, said=answer.detail)
        asker = asked_by(cause, request.words, asked).text
        why = f"{CAUSES[cause].alone} ({words_of(request.words, asked)})"
        return self._alone(cause, request.words, asked, f"told by {asker}" if asker else why)

    def _alone(self, cause: Cause, detail: str, asked: Asked, why: str) -> Outcome:
        self._signalled.insist(lambda: self._run.report_left(cause, detail, asked))
        state = self._state
        if state.ending is not None or state.drained is not None:
            return outcome_of(state, {}, {})
        others = "no other node is left" if state.deserted else "the others go on without it"
        return Outcome(ExitCode.REQUEUE, f"{why}; {others}", cause=cause)

    def out_of_touch(self, error: Exception) -> Outcome:
        """Leave without a record of it; workers that still run are ended."""
        group, wedge = self._workers.group, self._workers.ending.wedge
        if wedge is not None:
            return wedge.outcome()
        failure = self._reports.untold_failure(group)
        signalled = self._signalled.asks_to_leave
        outcome = out_of_touch(self._parts.paths.root, error, failure, signalled=signalled)
        if outcome.result.is_failed() and group is not None:
            return outcome._replace(result=RunResult(WorkerState.FAILED, {}, group.failures()))
        return outcome

    def abandon(self) -> Outcome:
        """Leave workers that no signal ends; without another node this start of the run is over."""
        wedge = self._workers.ending.wedge
        if wedge is None:
            raise RuntimeError("no worker hangs")
        outcome = wedge.outcome()
        self._signalled.insist(
            lambda: None if self._has_others(wedge.formed) else self._end_for_wedge(outcome)
        )
        return outcome

    def _has_others(self, formed: RoundFormed) -> bool:
        """Tell whether other nodes work, or will: they may have begun while this one ended its workers."""
        if self._parts.rendezvous.num_nodes_waiting() or self._state.running is not None:
            return True
        return any(node_id != self._run.membership.node_id for node_id in self._run.live_members(formed))

    def _end_for_wedge(self, outcome: Outcome) -> None:
        if self._parts.on_timeout is Then.LEAVE:
            self._run.report_drained(Cause.AGENT_ERROR, outcome.reason)
        else:
            self._reports.wedged(outcome)


def stay_out_for_failures(parts: AgentParts) -> Outcome:
    """Record that this node leaves as the same failure has always hit it, while enough others are left."""
    ends = parts.rendezvous.run.state.repeated
    what = head_of(ends[-1].failure or {})
    reason = f"{repeated_text(ends)}{f' ({what})' if what else ''}; the run goes on without that node first"
    return stay_out(parts, reason, by_failures=True)


def stay_out(parts: AgentParts, reason: str, *, by_failures: bool = False) -> Outcome:
    """Record that this node stays out of this start of the run; return the outcome of its agent.

    If too few nodes are left this start is over: the job is returned to Slurm to get another node.

    Args:
        parts: the agent's parts.
        reason: the defect, its value, the requirement and the fix.
        by_failures: it is the failures of workers; nothing else is known of the node.
    """
    run = parts.rendezvous.run
    parts.log.say(f"{run.node} is unfit and stays out: {reason}")

    def write() -> None:
        run.announce()
        state = run.commit(NodeUnfit(run.membership.epoch, run.node, reason, by_failures))
        if parts.on_signal is Then.REJOIN:  # a job of its own, which gets another node
            run.report_left(Cause.NODE_LOSS, reason)
        too_few = _too_few_left(run, state)
        if too_few and parts.on_timeout is Then.LEAVE:
            run.report_drained(Cause.NODE_LOSS, too_few)

    insist(write, parts, parts.clock.monotonic() + parts.times.exit_barrier)
    drained = run.state.drained
    then = f": {drained.detail}" if drained is not None and drained.detail else "; others go on without it"
    error = RendezvousError(f"{run.node} is unfit: {reason}")
    return Outcome(ExitCode.UNFIT, f"{run.node} is unfit{then}", None, RunResult(WorkerState.FAILED), error)


def _too_few_left(run: SharedRun, state: RunState) -> str:
    """Return that the minimum of nodes cannot be reached without the unfit ones; empty if it can.

    If Slurm has not named the nodes of the job, others may still come.
    """
    left = [node for node in state.expected if node not in state.lost]
    if not state.expected or len(left) >= run.settings.min_nodes or state.running is not None:
        return ""
    names = ", ".join(sorted(state.unfit))
    have = f"{len(left)} of {len(state.expected)} nodes are left"
    return f"{have}, {run.settings.min_nodes} are needed; unfit: {names}"
