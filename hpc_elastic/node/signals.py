"""The requests to stop that reach one agent: signals, notices of Slurm, the drain file.

A signal says little. One node asks Slurm for its meaning; a warning that has come too early is not followed.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

from hpc_elastic.meet.shared_run import SharedRun
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.node.node_workers import NodeWorkers
from hpc_elastic.node.setup.agent_setup import AgentParts
from hpc_elastic.node.setup.journal_entries import insist
from hpc_elastic.node.setup.notices import BEATS, DrainFile
from hpc_elastic.node.stop_rules import (
    StopRequest,
    end_sooner,
    first_words,
    granted,
    heard,
    turn_to_ask_s,
)
from hpc_elastic.record.journal import AfterDrain, Cause, DrainExplained, RoundFormed
from hpc_elastic.record.state import RunState
from hpc_elastic.record.why_left import EarlyNotice, Notice

WEIGH_S = 5.0  # the longest time for Slurm's answer about a warning; then it is followed
_SAME_S = 5.0  # a warning so soon after another one was held is the same, which a node hears later
ANSWER_S = 2.0  # the longest time for Slurm's answer before a node leaves alone
ALONE = (Cause.PREEMPTION, Cause.TIME_LIMIT, Cause.NODE_DRAIN)  # concern one node where each node is a job


class Warned(NamedTuple):
    """A warning before Slurm's answer."""

    name: str  # of the signal
    at: float  # its time, monotonic [s]
    is_asked: bool = False  # whether this node has Slurm asked about it


class EarlyWarning:
    """Holds the warning before the time limit until Slurm has answered: it may come long before the limit.

    One node asks how much time is left. A warning that has come too early is recorded, and the first node
    of the round requests the drain by the clock. All others are followed, at the latest after `WEIGH_S`.
    """

    def __init__(self, parts: AgentParts) -> None:
        self._parts = parts
        self._run: SharedRun = parts.rendezvous.run
        self._is_alone = parts.on_signal is AfterDrain.REJOIN
        self._weighed: Warned | None = None
        self._held_since: float | None = None  # the time at which this node learned of a held warning [s]
        self._untold: tuple[int, EarlyNotice] | None = None  # round, and the notice to be recorded

    @property
    def is_on(self) -> bool:
        """Whether a warning is held until Slurm has answered."""
        return self._weighed is not None

    def takes(self, name: str) -> bool:
        """Hold a warning until Slurm answers; False: it is followed at once.

        Args:
            name: of its signal.
        """
        now = self._parts.clock.monotonic()
        self._look()
        if self._held_since is not None:
            return now < self._held_since + _SAME_S
        if self._weighed is None:
            self._weighed = Warned(name, now)
        return True

    def due(self, *, is_answered: bool) -> Warned | None:
        """Return the warning if it is followed now; ask about it when it is this node's turn.

        Args:
            is_answered: whether nothing is being asked, and every answer has been taken.
        """
        self._look()
        warned, state = self._weighed, self._run.state
        if warned is None:
            return None
        if self._held_since is not None:
            self._drop(warned.name)
            return None
        now, me = self._parts.clock.monotonic(), self._run.membership.node_id
        is_due = state.drain is not None or (warned.is_asked and is_answered) or now >= warned.at + WEIGH_S
        if is_due:
            return self.give_back()
        if not warned.is_asked and now >= warned.at + (0.0 if self._is_alone else turn_to_ask_s(state, me)):
            self._weighed = warned._replace(is_asked=True)
            self._parts.notices.ask_why(warned.at, is_warning=True)
        return None

    def give_back(self) -> Warned | None:
        """Return the held warning, which is followed now."""
        warned, self._weighed = self._weighed, None
        return warned

    def hold(self, notice: Notice, early: EarlyNotice) -> None:
        """Take over that the warning has come too early.

        Args:
            notice: Slurm's answer.
            early: the times in it.
        """
        warned, running = self.give_back(), self._run.state.running
        if warned is None or running is None:
            return
        self._parts.log.say(f"{warned.name} received {notice.detail}")
        self._held_since = self._parts.clock.monotonic()
        self._untold = running.number, early

    def tell(self) -> None:
        """Write down that a warning is held, so that the other nodes hold theirs."""
        told, self._untold = self._untold, None
        if told is not None:
            number, early = told
            self._run.report_warning_held(number, early.left_s, early.before_s)

    def _drop(self, name: str) -> None:
        self._weighed = None
        self._parts.log.say(f"{name} received: too early, as another node has found out; the workers go on")

    def _look(self) -> None:
        """Take over the answer that another node has recorded; each task of an array has its own limit."""
        held = self._run.state.held_warning
        if held is not None and not self._is_alone and self._held_since is None:
            self._held_since = self._parts.clock.monotonic()
            self._parts.notices.hear_limit(held.left_s)

    def begin(self) -> None:
        """Take note of a new round: it has no held warning."""
        self._held_since = self._untold = None


