"""JSON from damaged files becomes typed fields, or one error that names the field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.errors import DamagedError
from hpc_elastic.typed_json import (
    DEPTH,
    Count,
    Like,
    Prose,
    Range,
    decode,
    is_file_text,
    parse,
    parse_object,
    read,
    whole_number,
)


class Colour(str, Enum):
    """An enum of texts."""

    RED = "red"


class Part(NamedTuple):
    """A record inside of another."""

    size: int
    name: str = "none"


class Whole(NamedTuple):
    """A record with a field of each type."""

    number: int = 0
    tally: Count = 0
    port: Annotated[int, Range(1, 10)] = 1
    fraction: float = 0.0
    text: str = ""
    said: Prose = ""
    code: Annotated[str, Like("[a-z]+", "a code")] = "a"
    is_on: bool = False
    colour: Colour | None = None
    either: str | int = ""
    part: Part | None = None
    parts: tuple[Part, ...] = ()
    pair: tuple[int, str] = (0, "")
    times: Mapping[str, int] = {}
    rest: dict[str, Any] | None = None


def test_every_type_is_read() -> None:
    """Fields get the types of their annotations, absent ones the default; unknown ones are left out."""
    data = {
        "number": -3, "tally": 2, "port": 10, "fraction": 1, "text": "é", "said": "a\0b", "code": "abc",
        "is_on": True, "colour": "red", "either": 5, "part": [1], "parts": [[1, "x"], {"size": 2}],
        "pair": [1, "y"], "times": {"a": 1}, "rest": {"b": [None]}, "later": 1,
    }  # fmt: skip
    expected = Whole(
        -3, 2, 10, 1.0, "é", "a\0b", "abc", True, Colour.RED, 5, Part(1), (Part(1, "x"), Part(2)), (1, "y"),
        {"a": 1}, {"b": [None]},
    )  # fmt: skip
    found = read(Whole, json.dumps(data).encode())
    assert expected == found
    assert (float, Colour) == (type(found.fraction), type(found.colour))


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("number", True, "number is true, not a whole number of 64 bits"),
        ("number", 1.0, "number is 1.0, not a whole number of 64 bits"),
        ("number", 2**63, "number is 9223372036854775808, not a whole number of 64 bits"),
        ("tally", -1, "tally is -1, not a number of at least 0"),
        ("port", 11, "port is 11, not a number from 1 to 10"),
        ("fraction", "1", 'fraction is "1", not a number'),
        ("fraction", False, "fraction is false, not a number"),
        ("text", 3, "text is 3, not a text"),
        ("text", "a\0", r'text is "a\u0000", not a text without NUL and half characters'),
        ("text", "\ud800", r'text is "\ud800", not a text without NUL and half characters'),
        ("said", [], "said is [], not a text"),
        ("code", "A", 'code is "A", not a code'),
        ("is_on", 1, "is_on is 1, not true or false"),
        ("colour", "blue", 'colour is "blue", not one of red'),
        ("colour", {}, "colour is {}, not one of red"),
        ("either", 1.5, "either is 1.5, not a text"),
        ("part", [], "part is [], not an array of size, name"),
        ("part", [1, "a", 2], 'part is [1, "a", 2], not an array of size, name'),
        ("part", {"name": "a"}, "part.size is missing"),
        ("part", 7, "part is 7, not an object or an array"),
        ("parts", [[1], ["x"]], 'parts[1].size is "x", not a whole number of 64 bits'),
        ("parts", "ab", 'parts is "ab", not an array'),
        ("pair", [1], "pair is [1], not an array of 2"),
        ("pair", [1, 2], "pair[1] is 2, not a text"),
        ("times", {"a": "b"}, 'times.a is "b", not a whole number of 64 bits'),
        ("times", [], "times is [], not an object"),
        ("rest", "x" * 99, f'rest is "{"x" * 59} ..., not an object'),
    ],
)
def test_a_wrong_value_is_named(field: str, value: object, words: str) -> None:
    """The error says which field is what, and what it should be."""
    with pytest.raises(DamagedError) as caught:
        decode(Whole, {field: value})
    assert words == str(caught.value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "it is empty"),
        (b"\xff{}", "it is no text in UTF-8"),
        (b"{", "it is no JSON ("),
        (b"[1]", "it is [1], not an object"),
        (b"null", "it is null, not an object"),
        (b'{"a": NaN}', "it has NaN, which is no number"),
        (b'{"a": -Infinity}', "it has -Infinity, which is no number"),
        (b'{"a": 1e999}', "it has the number 1e999, which is too large"),
        (b'{"a": ' + b"9" * 5000 + b"}", "it has a number of 5000 digits"),
        (b'{"a": ' + b"[" * (DEPTH) + b"]" * (DEPTH) + b"}", "more than 32 arrays and objects"),
        (b'{"a": ' + b"[" * 200_000, "more than 32 arrays and objects"),
        (b'{"a":' * 200_000, "more than 32 arrays and objects"),
    ],
    ids=[
        "empty",
        "bytes",
        "cut",
        "array",
        "null",
        "nan",
        "inf",
        "huge",
        "long",
        "33 deep",
        "endless",
        "objects",
    ],
)
def test_what_is_no_object_is_refused(data: bytes, words: str) -> None:
    """Damage of the JSON itself is the same kind of error, however deep or long it is."""
    with pytest.raises(DamagedError) as caught:
        parse_object(data)
    assert words in str(caught.value)


def test_brackets_in_a_text_are_no_depth() -> None:
    """Only real arrays and objects count."""
    text = "[{" * 100
    assert {"a": text} == parse_object(json.dumps({"a": text}).encode())
    assert text == parse(json.dumps(text).encode())
    assert [[]] * 40 == parse(json.dumps([[]] * 40).encode())


def test_as_deep_as_allowed_is_read() -> None:
    """The limit itself is no damage."""
    assert isinstance(parse(b"[" * DEPTH + b"]" * DEPTH), list)


def test_bytes_of_file_names_that_are_no_text_are_kept() -> None:
    """What `os.fsdecode` gives for a name in another encoding comes back."""
    assert "\udcff" == read(Whole, json.dumps({"text": "\udcff"}).encode()).text


def test_half_a_character_in_a_text_for_people_is_replaced() -> None:
    """So it can be printed."""
    assert "a\ufffdb" == decode(Whole, {"said": "a\ud800b"}).said


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("007", 7), ("9" * 18, 10**18 - 1), ("9" * 19, None), ("", None), ("²", None), ("٣", None),
     ("-1", None), ("1 ", None)],
)  # fmt: skip
def test_only_short_ascii_digits_are_a_number(text: str, number: int | None) -> None:
    """Names that others made may look like numbers and be none."""
    assert number == whole_number(text)


@given(st.text(st.characters()))
def test_a_file_text_can_be_a_file_name(text: str) -> None:
    """What is taken for one can be encoded, and what cannot is not."""
    try:
        can_be = b"\0" not in text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        can_be = False
    assert can_be == is_file_text(text)


def test_a_type_that_no_record_has_is_a_fault_of_the_program() -> None:
    """It is found by the first test that reads such a record."""
    with pytest.raises(TypeError, match="records cannot have fields of the type"):
        decode(bytes, b"")


@pytest.mark.parametrize("other", [True, 1.0, "1", None])
def test_a_long_array_is_not_taken_for_one_that_is_only_equal(other: object) -> None:
    """After an array of numbers one of switches, which Python holds equal, is as wrong as ever."""
    kind: Any = tuple[Count, ...]
    assert (1,) * 100 == decode(kind, [1] * 100)
    with pytest.raises(DamagedError, match=r"\[0\]"):
        decode(kind, [other] * 100)
    assert (1,) * 100 == decode(kind, [1] * 100)
