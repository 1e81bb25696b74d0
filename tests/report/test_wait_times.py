"""Since when and until when a run waits for nodes."""

from __future__ import annotations

from typing import Any

import pytest

from hpc_elastic.clock import clock_text, date_text
from hpc_elastic.record.journal import Entry, Record
from hpc_elastic.report.queue_text import wait_times_text
from tests.meet.build import crash, formed, start

BEGAN, ENDED = 1_700_000_000.0, 1_700_003_600.0
SINCE = f", since {date_text(BEGAN)} (12 s)"


@pytest.mark.parametrize(
    ("spec", "here", "words"),
    [
        (
            {"nodes": "2:3"},
            1,
            f", until {clock_text(BEGAN + 600)} (join_timeout = 600 s); then the job is given back to Slurm",
        ),
        (
            {"nodes": 2, "join_timeout": 60},
            1,
            f", until {clock_text(BEGAN + 60)} (join_timeout = 60 s); then",
        ),
        ({"nodes": "2:3"}, 2, "; 30 s after enough have come the round begins without the others"),
        ({}, 1, "; the log of the first node tells until when"),
    ],
    ids=["default", "given", "enough", "no spec"],
)
def test_a_wait_has_an_end(spec: dict[str, Any], here: int, words: str) -> None:
    """Whoever looks on knows when something happens, and what."""
    text = wait_times_text([Record(1, BEGAN, "n1", start())], spec, BEGAN + 12, here)
    assert text.startswith(SINCE + words)


def test_it_begins_with_the_start_or_the_end_of_a_round() -> None:
    """Nobody waits before that."""
    entries: tuple[Entry, ...] = (start(), formed(1), crash(1))
    records = [
        Record(number, at, "n1", one)
        for number, (at, one) in enumerate(zip((BEGAN, BEGAN, ENDED), entries, strict=True), 1)
    ]
    assert date_text(ENDED) in wait_times_text(records, {}, ENDED + 1, 1)
    assert "" == wait_times_text([], {}, BEGAN, 0)
