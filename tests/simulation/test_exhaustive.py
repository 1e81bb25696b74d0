"""All interleavings of a few nodes on their way through a rendezvous."""

from __future__ import annotations

import pytest

from tests.simulation.exhaustive import Play, plays, search


@pytest.mark.parametrize("fault", ["", "crash", "freeze"])
def test_two_nodes_meet_in_every_order(fault: str) -> None:
    """Two nodes come together in whichever order their operations happen, also with a fault anywhere."""
    report = search(Play(2, fault))
    assert report.states > 2_000
    assert report.interleavings > 10**6


@pytest.mark.parametrize("fault", ["", "crash"])
def test_an_older_start_disturbs_nobody(fault: str) -> None:
    """A node of an older start of the job is fenced in every order of operations."""
    assert search(Play(2, fault, zombies=1)).states > 2_000


@pytest.mark.slow
@pytest.mark.unhurried
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("play", [*plays(2), *plays(3)], ids=lambda play: play.name)
def test_everything_that_can_be_searched(play: Play) -> None:
    """All searches that `scripts/simulate --exhaustive` makes; one by one, for several processors."""
    assert search(play).interleavings > 10**6


def test_a_search_is_repeatable() -> None:
    """A search covers the same each time."""
    assert search(Play(2)) == search(Play(2))
