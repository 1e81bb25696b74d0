"""Inputs: texts that look right, values of JSON that nobody writes, bytes that somebody has changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

NAMED = {  # long texts of JSON, by a short name
    "@deep": "[" * 2000 + "]" * 2000,
    "@deeper": '{"a":' * 50_000 + "1" + "}" * 50_000,
    "@open": "[" * 100_000,
    "@digits": "9" * 5000,
    "@big": "9" * 400,
    "@text": '"' + "a" * 70_000 + '"',
    "@list": "[" + "1," * 20_000 + "1]",
}
_ODD_JSON = (
    "null", "true", "false", "0", "-1", "1", "1.5", "-0.0", "1e18", "1e308", "1e999", "NaN", "Infinity",
    "-Infinity", "9223372036854775807", "9223372036854775808", "-9223372036854775809",
    "18446744073709551616", '""', '"x"', '"1"', '"\\ud800"', '"\\udcff"', '"a\\u0000b"', '"\\u001b[31m"',
    '"..\\/..\\/x"', '"/etc/passwd"', '"a b=c"', '"-x"', '"$(touch x)"', '"\\n"', '"\\u00b2"', '"\\u0663"',
    '"\\u202e"', "[]", "[[]]", "[{}]", "{}", '{"a": {}}', '[1, "a"]', "[null]", '[["a", "b", 1]]',
    "[0, 0, 0]", "[1, 2]", '["n1", "n1", "x"]', "[-1, 0, 0]",
)  # fmt: skip
odd_json = st.sampled_from((*_ODD_JSON, *NAMED))
odd_characters = st.sampled_from(
    "\0\x01\x07\n\r\t\x1b\x7f\x85\u2028\u202e\ud800\udcff²٣é😀 '\"$`\\;|&=[](){}<>*#%,:+-./~"
)
odd_texts = st.text(odd_characters | st.characters(), max_size=12)
SURROGATES = ("\ud800", "a\udcffb")


def json_of(word: str) -> str:
    """Return the JSON that a word stands for."""
    return NAMED.get(word, word)


def changed(good: Sequence[str], words: Sequence[str]) -> st.SearchStrategy[str]:
    """Return texts that are made of good ones by a few changes, and some that are made of nothing.

    Args:
        good: texts that the reader takes.
        words: what means something to it.
    """
    pieces = st.one_of(st.sampled_from(tuple(words)), odd_texts, _repeated(words))
    edits = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 12), pieces), max_size=4)
    return st.one_of(
        st.builds(_edited, st.sampled_from(tuple(good)), edits),
        st.lists(pieces, max_size=8).map("".join),
        st.text(max_size=40),
    )


def _repeated(words: Sequence[str]) -> st.SearchStrategy[str]:
    times = st.sampled_from((2, 3, 5, 8, 20, 50, 400, 3000))
    return st.builds(lambda word, count: word[:20] * count, st.sampled_from(tuple(words)), times)


def _edited(text: str, edits: Sequence[tuple[int, int, str]]) -> str:
    for at, length, piece in edits:
        place = at % (len(text) + 1)
        text = text[:place] + piece + text[place + length :]
    return text


def changed_bytes(good: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Return bytes that are made of good ones by a few changes, and some that are made of nothing."""
    pieces = st.one_of(st.binary(max_size=6), odd_json.map(lambda word: json_of(word).encode()[:6000]))
    edits = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 12), pieces), max_size=4)
    return st.one_of(st.builds(_edited_bytes, st.sampled_from(tuple(good)), edits), st.binary(max_size=60))


def _edited_bytes(data: bytes, edits: Sequence[tuple[int, int, bytes]]) -> bytes:
    for at, length, piece in edits:
        place = at % (len(data) + 1)
        data = data[:place] + piece + data[place + length :]
    return data


fields = st.lists(st.tuples(st.integers(0, 60), odd_json), min_size=1, max_size=3)


def with_fields(data: bytes, changes: Sequence[tuple[int, str]]) -> bytes:
    """Return a JSON text in which some of its values, counted through, are others.

    Args:
        data: a JSON text; returned as it is if it is none.
        changes: the number of a value, counted around, and the JSON that is to stand there.
    """
    import json  # noqa: PLC0415 - only here

    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return data
    marks: dict[str, str] = {}
    for number, word in changes:
        mark = f"\x02{len(marks)}\x03"
        marks[json.dumps(mark)] = json_of(word)
        document = _replaced(document, number, mark)
    text = json.dumps(document)
    for mark, value in marks.items():
        text = text.replace(mark, value)
    return text.encode()


def _replaced(document: Any, number: int, value: str) -> Any:
    places = list(_places(document))
    place = places[number % len(places)]
    if not place:
        return value
    inner = document
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    return document


def _places(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the ways to a value and to all that is in it; the outermost last."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [*(place for key, part in inner for place in _places(part, (*above, key))), above]
