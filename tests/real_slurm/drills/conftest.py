"""Drills: what once broke a promise, done again at other moments; continuous integration leaves them out.

Each drill says what was seen; the table of all of them is printed at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

LIMIT_S = 600
"""Limit of one drill with its fixtures."""

_NAME = "drill"
_HEADER = ("what", "mode", "tracker", "timing", "seen")

Tell = Callable[[str, str, str], None]
"""Takes mode, timing and what was seen."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the drills, and give them the time that they need."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.drills)
            item.add_marker(pytest.mark.timeout(LIMIT_S))


@pytest.fixture
def tell(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Tell:
    """Return a function that notes what was seen in a drill."""
    tracker = getattr(request.node, "callspec", None)
    name = (
        "-" if tracker is None else tracker.params.get("session_cluster", tracker.params.get("tracker", "-"))
    )
    what = request.path.stem.removeprefix("test_").replace("_", " ")

    def note(mode: str, timing: str, seen: str) -> None:
        record_property(_NAME, (what, mode, name, timing, seen))

    return note


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what was seen in all drills, as a table."""
    done = [report for kind in ("passed", "failed") for report in terminalreporter.getreports(kind)]
    rows = sorted(
        {tuple(value) for report in done for name, value in report.user_properties if name == _NAME}
    )
    if not rows:
        return
    terminalreporter.section("drills")
    for cells in (_HEADER, ("---",) * len(_HEADER), *rows):
        terminalreporter.write_line(f"| {' | '.join(cells)} |")
