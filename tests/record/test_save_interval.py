"""The interval of saves that costs the least, and the faults of a run that it follows from."""

from __future__ import annotations

import pytest

from hpc_elastic.record.journal import (
    AfterDrain,
    Cause,
    DrainRequested,
    Entry,
    Epoch,
    EpochStarted,
    Member,
    Record,
    RoundEnded,
    RoundFormed,
)
from hpc_elastic.record.save_interval import (
    BUSY,
    LONGEST_S,
    PRIOR_S,
    SHORTEST_S,
    Disturbances,
    SaveTimes,
    best_interval_s,
    disturbances,
    lost_share,
)

FIRST = Epoch(0, 0, 0, 0)


def found(*entries: Entry) -> Disturbances:
    """Return the faults in records that one node has written, ten seconds apart."""
    return disturbances(
        [Record(number, 10.0 * number, "n1.1", entry) for number, entry in enumerate(entries)]
    )


def began(epoch: Epoch = FIRST) -> EpochStarted:
    """Return the begin of a start."""
    return EpochStarted(epoch, "7", ("n1",))


def formed(number: int) -> RoundFormed:
    """Return a round."""
    return RoundFormed(number, FIRST, (Member("n1.1", "n1", 1),), "n1", 1, None)


def test_a_fault_after_which_the_state_was_in_memory_does_not_count() -> None:
    """It has lost next to nothing, so saves may be rarer."""
    ends = [RoundEnded(number, Cause.CRASH, ("n1",), None) for number in (1, 2)]
    entries: list[Entry] = [began(), *ends]
    records = [Record(number, 0.0, "n1.1", entry) for number, entry in enumerate(entries)]
    assert [2, 1, 0] == [disturbances(records, rounds).faults for rounds in ((), (2,), (1, 2, 7))]


@pytest.mark.parametrize("blocked_s", [0.5, 5.0, 30.0])
@pytest.mark.parametrize("between_s", [1800.0, 3 * 3600.0])
def test_no_other_interval_loses_less(blocked_s: float, between_s: float) -> None:
    """A shorter one spends more on saves, a longer one on work that is done again."""
    save = SaveTimes(blocked_s, blocked_s)
    best = best_interval_s(save, between_s)
    least = lost_share(best, save, between_s)
    assert all(least < lost_share(best * factor, save, between_s) for factor in (0.5, 0.9, 1.1, 2.0))


def test_half_a_minute_every_three_hours_costs_what_the_page_says() -> None:
    """With a save of 30 s and a fault every 3 h it is 7.5 % of the time, with one of 5 s 3.0 %."""
    costs = []
    for blocked_s in (30.0, 5.0):
        save = SaveTimes(blocked_s, blocked_s)
        costs.append(lost_share(best_interval_s(save, 10800.0), save, 10800.0))
    assert pytest.approx([0.0745, 0.0304], abs=1e-4) == costs


@pytest.mark.parametrize(
    ("save", "between_s", "expected"),
    [
        (SaveTimes(0.0, 0.1), 3600.0, SHORTEST_S),
        (SaveTimes(0.5, 60.0), 3600.0, 60.0 / BUSY),
        (SaveTimes(300.0, 300.0), 1e9, LONGEST_S),
        (SaveTimes(900.0, 900.0), 1e9, 900.0 / BUSY),
    ],
    ids=["cheap", "slow disk", "no faults", "slower than the longest"],
)
def test_an_interval_has_bounds(save: SaveTimes, between_s: float, expected: float) -> None:
    """A save is under way for a fifth of the time at most, and there is one each hour at least."""
    assert expected == best_interval_s(save, between_s)


def test_the_faults_of_a_run_count_more_and_more() -> None:
    """Before the first fault a prior holds; then what the run has seen itself."""
    save = SaveTimes(1.0, 2.0)
    assert PRIOR_S == Disturbances().between_s(save)
    assert (PRIOR_S + 600.0) / 2 == Disturbances(500.0, 1).between_s(save, 100.0)
    assert (PRIOR_S + 60_000.0) / 101 == Disturbances(60_000.0, 100).between_s(save)


def test_a_preemption_counts_if_its_time_is_too_short_for_a_save() -> None:
    """With two minutes of grace a save of one minute loses nothing, and one of five minutes loses work."""
    past = Disturbances(0.0, 0, (120.0, 600.0))
    assert [PRIOR_S, PRIOR_S / 2, PRIOR_S / 3] == [
        past.between_s(SaveTimes(1.0, took_s)) for took_s in (60.0, 300.0, 900.0)
    ]


def test_the_records_tell_faults_and_warnings() -> None:
    """Crashes, hangs and lost nodes lose work; a change of membership does not."""
    drain = DrainRequested(Cause.PREEMPTION, "n1", AfterDrain.LEAVE, "", left_s=90.0)
    past = found(
        began(),
        formed(1),
        RoundEnded(1, Cause.CRASH, ("n1",), None),
        formed(2),
        RoundEnded(2, Cause.MEMBERSHIP, (), None),
        formed(3),
        RoundEnded(3, Cause.HANG, ("n1",), None),
        drain,
        drain._replace(left_s=None),
    )
    assert Disturbances(30.0, 2, (90.0,)) == past


def test_a_submission_begins_anew() -> None:
    """The faults of an earlier one, on other nodes perhaps, are no longer counted."""
    crash = RoundEnded(1, Cause.CRASH, ("n1",), None)
    assert Disturbances(0.0, 0, ()) == found(began(), formed(1), crash, began(Epoch(1, 0, 0, 0)))
