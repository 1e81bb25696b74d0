"""One agent's part in a drain: hear what asks for it, warn workers, agree on a step, keep the deadline."""

from __future__ import annotations

import signal
from collections.abc import Callable

from hpc_elastic.meet.rules import is_proposer, stop_step
from hpc_elastic.meet.shared_run import SharedRun
from hpc_elastic.node.decision import Group
from hpc_elastic.node.drain.asking import EarlyWarning, Warned, turn_to_ask_s
from hpc_elastic.node.node_workers import NodeWorkers
from hpc_elastic.node.setup.agent_setup import AgentParts
from hpc_elastic.node.setup.notices import BEATS, DrainFile, Notice
from hpc_elastic.node.setup.stop_request import DrainTimes, StopRequest, first_words, granted, heard, told
from hpc_elastic.node.workers.local_group import KILL_AFTER_S, NO_STEP, LocalGroup
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.checkpoints import is_half_saved
from hpc_elastic.record.journal import Cause, DrainExplained, DrainRequested, RoundFormed, Then
from hpc_elastic.record.state import RunState
from hpc_elastic.store.files import list_names

LOOK_S = 0.1  # between two looks at the marks
LOOK_AFTER_S = 60.0  # since the workers were started; imports and a first step take time
_ENDS = "end them at once, unsaved"
_RUN_ON = "let them run on until the time is up"
_LINES = """\
the workers do not ask whether to stop: a preemption and the time limit {ends}. In the training loop:
    from hpc_elastic import worker
    worker.tick(step)                             # once per step
    if worker.should_stop():
        save(path); worker.checkpoint_saved(step, path); sys.exit()
  or, for a program that saves by itself: --unasked run-on, --unasked signal:USR1 (docs/how-to/stopping.md)"""
ANSWER_S = 2.0  # for what Slurm says, as a rule at once, before a node leaves by itself
_OF_USERS = (Cause.STOP, Cause.MEMBERSHIP)  # what no signal has asked for
ALONE = (Cause.PREEMPTION, Cause.TIME_LIMIT)  # what concerns one node where each node is a job of its own


class LocalDrain:
    """The drain of one round on this node.

    Args:
        run: to agree with the other nodes.
        group: this node's workers.
        times: how long the workers may take.
        durable: tells whether the checkpoint of the stop is whole.
    """

    def __init__(
        self, run: SharedRun, group: LocalGroup, times: DrainTimes, durable: DurableWait | None = None
    ) -> None:
        self._run = run
        self._group = group
        self._times = times
        self._told = False
        self._cause: Cause | None = None
        self._explained: DrainExplained | None = None  # what has been taken over of what Slurm says
        self._wished: float | None = None  # until when, by what this agent itself was asked for [s]
        self._agreed: float | None = None  # until when, by the journal [s]
        self._is_signalled = False
        self.stop_now = False  # no worker will stop by itself, or the time is up
        if durable is not None:
            group.keeps_left_overs = lambda now: not self.is_over(now) and durable.waits(run.state, now)

    @property
    def deadline(self) -> float | None:
        """When workers that still run are ended, by the monotonic clock [s]."""
        return min((at for at in (self._wished, self._agreed) if at is not None), default=None)

    def heed(self, wish: StopRequest) -> None:
        """Warn the workers of what this agent was asked for, before anybody else knows of it."""
        if wish.deadline is not None:
            self._wished = wish.deadline
            self._warn()

    def _warn(self) -> None:
        if self._run.drain_began is None:
            self._run.drain_began = self._run.now()
        self._group.request_drain(self._run.now)
        if self.deadline is not None:
            self._group.set_until(self.deadline)

    def is_over(self, now: float) -> bool:
        """Tell whether the workers have had their time."""
        return self.deadline is not None and now >= self.deadline

    def step(self, now: float) -> None:
        """Take the next step of the protocol; never blocks."""
        state = self._run.state
        formed, drain = state.running, state.drain
        if formed is None or drain is None:
            return
        if self._cause is None:
            self._cause = drain.cause
            self._agreed = now + (self._times.of(drain.cause) if drain.left_s is None else drain.left_s)
        if state.explained is not None and state.explained != self._explained:
            self._explain(state.explained, drain, now)
        self._warn()
        if state.stop_step is None:
            self._agree(formed, now)
            state = self._run.state
        if state.stop_step is not None:
            self._group.set_stop_step(state.stop_step)
        is_unasked = state.stop_step == NO_STEP
        if is_unasked and not self._is_signalled:
            self._is_signalled = True
            self._group.signal(self._times.unasked.number)
        self.stop_now = (is_unasked and not self._times.unasked.runs_on) or self.is_over(now)

    def _explain(self, explained: DrainExplained, drain: DrainRequested, now: float) -> None:
        """Take over how long there is, now that Slurm has said why.

        That replaces what was assumed for the signal that asked for this drain. After that, and where
        a user has asked for it, time can only become less.
        """
        is_known = self._explained is not None or drain.left_s is not None or drain.cause in _OF_USERS
        self._explained = explained
        if not self._times.is_stop_given and explained.left_s is not None:
            self._agreed = told(self._agreed, now + explained.left_s, is_known=is_known)

    def _agree(self, formed: RoundFormed, now: float) -> None:
        bound = self._group.stop_bound(now)
        member = self._run.membership
        if bound is None:
            return
        if not self._told:
            member.tell_step(formed.number, bound)
            self._told = True
        if is_proposer(formed, member.node_id):
            working = self._run.working_members(formed)  # whose workers have ended has no step to tell
            step = stop_step(working, member.told_steps(formed.number))
            if step is not None:
                self._run.agree_stop(formed.number, step)


