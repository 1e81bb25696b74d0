"""Makes an input that breaks a promise smaller, as long as it breaks the same one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

_LIMIT_S = 10.0


def shrink(value: Any, still_fails: Callable[[Any], bool], *, limit_s: float = _LIMIT_S) -> Any:
    """Return a smaller input that fails alike, as far as one is found in time.

    Args:
        value: a Python literal that fails.
        still_fails: tells whether another one does.
        limit_s: how long to look [s].
    """
    until = time.monotonic() + limit_s
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for other in _smaller(value):
            if time.monotonic() > until:
                return value
            if still_fails(other):
                value, is_smaller = other, True
                break
    return value


def _smaller(value: Any) -> Iterator[Any]:
    """Yield inputs of the same type that are simpler, the simplest first."""
    if isinstance(value, str | bytes | list | tuple):
        yield from _shorter(value)
    if isinstance(value, list | tuple):
        for index, item in enumerate(value):
            for other in _smaller(item):
                yield type(value)((*value[:index], other, *value[index + 1 :]))
    elif isinstance(value, int) and not isinstance(value, bool) and value:
        yield from dict.fromkeys((0, value // 2))


def _shorter(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple):  # a record: all its parts are needed
        return
    size = len(value)
    while size:
        for start in range(0, len(value), size):
            yield value[:start] + value[start + size :]
        size //= 2
