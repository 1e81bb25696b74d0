"""Whatever happens in which order: the promises hold and the run ends."""

from __future__ import annotations

import pytest

from tests.simulation.scenario import Chances, Scenario

WORLDS = {
    "calm": Chances(faults=0, stale=0.0, lost_reply=0.0),
    "rough": Chances(),
    "wild": Chances(faults=20, stale=0.4, lost_reply=0.05),
    "two-of-four": Chances(min_nodes=2, max_nodes=3),
}


def run(seed: int, chances: Chances) -> Scenario:
    """Run a scenario; a failure tells its story."""
    scenario = Scenario(seed, chances)
    try:
        scenario.run()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}\n{scenario.story}") from error
    return scenario


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", WORLDS)
def test_the_promises_hold(kind: str, seed: int) -> None:
    """Rounds are agreed on, nobody runs beside the newest one, and the run is done in the end."""
    run(seed, WORLDS[kind])


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", WORLDS)
def test_the_promises_hold_for_many_seeds(kind: str) -> None:
    """The same for two hundred other worlds."""
    for seed in range(1000, 1100):
        run(seed, WORLDS[kind])


def test_a_seed_tells_one_story() -> None:
    """The same seed gives the same story, so that a failure can be looked at again."""
    first, second = run(3, WORLDS["wild"]), run(3, WORLDS["wild"])
    assert first.story == second.story
    assert first.story != run(4, WORLDS["wild"]).story


def test_a_calm_world_needs_one_round() -> None:
    """Without faults there is one round with everybody in it, and no restart."""
    scenario = run(1, WORLDS["calm"])
    assert [4] == [len(formed.members) for formed in scenario.rounds.values()]
    assert 1 == len({agent.start.epoch for agent in scenario.agents})
