"""Which nodes are slow, by the time that each takes for a step. Pure.

A node is unusual in one comparison if its slowest rank takes at least a fifth more than the median of the
nodes, and its modified z-score is above 3.5: 0.6745 * (time - median) / MAD, where MAD is the median of the
distances from the median (B. Iglewicz and D. C. Hoaglin, How to Detect and Handle Outliers, ASQC 1993).
Fewer than half of the nodes cannot move median and MAD far. Of two nodes neither is the usual one: there the
slower one must also be slower than it was itself.

A node is slow if it is unusual in four of five comparisons in a row: a save, an evaluation or another job's
burst of traffic is no fault of a node.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median

from hpc_elastic.named_tuple import NamedTuple

MARGIN = 1.2
Z_LIMIT = 3.5
_NORMAL = 0.6745  # the MAD of a normal distribution with a standard deviation of 1
_FEWEST = 3  # nodes of which most can be usual
_LOOKS, _NEEDED = 5, 4
_US = 1_000_000
NOT_COMPARED = 0  # the number of a measurement that is too short
_N = "[0-9]{1,18}"
_NAME = re.compile(rf"([^+/]+)\+({_N})\+({_N})\+({_N})\+({_N})(?:\+({_N}))?")


class NodePace(NamedTuple):
    """The time that the slowest rank of a node takes for a step, in a file name."""

    node: str
    round: int
    window: int  # number of the measurement in this round, from 1
    step_s: float
    rank: int
    before_s: float | None = None  # the median of the measurements before [s]; None: there are too few

    def text(self) -> str:
        """Return the file name."""
        before = () if self.before_s is None else (round(self.before_s * _US),)
        numbers = (self.round, self.window, round(self.step_s * _US), self.rank, *before)
        return "+".join((self.node, *map(str, numbers)))


class SlowPace(NamedTuple):
    """A node that is slow, and the usual time of a step."""

    pace: NodePace
    usual_s: float


def parse_pace(name: str) -> NodePace | None:
    """Return the facts in a file name; None for a foreign one."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    node, number, window, step, rank, before = found.groups()
    before_s = None if before is None else int(before) / _US
    return NodePace(node, int(number), int(window), int(step) / _US, int(rank), before_s)


def unusual(paces: Sequence[NodePace]) -> frozenset[str]:
    """Return the nodes that take far longer than most in one comparison."""
    if len(paces) < _FEWEST:
        return _of_two(paces)
    middle = median(pace.step_s for pace in paces)
    spread = median(abs(pace.step_s - middle) for pace in paces)
    return frozenset(
        pace.node
        for pace in paces
        if pace.step_s > middle
        and pace.step_s >= MARGIN * middle
        and _NORMAL * (pace.step_s - middle) > Z_LIMIT * spread
    )


def _of_two(paces: Sequence[NodePace]) -> frozenset[str]:
    if len(paces) != _FEWEST - 1:
        return frozenset()
    fast, slow = sorted(paces, key=lambda pace: pace.step_s)
    is_far = slow.step_s > fast.step_s and slow.step_s >= MARGIN * fast.step_s
    was_faster = slow.before_s is not None and slow.step_s >= MARGIN * slow.before_s
    return frozenset({slow.node}) if is_far and was_faster else frozenset()


class SlowWatch:
    """Compares the nodes of a round, time after time."""

    def __init__(self) -> None:
        self._found: deque[frozenset[str]] = deque(maxlen=_LOOKS)
        self._windows: Mapping[str, int] = {}

    def note(self, paces: Sequence[NodePace]) -> list[SlowPace]:
        """Take one comparison; return the nodes that are slow by now, the slowest first.

        Args:
            paces: the newest one of each node of the round; one that has been taken before counts no more.
        """
        new = [pace for pace in paces if pace.window > self._windows.get(pace.node, NOT_COMPARED)]
        self._windows = {**self._windows, **{pace.node: pace.window for pace in new}}
        self._found.append(unusual(new))
        times = {pace.node: sum(pace.node in found for found in self._found) for pace in new}
        slow = [pace for pace in new if times[pace.node] >= _NEEDED and pace.node in self._found[-1]]
        told = sorted(pace.step_s for pace in new)
        usual_s = median(told if len(told) >= _FEWEST else told[:1]) if told else 0.0
        return [SlowPace(pace, usual_s) for pace in sorted(slow, key=lambda pace: -pace.step_s)]
