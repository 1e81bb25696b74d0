"""The drain of a round on one node, the end of its workers, and the ways in which its agent leaves.

Carries out `hpc_elastic.node.stop_rules`. Each way of leaving writes its reason into the journal, and
returns the outcome.
"""

from __future__ import annotations

from hpc_elastic.errors import InputError, RendezvousError
from hpc_elastic.exit_codes import ExitCode
from hpc_elastic.ids import Env
from hpc_elastic.meet import rules
from hpc_elastic.meet.join_progress import barrier_text, is_due
from hpc_elastic.meet.member_names import GONE
from hpc_elastic.meet.rules import is_proposer
from hpc_elastic.meet.shared_fs import NoRound, OutOfReach
from hpc_elastic.meet.shared_run import SharedRun
from hpc_elastic.node.decision import Group
from hpc_elastic.node.node_workers import NodeWorkers
from hpc_elastic.node.outcome import FENCED, Outcome, out_of_touch, outcome_of
from hpc_elastic.node.setup.agent_setup import AgentParts
from hpc_elastic.node.setup.journal_entries import Reports, insist
from hpc_elastic.node.signals import Signalled
from hpc_elastic.node.spec import RunResult, WorkerState
from hpc_elastic.node.stop_rules import (
    DrainProgress,
    DrainStep,
    DrainTimes,
    EndFacts,
    StopRequest,
    barrier_is_over,
    drain_step,
    end_for_request,
    end_of_drain,
    end_of_round,
    follow,
    is_rescue_due,
)
from hpc_elastic.node.workers.local_group import LocalGroup
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.causes import CAUSES
from hpc_elastic.record.checkpoints import is_half_saved
from hpc_elastic.record.journal import AfterDrain, Asked, Cause, NeverAsked, NodeUnfit, RoundFormed
from hpc_elastic.record.same_failure import head_of, repeated_text
from hpc_elastic.record.state import RunState
from hpc_elastic.store.files import list_names

LOOK_S = 0.1  # between two looks at the marks
LOOK_AFTER_S = 60.0  # since the start of the workers; imports and a first step take time
_QUIET_S = 8.0  # a shorter wait for the workers of other nodes is not shown
_NEVER_ASK = "the workers do not ask whether to stop"
_IN_THE_LOOP = """In the training loop:
    from hpc_elastic import worker
    worker.tick(step)                             # once per step
    if worker.should_stop():
        save(path); worker.checkpoint_saved(step, path); sys.exit()"""
_BY_ITSELF = (
    "  or, for a program that saves by itself: --unasked run-on, --unasked signal:USR1 "
    "(hpc-elastic help stopping)"
)


class LocalDrain:
    """The drain of one round on this node."""

    def __init__(
        self, run: SharedRun, group: LocalGroup, times: DrainTimes, durable: DurableWait | None = None
    ) -> None:
        self._run = run
        self._group = group
        self._times = times
        self._proposes = is_proposer(group.formed, run.membership.node_id)
        self._progress = DrainProgress()
        self.stop_now = False  # no worker will stop by itself, or the time is over
        if durable is not None:
            group.keeps_left_overs = lambda now: not self.is_over(now) and durable.waits(run.state, now)

    @property
    def deadline(self) -> float | None:
        """The end of the workers' time, by the monotonic clock [s]."""
        return self._progress.deadline

    def is_over(self, now: float) -> bool:
        """Tell whether the workers have had their time."""
        return self._progress.is_over(now)

    def heed(self, request: StopRequest, now: float) -> None:
        """Warn the workers of the request to this agent, before it is in the journal."""
        if request.deadline is None:
            return
        if request.deadline != self._progress.requested:
            self._progress = self._progress._replace(requested=request.deadline)
        self._warn(now)

    def _warn(self, now: float) -> None:
        if self._run.drain_began is None:
            self._run.drain_began = now
        self._group.request_drain(self._run.now)
        if self.deadline is not None:
            self._group.set_until(self.deadline)
            if is_rescue_due(self._progress, self._times, self._run.drain_began, now):
                self._group.is_rescuing(now, self.deadline)

    def step(self, now: float, common_step: int | None) -> None:
        """Take the next step of the protocol; never blocks.

        Args:
            now: monotonic time [s].
            common_step: after which all ranks can stop, by the last look; None: not known, or another
                agent computes it.
        """
        state = self._run.state
        formed, drain = state.running, state.drain
        if formed is None or drain is None:
            return
        self._progress = follow(self._progress, drain, state.explained, self._times, now)
        self._warn(now)
        step = self._next(now)
        if step.tells is not None:
            self._run.membership.tell_step(formed.number, step.tells)
            common_step = self._run.common_step()
            self._progress = self._progress._replace(has_told=True)
        if step.proposes and common_step is not None:
            self._run.agree_stop(formed.number, common_step)
            step = self._next(now)
        if step.stop_after is not None:
            self._group.set_stop_step(step.stop_after)
        if step.signals:
            self._progress = self._progress._replace(has_signalled=True)
            self._group.signal(self._times.unasked.number)
        self.stop_now = step.stop_now

    def _next(self, now: float) -> DrainStep:
        state = self._run.state
        is_open = state.stop_step is None and not self._progress.has_told
        bound = self._group.stop_bound(now) if is_open else None
        return drain_step(self._progress, state, self._times, proposes=self._proposes, bound=bound, now=now)


