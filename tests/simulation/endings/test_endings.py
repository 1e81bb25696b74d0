"""However the starts of a job end: each is counted once, under its cause, and no budget is exceeded."""

from __future__ import annotations

import pytest

from tests.simulation.command import ALL_ENDINGS, main, run_batch
from tests.simulation.endings.array import ALL, ARRAY_ENDINGS
from tests.simulation.endings.mutations import ENDING_MUTATIONS
from tests.simulation.endings.scenario import ENDINGS, FAULTS
from tests.simulation.mutations import Mutation, catch
from tests.simulation.worlds import simulate

SEEDS = 25
WORLDS = [*ENDINGS, *ARRAY_ENDINGS]
RARE = {
    "a grace that begins before agents are started again is not seen",
    "accounting is believed though the last start is not in it",
    "a requeue by hand is taken for a preemption",
    "the words of Slurm in the log are those of any start",
    "finish writes into a run that another job has begun",
    "a start without workers hides that nothing was saved before",
    "a task of a run that is held is charged as it begins again",
    "the words of Slurm about a task are those of its first start",
    "a preempted task whose agent could not say so leaves without a record",
}


@pytest.mark.parametrize("world", WORLDS)
def test_the_promises_hold(world: str) -> None:
    """In every kind of world, for some seeds."""
    for seed in range(SEEDS):
        simulate(seed, world)


@pytest.mark.slow
@pytest.mark.unhurried
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("world", WORLDS)
def test_the_promises_hold_for_many_seeds(world: str) -> None:
    """The same for others; `scripts/simulate` runs many more each night."""
    for seed in range(1000, 1400):
        simulate(seed, world)


@pytest.mark.parametrize(
    "mutation", [one for one in ENDING_MUTATIONS if one.name not in RARE], ids=lambda one: one.name
)
def test_a_fault_is_noticed(mutation: Mutation) -> None:
    """A fault that is put into the real code breaks a promise within a few seeds."""
    assert catch(mutation, 200) is not None


@pytest.mark.slow
@pytest.mark.unhurried
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "mutation", [one for one in ENDING_MUTATIONS if one.name in RARE], ids=lambda one: one.name
)
def test_a_rarer_fault_is_noticed(mutation: Mutation) -> None:
    """The same for faults that show in few schedules."""
    assert catch(mutation, 1000) is not None


def test_a_seed_tells_one_story() -> None:
    """The same seed gives the same story, so that a failure can be looked at again."""
    assert simulate(3, "endings").story == simulate(3, "endings").story
    assert simulate(3, "endings").story != simulate(4, "endings").story


def test_all_faults_happen() -> None:
    """Each fault is really caused, and the records that it leads to are written."""
    counts = run_batch(0, 100, "endings").counts
    assert set(FAULTS) | {"Requeued", "RunEnded", "EpochStarted", "RoundFormed"} <= set(counts)


def test_all_faults_happen_to_tasks() -> None:
    """The same in array mode, where agents meet in rounds and leave them one by one."""
    counts = run_batch(0, 60, "array endings").counts
    kinds = {kind.removeprefix(ALL) for kind in ARRAY_ENDINGS["array endings"].kinds}
    assert kinds | {"NodeLeft", "RoundEnded", "RunEnded", "RoundFormed", "TaskStopped"} <= set(counts)


def test_the_command_goes_through_all_endings(capsys: pytest.CaptureFixture[str]) -> None:
    """One name stands for all kinds of worlds with endings."""
    assert 0 == main(["--schedules", "10", "--world", ALL_ENDINGS])
    assert capsys.readouterr().out.startswith("10 schedules in ")
