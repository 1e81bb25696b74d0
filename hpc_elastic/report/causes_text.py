"""What a run has been through, counted by cause. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from hpc_elastic.rendezvous.journal import Cause, Record, Requeued
from hpc_elastic.report.timeline import count_text


def restarts_text(counts: Mapping[Cause, int]) -> str:
    """Return why rounds of this submission ended; empty if none did.

    Args:
        counts: rounds ended per cause.
    """
    return _counted(counts)


def requeues_text(records: Iterable[Record], submission: int) -> str:
    """Return why the job of a submission was requeued; empty if it was not."""
    causes = Counter(
        record.entry.cause
        for record in records
        if isinstance(record.entry, Requeued) and record.entry.epoch.submission == submission
    )
    return _counted(causes)


def _counted(counts: Mapping[Cause, int]) -> str:
    told = sorted((-number, cause.value) for cause, number in counts.items() if number > 0)
    return ", ".join(f"{-number} {_noun(word, -number)}" for number, word in told)


def _noun(word: str, number: int) -> str:
    """Return a cause as a noun: ``crash``, ``node losses``, ``time limits``."""
    if word == Cause.MEMBERSHIP.value:
        return "change of nodes" if number == 1 else "changes of nodes"
    several = "" if number == 1 else "es" if word.endswith(("s", "sh")) else "s"
    return word.replace("_", " ") + several


def used_text(number: int, most: int | None, noun: str, causes: str) -> str:
    """Return how much of a budget is used, and what for.

    Args:
        number: how often.
        most: the budget; None if nobody knows it.
        noun: of what.
        causes: why; may be empty.
    """
    text = count_text(number, noun) if most is None else f"{number} of {most} {noun}s"
    return f"{text} ({causes})" if causes else text
