"""Slurm's compressed host lists: ``node[1-3,7],gpu[01-04]``. Pure."""

from __future__ import annotations

import re
from itertools import product

from hpc_elastic.errors import InputError
from hpc_elastic.named_tuple import NamedTuple

MAX_HOSTS = 100_000
_LONGEST_NAME = 255  # of a host, in characters
_MOST_DIGITS = 18
_QUOTED = 100  # characters of a host list in a message


class _Range(NamedTuple):
    """Numbers from the first to the last one, with leading zeros up to a width."""

    low: int
    high: int
    width: int

    @property
    def size(self) -> int:
        return self.high - self.low + 1

    def texts(self) -> list[str]:
        return [str(number).zfill(self.width) for number in range(self.low, self.high + 1)]


class _Item(NamedTuple):
    """One item of a host list: a text before each bracket, the brackets' content, and the text behind."""

    texts: list[str]
    brackets: list[list[_Range]]

    @property
    def size(self) -> int:
        """How many hosts it names, or some number above `MAX_HOSTS`; nothing is built for that."""
        size = 1
        for ranges in self.brackets:
            size *= sum(one.size for one in ranges)
            if size > MAX_HOSTS:  # it only grows
                break
        return size

    @property
    def longest(self) -> int:
        """How many characters its longest name has."""
        numbers = sum(max(max(one.width, len(str(one.high))) for one in ranges) for ranges in self.brackets)
        return sum(map(len, self.texts)) + numbers

    def names(self) -> list[str]:
        """Return the hosts; the last bracket counts fastest."""
        numbers = ([text for one in ranges for text in one.texts()] for ranges in self.brackets)
        head, *tails = self.texts
        return [
            head + "".join(number + tail for number, tail in zip(chosen, tails, strict=True))
            for chosen in product(*numbers)
        ]


def expand(text: str) -> tuple[str, ...]:
    """Return the host names of a host list, in its order; they are counted before the first is built.

    Raises:
        InputError: brackets do not match, a range is not a range, or it names more than `MAX_HOSTS` hosts.
    """
    items = [_item(part, text) for part in _split(text)]
    if sum(item.size for item in items) > MAX_HOSTS:
        raise _bad(text, f"it names more than {MAX_HOSTS} hosts")
    if any(item.longest > _LONGEST_NAME for item in items):
        raise _bad(text, f"it names a host of more than {_LONGEST_NAME} characters")
    return tuple(name for item in items for name in item.names())


def _bad(text: str, why: str) -> InputError:
    return InputError(
        f"{_short(text)} is not a host list: {why}",
        where="host list",
        fix="write it as node[1-3,7],gpu[01-04]",
    )


def _short(text: str) -> str:
    return (
        repr(text)
        if len(text) <= _QUOTED
        else f"{text[:_QUOTED]!r} and {len(text) - _QUOTED} more characters"
    )


def _split(whole: str) -> list[str]:
    """Split at commas outside brackets."""
    parts, start, depth = [], 0, 0
    for found in re.finditer(r"[\[\],]", whole):
        depth += {"[": 1, "]": -1}.get(found[0], 0)
        if found[0] == "," and depth == 0:
            parts.append(whole[start : found.start()])
            start = found.end()
        if depth not in (0, 1):
            raise _bad(whole, "the brackets do not match")
    if depth:
        raise _bad(whole, "the brackets do not match")
    parts.append(whole[start:])
    return [part.strip() for part in parts if part.strip()]


def _item(part: str, whole: str) -> _Item:
    """Take one item apart; its brackets match, and none stands in another."""
    head, *rest = part.split("[")
    texts: list[str] = [head]
    brackets: list[list[_Range]] = []
    for text in rest:
        inside, _, tail = text.partition("]")
        brackets.append([_range(word.strip(), whole) for word in inside.split(",")])
        texts.append(tail)
    return _Item(texts, brackets)


def _range(word: str, whole: str) -> _Range:
    first, dash, last = word.partition("-")
    last = last if dash else first
    if not all(end.isascii() and end.isdecimal() and len(end) <= _MOST_DIGITS for end in (first, last)):
        raise _bad(whole, f"{_short(word)} is not a number or range")
    low, high = int(first), int(last)
    if low > high:
        raise _bad(whole, f"the range {_short(word)} runs backwards")
    return _Range(low, high, len(first))
