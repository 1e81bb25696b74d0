"""Durations, time limits and node counts as people write them."""

from __future__ import annotations

import pytest

from hpc_elastic.settings.table import JOB
from hpc_elastic.settings.values import (
    BadValueError,
    number_text,
    parse_duration_s,
    parse_memory,
    parse_nodes,
    parse_size,
    parse_time_limit_s,
    shown,
    slurm_time_text,
    text_of,
)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [(90, 90), ("90", 90), ("90s", 90), ("2m", 120), ("1h30m", 5400), ("0.5", 0.5)],
    ids=repr,
)
def test_durations_are_read_in_seconds(written: object, seconds: float) -> None:
    """A plain number is seconds; units add up."""
    assert seconds == parse_duration_s(written)


@pytest.mark.parametrize(
    "written", ["", "soon", "-3", -3, -0.5, "1x", True, None, float("nan"), "3m2"], ids=repr
)
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


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (0, 0.0),
        ("0", 0.0),
        ("1d", 86400.0),
        ("1D 2h 3min 4s", 93784.0),
        ("1.5h", 5400.0),
        (10**9, 1e9),
        ("1000000000", 1e9),
    ],
    ids=repr,
)
def test_each_unit_of_a_duration_counts(written: object, seconds: float) -> None:
    """In capitals and with spaces, too; thirty years are the most."""
    assert seconds == parse_duration_s(written)


@pytest.mark.parametrize(
    "written", [10**9 + 1, "1000000002", "11575d", 1e300, float("inf"), -(10**10), -float("inf")]
)
def test_a_longer_duration_is_refused(written: object) -> None:
    """With the longest one that can be given."""
    with pytest.raises(BadValueError, match="is longer than 30 years") as caught:
        parse_duration_s(written)
    assert "write at most 10000d" == caught.value.fix


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("INFINITE", None),
        ("1", 60),
        (1, 60),
        ("0:01", 1),
        ("0.5s", 1),
        ("1-1:1:1", 90061),
        ("0-0:0:5", 5),
        (2**32 - 3, 60 * (2**32 - 3)),
    ],
    ids=repr,
)
def test_time_limits_in_seconds(written: object, seconds: int | None) -> None:
    """Rounded up; every part counts."""
    assert seconds == parse_time_limit_s(written)


@pytest.mark.parametrize("written", [2**32 - 2, "0s", "0:00", "0-0", 5.0, False, "x"], ids=repr)
def test_a_time_limit_that_slurm_cannot_count_is_refused(written: object) -> None:
    """Nor may it be nothing at all."""
    with pytest.raises(BadValueError, match="is not a time limit"):
        parse_time_limit_s(written)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "00:00:00"), (86399, "23:59:59"), (86400, "1-00:00:00"), (90061, "1-01:01:01")]
)
def test_a_limit_is_written_with_days_from_one_day_on(seconds: int, text: str) -> None:
    """Two digits each."""
    assert text == slurm_time_text(seconds)


@pytest.mark.parametrize(
    ("written", "size"),
    [
        (0, 0),
        ("7", 7),
        ("1K", 1 << 10),
        ("1.5 M", 3 << 19),
        ("2gib", 2 << 30),
        ("3TB", 3 << 40),
        ("5B", 5),
        ("8388607T", 8388607 << 40),
    ],
    ids=repr,
)
def test_sizes_are_read_in_bytes(written: object, size: int) -> None:
    """Units are of 1024."""
    assert size == parse_size(written)


@pytest.mark.parametrize("written", ["", "-1", "1X", True, 2**63, "8388608T", "K", None], ids=repr)
def test_what_is_no_size_is_refused(written: object) -> None:
    """So is one of more bytes than a file can have."""
    with pytest.raises(BadValueError, match="is not a size") as caught:
        parse_size(written)
    assert "500M" in caught.value.fix


def test_node_counts_have_bounds() -> None:
    """From one to a million."""
    assert [(1, 1), (1, 10**6), (10**6, 10**6)] == [parse_nodes(text) for text in (1, "1:1000000", "1000000")]
    for written, words in (("1:1000001", "no cluster has more"), (0, "at least one"), (False, "write N")):
        with pytest.raises(BadValueError) as caught:
            parse_nodes(written)
        assert words in caught.value.fix
    assert ["3", "2:4"] == [str(parse_nodes(text)) for text in ("3:3", "2-4")]


def test_values_in_errors_are_cut() -> None:
    """Sixty characters are shown; numbers that Python does not write are told of."""
    assert repr("x" * 58) == shown("x" * 58)
    assert f"'{'x' * 59} ... (61 characters)" == shown("x" * 59)
    assert ("a number of thousands of digits", "") == (shown(10**5000), text_of(10**5000))


def test_numbers_without_a_needless_fraction() -> None:
    """One that matters stays."""
    assert ["3", "0", "-2", "1.5"] == [number_text(value) for value in (3.0, 0, -2.0, 1.5)]


def _nested() -> list[object]:
    """Return a list of lists that Python cannot write."""
    value: list[object] = []
    for _ in range(5000):
        value = [value]
    return value


@pytest.mark.parametrize("name", JOB)
@pytest.mark.parametrize("value", [_nested(), {"a": _nested()}], ids=["list", "table"])
def test_a_value_of_very_many_lists_is_refused(name: str, value: object) -> None:
    """Each kind of setting says that it cannot be read."""
    with pytest.raises(BadValueError):
        JOB[name].kind.parse(value)


@pytest.mark.parametrize("value", [{"comment": "\ud800"}, {"comment": "a\0"}, {"\ud800": "a"}], ids=repr)
def test_an_option_of_sbatch_is_text_that_a_program_can_be_given(value: object) -> None:
    """Half a character or a NUL can be in no command line."""
    with pytest.raises(BadValueError, match=r"Unicode|NUL"):
        JOB["sbatch"].kind.parse(value)
