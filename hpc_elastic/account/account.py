"""The account of a run: its time by buckets, the cost of its restarts, and its pace. Pure.

Goodput (ETTR, the effective training time ratio) is the share of the run's wall time in which steps
were computed that had not been computed before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from hpc_elastic.account.facts import RunUse, use_of
from hpc_elastic.account.gpus import NodeGpus
from hpc_elastic.account.spans import Bucket, Crew, History, Series, Span, StartFacts, series_of
from hpc_elastic.account.stops import Stop, may_lack
from hpc_elastic.ids import LOCAL_JOB
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.record.journal import Cause

Seconds = Mapping[Bucket, float]
OUTSIDE = (Bucket.QUEUED, Bucket.HELD)  # in which the run has no nodes
RECENT_S = 6 * 3600.0  # that the rate is taken from: long enough to contain failures


class StopCost(NamedTuple):
    """The cost of one stop."""

    stop: Stop
    seconds: float  # without new steps, until the work was where it had been
    lost_steps: int | None  # computed again, or to be; None: the workers do not tell, or have not told so far
    perhaps_lost: int = 0  # at most so many, as the workers of the next round have not told so far
    lost_at_least: bool = False  # there may be more, as the agents that told of steps were gone first


class CauseCost(NamedTuple):
    """The cost of all stops of one cause."""

    cause: Cause | None
    times: int
    seconds: float
    lost_steps: int
    between_s: float  # mean time of work between two of them
    lost_at_least: bool = False  # of one of them at least there may be more


class StartAccount(NamedTuple):
    """One start of the job."""

    facts: StartFacts
    wall_s: float  # from the first word of its agents, without the queue before it
    seconds: Seconds
    goodput: float | None


class Account(NamedTuple):
    """The time of a run by buckets, and the cost of its stops."""

    wall_s: float
    seconds: Seconds
    goodput: float | None  # share of the wall time; None: the workers tell no steps
    goodput_on_nodes: float | None  # share of the time in which the run had nodes
    lost_steps: int
    starts: tuple[StartAccount, ...]
    stops: tuple[StopCost, ...]
    causes: tuple[CauseCost, ...]  # the one that cost most first
    series: Series
    use: RunUse | None = None  # of the nodes; None: not known
    gpus: tuple[NodeGpus, ...] = ()  # of the nodes that sample them

    @property
    def is_local(self) -> bool:
        """Whether all starts were on one machine without Slurm, and so without a queue."""
        return bool(self.starts) and all(start.facts.job_id.startswith(LOCAL_JOB) for start in self.starts)

    def text_of(self, bucket: Bucket) -> str:
        """Return the name of a bucket of this run for people."""
        return "starting the job" if bucket is Bucket.QUEUED and self.is_local else bucket.value

    @property
    def lost_at_least(self) -> bool:
        """Whether more steps may be lost: agents were gone before they told how far their workers were."""
        return self.series.unsaved_at_least or any(one.lost_at_least for one in self.stops)

    @property
    def at_most(self) -> float:
        """The share of time in which workers ran and nothing says that they did not work."""
        work = sum(self.seconds.get(bucket, 0.0) for bucket in (Bucket.TRAINING, Bucket.WORKING))
        return work / self.wall_s if self.wall_s else 0.0

    @property
    def paused_s(self) -> float:
        """The time between an end and the submission that went on [s]; no bucket has it."""
        ends = [(after.begin, span.begin + span.seconds) for span, after in pairwise(self.series.spans)]
        return sum(max(0.0, begin - end) for begin, end in ends)


def account_of(history: History) -> Account:
    """Return the account of a run."""
    series = series_of(history)
    seconds = _sums(series.spans)
    wall_s = sum(seconds.values())
    on_nodes_s = wall_s - sum(seconds.get(bucket, 0.0) for bucket in OUTSIDE)
    stops = _stops(series)
    return Account(
        wall_s,
        seconds,
        _share(series, seconds, wall_s),
        _share(series, seconds, on_nodes_s),
        sum(one.lost_steps or 0 for one in stops) + series.unsaved,
        _starts(series),
        stops,
        _causes(stops, _working_s(seconds)),
        series,
        use_of(history.facts),
        tuple(history.gpus),
    )


def _sums(spans: Iterable[Span]) -> Seconds:
    found: Counter[Bucket] = Counter()
    for span in spans:
        found[span.bucket] += span.seconds  # type: ignore[assignment]
    return dict(found)


def _share(series: Series, seconds: Seconds, of_s: float) -> float | None:
    return seconds.get(Bucket.TRAINING, 0.0) / of_s if series.ticks and of_s > 0 else None


def _working_s(seconds: Seconds) -> float:
    work = (Bucket.TRAINING, Bucket.AGAIN, Bucket.LOST, Bucket.WORKING, Bucket.SAVING)
    return sum(seconds.get(bucket, 0.0) for bucket in work)


def _starts(series: Series) -> tuple[StartAccount, ...]:
    spans: list[list[Span]] = [[] for _ in series.starts]
    for span in series.spans:
        if span.start >= 0 and span.bucket not in OUTSIDE:
            spans[span.start].append(span)
    found = []
    for facts, own in zip(series.starts, spans, strict=True):
        seconds = _sums(own)
        wall_s = sum(seconds.values())
        found.append(StartAccount(facts, wall_s, seconds, _share(series, seconds, wall_s)))
    return tuple(found)


def _stops(series: Series) -> tuple[StopCost, ...]:
    cost = [0.0] * len(series.stops)
    for span in series.spans:
        if span.stop >= 0:
            cost[span.stop] += span.seconds
    return tuple(StopCost(stop, cost[place], *_lost(stop)) for place, stop in enumerate(series.stops))


def _lost(stop: Stop) -> tuple[int | None, int, bool]:
    """Return the steps that a stop has lost, those that it has perhaps, and whether there may be more."""
    if stop.step is None or stop.resumed is None:
        return None, 0, False
    kept = max(stop.resumed, stop.kept or 0)
    steps, lacks = max(stop.step - kept, 0), may_lack(stop, kept)
    return (None, steps, lacks) if stop.is_least else (steps, 0, lacks)


def _causes(stops: Sequence[StopCost], working_s: float) -> tuple[CauseCost, ...]:
    by_cause: dict[Cause | None, list[StopCost]] = {}
    for one in stops:
        by_cause.setdefault(one.stop.cause, []).append(one)
    found = [
        CauseCost(
            cause,
            len(of_it),
            sum(one.seconds for one in of_it),
            sum(one.lost_steps or 0 for one in of_it),
            working_s / len(of_it),
            any(one.lost_at_least for one in of_it),
        )
        for cause, of_it in by_cause.items()
    ]
    return tuple(sorted(found, key=lambda each: -each.seconds))


class NewestStep(NamedTuple):
    """How far the workers of the round that runs are, by the heartbeats of their agents."""

    step: int  # of the rank in front
    still_s: float | None = None  # time without a step, about [s]; None: they go on, or it is not known


class Pace(NamedTuple):
    """New steps in a part of the run."""

    steps: int  # new ones
    seconds: float  # wall time of that part, restarts and queue included
    training_s: float  # of it, in which they were computed

    @property
    def per_s(self) -> float:
        """New steps per second of wall time."""
        return self.steps / self.seconds

    @property
    def lost_share(self) -> float:
        """The share of the wall time that brought no new step."""
        return max(0.0, 1 - self.training_s / self.seconds)


def pace_of(series: Series) -> Pace | None:
    """Return the recent pace of a run, None as long as it is not known."""
    if not series.progress:
        return None
    end, newest = series.progress[-1]
    since = end - RECENT_S
    first = next(((at, step) for at, step in series.progress if at >= since), series.progress[-1])
    spans = [span for span in series.spans if span.begin >= first[0] and span.begin < end]
    wall_s = sum(span.seconds for span in spans)
    training_s = sum(span.seconds for span in spans if span.bucket is Bucket.TRAINING)
    return Pace(newest - first[1], wall_s, training_s) if wall_s > 0 and newest > first[1] else None


def seconds_of_nodes(spans: Iterable[Span]) -> dict[str, Seconds]:
    """Return the same account for each node that any start of the run has had.

    Args:
        spans: of the run; the seconds of each node add up to theirs.
    """
    by_crew: dict[Crew, Counter[Bucket]] = {}
    for span in spans:
        by_crew.setdefault(span.crew, Counter())[span.bucket] += span.seconds  # type: ignore[assignment]
    names = dict.fromkeys(name for crew in by_crew for name in (*crew.expected, *crew.members))
    found: dict[str, dict[Bucket, float]] = {name: {} for name in names}
    for crew, seconds in by_crew.items():
        members, expected = frozenset(crew.members), frozenset(crew.expected)
        for name, own in found.items():
            for bucket, span_s in seconds.items():
                mine = _of_node(name, bucket, crew, members, expected)
                own[mine] = own.get(mine, 0.0) + span_s
    return dict(found)


def _of_node(
    name: str, bucket: Bucket, crew: Crew, members: frozenset[str], expected: frozenset[str]
) -> Bucket:
    """Return the bucket of a node while the run is in one."""
    if bucket in OUTSIDE or bucket is Bucket.DOWN:
        return bucket
    if name in members:
        return bucket
    if name in crew.out:
        return Bucket.DOWN
    if name not in expected and (expected or members):
        return Bucket.ELSEWHERE
    return Bucket.SPARE if members else bucket
