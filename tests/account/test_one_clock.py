"""One clock for the events of several nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.account.one_clock import SUBMITTER, Stamp, one_clock

stamps = st.lists(
    st.builds(
        Stamp,
        st.floats(-1e9, 1e9),
        st.sampled_from(("n1", "n2")),
        st.sampled_from(("", "n1.1", "n2.1")),
        st.floats(0, 1e6),
    ),
    max_size=30,
)


@given(stamps)
def test_time_never_goes_back(given: list[Stamp]) -> None:
    """Whatever the clocks of the nodes say, an event is not before the one that it follows."""
    times = one_clock(given)
    assert sorted(times) == times
    assert len(given) == len(times)


def test_clocks_that_agree_are_left_alone() -> None:
    """Times that follow the order are the wall times themselves."""
    assert [1.0, 2.0, 2.0, 9.0] == one_clock(
        [Stamp(1.0, "a"), Stamp(2.0, "b"), Stamp(2.0, "a"), Stamp(9.0, "b")]
    )


@pytest.mark.parametrize("off", [3600.0, -3600.0])
def test_a_node_an_hour_off_is_put_right(off: float) -> None:
    """The clock of one node of three is wrong all the time: its events stand between those of the others."""
    given = [Stamp(at + (off if at % 3 == 0 else 0.0), f"n{at % 3}") for at in range(10, 40)]
    times = one_clock(given)
    assert pytest.approx([float(at) for at in range(10, 40)], abs=1.1) == times


def test_a_clock_that_is_set_moves_no_agent() -> None:
    """Between two lines of an agent its monotonic clock counts, also for the records of its node."""
    given = [
        Stamp(100.0, "n1", "n1.7", 5.0),
        Stamp(110.0, "n1"),
        Stamp(3720.0, "n1", "n1.7", 25.0),
        Stamp(3730.0, "n1"),
        Stamp(3740.0, "n1", "n1.7", 45.0),
    ]
    assert [100.0, 110.0, 120.0, 130.0, 140.0] == one_clock(given)


def test_a_first_event_from_the_future_is_put_before_the_second() -> None:
    """Nothing is known to be before it, so that the next event alone tells how late it can be."""
    given = [Stamp(100.0, "a"), Stamp(1.0, "b"), Stamp(2.0, "b"), Stamp(3.0, "b")]
    assert [1.0, 1.0, 2.0, 3.0] == one_clock(given)


def test_of_two_readings_of_a_clock_that_was_set_the_earlier_one_counts() -> None:
    """The clock was set 5 s ahead between two lines of an agent; a record between them is before or after."""
    given = [Stamp(100.0, "n1", "n1.7", 5.0), Stamp(112.0, "n1"), Stamp(145.0, "n1", "n1.7", 45.0)]
    assert [100.0, 107.0, 140.0] == one_clock(given)


def _run(off: dict[str, float], nodes: tuple[str, ...]) -> list[Stamp]:
    """Return a run of 41 s whose first node writes the records; the login node submits it at 1000."""
    times = [(0.0, SUBMITTER), (5.0, nodes[0]), (6.0, nodes[0])]
    times += [(7.0 + 3 * turn + 0.1 * place, node) for turn in range(10) for place, node in enumerate(nodes)]
    times.append((41.0, nodes[0]))
    return [Stamp(1000.0 + at + off.get(by, 0.0), by) for at, by in times]


@pytest.mark.parametrize("nodes", [("n1", "n2"), ("n1", "n2", "n3")])
@pytest.mark.parametrize("wrong", ["n1", "n2"])
def test_a_clock_that_is_an_hour_ahead_makes_no_run_longer(wrong: str, nodes: tuple[str, ...]) -> None:
    """Though it is that of the node with the most records: the others, and the submission, contradict it."""
    times = one_clock(_run({wrong: 3600.0}, nodes))
    assert pytest.approx([1000.0, 1005.0, 1041.0], abs=2.5) == [times[0], times[1], times[-1]]


def test_a_clock_that_is_behind_makes_no_run_longer() -> None:
    """It makes the wait in the queue shorter, at most to nothing."""
    times = one_clock(_run({"n1": -3600.0}, ("n1", "n2")))
    assert 36.0 <= times[-1] - times[0] <= 41.0


def test_a_long_queue_stays_long() -> None:
    """All nodes agree that the run has begun an hour after its submission."""
    given = [Stamp(0.0, SUBMITTER), *(Stamp(3600.0 + at, f"n{at % 2}") for at in range(20))]
    assert 3600.0 == one_clock(given)[1]
