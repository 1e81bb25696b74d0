"""How long workers may make no progress."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.node.setup.hang_times import (
    START,
    STEP,
    HangOptions,
    Length,
    decode,
    encode,
    is_worth_writing,
    kind_of,
    learn,
    limit_of,
)

AUTO = HangOptions()
EVAL = kind_of("eval", has_ticked=True)


def test_kinds_of_time() -> None:
    """Before the first tick, between ticks, and in each section: none is measured by another."""
    kinds = {
        kind_of(None, has_ticked=False),
        kind_of(None, has_ticked=True),
        EVAL,
        kind_of("x", has_ticked=True),
    }
    assert {START, STEP} < kinds
    assert 4 == len(kinds)
    assert EVAL == kind_of("eval", has_ticked=False)


@pytest.mark.parametrize(
    ("kind", "known", "expected"),
    [
        (STEP, None, math.inf),
        (STEP, Length(1.0, 19), math.inf),
        (STEP, Length(1.0, 20), 1800.0),
        (STEP, Length(1000.0, 20), 5000.0),
        (START, None, math.inf),
        (START, Length(30.0, 1), 1800.0),
        (START, Length(3600.0, 1), 18000.0),
        (EVAL, None, math.inf),
        (EVAL, Length(600.0, 1), 3000.0),
    ],
)
def test_what_is_learned(kind: str, known: Length | None, expected: float) -> None:
    """Five times the longest, half an hour at least; what nobody has measured has no limit."""
    assert expected == limit_of(kind, {} if known is None else {kind: known}, AUTO)


@pytest.mark.parametrize(
    ("options", "step", "start"),
    [
        (HangOptions(timeout=60.0), 60.0, math.inf),
        (HangOptions(timeout=60.0, first_step=600.0), 60.0, 600.0),
        (HangOptions(first_step=600.0), math.inf, 600.0),
        (HangOptions(timeout=math.inf), math.inf, math.inf),
        (HangOptions(first_step=math.inf), math.inf, math.inf),
    ],
)
def test_what_the_user_says_counts(options: HangOptions, step: float, start: float) -> None:
    """It needs no measurement, and sections without a time of their own have that of steps."""
    assert (step, start) == (limit_of(STEP, {}, options), limit_of(START, {}, options))
    assert step == limit_of(EVAL, {}, options)


def test_off_stays_off_whatever_was_measured() -> None:
    """Nothing is watched without any limit."""
    off = HangOptions(timeout=math.inf)
    assert math.inf == limit_of(START, {START: Length(1.0, 9)}, off)
    assert off.is_off
    assert not AUTO.is_off
    assert not HangOptions(timeout=math.inf, first_step=5.0).is_off
    assert HangOptions(timeout=math.inf, first_step=math.inf).is_off
    assert not HangOptions(timeout=60.0, first_step=math.inf).is_off


def test_a_silence_is_counted_once_unless_there_were_more_signs_in_it() -> None:
    """The longest one counts, and other kinds of time keep what is known of them."""
    first = learn({}, STEP, 0.25)
    assert {STEP: Length(0.25, 1)} == first
    more = learn(first, STEP, 0.125, times=4)
    assert {STEP: Length(0.25, 5)} == more
    assert {STEP: Length(0.25, 5), EVAL: Length(9.0, 1)} == learn(more, EVAL, 9.0)


LENGTHS = st.dictionaries(st.text(max_size=5), st.builds(Length, st.floats(0, 1e6), st.integers(0, 1000)))


@given(lengths=LENGTHS, kind=st.text(max_size=5), seconds=st.floats(0, 1e6))
def test_limits_only_grow(lengths: dict[str, Length], kind: str, seconds: float) -> None:
    """Learning never makes a known limit shorter, and the silence just learned is always allowed."""
    before, after = (
        limit_of(kind, lengths, AUTO),
        limit_of(kind, learned := learn(lengths, kind, seconds), AUTO),
    )
    assert seconds <= after
    assert before <= after or before == math.inf
    assert lengths.get(kind, Length()).times + 1 == learned[kind].times


@given(lengths=LENGTHS, ticking=st.lists(st.integers(0, 64)).map(tuple))
def test_what_is_written_is_read(lengths: dict[str, Length], ticking: tuple[int, ...]) -> None:
    """To the millisecond."""
    read, ranks = decode(json.loads(json.dumps(encode(lengths, ticking))))
    assert ticking == ranks
    assert {kind: Length(round(length.longest, 3), length.times) for kind, length in lengths.items()} == read


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"format": 2, "kinds": {"step": [1.0, 1]}, "ticking": [0]},
        {"format": 1, "kinds": {"step": [1]}, "ticking": []},
        {"format": 1, "kinds": {"step": ["x", 1]}, "ticking": []},
        {"format": 1, "kinds": {"step": [math.nan, 1]}, "ticking": []},
        {"format": 1, "kinds": {"step": [-1.0, 1]}, "ticking": []},
        {"format": 1, "kinds": [], "ticking": None},
    ],
)
def test_what_cannot_be_read_counts_for_nothing(data: object) -> None:
    """A damaged file or one of another version costs what was learned, no more."""
    assert ({}, ()) == decode(data)


def test_only_news_is_written() -> None:
    """A longer time by a tenth, or twice as many."""
    known = {STEP: Length(10.0, 20)}
    assert not is_worth_writing(known, known)
    assert not is_worth_writing({STEP: Length(10.9, 39)}, known)
    assert is_worth_writing({STEP: Length(11.1, 21)}, known)
    assert is_worth_writing({STEP: Length(10.0, 40)}, known)
    assert is_worth_writing({**known, EVAL: Length(1.0, 1)}, known)
    assert not is_worth_writing({STEP: Length(0.0, 21)}, {STEP: Length(0.0, 20)})
    assert not is_worth_writing({}, known)


def test_a_limit_for_the_first_step_holds_though_the_others_are_off() -> None:
    """It was given by itself."""
    assert 5.0 == limit_of(START, {}, HangOptions(first_step=5.0, timeout=math.inf))
    assert math.inf == limit_of(STEP, {}, HangOptions(first_step=5.0, timeout=math.inf))
