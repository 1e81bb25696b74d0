"""How long workers may show no progress: the user's limits, or the measured times of the run. Pure.

Time is of a kind: before the first tick, between two ticks, in the section of a name. Each kind has
its own limit. A kind without measurements has none, unless the user gave one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hpc_elastic import typed_json
from hpc_elastic.errors import DamagedError
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.settings.of_commands import AgentSettings
from hpc_elastic.typed_json import Count, Prose, Seconds

START = "start"  # from a worker's start to its first tick
STEP = "step"  # between two ticks, outside of sections
QUIET = "quiet"  # without any activity, of a worker that does not tick
_SECTION = "section "
FORMAT = 1
_RECHECK_S = 60.0
_LONGER = 1.1  # a longest silence that is so much longer is kept


def kind_of(section: str | None, *, has_ticked: bool) -> str:
    """Return the kind of time that a worker is in.

    Args:
        section: the innermost section it is in, if any.
        has_ticked: whether it has ticked in this round.
    """
    if section is not None:
        return _SECTION + section
    return STEP if has_ticked else START


def _limit(word: str) -> float | None:
    return None if word == "auto" else math.inf if word == "off" else float(word)


class HangOptions(NamedTuple):
    """Limits of the silence of workers [s]; None: learned from the run; inf: none."""

    timeout: float | None = None  # between signs of life, from the first tick on
    first_step: float | None = None  # from the start to the first tick
    factor: float = 5.0  # learned: so often the longest silence so far,
    floor: float = 1800.0  # but never less than this [s],
    samples: int = 20  # and only after so many ticks
    recheck: float = _RECHECK_S  # learned: a worker that is somewhere else so much later is alive [s]
    silence: float = math.inf  # without output, CPU time and GPU use, of a worker that tells no steps [s]

    @classmethod
    def of_settings(cls, settings: AgentSettings) -> HangOptions:
        """Return the limits that an agent was given."""
        silence = settings.silence_timeout or math.inf
        return cls(_limit(settings.hang_timeout), _limit(settings.first_step_timeout), silence=silence)

    @property
    def is_off(self) -> bool:
        """Whether no worker is watched by its steps."""
        return self.timeout == math.inf and self.first_step in (None, math.inf)


class Length(NamedTuple):
    """The measurements of a kind of time."""

    longest: float = 0.0  # [s]
    times: int = 0  # measured


Lengths = Mapping[str, Length]


class _Measured(NamedTuple):
    """The JSON form of a node's measurements."""

    format: int
    kinds: dict[Prose, tuple[Seconds, Count]]
    ticking: tuple[Count, ...]


def learn(lengths: Lengths, kind: str, seconds: float, times: int = 1) -> dict[str, Length]:
    """Return the lengths after a silence that ended by itself.

    Args:
        lengths: the measurements so far.
        kind: see `kind_of`.
        seconds: how long it was at most.
        times: how many signs of life there were in it.
    """
    known = lengths.get(kind, Length())
    return {**lengths, kind: Length(max(known.longest, seconds), known.times + times)}


def limit_of(kind: str, lengths: Lengths, options: HangOptions) -> float:
    """Return how long the silence of a worker may be [s]; inf: as long as it likes."""
    given = options.first_step if kind == START else options.timeout
    if given is not None:
        return given
    if options.timeout == math.inf:
        return math.inf  # off
    known = lengths.get(kind, Length())
    if known.times < (options.samples if kind == STEP else 1):
        return math.inf
    return max(options.floor, options.factor * known.longest)


def is_worth_writing(now: Lengths, written: Lengths) -> bool:
    """Tell whether later measurements would change a limit of a later start."""
    return any(
        length.longest > _LONGER * written.get(kind, Length()).longest
        or length.times >= 2 * written.get(kind, Length()).times
        for kind, length in now.items()
    )


def encode(lengths: Lengths, ticking: tuple[int, ...]) -> dict[str, Any]:
    """Return the JSON form of a node's measurements.

    Args:
        lengths: of its workers.
        ticking: the local ranks that tick.
    """
    kinds = {kind: [round(length.longest, 3), length.times] for kind, length in lengths.items()}
    return {"format": FORMAT, "kinds": kinds, "ticking": list(ticking)}


def decode(data: Any) -> tuple[dict[str, Length], tuple[int, ...]]:
    """Return the argument of `encode`; nothing for data of another form."""
    try:
        found = typed_json.decode(_Measured, data)
    except DamagedError:
        return {}, ()
    kinds = {kind: Length(*length) for kind, length in found.kinds.items()}
    return (kinds, found.ticking) if found.format == FORMAT else ({}, ())
