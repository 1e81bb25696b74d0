"""The wall time of a run as a series of spans, each in one bucket. Pure.

The series has no gap between a submission and the ending of the run, and no span twice. The time
after an ending that is final, until the run is submitted again, is no part of the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from hpc_elastic.account.facts import Doing, WorkFact, begun_steps, of_one_writer
from hpc_elastic.account.gpus import NodeGpus
from hpc_elastic.account.in_order import Event, SubmitTime, in_order, of_other_clocks, stamps_of
from hpc_elastic.account.one_clock import one_clock
from hpc_elastic.account.stops import Stop, StopLog, may_lack, silent_s
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.record.causes import FAILURES
from hpc_elastic.record.journal import (
    AfterDrain,
    Cause,
    Decision,
    Drained,
    DrainRequested,
    Entry,
    Epoch,
    EpochStarted,
    Member,
    NodeLeft,
    NodeTaken,
    Record,
    Requeued,
    Role,
    RoundFormed,
    RunEnded,
)
from hpc_elastic.record.state import RunState, apply
from hpc_elastic.record.why_left import who_asked


class Bucket(str, Enum):
    """The use of a second of a run; the value is its name for people."""

    TRAINING = "training"  # steps computed for the first time
    AGAIN = "computing again"  # steps that were lost
    LOST = "lost at the end"  # steps after the last checkpoint of a run that has failed, or is held
    WORKING = "working"  # workers that tell no steps
    SAVING = "saving"  # the loop stands still for it
    NOTICING = "noticing"  # from the last step to the record that the round is over
    STOPPING = "stopping"  # until the last worker is gone
    MEETING = "meeting"  # until the next round is formed
    STARTING = "starting workers"  # until their processes run
    IMPORTING = "importing"  # until one has attached to its agent
    LOADING = "loading"  # until the first step is done
    DRAINING = "draining"  # asked to stop, after the last step
    ENDING = "ending"  # after the last step of a run that is done
    QUEUED = "in the queue"  # of Slurm, until the agents of the next start speak
    HELD = "held"
    DOWN = "down"  # no sign of life, and no record of the reason; of a node: lost, or unfit
    SPARE = "spare"  # of a node: stands by while a round runs without it
    ELSEWHERE = "not in the job"  # of a node: this start of the job does not have it


class History(NamedTuple):
    """The source of an account."""

    records: Sequence[Record]
    facts: Sequence[WorkFact] = ()
    submissions: Sequence[SubmitTime] = ()
    newest_saved: int | None = None  # newest durable step there is now
    now: float | None = None  # of a run that goes on [s since the epoch]; None: the last event ends it
    gpus: Sequence[NodeGpus] = ()  # the use of the GPUs of the nodes that sample them
    backs: Mapping[int, int] = {}  # steps that the user went back to, by the first round from there


class Crew(NamedTuple):
    """The nodes of a moment."""

    expected: tuple[str, ...] = ()  # of the allocation, as far as it is known
    members: tuple[str, ...] = ()  # of the round that runs; empty between rounds
    out: frozenset[str] = frozenset()  # lost, or unfit


class Span(NamedTuple):
    """A part of the run's time in one bucket."""

    begin: float  # [s since the epoch]
    seconds: float
    bucket: Bucket
    start: int  # which start of the job, from 0; -1: none has begun yet
    stop: int  # the newest stop that is not made up for yet, from 0; -1: none
    crew: Crew = Crew()
    step: int | None = None  # of a span of new steps: the last one
    steps: int = 0  # how many there are


class StartFacts(NamedTuple):
    """One start of the job."""

    epoch: Epoch
    job_id: str
    at: float  # when its agents first spoke [s since the epoch]
    rounds: int = 0
    began: int | None = None  # step that its first round began from, 0 without a checkpoint; None: not known
    reached: int | None = None  # newest step that was done in it
    saved: int | None = None  # newest durable step at its end


class Series(NamedTuple):
    """The result of `series_of`."""

    spans: tuple[Span, ...]
    stops: tuple[Stop, ...]
    starts: tuple[StartFacts, ...]
    ticks: bool  # the workers tell their steps
    ending: RunEnded | None = None
    progress: tuple[tuple[float, int], ...] = ()  # when which new step was done, over all rounds
    total: int | None = None  # steps of the whole run; None: not known
    current: int | None = None  # newest step of the round that runs; None: none runs, or has done one
    unsaved: int = 0  # steps of the last round after the last checkpoint, if the run has failed or is held
    unsaved_at_least: bool = False  # there may be more of them, of which no agent has told
    begun: Mapping[int, int] = {}  # steps that rounds went on from, by their numbers, as their workers told


