"""The tables of docs/slurm-versions.md: what differs between versions, and how the tests on each have ended.

    python -m tests.real_slurm.versions_page RESULTS...    puts them into the page

`pytest --slurm-results=FILE` writes a file of results, `scripts/test --slurm` in `build/slurm-results`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.real_slurm.facts import FACTS, VERSIONS

PAGE = Path(__file__).parents[2] / "docs" / "slurm-versions.md"


class Results(NamedTuple):
    """How the tests on one version have ended under one tracker."""

    slurm: str  # such as 24.11.5
    python: str
    tracker: str
    passed: int
    failed: int
    core: bool  # only the core of them was run
    date: str


def facts_table() -> str:
    """Return what differs between the versions as a table of Markdown."""
    head = ("what", *VERSIONS)
    rows = [(fact.what, *(word or "absent" for word in fact.holds)) for fact in FACTS.values()]
    return _table(head, rows)


def results_table(results: Iterable[Results]) -> str:
    """Return how the tests have ended as a table of Markdown."""
    head = ("Slurm", "Python", "tracker", "tests", "passed", "failed", "date")
    rows = [
        (
            *(one.slurm, one.python, one.tracker, "core" if one.core else "all but those with torch"),
            *(str(one.passed), str(one.failed), one.date),
        )
        for one in sorted(results)
    ]
    return _table(head, rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def with_table(page: str, name: str, table: str) -> str:
    """Return a page with another table between its marks of this name."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page has no place {begin.strip()} ... {end}")
    return f"{before}{begin}{table}{end}{after}"


def read(text: str) -> list[Results]:
    """Return the results in the text of a file."""
    return [Results(**one) for one in json.loads(text)]


def main(files: Sequence[str]) -> int:
    """Put the tables into the page; without files that of the facts only."""
    page = with_table(PAGE.read_text(encoding="utf-8"), "facts", facts_table())
    if files:
        results = [one for file in files for one in read(Path(file).read_text(encoding="utf-8"))]
        page = with_table(page, "results", results_table(results))
    PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
