"""Whatever happens in which order: the promises hold and the run ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_elastic.record.journal import Cause
from tests.simulation.command import main, run_batch
from tests.simulation.mount import Weather
from tests.simulation.scenario import Chances, Scenario
from tests.simulation.worlds import ARRAYS, WORLDS, simulate

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize("world", WORLDS)
def test_the_promises_hold(world: str) -> None:
    """In every kind of world, for a few seeds."""
    for seed in range(6):
        simulate(seed, world)


@pytest.mark.slow
@pytest.mark.unhurried
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("world", [world for world in WORLDS if world not in ARRAYS])
def test_the_promises_hold_for_many_seeds(world: str) -> None:
    """The same for fifty other seeds; `scripts/simulate` runs thousands of them each night."""
    for seed in range(1000, 1050):
        simulate(seed, world)


@pytest.mark.slow
@pytest.mark.unhurried
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("world", ARRAYS)
def test_the_promises_hold_in_arrays(world: str) -> None:
    """The same for some seeds where nodes come and go one by one."""
    for seed in range(1000, 1015):
        simulate(seed, world)


@pytest.mark.slow
@pytest.mark.unhurried
@pytest.mark.timeout(1800)
def test_all_faults_of_arrays_happen() -> None:
    """Tasks leave, are cut off and started anew, and the size changes."""
    counts = run_batch(0, 15, "array wild").counts
    assert {"leave", "all leave", "cut off", "started anew", "scale", "NodeLeft"} <= set(counts)


def test_a_seed_tells_one_story() -> None:
    """The same seed gives the same story, so that a failure can be looked at again."""
    first, second = simulate(3, "wild"), simulate(3, "wild")
    assert first.story == second.story
    assert first.story != simulate(4, "wild").story


@pytest.mark.slow
def test_a_story_is_the_same_in_every_process() -> None:
    """Nothing depends on how this process hashes strings."""
    argv = [sys.executable, "-m", "tests.simulation.command", "--world", "rough", "--replay", "5"]
    stories = {
        subprocess.run(
            argv,
            check=True,
            capture_output=True,
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert 1 == len(stories)
    assert b"RoundFormed" in stories.pop()


def test_nothing_depends_on_wall_clocks() -> None:
    """Clocks that are set by a quarter of an hour again and again change nothing at all."""
    jumps = Chances(faults=(8, 8), kinds=("wall clock",), within_s=8.0)
    stories = []
    for jump_s in (0.0, 1.0):
        scenario = Scenario(7, jumps)
        scenario.wall_scale = jump_s
        scenario.run()
        stories.append(scenario.story)
    assert stories[0] == stories[1]


def test_a_calm_world_needs_one_round() -> None:
    """Without faults there is one round with everybody in it, and no restart."""
    scenario = Scenario(1, WORLDS["calm"])
    scenario.run()
    rounds = scenario.invariants.account.rounds
    assert [4] == [len(formed.members) for formed in rounds.values()]
    assert 1 == scenario.world.counts["starts of the job"]


def test_a_lost_node_is_given_up() -> None:
    """A killed node ends its round by a loss that names it, and the others form the next one."""
    scenario = Scenario(2, Chances(work_s=(30.0, 30.0)))
    scenario.world.at(5.0, lambda: scenario.lose(scenario.victims()[1], is_alone=True))
    scenario.run()
    ends = [state.ended for state in scenario.invariants.account.states if state.ended is not None]
    assert any(end.cause is Cause.NODE_LOSS for end in ends)


def test_all_faults_happen() -> None:
    """The kinds of faults are really caused, and weather is felt."""
    counts = run_batch(0, 60, "wild").counts
    assert {"kill", "zombie", "stall of all", "ENOSPC", "late write", "lock shared"} <= set(counts)
    assert min(counts[name] for name in ("stale reads", "lost replies", "late writes", "refused writes")) > 0


def test_calm_weather_is_calm() -> None:
    """Without weather no operation fails or is late."""
    assert Weather() == WORLDS["small"].weather
    counts = run_batch(0, 5, "calm").counts
    assert 0 == counts["stale reads"] + counts["lost replies"] + counts["late writes"]


def test_the_command_sums_up(capsys: pytest.CaptureFixture[str]) -> None:
    """The command says how many schedules it ran and what happened in them."""
    assert 0 == main(["--schedules", "5", "--world", "small"])
    printed = capsys.readouterr().out
    assert printed.startswith("5 schedules in ")
    assert "RoundFormed" in printed
