"""The state of a run: the fold of its journal. Pure.

A record that does not fit the state it meets (written late by a fenced agent, or twice by agents
that saw the same thing) changes nothing. Every reader folds the same records and so holds the same
state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.record.journal import (
    AfterDrain,
    Answer,
    Budget,
    Cause,
    Decision,
    Drained,
    DrainExplained,
    DrainRequested,
    DrillBegan,
    DrillCalledOff,
    Entry,
    Epoch,
    EpochStarted,
    FailedAlike,
    FailedLeaving,
    HangSuspected,
    NeverAsked,
    NodeLeft,
    NodeSlow,
    NodeTaken,
    NodeUnfit,
    Note,
    Notified,
    RanksStopped,
    Record,
    Requeued,
    RoundEnded,
    RoundFormed,
    RunEnded,
    RunEvent,
    SizeWanted,
    StopAgreed,
    TaskStopped,
    WarningHeld,
    bad_node,
)
from hpc_elastic.record.progress import BEGINNING, Progress
from hpc_elastic.record.same_failure import signature

_CAUSE_OF: Mapping[Budget | None, Cause] = {
    Budget.NODE_LOSSES: Cause.NODE_LOSS,
    Budget.PREEMPTIONS: Cause.PREEMPTION,
    Budget.TIME_LIMITS: Cause.TIME_LIMIT,
    Budget.LAUNCH_FAILURES: Cause.LAUNCH_FAILURE,
}
NO_EPOCH = Epoch(-1, 0, 0, 0)
MOST_FAILED_LEAVING = 8  # of a start are kept; with a thousand nodes each would have one
_OF_WORKERS = (Cause.CRASH, Cause.HANG)
_OF_USERS = (Cause.STOP, Cause.INTERRUPT)
_UNNAMED = (Answer.REQUEUES, Answer.SILENT)  # answers of Slurm without a cause


class RunFields(NamedTuple):
    """The fields of the state that all nodes agree on."""

    last: int = 0  # number of the last record folded
    epoch: Epoch = NO_EPOCH
    job_id: str = ""
    expected: tuple[str, ...] = ()  # node names of this epoch
    batch_host: str = ""  # the node with the batch script of this epoch
    sizes: str = ""  # the --nnodes of this epoch, MIN:MAX; empty if unknown
    lost: frozenset[str] = frozenset()  # node names lost in this epoch, the unfit ones too
    unfit: Mapping[str, str] = {}  # nodes that failed the probe, or are bad by their workers, and why
    left: frozenset[str] = frozenset()  # node ids that have left by themselves since the newest round began
    tasks_stopped: tuple[TaskStopped, ...] = ()  # by their batch scripts, since the newest round began
    rounds: int = 0  # rounds formed in the life of the run
    round: RoundFormed | None = None  # the newest round of this epoch
    ended: RoundEnded | None = None  # how it ended; None while it runs
    drain: DrainRequested | None = None
    explained: DrainExplained | None = None  # the last answer of Slurm about a signal in it
    stop_step: int | None = None
    drained: Drained | None = None
    ending: RunEnded | None = None
    counts: Mapping[Cause, int] = {}  # rounds ended per cause in this submission
    requeues: int = 0  # in this submission
    requeued_for: Mapping[Cause, int] = {}  # requeues per cause in this submission
    repeated: tuple[RoundEnded, ...] = ()  # the same failure again, nothing saved between
    requeued: bool = False  # this start of the job has been handed back to Slurm
    size: SizeWanted | None = None  # the last wish of the user
    hang: HangSuspected | None = None  # the newest suspicion in the newest round
    note: Note | DrillBegan | DrillCalledOff | None = None  # the newest one of this epoch; it decides nothing
    progress: Progress = Progress()  # of the starts of this submission
    never_asked: NeverAsked | None = None  # the workers of this submission do not ask whether to stop
    stopped_ranks: Mapping[str, tuple[int, ...]] = {}  # by node, that stand still by a signal in this round
    slow: Mapping[str, NodeSlow] = {}  # by node, in this round
    held_warning: WarningHeld | None = None  # the last one that came too early in this round
    taken: frozenset[int] = frozenset()  # losses of nodes, by their record, caused by a command to Slurm
    failed_leaving: tuple[FailedLeaving, ...] = ()  # workers that failed as this epoch was left
    notified: frozenset[tuple[RunEvent, int]] = frozenset()  # events that a message was sent about


class RunState(RunFields):
    """The state that all nodes agree on; a conclusion from its fields is drawn once."""

    @cached_property
    def running(self) -> RoundFormed | None:
        """The round whose workers run, if any."""
        return self.round if self.ended is None else None

    @property
    def never_asks(self) -> bool:
        """Whether the workers of this submission do not ask whether to stop."""
        return self.never_asked is not None

    @cached_property
    def _wish(self) -> SizeWanted | None:
        """The wish of the user of this submission, if any."""
        size = self.size
        return size if size is not None and size.submission == self.epoch.submission else None

    @cached_property
    def wanted(self) -> int | None:
        """How many nodes the user wants in a round; None for as many as there are."""
        return self._wish.size if self._wish is not None else None

    @cached_property
    def spares(self) -> int | None:
        """How many nodes are to stand by beside a round of the wanted size; None for as many as come."""
        return self._wish.spares if self._wish is not None else None

    @cached_property
    def deserted(self) -> bool:
        """Whether every member of the newest round has left by itself."""
        return self.round is not None and self.left.issuperset(one.node_id for one in self.round.members)

    @cached_property
    def only_unfit(self) -> bool:
        """Whether this epoch was left because nodes are unfit, with no node lost."""
        for_nodes = self.drained is not None and self.drained.cause is Cause.NODE_LOSS
        return for_nodes and bool(self.unfit) and self.lost <= self.unfit.keys()

    @cached_property
    def leaving(self) -> bool:
        """Whether no further round is formed in this epoch."""
        return self.leave_cause is not None or self.drained is not None or self.ending is not None

    @cached_property
    def leave_cause(self) -> Cause | None:
        """Why this epoch is to be left, None if it is not.

        Without its batch host a Slurm job runs on, but no script ends or requeues it: its nodes leave.
        """
        if self.drain is not None and self.drain.then is AfterDrain.LEAVE:
            return self.drain.cause
        is_gone = self.batch_host in self.lost and self.batch_host not in self.unfit
        return Cause.NODE_LOSS if is_gone else None

    @cached_property
    def crashes(self) -> int:
        """Rounds that ended by a worker's failure, in this submission."""
        return self.counts.get(Cause.CRASH, 0)

    @cached_property
    def restarts(self) -> int:
        """Rounds that ended by a failure of workers, or a hang, in this submission; torch counts the same.

        In torch a watchdog kills workers that hang, and torch counts that as a failure.
        """
        return self.crashes + self.counts.get(Cause.HANG, 0)

    def used(self, cause: Cause) -> int:
        """Return how often a cause has ended a round or a start of the job, in this submission."""
        return self.counts.get(cause, 0) + self.requeued_for.get(cause, 0)


