"""The outcomes of all programs in all rows, as they were recorded: the table of the page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

FILE = Path(__file__).with_name("outcomes.json")
KNOWN_FILE = Path(__file__).with_name("known_failures.json")


class Recorded(NamedTuple):
    """A program as it was recorded.

    Attributes:
        kind: of programs that it is one of.
        title: one line for people.
        ranks: how many it has.
        is_copied: copies of its states are made ahead of faults.
        rows: the outcome by row.
    """

    kind: str
    title: str
    ranks: int
    is_copied: bool
    rows: Mapping[str, str]


def recorded() -> dict[str, Recorded]:
    """Return all programs."""
    found: Mapping[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}
    return {name: Recorded(**one) for name, one in found.items()}


def record(found: Mapping[str, Recorded]) -> None:
    """Write all programs."""
    content = {name: one._asdict() for name, one in found.items()}
    FILE.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


class Known(NamedTuple):
    """A failure that is expected.

    Attributes:
        reason: for it.
        is_sure: it comes each time; else it depends on which rank is the first.
    """

    reason: str
    is_sure: bool


def known_failures() -> dict[str, Known]:
    """Return each failure that is expected, by ``program/row``."""
    return {name: Known(**one) for name, one in json.loads(KNOWN_FILE.read_text()).items()}