class Signalled:
    """Turns signals and other notices into a wish, and the wish into warnings and deadlines of the workers.

    Args:
        parts: what the agent is put together from.
        workers: this node's.
    """

    def __init__(self, parts: AgentParts, workers: NodeWorkers) -> None:
        self._parts = parts
        self._workers = workers
        self._run: SharedRun = parts.rendezvous.run
        self._file = DrainFile(parts.paths, BEATS * self._run.settings.heartbeat_interval)
        self._early = EarlyWarning(parts)
        self._unexplained: dict[bool, float] = {}  # when signals came [s]: warnings (True) and others
        self._explanation: Notice | None = None  # not told to the others yet
        self._explained: DrainExplained | None = None  # what the journal said last about a signal
        self.answer: Notice | None = None  # what Slurm says about a signal
        self.wish = StopRequest()

    def begin(self, formed: RoundFormed) -> None:
        """Listen to what else may ask for a drain of a round."""
        is_first = formed.members[0].node_id == self._run.membership.node_id
        self._parts.notices.begin(is_first=is_first)
        self._early.begin()

    @property
    def asks_to_leave(self) -> bool:
        """Whether a signal has asked for the end of the workers."""
        return self.wish.cause is not None

    @property
    def leaves_alone(self) -> bool:
        """Whether only this node is asked to leave, and the others go on without it."""
        return self._parts.on_signal is Then.REJOIN and self.wish.cause in ALONE

    def note(self) -> None:
        """Latch what has been signalled; nothing is written for it here, so it cannot be held up."""
        parts = self._parts
        caught = parts.loop.take_signals()
        for number in caught:
            name, cause = signal.Signals(number).name, parts.signals.cause(number)
            if not (self._may_weigh(cause) and self._early.takes(name)):
                self._hear(name, cause, parts.clock.monotonic())
        if caught and self._workers.group is not None and self._workers.group.is_stopping:
            self.end_sooner()
        is_answered = not parts.notices.is_asking  # before the answers are taken: the last one may come now
        self._listen()
        may_weigh = self._may_weigh(Cause.TIME_LIMIT)
        warned = self._early.due(is_answered=is_answered) if may_weigh else self._early.give_back()
        if warned is not None:
            self._heed_warning(warned)

    def _heed_warning(self, warned: Warned) -> None:
        self._hear(warned.name, Cause.TIME_LIMIT, warned.at)
        if warned.is_asked:
            self._unexplained.pop(True, None)

    def _may_weigh(self, cause: Cause) -> bool:
        """Tell whether a signal may have come too early, and nothing else asks for the end."""
        has_workers = self._workers.group is not None and not self._workers.group.is_stopping
        is_warning = cause is Cause.TIME_LIMIT and self._parts.notices.is_below_slurm
        return is_warning and has_workers and self.wish.cause is None

    def _hear(self, name: str, cause: Cause, at: float) -> None:
        """Latch what a signal asks for.

        Args:
            name: the signal.
            cause: what it means.
            at: when it came, monotonic [s].
        """
        parts, is_first = self._parts, self.wish.cause is None
        left_s = parts.times.drain.of(cause)
        words = first_words(name, cause, left_s, below_slurm=parts.notices.is_below_slurm)
        parts.log.say(words if is_first else f"{name} received")
        if cause is not Cause.INTERRUPT:
            self._unexplained.setdefault(cause is Cause.TIME_LIMIT, at)
        self.wish = heard(self.wish, cause, name, at + left_s, is_signal=True)

    def _listen(self) -> None:
        """Latch what has been asked for in another way than by a signal."""
        now, times = self._parts.clock.monotonic(), self._parts.times.drain
        while (notice := self._parts.notices.take()) is not None:
            if notice.early is not None:
                self._early.hold(notice, notice.early)
            elif notice.explains:
                if warned := self._early.give_back():
                    self._heed_warning(warned)
                self._explain(notice, now)
            else:
                self._parts.log.say(f"the workers are asked to save and leave for {notice.detail}")
                until = now + times.of(notice.cause) if notice.until is None else notice.until
                is_known = self.wish.cause is None and notice.until is not None
                self.wish = heard(self.wish, notice.cause, notice.detail, until)._replace(is_known=is_known)
        state, me = self._run.state, self._run.membership.node_id
        if state.explained != self._explained:
            self._explained = state.explained
            if not self.leaves_alone:  # else it was another job that another node has asked about
                self._unexplained.clear()
                left_s = None if state.explained is None else state.explained.left_s
                self._grant(None if left_s is None else now + left_s)
        if self.wish.cause is None and self._file.asks(state.running, me, now):
            detail = f"the file {self._parts.paths.drain}"
            self._parts.log.say(f"{detail} asks for the end: the workers are asked to save and leave")
            self.wish = heard(self.wish, Cause.STOP, detail, now + times.of(Cause.STOP))

    def _explain(self, notice: Notice, now: float) -> None:
        """Take over what Slurm says about a signal."""
        left_s = None if notice.until is None else max(0.0, notice.until - now)
        is_bound = left_s is None or self._parts.times.drain.is_stop_given
        time = "" if is_bound else f"; workers have {left_s:.0f} s more"
        self._parts.log.say(f"Slurm: {notice.detail}{time}")
        self._explanation = self.answer = notice
        self._grant(notice.until)

    def _grant(self, until: float | None) -> None:
        """Take over how long there is for what this agent was signalled for."""
        if until is not None and not self._parts.times.drain.is_stop_given:
            self.wish = granted(self.wish, until)

    def _tell_why(self) -> None:
        notice, self._explanation = self._explanation, None
        if notice is None:
            return
        if self.leaves_alone:  # how long this node has is no matter of the others
            drain = self._run.state.drain
            if drain is not None and drain.node == self._run.node:
                self._run.explain_drain(notice.cause, notice.detail, None, notice.answer)
            return
        left_s = None if notice.until is None else max(0.0, notice.until - self._run.now())
        self._run.explain_drain(notice.cause, notice.detail, left_s, notice.answer)

    def end_sooner(self) -> None:
        """End the workers by the time that the wish leaves them."""
        deadline = self._parts.clock.monotonic() if self.wish.at_once else self.wish.deadline
        if deadline is not None:
            self._workers.stop_at(deadline, hold_until=deadline)

    def heed(self, drain: LocalDrain | None) -> None:
        """Warn this node's workers and keep their deadline, whether the others can be told or not."""
        if self.wish.cause is None or drain is None:
            return
        drain.heed(self.wish)
        if self.wish.at_once:
            self._workers.stop(0.0)
        elif drain.is_over(self._parts.clock.monotonic()):
            self._workers.stop(min(KILL_AFTER_S, self._parts.times.told))

    def tell(self) -> None:
        """Ask all nodes to drain for what this agent was signalled."""
        self._early.tell()
        cause, state = self.wish.cause, self._run.state
        if cause is None:
            return
        if not (state.leaving or (self.leaves_alone and state.drain is not None)):
            then = Then.REJOIN if self.leaves_alone else Then.LEAVE
            known = self.wish.deadline if self.wish.is_known else None
            left_s = None if known is None else max(0.0, known - self._run.now())
            asked = self.wish.asked
            state = self._run.request_drain(cause, then, self.wish.words, left_s, asked)
        self._file.heeded()
        self._tell_why()
        self._ask_why(state)

    def _ask_why(self, state: RunState) -> None:
        """Have Slurm asked about signals that nobody has explained yet, when it is this node's turn."""
        if not self._unexplained:
            return
        wait_s = 0.0 if self.leaves_alone else turn_to_ask_s(state, self._run.membership.node_id)
        now = self._parts.clock.monotonic()
        due = {warned: at for warned, at in self._unexplained.items() if now >= at + wait_s}
        for is_warning, at in due.items():
            del self._unexplained[is_warning]
            self._parts.notices.ask_why(at, is_warning=is_warning)

    def hear_why(self) -> None:
        """Wait a moment for what Slurm says about a signal: why a node has left is written only once."""
        clock = self._parts.clock
        limit = clock.monotonic() + ANSWER_S
        limit = limit if self.wish.deadline is None else min(limit, self.wish.deadline)
        self._ask_why(self._run.state)
        while self._parts.notices.is_asking and clock.monotonic() < limit:
            self._parts.loop.wait(limit - clock.monotonic())
        self.note()

    def insist(self, write: Callable[[], object]) -> None:
        """Write something before leaving; a signalled agent tries no longer than its workers would have."""
        from hpc_elastic.node.setup.journal_entries import insist  # noqa: PLC0415 - not on the way to a start

        limit = self._parts.clock.monotonic() + self._parts.times.exit_barrier
        insist(write, self._parts, self.wish.deadline or limit)