def fold(state: RunState, records: Iterable[Record]) -> RunState:
    """Return the state after further records."""
    for record in records:
        state = apply(state, record.entry)._replace(last=record.number)
    return state


def apply(state: RunState, entry: Entry) -> RunState:
    """Return the state after one entry; unchanged if the entry does not fit."""
    return _APPLY[type(entry)](state, entry)


def fits(state: RunState, entry: Entry) -> bool:
    """Tell whether an entry would change the state."""
    return apply(state, entry) != state


def other_job(state: RunState, epoch: Epoch, job_id: str) -> str:
    """Return the job that the run belongs to, if it is another one than the job of a start; else nothing.

    The jobs of a submission follow each other, each with a link of its own. A second job with the same link
    is none of the run's: the job script was given to sbatch once more.

    Args:
        state: the run.
        epoch: of the start.
        job_id: its job, which is the whole run and no array; empty outside Slurm.
    """
    is_its_place = (epoch.submission, epoch.link) == (state.epoch.submission, state.epoch.link)
    return state.job_id if is_its_place and job_id and job_id != state.job_id else ""


def _epoch(state: RunState, entry: EpochStarted) -> RunState:
    if entry.epoch <= state.epoch:
        return state
    is_whole = bool(state.sizes or entry.sizes)  # a job, and no array: of that a run may have several
    if is_whole and other_job(state, entry.epoch, entry.job_id):
        return state
    resubmitted = entry.epoch.submission > state.epoch.submission
    is_new_start = entry.epoch.script != state.epoch.script
    ending, released = state.ending, is_released(state, entry.epoch)
    if ending is not None:
        if released:
            state = _with_new_budget(state, ending)
        elif not resubmitted:
            return state
    return RunState(
        epoch=entry.epoch,
        job_id=entry.job_id,
        expected=entry.expected,
        batch_host=entry.batch_host,
        sizes=entry.sizes,
        rounds=state.rounds,
        counts={} if resubmitted else state.counts,
        requeues=0 if resubmitted else state.requeues,
        requeued_for={} if resubmitted else state.requeued_for,
        repeated=() if resubmitted else state.repeated,
        size=state.size,
        progress=state.progress.next_start(resubmitted=resubmitted or released)
        if is_new_start
        else state.progress,
        drain=_stop_still_wanted(state, entry),
        never_asked=None if resubmitted else state.never_asked,
        notified=state.notified,
    )


