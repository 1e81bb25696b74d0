"""How often to save: the interval at which saves and faults together cost the least time. Pure.

A save that blocks the loop for C seconds, every T seconds, costs C/T of the time. A fault costs the work
since the last save, T/2 on average; with M seconds between two faults that is T/2M of the time. The sum is
least at T = √(2·C·M) (J. W. Young, 1974).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.record.journal import Cause, DrainRequested, Epoch, EpochStarted, Record, RoundEnded
from hpc_elastic.record.progress import trained

PRIOR_S = 3 * 3600.0  # between two faults, for a run without any: as much as one fault in that time weighs
SHORTEST_S = 10.0
LONGEST_S = 3600.0
BUSY = 0.2  # share of the time in which a save may be under way: others use the file system too
_LOSING = frozenset({Cause.CRASH, Cause.HANG, Cause.NODE_LOSS, Cause.AGENT_ERROR})


class SaveTimes(NamedTuple):
    """The time that a save takes.

    Attributes:
        blocked_s: for which the loop waits [s].
        took_s: until it is durable [s].
    """

    blocked_s: float
    took_s: float


class Disturbances(NamedTuple):
    """The faults of a run so far.

    Attributes:
        trained_s: for how long its workers have run [s].
        faults: that came without a warning.
        left_s: the time that workers were given to save by each warning, as far as it is known [s].
    """

    trained_s: float = 0.0
    faults: int = 0
    left_s: tuple[float, ...] = ()

    def between_s(self, save: SaveTimes, running_s: float = 0.0) -> float:
        """Return the expected time between two faults that lose work [s].

        A warning loses none if a save fits into the time that it leaves.

        Args:
            save: the time that a save takes.
            running_s: for how long the workers of this start have run [s].
        """
        lost = self.faults + sum(left_s < save.took_s for left_s in self.left_s)
        return (PRIOR_S + self.trained_s + running_s) / (1 + lost)


def disturbances(records: Iterable[Record], recovered: Collection[int] = ()) -> Disturbances:
    """Return the faults of the newest submission of a run.

    Args:
        records: of the run.
        recovered: rounds after which the next one has gone on from a state in memory: their faults count
            for nothing.
    """
    known = list(records)
    faults, left = 0, list[float]()
    newest: Epoch | None = None
    for record in known:
        entry = record.entry
        if isinstance(entry, EpochStarted):
            if newest is None or entry.epoch.submission != newest.submission:
                faults, left = 0, []
            newest = entry.epoch
        elif isinstance(entry, RoundEnded):
            faults += entry.cause in _LOSING and entry.number not in recovered
        elif isinstance(entry, DrainRequested) and entry.left_s is not None:
            left.append(entry.left_s)
    return Disturbances(sum(start.seconds or 0.0 for start in trained(known)), faults, tuple(left))


def young_interval_s(cost_s: float, between_s: float) -> float:
    """Return the time from one save to the next at which saves and faults together cost the least [s].

    Args:
        cost_s: the time that a save costs [s].
        between_s: the time between two faults that lose work [s].
    """
    return math.sqrt(2 * cost_s * between_s)


def best_interval_s(save: SaveTimes, between_s: float) -> float:
    """Return the time from one save to the next that costs the least [s].

    It is no shorter than `SHORTEST_S`, nor so short that a save is under way for more than `BUSY` of the
    time, and no longer than `LONGEST_S`, unless a save takes that long.

    Args:
        save: the time that a save takes.
        between_s: the expected time between two faults that lose work [s].
    """
    least = max(SHORTEST_S, save.took_s / BUSY)
    return max(least, min(young_interval_s(save.blocked_s, between_s), LONGEST_S))


def lost_share(interval_s: float, save: SaveTimes, between_s: float) -> float:
    """Return the share of the time that saves and faults cost, with a save every `interval_s` seconds."""
    return save.blocked_s / interval_s + interval_s / (2 * between_s)
