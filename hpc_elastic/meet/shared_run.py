"""One agent's hold on the shared state of a run: its records, and its view of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from hpc_elastic.clock import Clock
from hpc_elastic.errors import StoreError
from hpc_elastic.meet import liveness, rules
from hpc_elastic.meet.member_names import GONE, Phase
from hpc_elastic.meet.membership import Membership
from hpc_elastic.meet.rules import MeetingSettings, sizes_text
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.record.journal import (
    NO_SIGNAL,
    AfterDrain,
    Answer,
    Asked,
    Cause,
    Decision,
    Drained,
    DrainExplained,
    DrainRequested,
    Entry,
    EpochStarted,
    FailedAlike,
    FailedLeaving,
    HangSuspected,
    MarkedCheckpoint,
    NodeLeft,
    RanksStopped,
    RoundEnded,
    RoundFormed,
    RunEnded,
    StopAgreed,
    WarningHeld,
    WorkerWord,
)
from hpc_elastic.record.run_log import RunLog
from hpc_elastic.record.same_failure import signature
from hpc_elastic.record.state import RunState

REREAD_BEATS = 5  # heartbeats after which a watcher reads the journal without a sign of news


class RunFacts(NamedTuple):
    """The facts of this start of the run before any record of an agent; as in `EpochStarted`."""

    run_id: str
    job_id: str = ""
    expected: tuple[str, ...] = ()  # node names in Slurm's order; empty if unknown
    batch_host: str = ""  # the node that runs the batch script, if there is one


class RunDeps(NamedTuple):
    """The surroundings of the shared state."""

    clock: Clock
    latest_checkpoint: Callable[[], MarkedCheckpoint | None]
    tidy: Callable[[int], None] | None = None  # removes leftovers of dead writers and of rounds before one
    open_store: Callable[[int], Any] | None = None  # returns the key-value store of a round
    check_place: Callable[[], None] | None = None  # raises if another directory is in the place of the run's
    success_ends: bool = True  # whether the run is done when all workers of a round have succeeded


class SharedRun:
    """The journal and the members of a run, as one agent reads and writes them."""

    def __init__(
        self,
        log: RunLog,
        membership: Membership,
        facts: RunFacts,
        settings: MeetingSettings,
        deps: RunDeps,
    ) -> None:
        self._log = log
        self.state = log.state  # of the run as last read
        self.membership = membership
        self.node = membership.facts.member.node  # this node's name
        self.facts = facts
        self.settings = settings
        self.deps = deps
        self._tidies = False  # whether this agent has announced the start, and is to clear up after the last
        self._beats = 0  # heartbeats since this agent took its place in a round, and its rank
        self._on_watch = False  # whether it was this agent's turn at the last heartbeat
        self._expiry_at = float("inf")  # when the next lease of a watched peer runs out
        # since when the shared directory does not answer, by this node's monotonic clock [s]
        self.blind_since: float | None = None
        self._failed_at = float("-inf")  # when the shared directory last did not answer
        self._lost: tuple[int, dict[str, str]] = (0, {})
        self.drain_began: float | None = None  # when this agent first heard of the drain under way [s]

    @property
    def lost(self) -> tuple[str, ...]:
        """Members of the running round that were gone at the last look."""
        number, nodes = self._lost
        running = self.state.running if nodes else None
        known = running is not None and running.number == number
        left = self.state.left  # an agent that leaves announces it first
        return tuple(node for node_id, node in nodes.items() if node_id not in left) if known else ()

    def _noted(self, act: Callable[[], RunState]) -> RunState:
        """Return the state after an act on the journal; an act that fails may have read records, too."""
        try:
            return act()
        finally:
            self.state = self._log.state

    def refresh(self) -> RunState:
        """Read the new records of the journal."""
        self.membership.known = self._noted(self._log.refresh).last
        return self.state

    def latest_checkpoint(self) -> MarkedCheckpoint | None:
        """Return the newest durable checkpoint."""
        return self.deps.latest_checkpoint()

    def now(self) -> float:
        """Return this node's monotonic time [s]."""
        return self.deps.clock.monotonic()

    # the news of this agent for the others

    def announce(self) -> RunState:
        """Announce this start of the run if no node has."""
        epoch = self.membership.epoch
        first = self._noted(self._log.refresh).epoch < epoch
        state = self.commit(EpochStarted(epoch, *self.facts[1:], sizes_text(self.settings)))
        self._tidies = first and state.epoch == epoch
        return state

    def _tidy(self) -> None:
        """Take away the leftovers of earlier starts; nothing waits for it, and it may fail."""
        self._tidies = False
        with suppress(StoreError):
            self.membership.remove_older()
        if self.deps.tidy is not None:
            self.deps.tidy(self.state.rounds)

    def publish_round(self, formed: RoundFormed) -> RunState:
        """Form the next round, unless another node has, or another size is wanted since."""
        wanted = self.state.wanted
        return self.commit(formed, only_if=lambda state: state.wanted == wanted)

    def take_place(self, formed: RoundFormed) -> None:
        """Be a member of a round from now on."""
        self.membership.ensure_phase(Phase.RUNNING, formed.number)
        self.membership.remove_outdated()
        self._beats = 0
        self._on_watch = False

    def rank_in(self, formed: RoundFormed) -> int:
        """Return the group rank of this node in a round."""
        return [member.node_id for member in formed.members].index(self.membership.node_id)

    def vanished(self) -> tuple[str, ...]:
        """Return the nodes of the newest round that are gone without having said so."""
        formed = self.state.round
        if formed is None or self.blind_since is not None:
            return ()
        quiet = self._silent(formed) - self.state.left
        return tuple(member.node for member in formed.members if member.node_id in quiet)

    def place_among_survivors(self) -> int | None:
        """Return this node's place among the members of the newest round that have not vanished."""
        formed = self.state.round
        gone = self.vanished()
        nodes = [member.node for member in formed.members if member.node not in gone] if formed else []
        return nodes.index(self.node) if self.node in nodes else None

    def is_beside_a_round(self) -> bool:
        """Tell whether a round runs, by the last look, of which this agent is no member."""
        running, me = self.state.running, self.membership.node_id
        return running is not None and all(member.node_id != me for member in running.members)

    def set_phase(self, phase: Phase) -> None:
        """Publish this agent's phase in the newest round."""
        self.membership.ensure_phase(phase, self.state.rounds)

    # the view of this agent on the others

    def next_turn_at(self) -> float:
        """Return when there is something to do though nothing happens, by this node's clock [s].

        That is the next heartbeat, or the end of a peer's lease; after a failure it is a heartbeat later.
        """
        due = min(self.membership.next_beat_at(), self._expiry_at)
        return max(due, self._failed_at + self.settings.heartbeat_interval)

    def tick(self, *, look: bool = False) -> RunState:
        """Beat if due, read new records, watch the peers if it is this node's turn.

        A file system that does not answer costs time, not the run: errors are kept to
        `blind_since` and no member is given up meanwhile.

        Args:
            look: look at the peers whether it is this node's turn or not.

        Raises:
            TakenOverError: another directory is in the place of the run's.
        """
        if self.now() >= self.membership.next_beat_at():
            self.check_place()
        try:
            nothing_new = self._take_turn(look=look)
            state = self.state if nothing_new else self.refresh()
        except StoreError:
            self.note_blindness()
            return self.state
        self.blind_since = None
        return state

    def peer_view(self, *, is_gone: bool) -> rules.PeerView:
        """Return the result of the last look at the others."""
        peer_view = rules.PeerView(self.next_turn_at(), self.lost, self.common_step())
        if not is_gone:
            return peer_view
        # A member that falls silent between the two counts neither as stopped nor as vanished.
        everyone_stopped, vanished = self.everyone_in(*GONE), bool(self.vanished())
        formed, succeeded = self.state.round, self.everyone_succeeded()
        moved_on = formed is not None and rules.has_moved_on(formed, self.membership.roster)
        return rules.PeerView(*peer_view[:3], everyone_stopped, succeeded, vanished, moved_on)

    def check_place(self) -> None:
        """Check that the directory of the run is where it was.

        Raises:
            TakenOverError: another one is there, or others can write to it.
        """
        if self.deps.check_place is not None:
            self.deps.check_place()

    def look_through(self) -> RunState:
        """Look at everything again after a blindness; all leases start anew.

        Raises:
            StoreError: the shared directory still does not answer.
        """
        self.membership.look()
        self.membership.forgive()
        state = self._noted(self._log.refresh)
        self.blind_since = None
        return state

    def note_blindness(self) -> None:
        """Remember that the shared directory does not answer; earlier conclusions are void.

        Raises:
            TakenOverError: it does not because another directory is in its place.
        """
        self.check_place()
        self._lost = (0, {})
        self._failed_at = self.now()
        if self.blind_since is None:
            self.blind_since = self._failed_at

    def everyone_in(self, *phases: Phase) -> bool:
        """Tell whether every member of the newest round is in one of the phases or lost."""
        formed = self.state.round
        if formed is None:
            return True
        if self.blind_since is not None:
            return False
        living = self.live_members(formed)
        members = tuple(member for member in formed.members if member.node_id in living)
        return rules.all_in(
            formed._replace(members=members), self.membership.roster, frozenset((*phases, Phase.LEFT))
        )

    def everyone_succeeded(self) -> bool:
        """Tell whether all workers of the newest round ended well; a lost member never counts as such."""
        formed = self.state.round
        return formed is not None and rules.all_in(
            formed, self.membership.roster, frozenset({Phase.SUCCEEDED})
        )

    def live_members(self, formed: RoundFormed) -> list[str]:
        """Return the ids of the members of a round that have not vanished."""
        quiet = self._silent(formed)
        left = (
            member.node_id
            for member in formed.members
            if (entry := self.membership.roster.get(member.node_id)) and entry.name.phase is Phase.LEFT
        )
        gone = quiet.union(left, self.state.left)
        return [m.node_id for m in formed.members if m.node_id not in gone]

    def working_members(self, formed: RoundFormed) -> list[str]:
        """Return the ids of the members of a round whose workers have not ended, as far as is known."""
        roster = self.membership.roster
        ended = {
            node_id
            for node_id, entry in roster.items()
            if entry.name.phase in (Phase.SUCCEEDED, Phase.STOPPED) and entry.name.round == formed.number
        }
        return [node_id for node_id in self.live_members(formed) if node_id not in ended]

    def _silent(self, formed: RoundFormed) -> frozenset[str]:
        """Return the ids of the members of a round that have not beaten for a lease."""
        me, roster = self.membership.node_id, self.membership.roster
        ids = (member.node_id for member in formed.members if member.node_id != me)
        entries = (roster[node_id] for node_id in ids if node_id in roster)
        return liveness.silent(entries, self.now(), self.settings.lease)

    def _take_turn(self, *, look: bool) -> bool:
        """Beat and watch as far as it is due.

        Returns:
            Whether the names have told that the journal holds nothing new. A member that watches
            the others reads it in their names, so that a heartbeat costs everybody two operations;
            now and then it reads the journal in place of the names.
        """
        now = self.now()
        beat_due = now >= self.membership.next_beat_at()
        if beat_due:
            self._on_watch = self._is_on_watch()
        watches = beat_due and self._on_watch and self._beats % REREAD_BEATS != 0
        if beat_due:
            self.membership.beat_if_due()
        if look or watches or now >= self._expiry_at:
            self._watch()
        elif beat_due and self._tidies and self.state.running is not None:
            self._tidy()
        told = watches and self.membership.newest_record <= self.state.last
        return told and not look

    def _is_on_watch(self) -> bool:
        running = self.state.running
        if running is None:
            return False  # an agent that waits for others looks without a sign of news
        ids = [member.node_id for member in running.members]
        if self.membership.node_id not in ids:
            return False
        rank = ids.index(self.membership.node_id)
        # not all watchers read the journal at the same heartbeat
        self._beats = rank + 1 if self._beats == 0 else self._beats + 1
        turn = liveness.turn_beats(self.settings.lease, self.settings.heartbeat_interval)
        return liveness.is_on_watch(rank, len(ids), self._beats - rank, turn)

    def _watch(self) -> None:
        running = self.state.running
        self.membership.look(steps=self._gathered() is not None)
        self._expiry_at = float("inf")
        if running is None:
            return
        view, now = self._view(running), self.now()
        verdict = liveness.judge(view, now)
        self.membership.object_to_refuted()
        for suspicion in verdict.suspected:
            self.membership.suspect(suspicion)
        self.membership.keep_suspected(
            {suspicion.node_id for suspicion in verdict.suspected}.union(verdict.lost)
        )
        nodes = {member.node_id: member.node for member in running.members}
        self._lost = (running.number, {node_id: nodes[node_id] for node_id in verdict.lost})
        if self._on_watch:
            self._expiry_at = liveness.next_expiry(view, now)

    def _gathered(self) -> RoundFormed | None:
        """Return the running round if this agent computes the step after which all its ranks stop."""
        state = self.state
        running = state.running if state.drain is not None and state.stop_step is None else None
        is_ours = running is not None and rules.is_proposer(running, self.membership.node_id)
        return running if is_ours else None

    def common_step(self) -> int | None:
        """Return the step after which all ranks stop, if this agent computes it and all have told theirs."""
        running = self._gathered()
        if running is None:
            return None
        return rules.stop_step(self.working_members(running), self.membership.told_steps(running.number))

    def _view(self, running: RoundFormed) -> liveness.View:
        return liveness.View(
            me=self.membership.node_id,
            members=tuple(member.node_id for member in running.members),
            roster=self.membership.roster,
            suspicions=self.membership.suspicions,
            lease=self.settings.lease,
            heartbeat_interval=self.settings.heartbeat_interval,
            suspected_at=self.membership.suspected_at,
        )

    def commit(self, entry: Entry, *, only_if: Callable[[RunState], bool] | None = None) -> RunState:
        """Add an entry to the journal if it still fits, and return the state.

        The next look of an observer at the members shows that there is news.

        Args:
            entry: the entry.
            only_if: the condition for the state in which the entry is added.
        """

        def choose(state: RunState) -> Entry | None:
            self.state = state
            return entry if only_if is None or only_if(state) else None

        before = self._log.appended
        state = self._noted(lambda: self._log.commit(choose))
        self.membership.known = state.last
        if self._log.appended != before:
            with suppress(StoreError):  # the record stands; an agent without the sign of it reads it later
                self.membership.tell_news()
        return state

    def report_crash(self, number: int, failure: dict[str, Any], word: WorkerWord | None = None) -> RunState:
        """End a round because a worker on this node failed, or has given up by its word."""
        return self.commit(RoundEnded(number, Cause.CRASH, (self.node,), failure, self._saved(), word))

    def report_failed_too(self, number: int, failure: dict[str, Any]) -> RunState:
        """Tell that workers on this node failed as those did that ended a round: neither node is to blame."""
        own = RoundEnded(number, Cause.CRASH, (self.node,), failure)
        alike = FailedAlike(self.membership.epoch, number, self.node)
        return self.commit(alike, only_if=lambda state: _is_another(state.ended, own))

    def report_failed_leaving(self, number: int, failure: dict[str, Any]) -> RunState:
        """Tell that a worker on this node failed while all were to save and leave."""
        return self.commit(FailedLeaving(self.membership.epoch, number, self.node, failure))

    def report_stopped(self, number: int, node: str, ranks: tuple[int, ...]) -> None:
        """Record the stopped workers of a node (SIGSTOP), if that is not known."""
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

    def report_lost(self, number: int, nodes: Iterable[str], word: WorkerWord | None = None) -> RunState:
        """End a round because members have vanished, or this node is bad by the word of a worker."""
        return self.commit(RoundEnded(number, Cause.NODE_LOSS, tuple(nodes), None, None, word))

    def report_agent_error(self, number: int, failure: dict[str, Any] | None = None) -> None:
        """End a round because this node cannot start its workers, or cannot end one."""
        self.commit(RoundEnded(number, Cause.AGENT_ERROR, (self.node,), failure))

    def report_paused(self, number: int) -> RunState:
        """End a round whose workers have all stopped so that the membership can change."""
        drain = self.state.drain
        if drain is None or drain.then is AfterDrain.LEAVE or drain.cause is Cause.MEMBERSHIP:
            return self.commit(RoundEnded(number, Cause.MEMBERSHIP, (), None, self._saved()))
        return self.commit(RoundEnded(number, drain.cause, (drain.node,), None, self._saved()))

    def report_left(self, cause: Cause, detail: str, asked: Asked = NO_SIGNAL) -> RunState:
        """Tell that this node has no workers any more and leaves; the others go on without it."""
        epoch, node_id = self.membership.epoch, self.membership.node_id
        return self.commit(NodeLeft(epoch, node_id, self.node, cause, detail, asked))

    def request_drain(
        self,
        cause: Cause,
        then: AfterDrain,
        detail: str = "",
        left_s: float | None = None,
        asked: Asked = NO_SIGNAL,
    ) -> RunState:
        """Ask all nodes to have their workers save and stop at one agreed step.

        A node beside a running round has no say in it.

        Args:
            cause: why.
            then: the nodes' act after it.
            detail: the source of the request, for people, if it is no signal.
            left_s: how long workers have from now on [s]; None: by the agents' flags.
            asked: the signal that asks.
        """
        request = DrainRequested(cause, self.node, then, detail, self.membership.epoch, left_s, asked)
        return self.commit(request, only_if=lambda _state: not self.is_beside_a_round())

    def explain_drain(
        self, cause: Cause, detail: str, left_s: float | None, answer: Answer = Answer.CONFIRMS
    ) -> RunState:
        """Record Slurm's answer about the signal that has asked for the drain under way.

        Args:
            cause: why it was sent.
            detail: the same for people.
            left_s: how long workers have from now on [s]; None: by the agents' flags.
            answer: the meaning of that.
        """
        return self.commit(DrainExplained(self.membership.epoch, cause, detail, left_s, answer))

    def request_pause(self, number: int, detail: str) -> RunState:
        """Ask the members of a round to stop for another membership, unless it is over."""
        epoch = self.membership.epoch
        pause = DrainRequested(Cause.MEMBERSHIP, self.node, AfterDrain.REJOIN, detail, epoch)
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
            drain: the request; None: there was none.
        """
        drained = Drained(self.membership.epoch, cause, self._saved(), "", self._drain_took())
        drained = drained._replace(missing=self._vanished_at_work())
        if drain is not None:
            drained = drained._replace(detail=drain.detail, asked=drain.asked, budget=drain.budget)
        return self.commit(drained)

    def _vanished_at_work(self) -> tuple[str, ...]:
        """Return the nodes of the newest round that have vanished while their workers ran."""
        formed, roster = self.state.round, self.membership.roster
        if formed is None or self.blind_since is not None:
            return ()
        quiet = self._silent(formed) - self.state.left
        at_work = {node_id for node_id in quiet if roster[node_id].name.phase is Phase.RUNNING}
        return tuple(member.node for member in formed.members if member.node_id in at_work)

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