def _stop_still_wanted(state: RunState, entry: EpochStarted) -> DrainRequested | None:
    """Return a user's wish to stop that the end of a job's start has overtaken."""
    asked = state.drain
    is_job = entry.job_id == state.job_id or entry.epoch.link > state.epoch.link  # the next one of a chain
    is_next_start = is_job and entry.job_id != "" and entry.epoch.submission == state.epoch.submission
    is_done = state.drained is not None and state.drained.cause is Cause.STOP
    if asked is None or asked.cause is not Cause.STOP or is_done or not is_next_start:
        return None
    return asked if asked.then is AfterDrain.LEAVE else None


def is_released(state: RunState, epoch: Epoch) -> bool:
    """Tell whether a start goes on with a run that was held: its user has released the job."""
    ending = state.ending
    held = ending is not None and ending.decision is Decision.HELD
    return held and epoch.submission == state.epoch.submission and epoch.script > state.epoch.script


def _with_new_budget(state: RunState, held: RunEnded) -> RunState:
    """Return the state of a released run: the budget for which it was held is full again."""
    cause = _CAUSE_OF.get(held.budget)
    if cause is None:
        return state._replace(requeues=0, requeued_for={})
    return state._replace(
        counts={**state.counts, cause: 0},
        requeues=state.requeues - state.requeued_for.get(cause, 0),
        requeued_for={**state.requeued_for, cause: 0},
    )


def _round(state: RunState, entry: RoundFormed) -> RunState:
    wrong = entry.number != state.rounds + 1 or entry.epoch != state.epoch
    has_left = bool(state.left) and any(member.node_id in state.left for member in entry.members)
    if wrong or has_left or state.running is not None or state.leaving:
        return state
    lost = state.lost.union(entry.lost)
    back: frozenset[str] = frozenset()
    if lost or state.unfit:  # else the members, hundreds of them, need not be looked through
        back = frozenset(member.node for member in entry.members)
    return _blamed(state, entry.lost)._replace(
        rounds=entry.number,
        round=entry,
        ended=None,
        drain=None,
        explained=None,
        stop_step=None,
        hang=None,
        slow={},
        held_warning=None,
        lost=lost - back,
        unfit={node: reason for node, reason in state.unfit.items() if node not in back},
        left=frozenset(),
        tasks_stopped=(),
        progress=state.progress.formed(entry.checkpoint.step if entry.checkpoint else BEGINNING),
    )


