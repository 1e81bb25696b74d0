"""Since when which worker of this node has shown no progress. Pure: time and signs are arguments."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.node.setup.hang_times import (
    QUIET,
    START,
    STEP,
    HangOptions,
    Lengths,
    kind_of,
    learn,
    limit_of,
)

if TYPE_CHECKING:
    from hpc_elastic.worker.channel import Section

_GAP = 0.25  # part of a limit without a look, after which the time begins anew,
_LONG_GAP_S = 60.0  # and the longest such time [s]
_WHOLE_S = 10.0  # from here on seconds are shown without decimals
_SLOWER = 6  # a worker that was suspected in vain may be silent up to 2 to the power of this times as long


class Sign(NamedTuple):
    """The signs of a worker's channel."""

    ticks: int = 0
    section_count: int = 0
    step: int | None = None  # the last one ticked
    sections: tuple[Section, ...] = ()

    @property
    def section(self) -> str | None:
        """The innermost section."""
        return self.sections[-1].name if self.sections else None

    @property
    def kind(self) -> str:
        """The kind of time it is in."""
        return kind_of(self.section, has_ticked=self.ticks > 0)


class Silence(NamedTuple):
    """A worker that has been silent for longer than it may."""

    local_rank: int
    seconds: float
    limit: float  # [s]
    kind: str
    section: str | None = None  # whose own limit it is,
    number: int = 0  # and which entering of it


def is_still(silence: Silence, before: Sign, now: Sign) -> bool:
    """Tell whether a worker still is where it was silent for too long."""
    if silence.section is None:
        return before == now
    return any(section.number == silence.number for section in now.sections)


def silence_text(silence: Silence) -> str:
    """Return the defect of a worker, in words."""
    span = f"for {_seconds(silence.seconds)} (limit {_seconds(silence.limit)})"
    if silence.section is not None:
        return f"in section {silence.section} {span}"
    if silence.kind == QUIET:
        return f"no output, no CPU time and no GPU use {span}"
    if silence.kind == START:
        return f"no first step {span}"
    return f"no progress {span}" if silence.kind == STEP else f"no progress in {silence.kind} {span}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= _WHOLE_S else f"{seconds:.1f} s"


class _Worker(NamedTuple):
    sign: Sign
    since: float  # of the last sign of life, or of the end of a time that does not count
    is_whole: bool = True  # the time since then is a measurement: nothing of it has been forgiven
    blocks: Mapping[int, float] = {}  # since when it is in which section, by number