OF_A_START = (Bucket.STARTING, Bucket.IMPORTING, Bucket.LOADING)
_WORK = (Bucket.TRAINING, Bucket.WORKING, Bucket.SAVING)
_UNSAVED = (Decision.FAILED, Decision.HELD)  # the end of a run loses all that is not durable


def series_of(history: History) -> Series:
    """Return the spans of a run's time, the stops of its workers, and its starts."""
    rounds = of_one_writer(history.facts)
    others = of_other_clocks(history.facts, rounds)
    events = in_order(history.records, history.submissions, rounds, others)
    walk, unread = _Walk(rounds, history.backs), {id(one) for one in others}
    for time, event in zip(one_clock(stamps_of(events)), events, strict=True):
        if id(event) not in unread:
            walk.take(time, event)
    return walk.finish(history.now, history.newest_saved)


class _Walk:
    """Goes through the events and puts the time between two of them into a bucket.

    Args:
        rounds: the lines of agents about each round.
        backs: steps that the user went back to, by the first round from there.
    """

    def __init__(self, rounds: Mapping[int, Sequence[WorkFact]], backs: Mapping[int, int]) -> None:
        self._ticks = any(fact.doing is Doing.STEP for lines in rounds.values() for fact in lines)
        self._begun = begun_steps(fact for lines in rounds.values() for fact in lines)
        self._saving = {number: max(fact.saving_s for fact in lines) for number, lines in rounds.items()}
        self._written = rounds
        self._state = RunState()
        self._time: float | None = None  # until which all is in a bucket; None: no run is going on
        self._waits = True  # no start of the newest submission has begun
        self._phase = Bucket.MEETING  # of the round that runs, or of the time after it
        self._last: int | None = None  # newest step of the round that runs
        self._best = -1  # newest step of the run
        self._saved_s = 0.0  # saving in the round that runs, up to the last line
        self._durable = -1
        self._crew = Crew()
        self._members: tuple[tuple[Member, ...], tuple[str, ...]] = ((), ())  # of the newest round, and names
        self._stop = -1
        self._reached: int | None = None  # newest step of the newest round
        self._spans: list[Span] = []
        self._stops = StopLog(backs, tells=bool(self._begun))
        self._starts: list[StartFacts] = []
        self._progress: list[tuple[float, int]] = []
        self._total: int | None = None
        self._farthest: int | None = None  # newest step of the newest start

    def take(self, time: float, event: Event) -> None:
        """Take one event."""
        if isinstance(event, WorkFact):
            self._fact(time, event)
        elif isinstance(event, SubmitTime):
            self._submitted(time)
        else:
            after = apply(self._state, event.entry)
            if after != self._state:
                self._record(time, event, after)

    def finish(self, now: float | None, newest_saved: int | None) -> Series:
        """Return the series.

        Args:
            now: until when an open run is to be accounted for; None: the last event ends it.
            newest_saved: newest durable step there is.
        """
        if now is not None and self._time is not None:
            lives = self._last is not None and self._bucket() not in (Bucket.HELD, Bucket.QUEUED)
            is_asked = self._state.drain is not None
            if lives and self._last is not None and newest_saved is not None and newest_saved > self._last:
                self._put_steps(now, 0.0, newest_saved, self._last)  # a mark may be newer than any line
                if newest_saved > self._best:  # then it is of this round
                    self._last = self._best = newest_saved
                self._progress.append((now, self._best))
            self._put(now, self._live_bucket() if lives and not is_asked else self._bucket())
        self._note_saved(newest_saved)
        ending, unsaved, lacks = self._state.ending, 0, False
        if ending is not None:
            self._stops.settle(is_done=ending.decision is Decision.DONE)
        if ending is not None and ending.decision in _UNSAVED:
            self._spans = [part for span in self._spans for part in self._kept(span)]
            unsaved, lacks = self._unsaved(), self._unsaved_at_least()
        self._close_start()
        found = tuple(self._spans), tuple(self._stops.found), tuple(self._starts)
        progress = tuple(self._progress)
        now_at = self._total, self._last
        return Series(*found, self._ticks, ending, progress, *now_at, unsaved, lacks, self._begun)

    def _unsaved(self) -> int:
        """Return how many steps were done after the last checkpoint and in no round again."""
        open_ones = (stop.step for stop in self._stops.found if stop.resumed is None)
        reached = max(step or 0 for step in (self._reached, *open_ones))
        return max(0, reached - max(self._durable, 0))

    def _unsaved_at_least(self) -> bool:
        open_ones = (stop for stop in self._stops.found if stop.resumed is None)
        return any(may_lack(stop, self._durable) for stop in open_ones)

    def _note_saved(self, step: int | None) -> None:
        self._durable = max(self._durable, -1 if step is None else step)

    def _kept(self, span: Span) -> tuple[Span, ...]:
        """Return the parts of a span of a run that has failed or is held: steps not durable are lost."""
        late = 0 if span.step is None else min(span.step - self._durable, span.steps)
        if late <= 0:
            return (span,)
        lost_s = span.seconds * late / span.steps
        kept = span._replace(seconds=span.seconds - lost_s, steps=span.steps - late)
        lost = Span(span.begin + kept.seconds, lost_s, Bucket.LOST, *span[3:-1], late)
        return (kept, lost) if kept.steps else (lost,)

    # the present

    def _bucket(self) -> Bucket:
        """Return the bucket of the time from now on, as far as the records tell."""
        state = self._state
        if state.ending is not None and state.ending.decision is Decision.HELD:
            return Bucket.HELD
        if self._waits or state.requeued:
            return Bucket.QUEUED
        if state.leaving or (state.drain is not None and state.running is not None):
            return Bucket.DRAINING
        return self._phase

    def _live_bucket(self) -> Bucket:
        return Bucket.AGAIN if self._last is not None and self._last < self._best else Bucket.TRAINING

    def _put(self, time: float, bucket: Bucket, step: int | None = None, steps: int = 0) -> None:
        """Put the time up to a moment into a bucket."""
        if self._time is None or time <= self._time:
            return
        is_work = bucket in _WORK
        if is_work and bucket is not Bucket.SAVING and not self._stops.is_open:
            self._stop = -1
        stop = -1 if is_work else self._stop
        span = Span(self._time, time - self._time, bucket, self._place, stop, self._crew, step, steps)
        self._spans.append(span)
        self._time = time

    def _take_back(self, since: float, bucket: Bucket) -> None:
        """Put the time since a moment of the round that is over into a bucket of the newest stop."""
        for place in reversed(range(len(self._spans))):
            span = self._spans[place]
            before_s = max(since - span.begin, 0.0)
            if before_s >= span.seconds or span.bucket not in (*OF_A_START, Bucket.WORKING):
                return
            lost = span._replace(
                begin=span.begin + before_s, seconds=span.seconds - before_s, bucket=bucket, stop=self._stop
            )
            self._spans[place : place + 1] = [span._replace(seconds=before_s), lost] if before_s else [lost]

    def _pass(self, time: float) -> None:
        """Put the time up to an event into the bucket of the moment before.

        The time since the last step of a round stays open until the next event decides its bucket.
        """
        if self._last is None:
            self._put(time, self._bucket())

    # events

    def _submitted(self, time: float) -> None:
        if self._time is None:
            self._time = time
        else:
            self._leave_round(time, Bucket.DOWN)
            self._pass(time)
        self._waits = True
        self._crew = Crew()

    def _fact(self, time: float, fact: WorkFact) -> None:
        running = self._state.running
        is_over = self._time is None or self._state.round is None or self._state.round.number != fact.round
        if is_over or (running is None and fact.doing is not Doing.GONE):
            return
        if fact.doing is Doing.STEP and fact.step is not None:
            self._stepped(time, fact, fact.step)
            return
        self._pass(time)
        if fact.doing is Doing.GONE and running is None:
            self._phase = Bucket.MEETING
        elif fact.doing is Doing.STARTED:
            self._phase = Bucket.IMPORTING if self._ticks else Bucket.WORKING
        elif fact.doing is Doing.IMPORTED and self._ticks:
            self._phase = Bucket.LOADING

    def _stepped(self, time: float, fact: WorkFact, step: int) -> None:
        if self._last is None:
            self._began(fact.began)
            self._pass(time)
            self._phase = Bucket.TRAINING
        else:
            self._put_steps(time, fact.saving_s - self._saved_s, step, self._last)
        self._saved_s = max(self._saved_s, fact.saving_s)
        self._last = self._reached = step
        self._best = max(self._best, step)
        self._progress.append((time, self._best))
        self._total = fact.total or self._total
        self._farthest = step if self._farthest is None else max(step, self._farthest)

    def _put_steps(self, time: float, saving_s: float, step: int, last: int) -> None:
        """Put the time between two lines about steps into its buckets, as far as steps are new."""
        if self._time is None:
            return
        began, span_s = self._time, max(time - self._time, 0.0)
        saving_s = min(max(saving_s, 0.0), span_s)
        is_reset = step <= last  # a program that counts anew in each epoch has lost nothing
        steps = 0 if is_reset else max(0, step - max(last, self._best))
        new = 1.0 if is_reset else steps / (step - last)
        self._put(began + saving_s, Bucket.SAVING)
        self._put(began + saving_s + (span_s - saving_s) * (1 - new), Bucket.AGAIN)
        self._put(time, Bucket.TRAINING if new else Bucket.AGAIN, step if steps else None, steps)

    def _leave_round(self, time: float, bucket: Bucket) -> None:
        """Put the time since the last step of a round that is over into a bucket."""
        if self._last is None:
            return
        rest_s = 0.0
        if self._state.round is not None and bucket is not Bucket.DRAINING:
            rest_s = self._saving.get(self._state.round.number, 0.0) - self._saved_s
        if self._time is not None and rest_s > 0:
            self._put(min(self._time + rest_s, time), Bucket.SAVING)
        self._put(time, bucket)
        self._last, self._saved_s = None, 0.0

    def _record(self, time: float, record: Record, after: RunState) -> None:
        entry, before = record.entry, self._state
        if isinstance(entry, NodeLeft):
            self._stops.called_away(entry, self._place)
        if isinstance(entry, EpochStarted):
            self._epoch(time, record, entry)
        elif isinstance(entry, RoundFormed):
            self._pass(time)
            self._formed(entry)
            self._crew = self._crew._replace(members=self._names_of(entry))
        elif before.running is not None and after.running is None:
            self._round_over(time, record, before, after)
        elif isinstance(entry, Drained | Requeued):
            self._left(time, record, entry, after)
        elif isinstance(entry, RunEnded):
            self._ended(time, record, entry)
        else:
            self._other(time, record, entry, after)
        self._state = after
        if isinstance(entry, RunEnded) and entry.decision is not Decision.HELD:
            self._time = None
        members = self._crew.members if after.running is not None else ()
        self._crew = Crew(after.expected, members, after.lost)

    def _names_of(self, formed: RoundFormed) -> tuple[str, ...]:
        if formed.members is not self._members[0]:  # most rounds have those of the round before
            self._members = formed.members, tuple(member.node for member in formed.members)
        return self._members[1]

    def _other(self, time: float, record: Record, entry: Entry, after: RunState) -> None:
        if isinstance(entry, NodeTaken):
            self._stops.taken(entry)
        if self._time is None:
            return
        self._pass(time)
        if isinstance(entry, DrainRequested) and entry.then is AfterDrain.LEAVE:
            nodes, asker = (entry.node,) if entry.node else (), who_asked(after, entry.cause)
            self._open(time, record, entry.cause, nodes=nodes, asker=asker)
        self._stops.told_more(entry, after)

    def _epoch(self, time: float, record: Record, entry: EpochStarted) -> None:
        known = self._state
        if self._time is None:
            self._time = time  # no submit has made it
        was_left = self._waits or known.requeued or known.drained is not None or known.ending is not None
        if not was_left:
            if self._starts and (known.running is not None or known.round is None):
                is_same = entry.epoch.script == known.epoch.script
                self._open(self._time, record._replace(number=0), None, left=not is_same)
                if is_same:
                    self._stops.vanished(known)
            self._leave_round(time, Bucket.DOWN)
            self._put(time, Bucket.DOWN)
        elif known.drained is not None and not known.requeued:
            self._leave_round(time, Bucket.DRAINING)
            self._put(time, Bucket.QUEUED)
        else:
            self._leave_round(time, Bucket.DOWN)
            self._pass(time)
        if entry.epoch.script != known.epoch.script or not self._starts:
            self._close_start()
            self._starts.append(StartFacts(entry.epoch, entry.job_id, time))
        self._waits = record.role is Role.COMMAND
        self._phase, self._last, self._reached = Bucket.MEETING, None, None

    def _formed(self, entry: RoundFormed) -> None:
        self._phase = Bucket.STARTING if entry.number in self._written else Bucket.WORKING
        self._last, self._saved_s, self._reached = None, 0.0, None
        step = 0 if entry.checkpoint is None else entry.checkpoint.step
        self._note_saved(None if entry.checkpoint is None else step)
        start = self._start
        known = None if entry.is_script else step
        self._update_start(rounds=start.rounds + 1, began=known if start.began is None else start.began)
        self._durable = self._stops.formed(entry, step, self._durable)

    def _began(self, step: int | None) -> None:
        """Note the step that the newest round went on from; None: that of its checkpoint."""
        if step is not None and self._farthest is None:  # it is the first round of its start with a step
            self._update_start(began=step)
        self._stops.began(step)

    def _round_over(self, time: float, record: Record, before: RunState, after: RunState) -> None:
        ended = after.ended
        cause = ended.cause if ended is not None else None
        is_asked = before.drain is not None and cause not in FAILURES
        tail = Bucket.DRAINING if is_asked else Bucket.NOTICING
        nodes, failure = (ended.nodes, ended.failure) if ended is not None else ((), None)
        self._pass(time)
        if before.leave_cause is None:
            word = None if ended is None else ended.word
            self._open(time, record, cause, nodes=nodes, failure=failure, word=word)
        if cause is Cause.HANG and self._last is None:
            self._take_back(time - silent_s(failure), tail)
        self._leave_round(time, tail)
        self._note_saved(ended.saved if ended is not None else None)
        self._phase = Bucket.STOPPING if self._has_end(before) else Bucket.MEETING

    def _has_end(self, state: RunState) -> bool:
        lines = self._written.get(state.round.number, ()) if state.round is not None else ()
        return any(fact.doing is Doing.GONE for fact in lines)

    def _left(self, time: float, record: Record, entry: Drained | Requeued, after: RunState) -> None:
        self._pass(time)
        self._note_saved(entry.step if isinstance(entry, Drained) else None)
        if not self._stops.is_open_in(self._place):
            self._open(time, record, entry.cause, left=True)
        self._stop = self._stops.newest
        self._stops.left(entry, self._state, after, self._reached)
        self._leave_round(time, Bucket.DRAINING)

    def _ended(self, time: float, record: Record, entry: RunEnded) -> None:
        self._stops.ended(record, self._state)
        rest = Bucket.NOTICING
        if record.role is not Role.AGENT:  # the agents have not written how their round ended
            rest = Bucket.DOWN
        elif entry.decision is Decision.DONE:
            rest = Bucket.ENDING
        self._leave_round(time, Bucket.DRAINING if self._state.drain is not None else rest)
        self._pass(time)

    # starts and stops

    @property
    def _place(self) -> int:
        return len(self._starts) - 1

    @property
    def _start(self) -> StartFacts:
        return self._starts[-1] if self._starts else StartFacts(self._state.epoch, "", 0.0)

    def _update_start(self, **changes: int | None) -> None:
        if self._starts:
            self._starts[-1] = self._starts[-1]._replace(**changes)  # type: ignore[arg-type]

    def _close_start(self) -> None:
        saved = self._durable if self._durable >= 0 else None
        if self._starts:
            self._starts[-1] = self._starts[-1]._replace(saved=saved, reached=self._farthest)
        self._farthest = None

    def _open(self, time: float, record: Record, cause: Cause | None, **known: Any) -> None:
        """Take note of a stop: from now on the workers do no new step."""
        state = self._state
        number = state.round.number if state.round is not None else 0
        untold = bool(self._written.get(number)) and not self._has_end(state)
        found = Stop(time, cause, self._place, number, step=self._reached, record=record.number, **known)
        stop = found._replace(is_untold=untold, agreed=_step_of(state.stop_step))
        self._stops.open(stop)
        self._stop = self._stops.newest


def _step_of(agreed: int | None) -> int | None:
    """Return the step that workers are to stop at; a negative number is none."""
    return agreed if agreed is not None and agreed >= 0 else None
