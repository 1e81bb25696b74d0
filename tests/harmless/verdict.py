"""What a run shows about the product: the program's end is right, and what it went on from was said."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.harmless.table import MARK, Row

EQUAL = "equal"
"""The end is the same to the last bit; after each fault the program went on from its newest step."""
OLDER = "older"
"""The end is the same; after a fault it went on from an older state, and the product said so."""
REFUSED = "refused"
"""The state was refused before the first step, with an error that names the object."""
NONE = "none"
"""The program has no place for this fault."""
WRONG, SILENT, FAILED, DRAWN = "wrong", "silent", "failed", "drawn"
RIGHT: Final = frozenset({EQUAL, OLDER, REFUSED, NONE})
_STANDING = "not kept when"  # in a line about all faults to come, which a process says once
_NOT_SAVED = "was not saved"
_SAID = re.compile(r"not kept|counts|was not saved|cannot be|older")


class TrialResult(NamedTuple):
    """What a run has told.

    Attributes:
        ends: by rank, the digests of the end; None: the rank has not come to it.
        random: by rank, that of the random numbers.
        events: of the last rank, in their order.
        log: all of it.
        is_copied: an older state needs no word.
    """

    ends: tuple[str | None, ...]
    random: tuple[str | None, ...]
    events: tuple[Mapping[str, Any], ...]
    log: str
    is_copied: bool = False


def told(place: Path, ranks: int, *, is_copied: bool = False) -> TrialResult:
    """Return what a run has told.

    Args:
        place: its directory.
        ranks: their number.
        is_copied: an older state needs no word: copies are made ahead of faults, and count as usual.
    """
    every: list[list[dict[str, Any]]] = []
    for rank in range(ranks):
        path = place / f"events-{rank}.jsonl"
        every.append([json.loads(line) for line in path.read_text().splitlines()] if path.exists() else [])
    ends: list[dict[str, Any]] = [
        next((one for one in reversed(events) if "end" in one), {}) for events in every
    ]
    log = place / "log"
    return TrialResult(
        tuple(one.get("end") for one in ends),
        tuple(one.get("random") for one in ends),
        tuple(every[-1]),
        log.read_text(errors="replace") if log.exists() else "",
        is_copied,
    )


def outcome(row: Row, bare: TrialResult, told: TrialResult) -> str:
    """Return what a run has come to.

    Args:
        row: the way that it ran.
        bare: the same program without the product.
        told: the run.
    """
    if told.events and all("refused" in one for one in told.events):
        return REFUSED
    if None in told.ends or None in bare.ends:
        return FAILED
    if told.ends != bare.ends:
        return WRONG
    if not row.faults:
        return EQUAL if told.random == bare.random else DRAWN
    found = phases(told)
    if not found:
        return NONE
    return SILENT if SILENT in found.values() else OLDER if OLDER in found.values() else EQUAL


def phases(told: TrialResult) -> dict[str, str]:
    """Return for each fault, by the name of its row, what the program went on from, if its end is right."""
    found: dict[str, str] = {}
    fault: Mapping[str, Any] | None = None
    said = is_standing = False
    done = 0
    for line in told.log.splitlines():
        if not line.startswith(MARK):
            said = said or (_SAID.search(line) is not None and "PlannedError" not in line)
            is_standing = is_standing or _STANDING in line
            continue
        event = json.loads(line.removeprefix(MARK))
        if event.get("fault") == "failed save":  # the program goes on after it
            found["failed save"] = EQUAL if _NOT_SAVED in told.log else SILENT
        elif "fault" in event:
            said = is_standing or (said and fault is not None)  # before a second fault, in a load
            fault, done = event, max(done, event["done"])
            found[_row_of(event)] = EQUAL
        elif fault is not None:
            if event["begin"] < done:
                found[_row_of(fault)] = OLDER if said or fault["kill"] or told.is_copied else SILENT
            fault, is_standing, done = None, False, 0
    return found


def _row_of(event: Mapping[str, Any]) -> str:
    """Return the name of the row whose fault has happened."""
    return "killed" if event["kill"] and event["fault"] != "save" else str(event["fault"])


def reasons(told: TrialResult) -> list[str]:
    """Return the reasons that were given for states that were not kept, without numbers."""
    found = {re.sub(r"\d+", "N", line) for line in told.log.splitlines() if "the state was not kept" in line}
    return sorted(found)


def began_at(told: TrialResult) -> str:
    """Return where the program has begun and failed, for people."""
    words = []
    for event in told.events:
        if "begin" in event:
            words.append(str(event["begin"]))
        elif "fault" in event:
            words.append(f"{event['fault']}@{event['done']}")
    return " ".join(words)
