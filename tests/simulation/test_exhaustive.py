"""All interleavings of a few nodes on their way through a rendezvous."""

from __future__ import annotations

import pytest

from tests.simulation.exhaustive import Play, plays, search

QUICK = [
    *(Play(2, fault) for fault in ("", "crash", "freeze")),
    Play(2, zombies=1),
    Play(2, "crash", zombies=1),
]
LARGE = {Play(3, fault, is_announced=True) for fault in ("lost reply", "late write")}
MOST_STATES = 200_000
"""Of those with millions of states; `scripts/simulate --exhaustive 3` searches them all each night."""


@pytest.mark.parametrize("play", QUICK, ids=lambda play: play.name)
def test_two_nodes_meet_in_every_order(play: Play) -> None:
    """In whichever order their operations happen, with a fault anywhere, or a node of an older start."""
    report = search(play)
    assert report.states > 2_000
    assert report.interleavings > 10**6


@pytest.mark.slow
@pytest.mark.unhurried
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "play",
    [play for play in (*plays(2), *plays(3)) if play not in LARGE and play not in QUICK],
    ids=lambda play: play.name,
)
def test_everything_that_can_be_searched(play: Play) -> None:
    """All other searches of `scripts/simulate --exhaustive`; one by one, for several processors."""
    assert search(play).interleavings > 10**6


@pytest.mark.slow
@pytest.mark.unhurried
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("play", sorted(LARGE), ids=lambda play: play.name)
def test_a_part_of_a_large_search(play: Play) -> None:
    """The same for so many states, however long that takes."""
    assert search(play, MOST_STATES).states == MOST_STATES


def test_a_search_is_repeatable() -> None:
    """A search covers the same each time."""
    assert search(Play(2)) == search(Play(2))
