"""The steps at which a training saves by time: rank 0 decides, and all ranks follow it at the same step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from hpc_elastic.clock import Clock
from hpc_elastic.errors import HpcElasticError
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.run_log import read_records
from hpc_elastic.record.save_interval import Disturbances, SaveTimes, best_interval_s, disturbances

FIRST_S = 60.0  # to the first save of a run, whose cost is not known yet


class SavePace:
    """Tells when to save, by a time that follows from the cost of saves and the faults of the run.

    Ranks do not ask at each step: rank 0 also tells after how many steps it is asked again, at most as many
    as were made since the last save. `told` returns on all ranks the value that rank 0 has given.
    """

    def __init__(self, clock: Clock, told: Callable[[Any], Any]) -> None:
        self._clock = clock
        self._told = told
        self._past = Disturbances()
        self._save: SaveTimes | None = None
        self._started = clock.monotonic()
        self.resume(0, None, Disturbances())

    def resume(self, step: int, save: SaveTimes | None, past: Disturbances) -> None:
        """Begin at a step, with the time that a save of this run takes if it is known."""
        self._past, self._save = past, save
        self._started = self._clock.monotonic()
        self.saved(step, save)

    def saved(self, step: int, save: SaveTimes | None) -> None:
        """Begin an interval at a step, with the time that the last complete save has taken if it is known."""
        self._save = save or self._save
        self._since, self._from = self._clock.monotonic(), step
        self._ask_at, self._answer = step + 1, (step, False)

    @property
    def interval_s(self) -> float:
        """The time from one save to the next [s]."""
        if self._save is None:
            return FIRST_S
        between_s = self._past.between_s(self._save, self._clock.monotonic() - self._started)
        return best_interval_s(self._save, between_s)

    def is_due(self, step: int) -> bool:
        """Tell whether to save now that `step` steps are done; all ranks ask at the same steps."""
        if step >= self._ask_at:
            passed_s = self._clock.monotonic() - self._since
            is_due, steps = self._told(next_question(passed_s, step - self._from, self.interval_s))
            self._ask_at, self._answer = step + steps, (step, is_due)
        return self._answer == (step, True)


class RetryPace:
    """Tells when to try a save again that has failed, at the same step on all ranks.

    Rank 0 is asked after one step, after two, four and so on, until it knows the outcome of the save. A
    save that is tried again is not asked for anew: while the disk is full, it costs ever fewer steps.
    `outcome` tells whether the last save of this rank has succeeded; None while it is under way.
    """

    def __init__(self, told: Callable[[Any], Any], outcome: Callable[[], bool | None]) -> None:
        self._told, self._outcome = told, outcome
        self._from = 0
        self._ask_at: int | None = None

    def saved(self, step: int, *, is_retry: bool) -> None:
        """Take note that a save of a step has begun."""
        if not is_retry:
            self._from = step
        self._ask_at = step + max(1, step - self._from)

    def is_due(self, step: int) -> bool:
        """Tell whether to save once more, now that `step` steps are done."""
        if self._ask_at is None or step < self._ask_at:
            return False
        outcome: bool | None = self._told(self._outcome())
        self._ask_at = step + max(1, step - self._from) if outcome is None else None
        return outcome is False


def next_question(passed_s: float, steps: int, interval_s: float) -> tuple[bool, int]:
    """Return whether to save now, and after how many more steps to ask again, by time [s] and steps since."""
    if passed_s >= interval_s:
        return True, 1
    left = steps * (interval_s - passed_s) / max(passed_s, 1e-9)
    return False, max(1, min(math.ceil(left), steps))


def past_disturbances(run_dir: str | None, recovered: tuple[int, ...]) -> Disturbances:
    """Return the faults of a run, as far as its journal can be read now."""
    if run_dir is None:
        return Disturbances()
    try:
        return disturbances(read_records(RunPaths(run_dir)), recovered)
    except (OSError, HpcElasticError):
        return Disturbances()
