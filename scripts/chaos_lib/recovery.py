"""What each fault did to a run, from its journal. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hpc_elastic.record.journal import (
    Drained,
    DrainRequested,
    EpochStarted,
    Record,
    Requeued,
    RoundEnded,
    RoundFormed,
)

HOLDS_S = 5.0  # a round that is disturbed again sooner was no recovery
_DISTURBED = (DrainRequested, RoundEnded, Drained, EpochStarted, Requeued)


class Strike(NamedTuple):
    """A fault that struck, and when [s since the epoch]."""

    fault: str
    at: float
    what: str


class Effect(NamedTuple):
    """What one fault did.

    Attributes:
        noticed_s: from the fault to the first record of it [s]; None if the workers just went on.
        running_s: from the fault to the first round after it that held [s]; None if there was none before
            the next fault.
    """

    strike: Strike
    noticed_s: float | None
    running_s: float | None


def effects(strikes: Sequence[Strike], records: Sequence[Record]) -> list[Effect]:
    """Return what each fault did; what two at once did counts for both."""
    found = []
    for strike in strikes:
        until = min((other.at for other in strikes if other.at > strike.at + 2.0), default=float("inf"))
        after = [record for record in records if strike.at <= record.at < until]
        disturbed = [record.at for record in after if isinstance(record.entry, _DISTURBED)]
        if not disturbed:
            found.append(Effect(strike, None, None))
            continue
        formed = [r.at for r in after if isinstance(r.entry, RoundFormed) and r.at >= disturbed[0]]
        holding = [at for at in formed if not any(at < other < at + HOLDS_S for other in disturbed)]
        running = holding[0] - strike.at if holding else None
        found.append(Effect(strike, disturbed[0] - strike.at, running))
    return found
