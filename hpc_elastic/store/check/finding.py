"""One line of what was checked: its value, whether it will do, and what to do about it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple


class Level(Enum):
    """How good a value is."""

    OK = "ok"
    INFO = "info"  # nothing depends on it
    WARNING = "warning"  # runs work, but worse than they could
    PROBLEM = "PROBLEM"  # runs do not work


class Finding(NamedTuple):
    """Something that was checked."""

    what: str
    value: str
    level: Level = Level.OK
    fix: str = ""


def lines(finding: Finding, width: int) -> list[str]:
    """Return a finding as text: level, what, value, and the fix on a line of its own.

    Args:
        finding: what to show.
        width: columns of `what`.
    """
    first = f"{finding.level.value:<8} {finding.what:<{width}}  {finding.value}"
    return [first, f"{'':<8} {'':<{width}}  fix: {finding.fix}"] if finding.fix else [first]


def width_of(findings: Sequence[Finding]) -> int:
    """Return the columns that `what` takes in a table."""
    return max((len(finding.what) for finding in findings), default=0)


def verdict(findings: Sequence[Finding]) -> str:
    """Return the summary of the findings, in one line."""
    count = Counter(finding.level for finding in findings)
    problems, warnings = count[Level.PROBLEM], count[Level.WARNING]
    numbers = [(problems, "problem"), (warnings, "warning")]
    text = ", ".join(f"{number} {noun}{'s' * (number > 1)}" for number, noun in numbers if number)
    if problems:
        return f"{text}: runs will not work here"
    return f"no problems, {text}" if warnings else "no problems"


def worst(findings: Sequence[Finding]) -> Level:
    """Return the worst level of some findings."""
    found = {finding.level for finding in findings}
    return next((level for level in reversed(Level) if level in found), Level.OK)
