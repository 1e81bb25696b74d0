"""Slurm's compressed host lists: ``node[1-3,7],gpu[01-04]``. Pure."""

from __future__ import annotations

from hpc_elastic.errors import InputError

MAX_HOSTS = 1_000_000


def expand(text: str) -> tuple[str, ...]:
    """Return the host names of a host list, in its order.

    Raises:
        InputError: brackets do not match, a range is not a range, or it names absurdly many hosts.
    """
    hosts: list[str] = []
    for part in _split(text, text):
        hosts.extend(_expand_one(part, text))
        if len(hosts) > MAX_HOSTS:
            raise _bad(text, f"it names more than {MAX_HOSTS} hosts")
    return tuple(hosts)


def _bad(text: str, why: str) -> InputError:
    return InputError(
        f"{text!r} is not a host list: {why}", where="host list", fix="write it as node[1-3,7],gpu[01-04]"
    )


def _split(text: str, whole: str) -> list[str]:
    """Split at commas outside brackets."""
    parts, start, depth = [], 0, 0
    for index, char in enumerate(text):
        if char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:index])
            start = index + 1
        if depth not in (0, 1):
            raise _bad(whole, "the brackets do not match")
    if depth:
        raise _bad(whole, "the brackets do not match")
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def _expand_one(part: str, whole: str) -> list[str]:
    """Expand every bracket of one item; the last bracket counts fastest."""
    head, bracket, rest = part.partition("[")
    if not bracket:
        return [head]
    inside, _, tail = rest.partition("]")
    tails = _expand_one(tail, whole)
    return [head + number + end for number in _numbers(inside, whole) for end in tails]


def _numbers(inside: str, whole: str) -> list[str]:
    found: list[str] = []
    for item in inside.split(","):
        first, dash, last = item.strip().partition("-")
        last = last if dash else first
        if not (first.isascii() and first.isdigit() and last.isascii() and last.isdigit()):
            raise _bad(whole, f"{item!r} is not a number or range")
        low, high = int(first), int(last)
        if low > high:
            raise _bad(whole, f"the range {item!r} runs backwards")
        if high - low >= MAX_HOSTS:
            raise _bad(whole, f"it names more than {MAX_HOSTS} hosts")
        found.extend(str(number).zfill(len(first)) for number in range(low, high + 1))
    return found