def _blamed(state: RunState, lost: tuple[str, ...]) -> RunState:
    """Return the state with the cause of the last round put right, by the nodes that were lost in it.

    When a node vanishes, the workers of the others often fail first, for want of a peer. That is a
    node loss, not a crash, and costs no restart.
    """
    ended = state.ended
    if not lost or ended is None or ended.cause is not Cause.CRASH:
        return state
    losses = state.counts.get(Cause.NODE_LOSS, 0) + 1
    counts = {**state.counts, Cause.CRASH: state.crashes - 1, Cause.NODE_LOSS: losses}
    return state._replace(counts=counts, repeated=state.repeated[:-1])


def _ended(state: RunState, entry: RoundEnded) -> RunState:
    running = state.running
    if running is None or running.number != entry.number or state.ending is not None:
        return state
    drain, told, lost = state.drain, entry, state.lost
    leaver = (drain.cause, (drain.node,)) if drain is not None and drain.then is AfterDrain.REJOIN else None
    if (entry.cause, entry.nodes) != leaver:
        entry = _without_who_left(state, running, entry)
        lost = lost.union(entry.nodes) if entry.cause is Cause.NODE_LOSS else lost
    if told.nodes and not entry.nodes:
        return state
    bad = bad_node(entry.word)
    if bad is not None:
        state = state._replace(unfit={**state.unfit, bad.node: bad.reason})
        lost = lost.union({bad.node})
    return _over(state, running, entry)._replace(lost=lost)


def _over(state: RunState, running: RoundFormed, entry: RoundEnded) -> RunState:
    """Return the state with the round ended."""
    drain = state.drain
    counts = {**state.counts, entry.cause: state.counts.get(entry.cause, 0) + 1}
    progress = state.progress.saved(_step(entry.saved))
    if drain is not None and drain.then is AfterDrain.REJOIN:
        began = running.checkpoint.step if running.checkpoint is not None else BEGINNING
        progress = progress.stopped(began, state.stop_step)
    repeated = _repeated(state, entry)
    return state._replace(ended=entry, counts=counts, stopped_ranks={}, repeated=repeated, progress=progress)


def _step(saved: int | None) -> int:
    return BEGINNING if saved is None else saved


def _without_who_left(state: RunState, running: RoundFormed, entry: RoundEnded) -> RoundEnded:
    """Return the end of a round with its true cause.

    Workers fail for want of a peer when a node leaves before they have stopped. That costs no restart.
    A node that has recorded that it leaves is not lost; an observer may not have read that yet.
    """
    if not state.left:
        return entry
    left = {member.node for member in running.members if member.node_id in state.left}
    if entry.cause is Cause.NODE_LOSS:
        staying = {member.node for member in running.members if member.node_id not in state.left}
        return entry._replace(nodes=tuple(node for node in entry.nodes if node not in left - staying))
    if entry.cause is not Cause.CRASH or not left or state.drain is None:
        return entry
    return entry._replace(cause=state.drain.cause)


def _repeated(state: RunState, entry: RoundEnded) -> tuple[RoundEnded, ...]:
    """Return the newest failure after the same ones before it that nothing was saved after."""
    before = state.repeated
    if entry.cause not in _OF_WORKERS:
        return before
    if before and (before[-1].saved != entry.saved or signature(before[-1]) != signature(entry)):
        return (entry,)
    return (*before, entry)


def _drain(state: RunState, entry: DrainRequested) -> RunState:
    if state.leaving or _is_foreign(state, entry.epoch):
        return state
    if entry.then is AfterDrain.REJOIN and (state.drain is not None or state.running is None):
        return state
    return state._replace(drain=entry, explained=None)


