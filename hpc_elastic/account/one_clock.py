"""One clock for the events of several nodes, each with a clock of its own. Pure.

The order of the events is known: it is that of the journal. Their times are not: a node may be an hour
off, and a clock may be set while the run lasts. A span between two events of one agent is taken from
its monotonic clock. Of the wall times the longest series that follows the order is believed; a clock
that contradicts it is put right by the least that is needed, and each event that still contradicts is
put between its neighbours.

Of clocks that are far from each other those are right that most nodes have; of as many on both sides those by
which the run has waited less since its submission.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf

from hpc_elastic.named_tuple import NamedTuple

_TURNS = 3  # of putting clocks right
SUBMITTER = ""  # in the place of a node: the login node on which the run was submitted
FAR_S = 600.0  # no delay of events of one moment is as long as that
_JITTER_S = 2.0  # events of two nodes may stand so much out of order without a wrong clock


class Stamp(NamedTuple):
    """When an event happened, by the clocks of its writer."""

    at: float  # wall time [s since the epoch]
    by: str  # whose wall clock it is
    agent: str = ""  # the process whose monotonic clock it is; empty if it told none
    mono: float = 0.0  # that time [s]


def one_clock(stamps: Sequence[Stamp]) -> list[float]:
    """Return times of events that never go back, as near to the wall times as their order allows.

    Args:
        stamps: in the order in which the events happened.
    """
    times = _without_steps(stamps)
    ahead = {stamp.by: 0.0 for stamp in stamps}
    bounds = _bounds(times)
    for _ in range(_TURNS):
        wrong = _wrong_clocks(stamps, times, bounds)
        if not wrong:
            break
        times = [time - wrong.get(stamp.by, 0.0) for stamp, time in zip(stamps, times, strict=True)]
        ahead = {by: off + wrong.get(by, 0.0) for by, off in ahead.items()}
        bounds = _bounds(times)
    if shift := _shift(stamps, times, ahead):
        times = [time + shift * (stamp.by != SUBMITTER) for stamp, time in zip(stamps, times, strict=True)]
        bounds = _bounds(times)
    fixed: list[float] = []
    for time, (least, most) in zip(times, bounds, strict=True):
        low = max(least, fixed[-1]) if fixed else least
        fixed.append(min(max(time, low), most))
    return fixed


def _shift(stamps: Sequence[Stamp], times: Sequence[float], ahead: Mapping[str, float]) -> float:
    """Return by how much the clocks of all nodes are to be moved, so that those that are right stay.

    Args:
        stamps: in the order in which the events happened.
        times: the same, with the clocks put right by those that were believed.
        ahead: by how much each clock was found to be ahead then [s].
    """
    off = [seconds for by, seconds in ahead.items() if by != SUBMITTER]
    most, best = sum(abs(seconds) < FAR_S for seconds in off), 0.0
    for one in sorted(off, key=abs):
        votes = sum(abs(seconds - one) < FAR_S for seconds in off)
        is_shorter = one < best and _waits(stamps, times, one)
        if abs(one) >= FAR_S and (votes > most or (votes == most and is_shorter)):
            most, best = votes, one
    return best


def _waits(stamps: Sequence[Stamp], times: Sequence[float], shift: float) -> bool:
    """Tell whether the first event still follows the submission after a shift of all clocks but its own."""
    for stamp, time, following, later in zip(stamps, times, stamps[1:], times[1:], strict=False):
        if stamp.by == SUBMITTER and following.by != SUBMITTER:
            return later + shift >= time - _JITTER_S
    return False


class _Anchor(NamedTuple):
    """A line of an agent: the time without steps, and how far its node's wall clock was ahead then."""

    time: float
    ahead: float


def _without_steps(stamps: Sequence[Stamp]) -> list[float]:
    """Return the wall times as if no clock had been set while an agent lived."""
    first: dict[str, Stamp] = {}
    anchors: list[_Anchor | None] = []
    for stamp in stamps:
        began = first.setdefault(stamp.agent, stamp) if stamp.agent else stamp
        time = began.at + stamp.mono - began.mono
        anchors.append(_Anchor(time, stamp.at - time) if stamp.agent else None)
    before, after = _nearest(stamps, anchors), _nearest(stamps[::-1], anchors[::-1])[::-1]
    return [
        anchor.time if anchor is not None else _between(stamp.at, low, high)
        for stamp, anchor, low, high in zip(stamps, anchors, before, after, strict=True)
    ]


def _nearest(stamps: Sequence[Stamp], anchors: Sequence[_Anchor | None]) -> list[_Anchor | None]:
    """Return for each stamp the newest line of an agent of its writer before it."""
    newest: dict[str, _Anchor] = {}
    found = []
    for stamp, anchor in zip(stamps, anchors, strict=True):
        found.append(newest.get(stamp.by))
        if anchor is not None:
            newest[stamp.by] = anchor
    return found


def _between(at: float, low: _Anchor | None, high: _Anchor | None) -> float:
    """Return the time of an event between two lines of its node, though its clock was set."""
    least = -inf if low is None else low.time - _JITTER_S
    most = inf if high is None else high.time + _JITTER_S
    tries = [at - anchor.ahead for anchor in (low, high) if anchor is not None]
    fits = [time for time in (*tries, at) if least <= time <= most]
    if not fits:
        return min(max(tries[0], least), most)
    return fits[0] if low is None else min(fits)  # the shortest wait is the likeliest


def _bounds(times: Sequence[float]) -> list[tuple[float, float]]:
    """Return between which believed times each one has to be; a believed one is its own bound."""
    believed = _longest_rising(times)
    found, done = [], 0
    for place, time in enumerate(times):
        if done < len(believed) and place == believed[done]:
            found.append((time, time))
            done += 1
        else:
            least = times[believed[done - 1]] if done else -inf
            found.append((least, times[believed[done]] if done < len(believed) else inf))
    return found


def _wrong_clocks(
    stamps: Sequence[Stamp], times: Sequence[float], bounds: Sequence[tuple[float, float]]
) -> Mapping[str, float]:
    """Return by how much the clocks of writers are ahead at least, negative for behind [s].

    A clock is wrong if more than half of its stamps contradict the order.
    """
    ahead: dict[str, list[float]] = {}
    stamped = Counter(stamp.by for stamp in stamps)
    for stamp, time, (least, most) in zip(stamps, times, bounds, strict=True):
        off = max(time - most, 0.0) or min(time - least, 0.0)
        if abs(off) > _JITTER_S:
            ahead.setdefault(stamp.by, []).append(off)
    return {by: max(off, key=abs) for by, off in ahead.items() if 2 * len(off) > stamped[by]}


def _longest_rising(times: Sequence[float]) -> list[int]:
    """Return the places of the longest series of times that never goes back; of equal ones the lowest."""
    ends: list[float] = []  # least last time of a series of each length
    places: list[int] = []
    before: list[int] = []
    for place, time in enumerate(times):
        length = bisect_right(ends, time)
        before.append(places[length - 1] if length else -1)
        if length == len(ends):
            ends.append(time)
            places.append(place)
        else:
            ends[length], places[length] = time, place
    series, place = [], places[-1] if places else -1
    while place >= 0:
        series.append(place)
        place = before[place]
    return series[::-1]
