"""What is fuzzed: a strategy of inputs and a check of what comes of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from hypothesis import strategies as st


class WrongVerdictError(AssertionError):
    """The program has said something that is not so."""


class Target(NamedTuple):
    """Something that is given inputs until it breaks a promise.

    Attributes:
        name: what it is called on the command line.
        inputs: Python literals alone, so that an input can be printed, kept and read back.
        check: takes an input; every exception is a broken promise.
        slice: inputs between two looks at the clock.
    """

    name: str
    inputs: st.SearchStrategy[Any]
    check: Callable[[Any], None]
    slice: int = 300


@contextmanager
def allowed(*errors: type[BaseException]) -> Iterator[None]:
    """Let errors pass that are an answer to bad input."""
    try:
        yield
    except errors:
        pass


def expect(is_so: bool, words: str) -> None:  # noqa: FBT001 - as assert
    """Raise unless something is as it must be."""
    if not is_so:
        raise WrongVerdictError(words)
