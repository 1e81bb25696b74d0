"""Measures how long a step takes on this node, tells it in a file name, and finds slow nodes.

Each node renames one empty file now and then; the first node of the round lists them all and compares. So
each node costs one operation per minute, and the first one a listing.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from statistics import median

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.node.hangs.slow_rules import NOT_COMPARED, NodePace, SlowPace, SlowWatch, parse_pace
from hpc_elastic.record.journal import NodeSlow
from hpc_elastic.store import files
from hpc_elastic.worker.channel import Channel

LONGEST_S = 60.0  # of a measurement
_SHORTEST_S = 2.0
_SHARE = 0.2  # of the time since the start, so that a short run has measurements, too
_COUNTS_S = 30.0  # a shorter measurement is compared with no other
_FEWEST_STEPS = 3
_FEWEST_BEFORE, _MOST_BEFORE = 3, 60


class PacePlace(NamedTuple):
    """The node in its round."""

    directory: str
    node: str
    round: int
    base_rank: int
    compares: bool  # whether it is the node that compares all


class PaceWatch:
    """The steps of the workers of this node in one round; a measurement that cannot be written is left out.

    Args:
        place: the node.
        channels: of its workers, by local rank.
        tell: takes a node that is slow.
        now: monotonic time of the workers' start [s].
    """

    def __init__(
        self, place: PacePlace, channels: Sequence[Channel], tell: Callable[[NodeSlow], object], now: float
    ) -> None:
        self._place = place
        self._channels = channels
        self._tell = tell
        self._started = self._began = now
        self._due = now + _SHORTEST_S
        self._before = [channel.pace for channel in channels]
        self._own: deque[float] = deque(maxlen=_MOST_BEFORE)
        self._window = 0
        self._path: str | None = None
        self._slow = SlowWatch()
        self._told: set[str] = set()

    def look(self, now: float) -> None:
        """Measure, if it is time to; monotonic time [s]."""
        if now < self._due:
            return
        after = [channel.pace for channel in self._channels]
        steps = [new[0] - old[0] for new, old in zip(after, self._before, strict=True)]
        self._due = now + _SHORTEST_S
        if not steps or min(steps) < _FEWEST_STEPS:
            return
        self._due = now + min(max(_SHORTEST_S, _SHARE * (now - self._started)), LONGEST_S)
        step_s, rank = max(
            (_step_s(old, new), rank)
            for rank, (old, new) in enumerate(zip(self._before, after, strict=True), self._place.base_rank)
        )
        is_first = any(old[0] == 0 for old in self._before)  # its time has that of the start in it
        counts = now - self._began >= _COUNTS_S
        self._before, self._began = after, now
        if is_first:
            return
        self._window += counts
        with suppress(OSError):
            self._publish(step_s, rank, self._window if counts else NOT_COMPARED)
            if counts and self._place.compares:
                self._compare()
        if counts:
            self._own.append(step_s)

    def close(self) -> None:
        """Take the file away; the round is over."""
        if self._path is not None:
            with suppress(OSError):
                os.unlink(self._path)

    def _publish(self, step_s: float, rank: int, window: int) -> None:
        before_s = median(self._own) if len(self._own) >= _FEWEST_BEFORE else None
        pace = NodePace(self._place.node, self._place.round, window, step_s, rank, before_s)
        path = os.path.join(self._place.directory, pace.text())
        if self._path is None:
            with suppress(FileExistsError):
                os.mkdir(self._place.directory, 0o700)
            files.touch_name(self._place.directory, pace.text())
        else:
            os.rename(self._path, path)
        self._path = path

    def _compare(self) -> None:
        """Compare all nodes of the round, and take the files of earlier rounds away."""
        names = {name: parse_pace(name) for name in files.list_names(self._place.directory)}
        for name, pace in names.items():
            if pace is not None and pace.round < self._place.round:
                os.unlink(os.path.join(self._place.directory, name))
        newest: dict[str, NodePace] = {}
        for pace in filter(None, names.values()):
            known = newest.get(pace.node)
            if pace.round == self._place.round and (known is None or known.window < pace.window):
                newest[pace.node] = pace
        for slow in self._slow.note(list(newest.values())):
            if slow.pace.node not in self._told:
                self._tell(_record_of(slow))
                self._told.add(slow.pace.node)


def _record_of(slow: SlowPace) -> NodeSlow:
    pace = slow.pace
    return NodeSlow(pace.round, pace.node, pace.rank, pace.step_s, slow.usual_s, pace.before_s)


def _step_s(old: tuple[int, float, float], new: tuple[int, float, float]) -> float:
    """Return the time of one step [s]: in the section for it if there is one, else between two ticks."""
    steps, computed_s = new[0] - old[0], new[2] - old[2]
    return (computed_s if computed_s > 0 else new[1] - old[1]) / steps
