"""How long the starts of a job have trained, by what their agents have written down. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from hpc_elastic.record.journal import (
    Cause,
    Drained,
    Epoch,
    EpochStarted,
    Record,
    RoundEnded,
    RoundFormed,
    StopAgreed,
)


class Trained(NamedTuple):
    """One start of the job.

    Attributes:
        seconds: for how long its workers have run before they were asked to stop, or failed [s]; None if that
            is not known: clocks of two nodes are not compared.
        cause: why it was drained; None if it was not.
    """

    seconds: float | None = 0.0
    cause: Cause | None = None


def trained(records: Iterable[Record]) -> list[Trained]:
    """Return what the starts of the newest submission have done, the oldest first.

    Args:
        records: of the run.
    """
    found: list[Trained] = []
    newest: Epoch | None = None
    formed: Record | None = None
    for record in records:
        entry = record.entry
        if isinstance(entry, EpochStarted):
            if newest is None or entry.epoch.submission != newest.submission:
                found = []
            if newest is None or entry.epoch.script != newest.script:
                found.append(Trained())
            newest, formed = entry.epoch, None
        elif isinstance(entry, RoundFormed):
            formed = record
        elif found and isinstance(entry, StopAgreed | RoundEnded | Drained):
            found[-1] = found[-1]._replace(seconds=_sum(found[-1].seconds, formed, record))
            formed = None
            if isinstance(entry, Drained):
                found[-1] = found[-1]._replace(cause=entry.cause)
    return found


def _sum(known: float | None, formed: Record | None, end: Record) -> float | None:
    """Return the time with that of one more round."""
    if formed is None or known is None:
        return known
    return known + end.at - formed.at if _node(formed) == _node(end) else None


def _node(record: Record) -> str:
    return re.sub(r"\.\d+\Z", "", record.by)