class Stopping:
    """Orders the end of this node's workers by the rules, and keeps the exit barrier."""

    def __init__(
        self, parts: AgentParts, workers: NodeWorkers, signalled: Signalled, reports: Reports
    ) -> None:
        self._parts = parts
        self._run: SharedRun = parts.rendezvous.run
        self._workers = workers
        self._signalled = signalled
        self._reports = reports
        self._drain: LocalDrain | None = None  # of the newest round
        self._told_at: float | None = None  # the last line about the wait for other nodes [s]

    def begin(self, group: LocalGroup) -> None:
        """Take note of a new round."""
        self._drain = LocalDrain(self._run, group, self._parts.times.drain, DurableWait(self._parts.paths))

    def close(self) -> None:
        """Let go of the workers."""
        self._drain = None

    @property
    def deadline(self) -> float | None:
        """The end of the workers' time in a drain, by the monotonic clock [s]; None: there is none."""
        return None if self._drain is None else self._drain.deadline

    def heed(self) -> None:
        """Warn the workers of the request to this agent, and keep its deadline without the others."""
        request, drain, now = self._signalled.wish, self._drain, self._parts.clock.monotonic()
        if request.cause is None or drain is None:
            return
        drain.heed(request, now)
        order = end_for_request(request, self._parts.times.told, now, is_over=drain.is_over(now))
        if order is not None:
            self._workers.ending.stop(self._workers.running, order)

    def end_round(self, group: LocalGroup) -> None:
        """End workers whose round is over."""
        self._reports.show_failure(group)  # the round may end for another one
        if not group.is_stopping and self._run.blind_since is None:
            self._reports.failed_too(group)
            self._reports.failed_leaving(group)
        ending, now = self._workers.ending, self._parts.clock.monotonic()
        facts = EndFacts(
            state=self._run.state,
            epoch=self._run.membership.epoch,
            request=self._signalled.wish,
            is_stuck=ending.wedge is not None,
            deadline=self.deadline,
            asked_at=ending.asked_at(now),
            now=now,
        )
        times = self._parts.times
        ending.stop(group, end_of_round(facts, shutdown_s=times.shutdown, critical_s=times.drain.critical))

    def drain(self, group: LocalGroup, common_step: int | None) -> bool:
        """Take the next step of a drain; return whether to look again at once."""
        drain, now = self._drain, self._parts.clock.monotonic()
        if drain is None:
            return False
        drain.step(now, common_step)
        if not drain.stop_now:
            return False
        self._workers.ending.stop(group, end_of_drain(drain.deadline, self._parts.times.told, now))
        if self._workers.ending.is_held:
            return False
        self._parts.log.say("the workers get the signal to end")
        return True

    def has_waited(self, since: float, now: float) -> bool:
        """Tell whether the exit barrier's time is over.

        Args:
            since: the end of this node's workers [s].
            now: monotonic time [s].
        """
        deadline = self.deadline if self._run.state.drain is not None else None
        return barrier_is_over(since, self._parts.times.exit_barrier, deadline, now)

    def tell_wait(self, since: float, now: float) -> None:
        """Show the nodes that this node waits for; the first of the waiting nodes speaks for all.

        Args:
            since: the end of this node's workers [s].
            now: monotonic time [s].
        """
        formed, told_at = self._run.state.round, self._told_at
        if now < since + _QUIET_S:
            return
        is_new = told_at is None or told_at < since
        if formed is None or not is_due(since + _QUIET_S, None if is_new else told_at, now):
            return
        self._told_at = now
        working = set(self._run.working_members(formed))
        mine = self._run.membership.node_id
        done = [one.node_id for one in formed.members if one.node_id not in working or one.node_id == mine]
        others = [one.node for one in formed.members if one.node_id in working - {mine}]
        if others and done[:1] == [mine]:
            left_s = since + self._parts.times.exit_barrier - now
            self._parts.log.say(barrier_text(others, now - since, left_s))

    def end_blind(self, group: LocalGroup) -> None:
        """End the workers by the last state that was read, or for the request to this agent."""
        if self._signalled.wish.cause is None:
            self.end_round(group)
        else:
            self._signalled.end_sooner()


