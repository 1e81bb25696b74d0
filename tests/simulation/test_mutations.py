"""The test of the test: each fault put into the real code is noticed."""

from __future__ import annotations

import pytest

from hpc_elastic.record import state
from tests.simulation.mutations import MUTATIONS, Change, Mutation, catch, mutated

QUICK = {
    "an older start may be announced again",
    "records may be overwritten",
    "a record is written though it fits no more",
    "a lost member counts as succeeded",
    "no node watches",
    "a failed operation is repeated at once",
    "wall clocks decide",
}


@pytest.mark.parametrize(
    "mutation", [one for one in MUTATIONS if one.name in QUICK], ids=lambda one: one.name
)
def test_a_fault_is_noticed(mutation: Mutation) -> None:
    """The simulation or the search finds it within a few seeds."""
    assert catch(mutation, 40) is not None


@pytest.mark.slow
@pytest.mark.unhurried
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "mutation", [one for one in MUTATIONS if one.name not in QUICK], ids=lambda one: one.name
)
def test_a_rarer_fault_is_noticed(mutation: Mutation) -> None:
    """The simulation or the search finds it within two thousand seeds."""
    assert catch(mutation, 2000) is not None


def test_a_mutation_is_undone() -> None:
    """The code is as it was when a mutation is over."""
    before = state._round.__code__
    with mutated(next(one for one in MUTATIONS if one.name.startswith("a round of an older"))):
        assert before is not state._round.__code__
    assert before is state._round.__code__


def test_a_mutation_of_code_that_has_changed_says_so() -> None:
    """A text that is not in the function any more is an error, not a mutation without effect."""
    old = Mutation("old", (Change("hpc_elastic.record.state:_round", "no such text", ""),), ())
    with pytest.raises(LookupError, match="bring the mutation up to date"):
        catch(old, 1)
