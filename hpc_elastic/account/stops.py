"""The stops of a run's workers, each with its cause, from the records that tell it. Pure.

The first record of a stop often knows less than a later one: agents take a signal for a preemption before
Slurm has answered, and only the batch script knows that a line of it failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.record.causes import CALLED_AWAY, FAILURES
from hpc_elastic.record.journal import (
    NO_SIGNAL,
    Answer,
    Cause,
    Decision,
    Drained,
    DrainExplained,
    DrillBegan,
    DrillCalledOff,
    Entry,
    FailedAlike,
    NodeLeft,
    NodeTaken,
    Note,
    Record,
    Requeued,
    Role,
    RoundFormed,
    RunEnded,
    SetupFailure,
    StopAgreed,
    WorkerWord,
)
from hpc_elastic.record.state import RunState
from hpc_elastic.record.why_left import Asker, asked_by, requeued_for, who_asked

_WITH_WORDS = (Cause.LAUNCH_FAILURE, Cause.AGENT_ERROR, Cause.JOIN_TIMEOUT)


class Leaver(NamedTuple):
    """A node of an array that has left by itself; the others go on without it."""

    node: str
    cause: Cause
    asker: Asker = Asker()  # its origin, where the cause alone does not name it


class Stop(NamedTuple):
    """An event that kept the workers from new steps."""

    at: float  # [s since the epoch]
    cause: Cause | None  # None: no record of it
    start: int  # of the job
    round: int  # 0: there was none in that start
    nodes: tuple[str, ...] = ()  # where it happened; of nodes that did not come, or are unfit: those
    failure: Mapping[str, Any] | None = None
    step: int | None = None  # the newest one that was done in the round
    resumed: int | None = None  # the step that the next round began from; None: no round has begun
    left: bool = False  # the start of the job ended with it
    record: int = 0  # number of the journal record that told it; 0: none did
    asker: Asker = Asker()  # of a drain: its origin, where the cause alone does not name it
    word: WorkerWord | None = None  # of a worker that has ended the round
    detail: str = ""  # for people: the thing that could not start, the missing nodes, the end of the agents
    setup: SetupFailure | None = None  # the line of the job script that failed
    unfit: Mapping[str, str] = {}  # nodes that failed their probe, for which the start was left, and why
    taken: Mapping[str, str] = {}  # lost nodes that a user had Slurm take, and how
    drill: str = ""  # the drill that did it, for people
    leavers: tuple[Leaver, ...] = ()  # the nodes of an array that were called away
    kept: int | None = None  # newest durable step, if its user then went back behind it
    is_least: bool = False  # the workers have not told the step of `resumed`, which may be newer
    is_untold: bool = False  # the agents that told of steps were gone first: `step` may not be the newest
    agreed: int | None = None  # step that the workers were to stop at; None: none is known


def may_lack(stop: Stop, kept: int) -> bool:
    """Tell whether workers may have done steps of which no agent has told.

    Args:
        stop: of the workers.
        kept: the step that they had not lost.
    """
    return stop.is_untold and (stop.agreed is None or kept < stop.agreed)


def silent_s(failure: Mapping[str, Any] | None) -> float:
    """Return for how long the workers of a hang had shown no sign of life [s]; 0 if it is not recorded."""
    seconds = (failure or {}).get("silent_s")
    return max(0.0, float(seconds)) if isinstance(seconds, int | float) else 0.0


def _with_leavers(stop: Stop, leavers: Iterable[Leaver]) -> Stop:
    """Return a stop with nodes that were called away, unless the whole run stops as its user wishes.

    A signal is taken for a preemption at first; the cause for which all its nodes leave counts then.
    """
    if stop.cause not in CALLED_AWAY:
        return stop
    all_of_them = dict.fromkeys((*stop.leavers, *leavers))
    nodes = dict.fromkeys((*stop.nodes, *(one.node for one in all_of_them)))
    causes = {one.cause for one in all_of_them}
    if stop.cause is Cause.PREEMPTION and len(causes) == 1 and len(nodes) == len(all_of_them):
        stop = stop._replace(cause=causes.pop())
    return stop._replace(nodes=tuple(nodes), leavers=tuple(all_of_them))


def _left(stop: Stop, entry: Drained | Requeued, before: RunState, after: RunState) -> Stop:
    """Return a stop with which a start of the job ends; the run is that before and after the record."""
    cause = _cause_of_end(stop, entry.cause)
    stop = stop._replace(cause=cause, left=True, asker=Asker())
    if cause is not entry.cause:
        return stop
    if isinstance(entry, Requeued):
        setup, nodes = entry.failure or stop.setup, entry.nodes or stop.nodes
        stop = stop._replace(asker=requeued_for(before, entry), setup=setup, nodes=nodes)
    else:
        stop = stop._replace(asker=who_asked(after, cause), nodes=entry.missing or stop.nodes)
    if cause in _WITH_WORDS and entry.detail:
        stop = stop._replace(detail=entry.detail)
    if cause is Cause.NODE_LOSS and after.only_unfit:
        stop = stop._replace(nodes=tuple(after.unfit), unfit=after.unfit)
    return stop


def _cause_of_end(stop: Stop, told: Cause) -> Cause:
    """Return the cause of a stop that ends with its start: a failure came first, or the loss of nodes."""
    if stop.cause is None or stop.cause is Cause.MEMBERSHIP:
        return told
    if stop.cause in FAILURES or told is Cause.JOIN_TIMEOUT:
        return stop.cause
    return told


def _ended(stop: Stop, record: Record, before: RunState) -> Stop:
    """Return a stop with which the run has ended; a signal that Slurm did not explain was then the cancel.

    A job that was back in the queue when its user cancelled it had stopped for another reason. A script that
    finds its job cancelled has recorded its requeue, but the job has not come back.
    """
    is_cancel = isinstance(record.entry, RunEnded) and record.entry.decision is Decision.CANCELLED
    request = before.drain or before.drained
    asked = NO_SIGNAL if request is None else request.asked
    is_back = asked.answer is Answer.REQUEUES or (before.requeued and record.role is Role.COMMAND)
    is_open = bool(asked.signal) and asked.answer is not Answer.CONFIRMS and not is_back
    if not is_cancel or stop.cause is not Cause.PREEMPTION or not is_open:
        return stop
    return stop._replace(cause=Cause.CANCEL, asker=Asker())


class StopLog:
    """The stops of a run so far. The newest one is open until a round has followed it.

    Args:
        tells: whether the workers tell the step that a round of theirs goes on from.
        backs: steps that the user went back to, by the first round from there.
    """

    def __init__(self, backs: Mapping[int, int], *, tells: bool) -> None:
        self.found: list[Stop] = []
        self._backs, self._tells = backs, tells
        self._followed = range(0)  # places of the stops since the last step, which the newest round follows
        self._is_script = False  # the newest round is a job script of the user's own, which tells no steps
        self._leavers: list[Leaver] = []  # of the round that runs
        self._drill = ""  # that has begun since the newest round was formed, for people

    @property
    def newest(self) -> int:
        """The place of the newest stop, from 0; -1: there is none."""
        return len(self.found) - 1

    @property
    def is_open(self) -> bool:
        """Whether no round has followed the newest stop."""
        return bool(self.found) and self.found[-1].resumed is None

    def is_open_in(self, start: int) -> bool:
        """Tell whether the newest stop is open, and of this start of the job."""
        return self.is_open and self.found[-1].start == start

    def open(self, stop: Stop) -> None:
        """Take note of a stop."""
        self.found.append(_with_leavers(stop._replace(drill=self._drill), self._leavers))

    def vanished(self, before: RunState) -> None:
        """Take note that agents were started again in the same start of the batch script."""
        text = before.note.text if isinstance(before.note, Note) else ""
        self.found[-1] = self.found[-1]._replace(cause=Cause.AGENT_ERROR, detail=text)

    def left(self, entry: Drained | Requeued, before: RunState, after: RunState, reached: int | None) -> None:
        """Take note that a start of the job ends with the newest stop; `reached` is its newest step."""
        self.found[-1] = _left(self.found[-1], entry, before, after)._replace(step=reached)

    def ended(self, record: Record, before: RunState) -> None:
        """Take note that the run has ended."""
        if self.is_open:
            self.found[-1] = _ended(self.found[-1], record, before)

    def called_away(self, entry: NodeLeft, start: int) -> None:
        """Take note of a node of an array that leaves, before or after its round is over."""
        if entry.cause not in CALLED_AWAY:
            return
        found = Leaver(entry.node, entry.cause, asked_by(entry.cause, entry.detail, entry.asked))
        if self.is_open_in(start):
            self.found[-1] = _with_leavers(self.found[-1], (found,))
        else:
            self._leavers.append(found)

    def told_more(self, entry: Entry, after: RunState) -> None:
        """Take note of a record that says more about a stop, or about the next one."""
        if isinstance(entry, DrillBegan | DrillCalledOff):
            self._drill = entry.detail if isinstance(entry, DrillBegan) else ""
        if not self.found:
            return
        newest, drain = self.found[-1], after.drain
        if isinstance(entry, FailedAlike) and newest.round == entry.number:
            self.found[-1] = newest._replace(nodes=tuple(dict.fromkeys((*newest.nodes, entry.node))))
        if isinstance(entry, StopAgreed) and newest.round == entry.number and entry.step >= 0:
            self.found[-1] = newest = newest._replace(agreed=entry.step)
        is_unsure = self.is_open and newest.cause not in FAILURES
        if isinstance(entry, DrainExplained) and is_unsure and drain is not None:
            self.found[-1] = newest._replace(cause=drain.cause, asker=who_asked(after, drain.cause))

    def taken(self, entry: NodeTaken) -> None:
        """Take note of a node that a user had Slurm take, in the stop that its loss belongs to."""
        for place, stop in enumerate(self.found):
            if stop.record == entry.loss:
                self.found[place] = stop._replace(taken={**stop.taken, entry.node: entry.reason})

    def formed(self, entry: RoundFormed, step: int, durable: int) -> int:
        """Take note of a round that goes on from a step; return the newest durable step from now on."""
        self._drill = ""
        self._leavers.clear()
        first = len(self.found)
        while first and self.found[first - 1].resumed is None:
            first -= 1
            self.found[first] = _of_loss(self.found[first], entry)
        if self._tells and self._followed:  # the round before has done no step
            first = self._followed.start
        self._followed = range(first, len(self.found))
        back = self._backs.get(entry.number)
        if back is not None:  # its user has given the newer steps up: no stop has lost the saved ones
            for place in self._followed:
                self.found[place] = self.found[place]._replace(kept=max(durable, back))
        self._is_script = entry.is_script
        self._resume(step, is_least=self._tells or entry.is_script)
        return durable if back is None else back

    def began(self, step: int | None) -> None:
        """Note the step that the newest round went on from; None: that of its checkpoint."""
        self._resume(step, is_least=False)
        self._followed = range(0)

    def _resume(self, step: int | None, *, is_least: bool) -> None:
        for place in self._followed:  # not one that came before the first step of the round
            stop = self.found[place]._replace(is_least=is_least)
            self.found[place] = stop if step is None else stop._replace(resumed=step)

    def settle(self, *, is_done: bool) -> None:
        """Take note that a run has ended before its last round did a step: if it is done, none was lost."""
        for place in () if self._is_script else self._followed:  # the steps of a script are not known
            stop = self.found[place]
            step = stop.step if is_done and stop.is_least else None
            self.found[place] = stop._replace(is_least=False, resumed=stop.resumed if step is None else step)


def _of_loss(stop: Stop, entry: RoundFormed) -> Stop:
    """Return a stop that a round has followed; only that may tell that a node was lost in it."""
    is_loss = entry.lost and stop.cause is Cause.CRASH
    return stop._replace(cause=Cause.NODE_LOSS, nodes=entry.lost) if is_loss else stop
