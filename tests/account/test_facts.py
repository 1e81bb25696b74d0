"""The lines of agents about the work of a round."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.account.facts import (
    Doing,
    NodeUse,
    WorkFact,
    encode_fact,
    next_line_at,
    of_one_writer,
    parse_facts,
)

milliseconds = st.integers(0, 10**12).map(lambda number: round(number / 1000, 3))
counts = st.none() | st.integers(0, 10**15)
facts = st.builds(
    WorkFact,
    st.integers(0, 10**6),
    st.sampled_from(Doing),
    milliseconds,
    milliseconds,
    st.text(st.characters(codec="utf-8"), max_size=20),
    st.integers(0, 10**6),
    st.none() | st.integers(0, 10**9),
    milliseconds,
    st.none() | st.integers(1, 10**9),
    st.none() | st.builds(NodeUse, st.none() | milliseconds, counts, counts, counts),
    st.none() | st.integers(0, 10**9),
)


@given(st.lists(facts))
def test_lines_are_read_as_they_were_written(written: list[WorkFact]) -> None:
    """Each fact comes back as it was, to the millisecond."""
    assert written == parse_facts(b"".join(map(encode_fact, written)))


@given(facts, st.data())
def test_a_torn_line_costs_no_other_line(fact: WorkFact, data: st.DataObject) -> None:
    """A line that was cut short is left out; the lines around it stay."""
    line = encode_fact(fact)
    torn = line[: data.draw(st.integers(0, len(line) - 2))]
    assert [fact, fact] == parse_facts(line + torn + b"\n" + line)


def test_foreign_lines_are_left_out() -> None:
    """Lines of other programs, and with values that cannot be, tell nothing."""
    assert [] == parse_facts(b'hello\n[1]\n{"r":-1,"d":"step","t":0,"m":0,"a":"n.1","k":1}\n\xff\n')


def _line(agent: str, mono: float, doing: Doing = Doing.STEP) -> WorkFact:
    return WorkFact(1, doing, 0.0, mono, agent, 1, 1)


def test_the_agent_that_saw_most_is_believed() -> None:
    """Of two agents the one that saw the end of the workers counts, else the one that wrote for longest."""
    lost = [_line("n1.1", 1.0), _line("n1.1", 50.0)]
    whole = [_line("n2.1", 12.0, Doing.GONE), _line("n2.1", 10.0)]
    assert {1: whole[::-1]} == of_one_writer([*lost, *whole])
    assert {1: lost} == of_one_writer([*lost, whole[1]])


def test_a_long_round_has_few_lines() -> None:
    """A round of twenty minutes has less than thirty lines of steps, a longer one a line in five minutes."""

    def lines(seconds: float) -> int:
        count, now = 0, 0.0
        while now < seconds:
            count, now = count + 1, next_line_at(0.0, now)
        return count

    assert 20 < lines(1200.0) < 30
    assert 2850 < lines(10 * 86400.0) < 2950


@pytest.mark.parametrize(
    ("first_at", "told_at", "next_at"),
    [
        (100.0, 100.0, 105.0),  # the shortest gap
        (100.0, 180.0, 200.0),  # a fifth of the time since the first step
        (100.0, 5000.0, 5300.0),  # the longest gap
    ],
)
def test_the_gap_between_lines_is_a_share_of_the_time_since_the_first_step(
    first_at: float, told_at: float, next_at: float
) -> None:
    """Within limits; the time before the first step does not count."""
    assert next_at == pytest.approx(next_line_at(first_at, told_at))


SOUND = {"r": 1, "d": "step", "t": 5.0, "m": 3.0, "a": "n.1", "k": 1, "s": 2, "v": 1.0, "n": 9, "b": 0}


@pytest.mark.parametrize("place", ["r", "k", "s", "n", "b", "m", "v", "t"])
def test_a_number_that_cannot_be_is_left_out_with_its_line(place: str) -> None:
    """Below 0, but for the time since the epoch, and what 64 bits do not hold."""
    line = json.dumps(SOUND).encode()
    assert 1 == len(parse_facts(line))
    for wrong in (-1, 2**62, -(2**62)):
        found = parse_facts(json.dumps({**SOUND, place: wrong}).encode())
        assert [] == found or (place, wrong) == ("t", -1)
    zero = parse_facts(json.dumps({**SOUND, place: 0}).encode())
    assert 1 == len(zero)