class UnaskedWatch:
    """Tells people and the journal of it, once per agent and submission; only the round's first node does.

    Args:
        parts: what the agent is put together from.
    """

    def __init__(self, parts: AgentParts) -> None:
        self._parts = parts
        self._run: SharedRun = parts.rendezvous.run
        self._group: LocalGroup | None = None
        self._since = 0.0
        self._is_told = False

    def look(self, group: LocalGroup, status: Group) -> None:
        """Look whether it is time to say something; costs nothing once it was."""
        if self._is_told or status is not Group.RUNNING:
            return
        now = self._parts.clock.monotonic()
        if group is not self._group:
            self._group, self._since = group, now
        state = self._run.state
        is_asked = state.stop_step is not None and state.stop_step < 0
        if not is_asked and (now < self._since + LOOK_AFTER_S or state.drain is not None):
            return
        self._is_told = True
        is_first = group.formed.members[0].node_id == self._run.membership.node_id
        if is_first and not any(channel.asks_should_stop for channel in group.channels):
            ends = _RUN_ON if self._parts.times.drain.unasked.runs_on else _ENDS
            self._parts.log.say(_LINES.format(ends=ends))
            self._run.report_never_asked(group.formed.number)


class DurableWait:
    """Checks whether some ranks have marked the checkpoint of the stop step and others have not.

    It matters only while workers that have ended have left something running. A checkpoint that nobody
    has marked is not waited for: nobody may be going to save.

    Args:
        paths: the run.
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
