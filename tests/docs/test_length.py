"""The documentation stays short: a reader finds the line, not only the page."""

from __future__ import annotations

from tests.docs.length import GENERATED, lengths, total
from tests.docs.pages import name_of

MOST = 76_000
"""Words of all pages that are written by hand; lower it when pages have become shorter, never raise it."""


def test_the_pages_have_no_more_words_than_agreed() -> None:
    """``python -m tests.docs.length`` prints them by page."""
    assert total() <= MOST


def test_pages_that_a_command_makes_are_pages() -> None:
    """So none is left out of the sum by a name that has changed."""
    assert set(map(name_of, GENERATED)) <= set(lengths())
