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
    NodeLeft,
    NodeTaken,
    Note,
    Record,
    Requeued,
    Role,
    RunEnded,
    SetupFailure,
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


def silent_s(failure: Mapping[str, Any] | None) -> float:
    """Return for how long the workers of a hang had shown no sign of life [s]; 0 if it is not recorded."""
    seconds = (failure or {}).get("silent_s")
    return max(0.0, float(seconds)) if isinstance(seconds, int | float) else 0.0


def leaver_of(entry: NodeLeft) -> Leaver | None:
    """Return the node that was called away; None if it leaves for another reason."""
    if entry.cause not in CALLED_AWAY:
        return None
    return Leaver(entry.node, entry.cause, asked_by(entry.cause, entry.detail, entry.asked))


def with_leavers(stop: Stop, leavers: Iterable[Leaver]) -> Stop:
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


def left(stop: Stop, entry: Drained | Requeued, before: RunState, after: RunState) -> Stop:
    """Return a stop with which a start of the job ends.

    Args:
        stop: as it is known so far.
        entry: the record of the end.
        before: the run before the record.
        after: the run after it.
    """
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


def explained(stop: Stop, after: RunState) -> Stop:
    """Return a stop about whose signal Slurm has answered.

    Args:
        stop: as it is known so far.
        after: the run after the answer.
    """
    drain = after.drain
    if drain is None or stop.cause in FAILURES:
        return stop
    return stop._replace(cause=drain.cause, asker=who_asked(after, drain.cause))


def ended(stop: Stop, record: Record, before: RunState) -> Stop:
    """Return a stop with which the run has ended; a signal that Slurm did not explain was then the cancel.

    A job that was back in the queue when its user cancelled it had stopped for another reason. A script that
    finds its job cancelled has recorded its requeue, but the job has not come back.

    Args:
        stop: as it is known so far.
        record: the ending.
        before: the run before it.
    """
    is_cancel = isinstance(record.entry, RunEnded) and record.entry.decision is Decision.CANCELLED
    request = before.drain or before.drained
    asked = NO_SIGNAL if request is None else request.asked
    is_back = asked.answer is Answer.REQUEUES or (before.requeued and record.role is Role.COMMAND)
    is_open = bool(asked.signal) and asked.answer is not Answer.CONFIRMS and not is_back
    if not is_cancel or stop.cause is not Cause.PREEMPTION or not is_open:
        return stop
    return stop._replace(cause=Cause.CANCEL, asker=Asker())


def vanished(stop: Stop, before: RunState) -> Stop:
    """Return the stop of agents that were started again in the same start of the batch script.

    Args:
        stop: as it is known so far.
        before: the run before they were.
    """
    note = before.note
    return stop._replace(cause=Cause.AGENT_ERROR, detail=note.text if isinstance(note, Note) else "")


def with_taken(stops: list[Stop], entry: NodeTaken) -> list[Stop]:
    """Return the stops, with the node that a user had Slurm take in the one that its loss belongs to."""
    return [
        stop._replace(taken={**stop.taken, entry.node: entry.reason}) if stop.record == entry.loss else stop
        for stop in stops
    ]
