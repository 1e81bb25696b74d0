"""What followed a drill, from the journal alone."""

from __future__ import annotations

import pytest

from hpc_elastic.rendezvous.journal import Cause, Record, RoundEnded
from hpc_elastic.report.drill_report import course_of


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        (RoundEnded(1, Cause.NODE_LOSS, ("n1", "n2"), None), "round 1 ended: a node was lost (n1, n2)"),
        (RoundEnded(1, Cause.MEMBERSHIP, (), None), "round 1 ended: a node joins"),
    ],
)
def test_who_has_noticed_is_named_if_anybody_is(entry: RoundEnded, told: str) -> None:
    """A round that ends for a node that joins names none."""
    course = course_of([Record(5, 12.0, "n1", entry)], 4, 10.0, None, ())
    assert [("noticed", 2.0, told)] == [tuple(phase) for phase in course.phases]