def _explained(state: RunState, entry: DrainExplained) -> RunState:
    drain, before = state.drain, state.explained
    if drain is None or drain.cause is Cause.MEMBERSHIP or _is_foreign(state, entry.epoch):
        return state  # no signal asked for it
    if before is not None and (before.cause, before.detail) == (entry.cause, entry.detail):
        return state  # of a node that asked, too
    if before is not None and before.answer is Answer.CONFIRMS and entry.answer in _UNNAMED:
        return state  # it was asked later: a job that is back in the queue shows no cause
    if drain.cause in _OF_USERS:  # a request of Slurm leaves less time, and changes no wish
        return state._replace(explained=entry)
    asked = drain.asked._replace(answer=entry.answer, said=entry.detail)
    return state._replace(explained=entry, drain=drain._replace(cause=entry.cause, asked=asked))


def _stop_at(state: RunState, entry: StopAgreed) -> RunState:
    running = state.running
    if running is None or running.number != entry.number:
        return state
    if state.drain is None or state.stop_step is not None:
        return state
    if entry.step < 0:
        return state._replace(stop_step=entry.step)
    progress = state.progress._replace(tells=True)
    return state._replace(stop_step=entry.step, progress=progress, never_asked=None)


def _never_asked(state: RunState, entry: NeverAsked) -> RunState:
    running = state.running
    if running is None or running.number != entry.number:
        return state
    return state._replace(never_asked=None if entry.asks_now else entry)


def _ranks_stopped(state: RunState, entry: RanksStopped) -> RunState:
    running = state.running
    if running is None or running.number != entry.number:
        return state
    others = {node: ranks for node, ranks in state.stopped_ranks.items() if node != entry.node}
    return state._replace(stopped_ranks={**others, entry.node: entry.ranks} if entry.ranks else others)


def _slow(state: RunState, entry: NodeSlow) -> RunState:
    running = state.running
    is_late = running is None or running.number != entry.number
    return (
        state
        if is_late or entry.node in state.slow
        else state._replace(slow={**state.slow, entry.node: entry})
    )


def _warning_held(state: RunState, entry: WarningHeld) -> RunState:
    running = state.running
    is_late = running is None or running.number != entry.number or state.drain is not None
    return state if is_late else state._replace(held_warning=entry)


def _node_left(state: RunState, entry: NodeLeft) -> RunState:
    """Record that a node leaves. A round without any remaining member is over.

    A round without a drain is over as well: its node left while the round was formed and has no
    workers, and the workers of the other nodes wait for it.
    """
    if entry.epoch != state.epoch or has_ended(state):
        return state
    state = state._replace(left=state.left.union({entry.node_id}))
    running = state.running
    if running is None or not any(one.node_id == entry.node_id for one in running.members):
        return state
    if state.drain is not None and not state.deserted:
        return state
    why = state.drain or entry
    return _over(state, running, RoundEnded(running.number, why.cause, (why.node,), None))


def _task_stopped(state: RunState, entry: TaskStopped) -> RunState:
    known = [(one.task, one.restart, one.how) for one in state.tasks_stopped]
    if entry.epoch != state.epoch or has_ended(state) or (entry.task, entry.restart, entry.how) in known:
        return state
    return state._replace(tasks_stopped=(*state.tasks_stopped, entry))


def _drained(state: RunState, entry: Drained) -> RunState:
    if entry.epoch != state.epoch or state.drained is not None or state.ending is not None:
        return state
    return state._replace(drained=entry, progress=state.progress.saved(_step(entry.step)))


def _ending(state: RunState, entry: RunEnded) -> RunState:
    by_user = entry.decision in (Decision.STOPPED, Decision.CANCELLED)  # may end a run that is only held
    is_open = state.ending is None or (state.ending.decision is Decision.HELD and by_user)
    return state._replace(ending=entry) if is_open and not _is_foreign(state, entry.epoch) else state


def has_ended(state: RunState) -> bool:
    """Tell whether the run has ended for good; one that is held goes on when it is released."""
    return state.ending is not None and state.ending.decision is not Decision.HELD


def _is_foreign(state: RunState, epoch: Epoch | None) -> bool:
    """Tell whether an entry comes from an agent of another start of the run."""
    return epoch is not None and epoch != state.epoch


