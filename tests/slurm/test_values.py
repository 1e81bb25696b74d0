"""Durations, time limits and node counts as people write them."""

from __future__ import annotations

import pytest

from hpc_elastic.slurm.values import (
    BadValueError,
    parse_duration_s,
    parse_memory,
    parse_nodes,
    parse_time_limit_s,
    slurm_time_text,
)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [(90, 90), ("90", 90), ("90s", 90), ("2m", 120), ("1h30m", 5400), ("0.5", 0.5)],
    ids=repr,
)
def test_durations_are_read_in_seconds(written: object, seconds: float) -> None:
    """A plain number is seconds; units add up."""
    assert seconds == parse_duration_s(written)


@pytest.mark.parametrize("written", ["", "soon", "-3", -3, "1x", True, None, float("nan"), "3m2"], ids=repr)
def test_what_is_no_duration_is_refused(written: object) -> None:
    """The message shows the value and the forms that can be read."""
    with pytest.raises(BadValueError, match="is not a duration") as caught:
        parse_duration_s(written)
    assert "1h30m" in caught.value.fix


@pytest.mark.parametrize(
    ("written", "slurm"),
    [
        (90, "01:30:00"),
        ("90", "01:30:00"),
        ("2h", "02:00:00"),
        ("1h30m", "01:30:00"),
        ("30:15", "00:30:15"),
        ("01:02:03", "01:02:03"),
        ("1-12:00:00", "1-12:00:00"),
        ("2-3", "2-03:00:00"),
        ("2-3:30", "2-03:30:00"),
        ("1d12h", "1-12:00:00"),
        ("unlimited", "UNLIMITED"),
    ],
    ids=repr,
)
def test_time_limits_mean_what_they_mean_to_slurm(written: object, slurm: str) -> None:
    """Every form of Slurm's and units are read; the same limit is written back."""
    assert slurm == slurm_time_text(parse_time_limit_s(written))


@pytest.mark.parametrize("written", ["4 hours", "", "0", 0, "1:2:3:4", "-5", 1.5, True], ids=repr)
def test_what_is_no_time_limit_is_refused(written: object) -> None:
    """The message shows the value and the forms that can be read."""
    with pytest.raises(BadValueError, match="is not a time limit"):
        parse_time_limit_s(written)


@pytest.mark.parametrize(
    ("written", "low", "high"),
    [(3, 3, 3), ("3", 3, 3), ("2:4", 2, 4), ("2-4", 2, 4), (" 2 : 4 ", 2, 4)],
    ids=repr,
)
def test_node_counts_and_ranges_are_read(written: object, low: int, high: int) -> None:
    """Both our and Slurm's way to write a range are read."""
    assert (low, high) == parse_nodes(written)


def test_a_reversed_range_is_refused_with_the_right_order() -> None:
    """3:1 is answered with 1:3."""
    with pytest.raises(BadValueError, match="at least 3 and at most 1") as caught:
        parse_nodes("3:1")
    assert "1:3" in caught.value.fix


@pytest.mark.parametrize("written", ["0", "0:2", "two", "1:2:3", "", True, 1.5], ids=repr)
def test_what_is_no_node_count_is_refused(written: object) -> None:
    """Zero nodes, words and half nodes are refused."""
    with pytest.raises(BadValueError):
        parse_nodes(written)


@pytest.mark.parametrize("written", ["480G", "500m", "2T", "10GB", "4000", 0], ids=repr)
def test_amounts_of_memory_are_kept_as_they_were_written(written: object) -> None:
    """Slurm reads the same; without a unit they are megabytes."""
    assert str(written) == parse_memory(written)


@pytest.mark.parametrize("written", ["10X", "1.5G", "", "-1", "8 G", "much", True, 0.5], ids=repr)
def test_what_is_no_amount_of_memory_is_refused(written: object) -> None:
    """Slurm would refuse it, too."""
    with pytest.raises(BadValueError, match="is not an amount of memory"):
        parse_memory(written)


@pytest.mark.parametrize(("written", "text"), [(2, "2"), ("2:4", "2-4"), ("3-3", "3")])
def test_nodes_are_told_as_sbatch_wants_them(written: object, text: str) -> None:
    """A range only where there is one."""
    assert text == parse_nodes(written).slurm_text
