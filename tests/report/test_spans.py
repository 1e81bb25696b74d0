"""Durations in a timeline, where the clocks of nodes differ."""

from __future__ import annotations

import pytest

from hpc_elastic.record.journal import (
    Cause,
    Entry,
    Epoch,
    EpochStarted,
    Member,
    Record,
    RoundEnded,
    RoundFormed,
)
from hpc_elastic.report.timeline import timeline

EPOCH = Epoch(0, 0, 0, 0)
ENTRIES: tuple[Entry, ...] = (
    EpochStarted(EPOCH, "7", ("n1", "n2")),
    RoundFormed(1, EPOCH, (Member("n1.1", "n1", 1), Member("n2.1", "n2", 1)), "n1", 1, None),
    RoundEnded(1, Cause.MEMBERSHIP, ("n1",), None),
)


@pytest.mark.parametrize(
    ("writers", "formed", "ended"),
    [
        (("n1", "n1.4", "n1.4"), ", formed in 3.0 s", "round 1 ended after 3.0 s: "),
        (("n1", "n2", "n2"), ", formed", "round 1 ended after 3.0 s: "),
        (("n1", "n1", "n2"), ", formed in 3.0 s", "round 1 ended: "),
        (("n1.cluster", "n2.cluster", "n1.cluster"), ", formed", "round 1 ended: "),
    ],
)
def test_a_duration_is_told_between_times_of_one_node(
    writers: tuple[str, ...], formed: str, ended: str
) -> None:
    """The clock of another one may be an hour off; agents of a node are numbered and have one clock."""
    written = enumerate(zip(writers, ENTRIES, strict=True), 1)
    records = [Record(at, 3.0 * at, by, entry) for at, (by, entry) in written]
    texts = [moment.text for moment in timeline(records)]
    assert texts[1].endswith(formed)
    assert texts[2].startswith(ended)