def _unfit(state: RunState, entry: NodeUnfit) -> RunState:
    running = state.running
    is_in = running is not None and any(member.node == entry.node for member in running.members)
    if entry.epoch != state.epoch or is_in or state.ending is not None:
        return state
    unfit = {**state.unfit, entry.node: entry.reason}
    return state._replace(unfit=unfit, lost=state.lost.union({entry.node}))


def _requeued(state: RunState, entry: Requeued) -> RunState:
    if state.requeued or entry.epoch.script != state.epoch.script:
        return state
    ended, is_loss = state.ended, entry.cause is Cause.NODE_LOSS  # which may have ended the round, too
    is_counted = is_loss and (state.only_unfit or (ended is not None and ended.cause is entry.cause))
    times = state.requeued_for.get(entry.cause, 0) + (not is_counted)
    return state._replace(
        requeues=state.requeues + 1,
        requeued=True,
        requeued_for={**state.requeued_for, entry.cause: times},
    )


def _size(state: RunState, entry: SizeWanted) -> RunState:
    known = state.size
    same = known is not None and known._replace(detail=entry.detail, before=entry.before) == entry
    if entry.submission < state.epoch.submission or same:
        return state
    return state._replace(size=entry)


def _hang(state: RunState, entry: HangSuspected) -> RunState:
    running = state.running
    is_late = running is None or running.number != entry.number or state.leaving
    if is_late or entry.look != (state.hang.look if state.hang else 0) + 1:
        return state
    return state._replace(hang=entry)


def _taken(state: RunState, entry: NodeTaken) -> RunState:
    return state._replace(taken=state.taken.union({entry.loss}))


def _failed_leaving(state: RunState, entry: FailedLeaving) -> RunState:
    is_told = any(known.node == entry.node for known in state.failed_leaving)
    running = state.running
    is_late = running is None or running.number != entry.number or state.leave_cause is None
    if entry.epoch != state.epoch or is_told or is_late or len(state.failed_leaving) >= MOST_FAILED_LEAVING:
        return state
    return state._replace(failed_leaving=(*state.failed_leaving, entry))


def _failed_alike(state: RunState, entry: FailedAlike) -> RunState:
    """Name one more node in the end of the round; one is enough to tell that it is no single node's fault."""
    ended = state.ended
    if ended is None or (entry.epoch, entry.number) != (state.epoch, ended.number):
        return state
    if len(ended.nodes) != 1 or entry.node in ended.nodes:
        return state
    both = ended._replace(nodes=(*ended.nodes, entry.node))
    if not state.repeated or state.repeated[-1] is not ended:
        return state._replace(ended=both)
    return state._replace(ended=both, repeated=(*state.repeated[:-1], both))


def _notified(state: RunState, entry: Notified) -> RunState:
    return state._replace(notified=state.notified.union({(entry.event, entry.about)}))


def _note(state: RunState, entry: Note | DrillBegan | DrillCalledOff) -> RunState:
    return state if entry.epoch < state.epoch else state._replace(note=entry)


_APPLY: dict[type, Callable[[RunState, Any], RunState]] = {
    EpochStarted: _epoch,
    RoundFormed: _round,
    RoundEnded: _ended,
    DrainRequested: _drain,
    DrainExplained: _explained,
    StopAgreed: _stop_at,
    NodeLeft: _node_left,
    TaskStopped: _task_stopped,
    Drained: _drained,
    RunEnded: _ending,
    Requeued: _requeued,
    NodeUnfit: _unfit,
    SizeWanted: _size,
    HangSuspected: _hang,
    NodeTaken: _taken,
    NeverAsked: _never_asked,
    RanksStopped: _ranks_stopped,
    NodeSlow: _slow,
    WarningHeld: _warning_held,
    FailedLeaving: _failed_leaving,
    FailedAlike: _failed_alike,
    DrillBegan: _note,
    DrillCalledOff: _note,
    Notified: _notified,
    Note: _note,
}