class Signalled:
    """Turns signals and notices into one request, and writes the request into the journal."""

    def __init__(self, parts: AgentParts, workers: NodeWorkers) -> None:
        self._parts = parts
        self._workers = workers
        self._run: SharedRun = parts.rendezvous.run
        self._file = DrainFile(parts.paths, BEATS * self._run.settings.heartbeat_interval)
        self._early = EarlyWarning(parts)
        self._unexplained: dict[bool, float] = {}  # the times of signals [s]: warnings (True) and others
        self._explanation: Notice | None = None  # not in the journal yet
        self._explained: DrainExplained | None = None  # the newest one of the journal
        self.answer: Notice | None = None  # of Slurm about a signal
        self.wish = StopRequest()

    def begin(self, formed: RoundFormed) -> None:
        """Listen for requests of a drain of a round."""
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
        return self._parts.on_signal is AfterDrain.REJOIN and self.wish.cause in ALONE

    def note(self) -> None:
        """Latch the signals and notices; nothing is written for it here, so it cannot be held up."""
        parts = self._parts
        caught = parts.loop.take_signals()
        for number in caught:
            name, cause = signal.Signals(number).name, parts.signals.cause(number)
            if not (self._may_weigh(cause) and self._early.takes(name)):
                self._hear(name, cause, parts.clock.monotonic())
        if caught and self._workers.group is not None and self._workers.group.is_stopping:
            self.end_sooner()
        # before the answers are taken: the last one may come now
        is_answered = self._early.is_on and not parts.notices.is_asking
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
        """Latch the request of a signal.

        Args:
            name: the signal.
            cause: its meaning.
            at: its time, monotonic [s].
        """
        parts, is_first = self._parts, self.wish.cause is None
        left_s = parts.times.drain.of(cause)
        words = first_words(name, cause, left_s, below_slurm=parts.notices.is_below_slurm)
        parts.log.say(words if is_first else f"{name} received")
        if cause is not Cause.INTERRUPT:
            self._unexplained.setdefault(cause is Cause.TIME_LIMIT, at)
        self.wish = heard(self.wish, cause, name, at + left_s, is_signal=True)

    def _listen(self) -> None:
        """Latch the requests that are no signals."""
        now, times = self._parts.clock.monotonic(), self._parts.times.drain
        while self._parts.loop.notices:
            notice = self._parts.loop.notices.popleft()
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
        """Take over Slurm's answer about a signal."""
        left_s = None if notice.until is None else max(0.0, notice.until - now)
        is_bound = left_s is None or self._parts.times.drain.is_stop_given
        time = "" if is_bound else f"; workers have {left_s:.0f} s more"
        self._parts.log.say(f"Slurm: {notice.detail}{time}")
        self._explanation = self.answer = notice
        self._grant(notice.until)

    def _grant(self, until: float | None) -> None:
        """Take over the time that Slurm grants for the signal."""
        if until is not None and not self._parts.times.drain.is_stop_given:
            self.wish = granted(self.wish, until)

    def _tell_why(self) -> None:
        notice, self._explanation = self._explanation, None
        if notice is None:
            return
        if self.leaves_alone:  # the time of this node does not concern the others
            drain = self._run.state.drain
            if drain is not None and drain.node == self._run.node:
                self._run.explain_drain(notice.cause, notice.detail, None, notice.answer)
            return
        left_s = None if notice.until is None else max(0.0, notice.until - self._parts.clock.monotonic())
        self._run.explain_drain(notice.cause, notice.detail, left_s, notice.answer)

    def end_sooner(self) -> None:
        """End the workers by the time that the request leaves."""
        order = end_sooner(self.wish, self._parts.clock.monotonic())
        if order is not None:
            self._workers.ending.stop(self._workers.running, order)

    def tell(self) -> None:
        """Request the drain of all nodes for the request to this agent."""
        self._early.tell()
        cause, state = self.wish.cause, self._run.state
        if cause is None:
            return
        is_asked = state.drain is not None and (state.drain.then is AfterDrain.LEAVE or self.leaves_alone)
        if not is_asked and not state.leaving:
            then = AfterDrain.REJOIN if self.leaves_alone else AfterDrain.LEAVE
            known = self.wish.deadline if self.wish.is_known else None
            left_s = None if known is None else max(0.0, known - self._parts.clock.monotonic())
            asked = self.wish.asked
            state = self._run.request_drain(cause, then, self.wish.words, left_s, asked)
        self._file.heeded()
        self._tell_why()
        self._ask_why(state)

    def _ask_why(self, state: RunState) -> None:
        """Have Slurm asked about unexplained signals when it is this node's turn."""
        if not self._unexplained:
            return
        wait_s = 0.0 if self.leaves_alone else turn_to_ask_s(state, self._run.membership.node_id)
        now = self._parts.clock.monotonic()
        due = {warned: at for warned, at in self._unexplained.items() if now >= at + wait_s}
        for is_warning, at in due.items():
            del self._unexplained[is_warning]
            self._parts.notices.ask_why(at, is_warning=is_warning)

    def hear_why(self) -> None:
        """Wait a moment for Slurm's answer about a signal: the reason of a node that left is written once."""
        clock = self._parts.clock
        limit = clock.monotonic() + ANSWER_S
        limit = limit if self.wish.deadline is None else min(limit, self.wish.deadline)
        self._ask_why(self._run.state)
        while self._parts.notices.is_asking and clock.monotonic() < limit:
            self._parts.loop.wait(limit - clock.monotonic())
        self.note()

    def insist(self, write: Callable[[], object]) -> None:
        """Write something before leaving; a signalled agent tries no longer than its workers would have."""
        limit = self._parts.clock.monotonic() + self._parts.times.exit_barrier
        insist(write, self._parts, self.wish.deadline or limit)
