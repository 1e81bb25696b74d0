"""The state of a run: the fold of its journal. Pure.

A record that does not fit the state it meets (written late by a fenced agent, or twice by agents
that saw the same thing) changes nothing. Every reader folds the same records and so holds the same
state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from hpc_elastic.rendezvous.journal import (
    Cause,
    Drained,
    DrainRequested,
    Entry,
    Epoch,
    EpochStarted,
    Record,
    Requeued,
    RoundEnded,
    RoundFormed,
    RunEnded,
    SizeWanted,
    StopAgreed,
    Then,
)

NO_EPOCH = Epoch(-1, 0, 0)


class RunState(NamedTuple):
    """What all nodes agree on."""

    last: int = 0  # number of the last record folded
    epoch: Epoch = NO_EPOCH
    job_id: str = ""
    expected: tuple[str, ...] = ()  # node names of this epoch
    batch_host: str = ""  # the node with the batch script of this epoch
    lost: frozenset[str] = frozenset()  # node names lost in this epoch
    rounds: int = 0  # rounds formed in the life of the run
    round: RoundFormed | None = None  # the newest round of this epoch
    ended: RoundEnded | None = None  # how it ended; None while it runs
    drain: DrainRequested | None = None
    stop_step: int | None = None
    drained: Drained | None = None
    ending: RunEnded | None = None
    counts: Mapping[Cause, int] = {}  # rounds ended per cause in this submission
    requeues: int = 0  # in this submission
    requeued: bool = False  # this start of the job has been handed back to Slurm
    size: SizeWanted | None = None  # what the user wanted last

    @property
    def running(self) -> RoundFormed | None:
        """The round whose workers run, if any."""
        return self.round if self.ended is None else None

    @property
    def wanted(self) -> int | None:
        """How many nodes the user wants in a round; None for as many as there are."""
        is_current = self.size is not None and self.size.submission == self.epoch.submission
        return self.size.size if self.size is not None and is_current else None

    @property
    def leaving(self) -> bool:
        """Whether no further round is formed in this epoch."""
        return self.leave_cause is not None or self.drained is not None or self.ending is not None

    @property
    def leave_cause(self) -> Cause | None:
        """Why this epoch is to be left, None if it is not.

        Without its batch host a Slurm job runs on, but nobody ends or requeues it: its nodes leave.
        """
        if self.drain is not None and self.drain.then is Then.LEAVE:
            return self.drain.cause
        return Cause.NODE_LOSS if self.batch_host in self.lost else None

    @property
    def crashes(self) -> int:
        """Rounds that ended by a worker's failure, in this submission."""
        return self.counts.get(Cause.CRASH, 0)


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


def _epoch(state: RunState, entry: EpochStarted) -> RunState:
    if entry.epoch <= state.epoch:
        return state
    resubmitted = entry.epoch.submission > state.epoch.submission
    if state.ending is not None and not resubmitted:
        return state
    return RunState(
        epoch=entry.epoch,
        job_id=entry.job_id,
        expected=entry.expected,
        batch_host=entry.batch_host,
        rounds=state.rounds,
        counts={} if resubmitted else state.counts,
        requeues=0 if resubmitted else state.requeues,
        size=state.size,
    )


def _round(state: RunState, entry: RoundFormed) -> RunState:
    wrong = entry.number != state.rounds + 1 or entry.epoch != state.epoch
    if wrong or state.running is not None or state.leaving:
        return state
    back = frozenset(member.node for member in entry.members)
    return state._replace(
        rounds=entry.number,
        round=entry,
        ended=None,
        drain=None,
        stop_step=None,
        lost=state.lost.union(entry.lost) - back,
        counts=_blamed(state, entry),
    )


def _blamed(state: RunState, entry: RoundFormed) -> Mapping[Cause, int]:
    """Return the counts of causes with the last round's put right.

    When a node vanishes, the workers of the others often fail first, for want of a peer. That is a
    node loss, not a crash, and costs no restart.
    """
    ended = state.ended
    if not entry.lost or ended is None or ended.cause is not Cause.CRASH:
        return state.counts
    losses = state.counts.get(Cause.NODE_LOSS, 0) + 1
    return {**state.counts, Cause.CRASH: state.crashes - 1, Cause.NODE_LOSS: losses}


def _ended(state: RunState, entry: RoundEnded) -> RunState:
    running = state.running
    if running is None or running.number != entry.number or state.ending is not None:
        return state
    lost = state.lost.union(entry.nodes) if entry.cause is Cause.NODE_LOSS else state.lost
    counts = {**state.counts, entry.cause: state.counts.get(entry.cause, 0) + 1}
    return state._replace(ended=entry, counts=counts, lost=lost)


def _drain(state: RunState, entry: DrainRequested) -> RunState:
    if state.leaving or _is_foreign(state, entry.epoch):
        return state
    if entry.then is Then.REJOIN and (state.drain is not None or state.running is None):
        return state
    return state._replace(drain=entry)


def _stop_at(state: RunState, entry: StopAgreed) -> RunState:
    running = state.running
    if running is None or running.number != entry.number:
        return state
    if state.drain is None or state.stop_step is not None:
        return state
    return state._replace(stop_step=entry.step)


def _drained(state: RunState, entry: Drained) -> RunState:
    if entry.epoch != state.epoch or state.drained is not None or state.ending is not None:
        return state
    return state._replace(drained=entry)


def _ending(state: RunState, entry: RunEnded) -> RunState:
    if state.ending is not None or _is_foreign(state, entry.epoch):
        return state
    return state._replace(ending=entry)


def _is_foreign(state: RunState, epoch: Epoch | None) -> bool:
    """Tell whether an entry comes from an agent of another start of the run."""
    return epoch is not None and epoch != state.epoch


def _requeued(state: RunState, entry: Requeued) -> RunState:
    if state.requeued or entry.epoch[:2] != state.epoch[:2]:
        return state
    return state._replace(requeues=state.requeues + 1, requeued=True)


def _size(state: RunState, entry: SizeWanted) -> RunState:
    if entry.submission < state.epoch.submission or state.wanted == entry.size:
        return state
    return state._replace(size=entry)


_APPLY: dict[type, Callable[[RunState, Any], RunState]] = {
    EpochStarted: _epoch,
    RoundFormed: _round,
    RoundEnded: _ended,
    DrainRequested: _drain,
    StopAgreed: _stop_at,
    Drained: _drained,
    RunEnded: _ending,
    Requeued: _requeued,
    SizeWanted: _size,
}