class HangWatch:
    """The timers of the workers of one round.

    Args:
        options: limits.
        lengths: the measurements of the run so far.
        ticking: local ranks that have ticked in earlier rounds: they will tick again.
        now: monotonic time of the workers' start [s].
        least_gap_s: the shortest time between two looks [s].
    """

    def __init__(
        self, options: HangOptions, lengths: Lengths, ticking: tuple[int, ...], now: float, least_gap_s: float
    ) -> None:
        self._options = options
        self._expected = frozenset(ticking)
        self._workers: dict[int, _Worker] = {}
        self._started = now
        self._looked = now
        self._least_gap_s = least_gap_s
        self._vain = 0
        self.lengths = dict(lengths)

    @property
    def ticking(self) -> tuple[int, ...]:
        """The local ranks that tick, or did in an earlier round."""
        now = {rank for rank, worker in self._workers.items() if worker.sign.ticks}
        return tuple(sorted(self._expected | now))

    def sign(self, local_rank: int) -> Sign:
        """Return the last signs of a worker's channel."""
        return self._of(local_rank).sign

    def since(self, local_rank: int) -> float:
        """Return when a worker has shown its last sign of life (monotonic [s])."""
        return self._of(local_rank).since

    def silence_s(self, local_rank: int, now: float) -> float:
        """Return for how long a worker has shown no sign of life [s]."""
        return now - self.since(local_rank)

    def is_half_over(self, local_rank: int, now: float) -> bool:
        """Tell whether a worker's silence has reached half of its limit."""
        return 2 * self.silence_s(local_rank, now) >= self._limit(local_rank)

    def forgive(self, now: float) -> None:
        """Start the time of all workers anew: until now it did not count."""
        self._started = self._looked = now
        self._workers = {
            rank: worker._replace(since=now, is_whole=False, blocks=dict.fromkeys(worker.blocks, now))
            for rank, worker in self._workers.items()
        }

    def suspected_in_vain(self, now: float) -> None:
        """Give all workers more time: a suspicion has not been confirmed."""
        self._vain = min(self._vain + 1, _SLOWER)
        self.forgive(now)

    def check(self, signs: Mapping[int, Sign], now: float) -> tuple[Silence, ...]:
        """Look at all workers; return those that have been silent for too long.

        Args:
            signs: the signs of the channels, by local rank.
            now: monotonic time [s].
        """
        gap, self._looked = now - self._looked, now
        is_long = gap >= self._least_gap_s
        for rank, sign in signs.items():
            self._note(rank, sign, now, is_whole=not is_long or gap < self._longest_gap_s(rank))
        if is_long and any(gap >= self._longest_gap_s(rank) for rank in signs):
            self.forgive(now)  # an agent that did not look may have been stopped together with the workers
            return ()
        return tuple(silence for rank in signs for silence in self._overdue(rank, now))

    def _of(self, rank: int) -> _Worker:
        return self._workers.get(rank) or _Worker(Sign(), self._started)

    def _longest_gap_s(self, rank: int) -> float:
        return max(self._least_gap_s, min(_GAP * self._limit(rank), _LONG_GAP_S))

    def _note(self, rank: int, sign: Sign, now: float, *, is_whole: bool) -> None:
        """Take note of the signs of a worker's channel."""
        before = self._of(rank)
        if (sign.ticks, sign.section_count) == (before.sign.ticks, before.sign.section_count):
            return
        if before.is_whole and (is_whole or rank not in self._workers):
            times = max(1, sign.ticks - before.sign.ticks)
            is_first = before.sign.ticks == 0
            self.lengths = learn(self.lengths, before.sign.kind, now - before.since, 1 if is_first else times)
        blocks = {section.number: before.blocks.get(section.number, now) for section in sign.sections}
        self._workers[rank] = _Worker(sign, now, blocks=blocks)

    def _limit(self, rank: int) -> float:
        """Return the least of the limits that hold for a worker now [s]."""
        own = [limit for _, _, limit in self._blocks(self._of(rank))]
        return min((*own, self._silence_limit(rank)))

    def _blocks(self, worker: _Worker) -> list[tuple[Section, float, float]]:
        """Return the sections that have limits of their own: which, since when, limit [s]."""
        if self._options.timeout == math.inf:
            return []
        slower = 2.0**self._vain
        return [
            (section, worker.blocks[section.number], section.timeout_s * slower)
            for section in worker.sign.sections
            if section.timeout_s
        ]

    def _silence_limit(self, rank: int) -> float:
        """Return how long a worker may show no sign of life where it is [s]."""
        sign = self._of(rank).sign
        if sign.sections and sign.sections[-1].timeout_s:
            return math.inf  # the section's own limit holds
        if not sign.ticks and self._options.first_step is None and rank not in self._expected:
            return math.inf  # it may never tick
        return limit_of(sign.kind, self.lengths, self._options) * 2.0**self._vain

    def _overdue(self, rank: int, now: float) -> list[Silence]:
        worker = self._of(rank)
        kind = worker.sign.kind
        for section, since, limit in self._blocks(worker):
            if now - since >= limit:
                return [Silence(rank, now - since, limit, kind, section.name, section.number)]
        limit, seconds = self._silence_limit(rank), now - worker.since
        return [Silence(rank, seconds, limit, kind)] if seconds >= limit else []
