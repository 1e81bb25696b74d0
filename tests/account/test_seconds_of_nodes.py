"""The seconds of each node, from the spans of a run."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hpc_elastic.account.account import seconds_of_nodes
from hpc_elastic.account.spans import Bucket, Crew, Span

TWO = ("n1", "n2")


def of_node(name: str, bucket: Bucket, crew: Crew) -> Mapping[Bucket, float]:
    """Return the account of a node over ten seconds."""
    return seconds_of_nodes([Span(0.0, 10.0, bucket, 0, -1, crew)])[name]


@pytest.mark.parametrize(
    ("bucket", "crew", "expected"),
    [
        (Bucket.TRAINING, Crew(TWO, TWO), Bucket.TRAINING),
        (Bucket.TRAINING, Crew(TWO, ("n1",)), Bucket.SPARE),
        (Bucket.TRAINING, Crew(TWO, ("n1",), frozenset({"n2"})), Bucket.DOWN),
        (Bucket.MEETING, Crew(TWO, ()), Bucket.MEETING),
        (Bucket.MEETING, Crew(TWO, (), frozenset({"n2"})), Bucket.DOWN),
        (Bucket.QUEUED, Crew(TWO, ()), Bucket.QUEUED),
        (Bucket.DOWN, Crew(TWO, ()), Bucket.DOWN),
    ],
)
def test_a_node_has_its_own_bucket(bucket: Bucket, crew: Crew, expected: Bucket) -> None:
    """A member shares that of the run; another node stands by, is lost, or waits with the run."""
    assert {expected: 10.0} == of_node("n2", bucket, crew)


@pytest.mark.parametrize(
    ("crew", "expected"),
    [
        (Crew(("n1",), ("n1",)), Bucket.ELSEWHERE),
        (Crew(("n1",), ()), Bucket.ELSEWHERE),
        (Crew((), ("n1",)), Bucket.ELSEWHERE),
        (Crew((), ()), Bucket.MEETING),
    ],
)
def test_a_node_outside_of_the_allocation_is_elsewhere(crew: Crew, expected: Bucket) -> None:
    """Where the allocation is not known and no round runs, it shares the bucket of the run."""
    spans = [
        Span(0.0, 5.0, Bucket.TRAINING, 0, -1, Crew(TWO, TWO)),
        Span(5.0, 10.0, Bucket.MEETING, 0, -1, crew),
    ]
    assert {Bucket.TRAINING: 5.0, expected: 10.0} == seconds_of_nodes(spans)["n2"]