def never_ask_text(times: DrainTimes, *, is_job: bool) -> str:
    """Return the words about workers that never ask whether to stop.

    Args:
        times: of the workers.
        is_job: Slurm may want the nodes back; elsewhere only signals and commands end workers.
    """
    what = "a preemption and the time limit" if is_job else "a signal and hpc-elastic stop"
    runs_on = times.unasked.runs_on
    ends = "let them run on until the time is up" if runs_on else "end them at once, unsaved"
    if not is_job:
        return f"{_NEVER_ASK}: {what} {ends} (hpc-elastic help stopping)"
    return f"{_NEVER_ASK}: {what} {ends}. {_IN_THE_LOOP}" + ("" if runs_on else f"\n{_BY_ITSELF}")


class UnaskedWatch:
    """Reports workers that never ask whether to stop, once per agent; only the round's first node does.

    In a job, whose nodes may be wanted back, that is after a while; elsewhere when they are to stop.
    Workers that ask later than that, after a long start or in a later round, are reported, too.
    """

    def __init__(self, parts: AgentParts) -> None:
        self._parts = parts
        self._run: SharedRun = parts.rendezvous.run
        self._group: LocalGroup | None = None
        self._since = 0.0
        self._is_told = False
        self._leaves = False  # whether the time was said for which the workers run on
        self._believed = 0  # the newest round whose workers ask after all

    def look(self, group: LocalGroup, status: Group, deadline: float | None) -> None:
        """Look whether a report is due; costs next to nothing after it.

        Args:
            group: the workers of this node.
            status: of them.
            deadline: of a drain, by the monotonic clock [s]; None: none is under way.
        """
        if status is not Group.RUNNING:
            return
        self._look_again(group)
        self._report(group)
        self._tell_time(group, deadline)

    def _report(self, group: LocalGroup) -> None:
        if self._is_told:
            return
        now = self._parts.clock.monotonic()
        if group is not self._group:
            self._group, self._since = group, now
        may_ask_yet = now < self._since + LOOK_AFTER_S or self._run.state.drain is not None
        if not self._is_asked and (may_ask_yet or not self._is_job):
            return
        self._is_told = True
        if self._is_first(group) and not any(channel.asks_should_stop for channel in group.channels):
            times = self._parts.times.drain
            self._parts.log.say(never_ask_text(times, is_job=self._is_job))
            runs_on_s = times.warning if times.unasked.runs_on else None
            self._run.commit(NeverAsked(group.formed.number, runs_on_s=runs_on_s))

    @property
    def _is_job(self) -> bool:
        return self._parts.notices.is_below_slurm or Env.SUBMISSION in self._parts.environ

    @property
    def _is_asked(self) -> bool:
        """Whether the workers are to stop, and all nodes know that they do not ask."""
        step = self._run.state.stop_step
        return step is not None and step < 0

    def _tell_time(self, group: LocalGroup, deadline: float | None) -> None:
        """Say for how long workers run on that are to stop."""
        if not self._is_asked or deadline is None:
            self._leaves = False
            return
        if self._leaves or not self._parts.times.drain.unasked.runs_on or not self._is_first(group):
            return
        self._leaves = True
        left_s = max(0.0, deadline - self._parts.clock.monotonic())
        self._parts.log.say(f"the workers run on until their time is up, in {left_s:.0f} s (--unasked)")

    def _is_first(self, group: LocalGroup) -> bool:
        return group.formed.members[0].node_id == self._run.membership.node_id

    def _look_again(self, group: LocalGroup) -> None:
        """Take a report back, also one of an earlier start, if the workers of this round ask."""
        number = group.formed.number
        if not self._run.state.never_asks or self._believed == number or not self._is_first(group):
            return
        if not any(channel.asks_should_stop for channel in group.channels):
            return
        self._believed = number
        self._parts.log.say(
            "the workers ask whether to stop now: they can save when their nodes are wanted back"
        )
        self._run.commit(NeverAsked(number, asks_now=True))


class DurableWait:
    """Checks whether some ranks have marked the checkpoint of the stop step and others have not.

    It matters only while workers that have ended have left a process running. A checkpoint without any
    mark is not waited for: perhaps no rank saves.
    """

    def __init__(self, paths: RunPaths) -> None:
        self._directory = paths.checkpoints
        self._look_at = float("-inf")
        self._waits = False

    def waits(self, state: RunState, now: float) -> bool:
        """Tell whether shards are missing, by the last look.

        Args:
            state: the run.
            now: monotonic time [s].
        """
        if state.drain is None or state.stop_step is None or state.stop_step < 0:
            return False
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            try:
                self._waits = is_half_saved(list_names(self._directory), state.stop_step)
            except OSError:
                self._waits = False
        return self._waits


class Leaving:
    """Ends an agent's part of the run."""

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
        if self._parts.on_timeout is AfterDrain.LEAVE:
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
        if self._parts.on_timeout is AfterDrain.LEAVE:
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
        if parts.on_signal is AfterDrain.REJOIN:  # a job of its own, which gets another node
            run.report_left(Cause.NODE_LOSS, reason)
        too_few = _too_few_left(run, state)
        if too_few and parts.on_timeout is AfterDrain.LEAVE:
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
